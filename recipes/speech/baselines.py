"""Simple methods for the same clips: the best constant answer, and equal pieces told by logistic regression."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from recipes.data.speech.examples import SpeechExamples
from recipes.speech.metrics import speech_errors

__all__ = ["constant_answer", "equal_pieces"]

MOST_WORDS = 50
"""Largest vocabulary that pieces are told apart in."""
FRAMES = 4
"""Frames that a piece is made to."""


def constant_answer(texts: Sequence[str], most: int = 30) -> str:
    """The answer with the fewest word errors over training texts: one of their commonest texts and words."""
    spoken = [text for text in texts if text]
    counted = (
        Counter(spoken).most_common(most),
        Counter(word for text in spoken for word in text.split()).most_common(most),
    )
    candidates = sorted({name for found in counted for name, _ in found})
    some = spoken[:500]
    return min(candidates, key=lambda answer: (speech_errors([answer] * len(some), some)["wer"], answer))


def equal_pieces(train: SpeechExamples, test: SpeechExamples, most: int = 800) -> list[str] | None:
    """Answers to test clips: the number of words by linear regression on the clip's length, the clip cut into as many
    equal pieces, and each piece's word by logistic regression on its log-mel frames. None for a large vocabulary.

    most: training clips that are used, the first ones with words.
    """
    from sklearn.linear_model import LinearRegression, LogisticRegression

    vocabulary = {word for text in train.clips.texts for word in text.split()}
    rows = train.clips.spoken[:most]
    if not 1 < len(vocabulary) <= MOST_WORDS:
        return None
    words = [train.clips.texts[row].split() for row in rows]
    count: Any = LinearRegression().fit(train.lengths[rows, :1], [len(told) for told in words])
    pieces = np.concatenate([_pieces(train, row, len(told)) for row, told in zip(rows, words, strict=True)])
    classifier: Any = LogisticRegression(max_iter=200, C=0.1).fit(pieces, [word for told in words for word in told])
    everything = list(range(len(test)))
    sizes = np.clip(count.predict(test.lengths[:, :1]).round(), 1, max(map(len, words))).astype(int)
    return [" ".join(classifier.predict(_pieces(test, row, size))) for row, size in zip(everything, sizes, strict=True)]


def _pieces(examples: SpeechExamples, row: int, count: int) -> NDArray[np.float32]:
    """(count, FRAMES * M) log-mel frames of the equal pieces of a clip."""
    x = examples.batch([row], None)["source"]  # (1, M, F)
    x = interpolate(x, size=count * FRAMES, mode="area")[0]  # (M, count * FRAMES)
    return x.T.reshape(count, -1).numpy()
