"""How far answers are from the right ones: error rates of symbols and words, and overlap of texts."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

__all__ = ["best_reference", "edit_distance", "symbol_errors", "text_overlap"]


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Fewest insertions, deletions and substitutions that make `b` of `a` (Levenshtein 1966)."""
    if a == b:
        return 0
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        corner, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (x != y))
    return row[-1]


def best_reference(answer: str, references: Sequence[str]) -> tuple[int, int]:
    """(edit distance, length) in symbols between spaces, of the reference with the smallest distance per symbol."""
    said = answer.split()
    found = [(edit_distance(said, reference.split()), len(reference.split())) for reference in references]
    return min(found, key=lambda pair: pair[0] / max(pair[1], 1))


def symbol_errors(answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """per: summed edit distance over summed length, each answer against its best reference; wer: share of answers that
    equal none of their references."""
    pairs = [best_reference(*pair) for pair in zip(answers, references, strict=True)]
    errors, length = (sum(values) for values in zip(*pairs, strict=True))
    return {"per": errors / max(length, 1), "wer": sum(distance > 0 for distance, _ in pairs) / len(pairs)}


def text_overlap(answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """exact_match (share of answers that equal a reference), bleu (Papineni et al. 2002, in words between spaces) and
    chrf (Popovic 2015), all from 0 to 1."""
    import_module("recipes.lightning_import")  # it imports torchmetrics without the many packages that it looks for
    from torchmetrics.functional.text import bleu_score, chrf_score

    exact = sum(answer in right for answer, right in zip(answers, references, strict=True)) / len(answers)
    listed = [list(right) for right in references]
    return {
        "exact_match": exact,
        "bleu": float(bleu_score(list(answers), listed)),
        "chrf": float(chrf_score(list(answers), listed)),  # type: ignore[arg-type]
    }
