"""One vocabulary for sources and targets, so that one table can serve both and the head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from recipes.data.text.sequences import Sequences
from recipes.data.text.tokenizers import Tokenizer
from zoo.registry import ConfigError

__all__ = ["PairVocabulary"]

FOLDERS = ("source", "target")


class PairVocabulary:
    """The source's tokenizer, and that of the target where it is another kind of text, whose ids come after it.

        0 .. special tokens, sentinels, source text .. | shift .. target text ..

    All special tokens are those of the source's tokenizer. The attributes that span corruption and denoising ask a
    tokenizer for (pad_id, mask_id, sentinel_ids, first, vocab_size, name) are those of the whole.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer | None = None) -> None:
        for role in ("pad", "eos"):
            if role not in source.special:
                raise ConfigError(f"needs '{role}' among its special tokens", "task.tokenizer.special")
        self.source = source
        self.target = source if target is None else target
        self.shift = 0 if target is None else source.vocab_size
        self.vocab_size = source.vocab_size + (0 if target is None else target.vocab_size)
        self.pad_id, self.eos_id = source.special.index("pad"), source.special.index("eos")
        self.start_id = self.pad_id if source.bos_id is None else source.bos_id
        """What a target starts with: bos, or pad as in T5."""
        self.mask_id, self.sentinel_ids, self.first = source.mask_id, source.sentinel_ids, source.first

    def sources(self, texts: Sequence[str]) -> Sequences:
        """Ids of sources. Raises ConfigError for a text that cannot be written."""
        return _sequences(self.source, texts)

    def targets(self, texts: Sequence[str]) -> Sequences:
        """Ids of targets, in the common vocabulary. Raises ConfigError for a text that cannot be written."""
        made = _sequences(self.target, texts)
        return Sequences(made.flat + np.int32(self.shift), made.offsets) if self.shift else made

    def text(self, ids: Iterable[int]) -> str:
        """The target text of ids up to the first eos; what is no target token is left out."""
        kept: list[int] = []
        for i in ids:
            if i == self.eos_id:
                break
            if i >= max(self.shift, self.first):
                kept.append(int(i) - self.shift)
        return self.target.decode(kept)

    def name(self, i: int) -> str:
        """What an id of either side is called."""
        return self.target.name(i - self.shift) if self.shift and i >= self.shift else self.source.name(i)

    def save(self, folder: Path) -> None:
        """Write the tokenizers into folders of their own."""
        self.source.save(folder / FOLDERS[0])
        if self.shift:
            self.target.save(folder / FOLDERS[1])

    @classmethod
    def load(cls, folder: Path) -> PairVocabulary:
        """What `save` wrote. Raises ConfigError."""
        target = folder / FOLDERS[1]
        return cls(Tokenizer.load(folder / FOLDERS[0]), Tokenizer.load(target) if target.is_dir() else None)


def _sequences(tokenizer: Tokenizer, texts: Sequence[str]) -> Sequences:
    try:
        return tokenizer.sequences(texts)
    except ValueError as error:
        raise ConfigError(str(error), "data") from None
