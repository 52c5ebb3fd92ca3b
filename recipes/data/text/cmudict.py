"""`cmudict`: from letters to phonemes, the embedded default of the sequence-to-sequence models."""

from __future__ import annotations

import re

from recipes.data.text.corpora import Pair, PairData, PairDataConfig
from recipes.data.text.pronunciations import SOURCE, read_pronunciations, split_of
from zoo.registry import register

__all__ = ["Cmudict"]

STRESS = re.compile(r"\d")


@register("data", "cmudict")
class Cmudict(PairDataConfig):
    """117,467 words of the CMU Pronouncing Dictionary (licence like BSD-2, extra: g2p), letters to 39 phonemes.

    A pair is "hello" and "HH AH L OW", stress taken out. Words are split by their sha1 into 105,682 for training, 5,782
    for validation and 6,003 for test, a word's pronunciations all on one side. Training has one pair for every
    pronunciation; validation and test have one for every word, with all its pronunciations as references.
    """

    def load(self, seed: int = 0) -> PairData:
        words, content = read_pronunciations("cmudict")
        splits: dict[str, list[Pair]] = {"train": [], "val": [], "test": []}
        for word, said in words.items():
            split = split_of(word)
            plain = tuple(dict.fromkeys(STRESS.sub("", phonemes) for phonemes in said))
            targets = plain if split == "train" else plain[:1]
            splits[split] += [Pair(word, target, plain) for target in targets]
        train, val, test = (tuple(splits[split]) for split in ("train", "val", "test"))
        return PairData(train, val, test, SOURCE, content)
