"""gpt: predict the next token of a text.   python -m zoo.run recipe=gpt

The tokenizer is trained on the training split. Documents lie end to end in rows of `task.context` tokens; with
`task.isolate=true` none sees another. Figures: bits per character on val and test (test/bits_per_character), in all
and by the token's place in the window, which tokenizers do not change; beside character n-grams with Witten-Bell
smoothing and general compressors on the same text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from recipes.data.text.corpora import TextData
from recipes.data.text.packing import PackedExamples, WindowExamples
from recipes.data.text.tokenizer_kinds import Bpe
from recipes.data.text.tokenizers import Tokenizer, TokenizerConfig
from recipes.language.scoring import Score, score
from recipes.recipe import Batch, Metrics, Recipe, TaskConfig, fed
from zoo.blocks.api import Context, ModelConfig
from zoo.files import write_text
from zoo.registry import ConfigError, decode, describe, part

__all__ = ["GptTask", "LanguageData"]

Count = Annotated[int, Field(ge=1)]


class GptTask(TaskConfig):
    """Keys of `task`."""

    batch_size: Count = 16
    """Rows a step."""
    eval_batch_size: Count = 32
    context: Count = 128
    """Tokens that the model sees at once."""
    stride: Count | None = None
    """New tokens in each evaluation window, the rest being context; null: half of the context."""
    isolate: bool = False
    """Packed documents never see each other."""
    tokenizer: Annotated[TokenizerConfig, part("tokenizer")] = Bpe(vocab_size=1024, special=("bos", "eos"))
    ngrams: Annotated[int, Field(ge=0, le=9)] = 6
    """Highest order of the character n-grams that the result stands beside; 0 for none."""
    samples: Annotated[int, Field(ge=0)] = 3
    """Texts that the finished model writes to figures/samples.txt."""
    sample_tokens: Count = 160


@dataclass(frozen=True)
class LanguageData:
    """A corpus as rows of ids, and the texts themselves."""

    corpus: TextData
    tokenizer: Tokenizer
    train: PackedExamples
    val: WindowExamples
    test: WindowExamples
    places: dict[str, WindowExamples]
    """val and test in windows side by side, in which every place of the window is scored."""

    @cached_property
    def characters(self) -> Tensor:
        """(V,) characters of each token, 0 for special ones."""
        return torch.tensor(self.tokenizer.characters_of(range(self.tokenizer.vocab_size)))


class Gpt(Recipe):
    task_type = GptTask
    headline = ("test/bits_per_character", "test/loss")
    task: GptTask
    _bits: list[float] | None = None
    _scored: tuple[int, Score] | None = None

    def load(self) -> LanguageData:
        corpus = self.data_config.load(self.settings.get("seed") or 0)
        if not isinstance(corpus, TextData):
            name = self.data_config.registered_name
            raise ConfigError(f"'{name}' is no text to be gone on with; choices: kjv, stdlib_code, hub_text", "data")
        checkpoint = self.settings.get("checkpoint")  # another text is read with the tokenizer of the model
        trained = Tokenizer.load(Path(checkpoint) / "model") if checkpoint else self.task.tokenizer.train(corpus.train)
        return self.packed(corpus, trained)

    def packed(self, corpus: TextData, tokenizer: Tokenizer) -> LanguageData:
        """The corpus in rows of ids."""
        context, stride = self.task.context, self.task.stride or max(1, self.task.context // 2)
        if stride > context:
            raise ConfigError(f"should be at most task.context {context}, got {stride}", "task.stride")
        train, val, test = (tokenizer.sequences(getattr(corpus, split)) for split in ("train", "val", "test"))
        frame: dict[str, Any] = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id}
        held = {"val": val, "test": test}
        return LanguageData(
            corpus,
            tokenizer,
            PackedExamples(train, context, isolate=self.task.isolate, shift=True, **frame),
            **{name: WindowExamples(ids, context, context=context - stride, **frame) for name, ids in held.items()},
            places={name: WindowExamples(ids, context, **frame) for name, ids in held.items()},
        )

    def model_config(self, data: LanguageData) -> ModelConfig:
        value = self.settings.get("model") or "gpt"
        value = dict[str, Any]({"family": value} if isinstance(value, str) else value)
        value.setdefault("family", "gpt")
        made = describe("model", value["family"]).make
        fields = (made if isinstance(made, type) else type(made())).model_fields
        if "vocab_size" not in fields or "source_vocab_size" in fields:
            raise ConfigError(f"'{value['family']}' does not go on with a text; choose gpt or a preset of it", "model")
        size = data.tokenizer.vocab_size
        if value.get("vocab_size") is None:
            value["vocab_size"] = size
        if value.get("max_len") is None:
            value["max_len"] = max(self.task.context, self.task.sample_tokens + 32)
        config: Any = decode("model", value, "model")
        if config.vocab_size < size:
            raise ConfigError(f"should be the {size} tokens of the tokenizer or more", "model.vocab_size")
        if config.max_len < self.task.context:
            raise ConfigError(f"should be task.context {self.task.context} or more", "model.max_len")
        return config

    def example_inputs(self, data: LanguageData) -> tuple[Any, ...]:
        return (torch.zeros(1, self.task.context, dtype=torch.long),)

    @property
    def example_tokens(self) -> int:
        return self.task.context

    def tokens(self, batch: Batch) -> int:
        return batch["ids"].numel()

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        documents, real = batch.get("documents"), batch.get("token_mask")
        # padding ends the last row, where no real token sees it: it is masked for what counts tokens only
        context = Context(
            documents=None if documents is None else fed(model, documents),
            counted=None if real is None else fed(model, real),
        )
        x = model.features(fed(model, batch["ids"]), context)  # (B, T, D)
        return model.head.loss(x, fed(model, batch["labels"])), {}

    def evaluate(self, model: nn.Module, data: LanguageData, split: str) -> Metrics:
        found = score(model, self.eval_batches(getattr(data, split)), data.characters)
        metrics = {f"{split}/bits_per_character": found.bits_per_character, f"{split}/loss": found.loss}
        if split == "test":
            places = self._side_by_side(model, data).by_place()
            metrics |= {f"{split}/bits_per_character@{place}": value for place, value in places.items()}
        return metrics

    def _side_by_side(self, model: nn.Module, data: LanguageData) -> Score:
        """The test windows side by side, scored once a model for table and picture."""
        if self._scored is None or self._scored[0] != id(model):
            self._scored = id(model), score(model, self.eval_batches(data.places["test"]), data.characters)
        return self._scored[1]

    def baselines(self, data: LanguageData) -> dict[str, Metrics]:
        from recipes.language.compressors import compressor_bits

        named = {f"{order}-gram of characters": bits for order, bits in enumerate(self._ngrams(data), 1)}
        named |= compressor_bits(data.corpus.train, data.corpus.test)
        return {name: {"test/bits_per_character": value} for name, value in named.items()}

    def _ngrams(self, data: LanguageData) -> list[float]:
        """Bits per character of the orders 1, 2 ...; counted once for table and picture."""
        from recipes.language.ngrams import ngram_bits

        if self._bits is None:
            corpus, orders = data.corpus, self.task.ngrams
            self._bits = ngram_bits(corpus.train, corpus.test, orders) if orders else []
        return self._bits

    def figures(self, model: nn.Module, data: LanguageData, folder: Path) -> list[Path]:
        from recipes.figures import learning_curves
        from recipes.language.figures import loss_by_place

        named = {f"{order}-gram": value for order, value in enumerate(self._ngrams(data), 1) if order > 2}
        drawn = [
            learning_curves(folder.parent / "metrics.csv", folder / "learning_curves.png"),
            loss_by_place(self._side_by_side(model, data), named, folder / "loss_by_place.png"),
            self._samples(model, data, folder / "samples.txt"),
        ]
        return [path for path in drawn if path is not None]

    def _samples(self, model: nn.Module, data: LanguageData, path: Path) -> Path | None:
        from recipes.language.answer import continuation

        if not self.task.samples:
            return None
        starts = [text[:40] for text in data.corpus.test[: self.task.samples]]
        told = [
            f"{start}|{continuation(model, data.tokenizer, start, max_new_tokens=self.task.sample_tokens, **DRAW)}"
            for start in starts
        ]
        write_text(path, "\n\n".join(told) + "\n")
        return path

    def export(self, model: nn.Module, data: LanguageData, folder: Path) -> None:
        from zoo.library import save_pretrained

        save_pretrained(model, folder)
        data.tokenizer.save(folder)

    def load_exported(self, folder: Path) -> nn.Module:
        from zoo.library import load_pretrained

        return load_pretrained(folder)

    def check_fits(self, model: nn.Module, data: LanguageData) -> None:
        size = getattr(getattr(model, "config", None), "vocab_size", data.tokenizer.vocab_size)
        if size < data.tokenizer.vocab_size:
            raise ConfigError(f"the model has {size} tokens, the tokenizer {data.tokenizer.vocab_size}", "data")

    @classmethod
    def predict(cls, run: Path, argv: Sequence[str]) -> int:
        from recipes.language.answer import answer
        from zoo.library import load_pretrained

        return answer(load_pretrained(run / "model"), Tokenizer.load(run / "model"), argv)


DRAW: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "seed": 0}
"""How samples.txt is drawn."""

RECIPE = Gpt
