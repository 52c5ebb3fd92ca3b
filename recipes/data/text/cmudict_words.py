"""`cmudict_words`: dictionary words to learn letters from, and their syllable counts to be told."""

from __future__ import annotations

from pydantic import Field

from recipes.data.keys import seed_of
from recipes.data.text.corpora import Labelled, LabelledText, LabelledTextConfig
from recipes.data.text.pronunciations import SOURCE, read_pronunciations, split_of
from zoo.registry import register

__all__ = ["CmudictWords"]

CLASSES = ("1", "2", "3", "4", "5+")


@register("data", "cmudict_words")
class CmudictWords(LabelledTextConfig):
    """Words of 3 to 14 letters of the CMU Pronouncing Dictionary (extra: g2p), each with its number of syllables.

    The split is that of `cmudict`: 104,946 words for training, 5,752 for validation, 5,952 for test. The syllables of a
    word are the vowels (phonemes with a stress digit) of its first pronunciation: 1, 2, 3, 4, or 5 and more; four words
    that have none are left out.
    labels: labelled words for training downstream, the same whatever the run's seed; None: all. validation and test
    words are all labelled.
    """

    labels: int | None = Field(default=300, ge=1)

    def load(self, seed: int = 0) -> LabelledText:
        words, content = read_pronunciations("cmudict_words")
        splits: dict[str, list[Labelled]] = {"train": [], "val": [], "test": []}
        for word, said in words.items():
            syllables = sum(phoneme[-1].isdigit() for phoneme in said[0].split())
            if 3 <= len(word) <= 14 and syllables:
                splits[split_of(word)].append((word, min(syllables, len(CLASSES)) - 1))
        train, val, test = (tuple(splits[split]) for split in ("train", "val", "test"))
        plain_train, plain_val, plain_test = (tuple(word for word, _ in part) for part in (train, val, test))
        # The words of the smallest hashes: a larger number of labels adds words to those of a smaller one.
        chosen = sorted(train, key=lambda row: seed_of("labelled", row[0]))[: self.labels]
        return LabelledText(plain_train, plain_val, plain_test, tuple(chosen), val, test, CLASSES, SOURCE, content)
