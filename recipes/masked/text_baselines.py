"""Simple classifiers of labelled texts: the most frequent class, and tf-idf with logistic regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recipes.data.text.corpora import Labelled
from recipes.masked.corpus import split_texts
from recipes.masked.downstream import C_GRID

__all__ = ["majority_accuracy", "tfidf_accuracy"]


def majority_accuracy(train: Sequence[Labelled], test: Sequence[Labelled]) -> float:
    """Accuracy of the most frequent class of the training labels (the smaller number of two equal ones)."""
    labels = split_texts(train)[1]
    most = max(sorted(set(labels)), key=labels.count)
    return sum(label == most for _, label in test) / max(len(test), 1)


def tfidf_accuracy(
    train: Sequence[Labelled], val: Sequence[Labelled], test: Sequence[Labelled], *, letters: bool
) -> float:
    """Accuracy on test of logistic regression on tf-idf features: n-grams of 1 to 4 letters, with marks at the ends of
    words, or of 1 to 2 words. The penalty is the best one on val."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    options: dict[str, Any] = {"analyzer": "char_wb", "ngram_range": (1, 4)}
    if not letters:
        options = {"token_pattern": r"\w+|[^\w\s]", "ngram_range": (1, 2)}
    (texts, labels), (val_texts, val_labels), (test_texts, test_labels) = map(split_texts, (train, val, test))
    if len(set(labels)) < 2:
        return majority_accuracy(train, test)
    vectors = TfidfVectorizer(sublinear_tf=True, **options)
    known, held, asked = vectors.fit_transform(texts), vectors.transform(val_texts), vectors.transform(test_texts)
    best = (-1.0, 0.0)
    for penalty in C_GRID:
        model = LogisticRegression(C=penalty, max_iter=1000).fit(known, labels)
        best = max(best, (model.score(held, val_labels), model.score(asked, test_labels)), key=lambda pair: pair[0])
    return float(best[1])
