"""How far written words are from the spoken ones, by jiwer.

wer: word insertions, deletions and substitutions over the words spoken; cer: likewise in characters; ser: share of
clips with any error. Clips without speech have no rate: `invented` is the mean number of words written for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from zoo.registry import ConfigError

__all__ = ["by_speaker", "speech_errors"]


def speech_errors(written: Sequence[str], spoken: Sequence[str]) -> dict[str, float]:
    """The figures there are. Raises ConfigError where jiwer is missing."""
    try:
        import jiwer
    except ImportError:
        raise ConfigError("error rates need jiwer; pip install 'architecture-zoo[speech]'") from None
    pairs = [(right, answer) for answer, right in zip(written, spoken, strict=True) if right]
    silent = [len(answer.split()) for answer, right in zip(written, spoken, strict=True) if not right]
    found: dict[str, float] = {}
    if pairs:
        rights, answers = (list(side) for side in zip(*pairs, strict=True))
        found["wer"] = float(jiwer.wer(rights, answers))
        found["cer"] = float(jiwer.cer(rights, answers))
        found["ser"] = sum(right.split() != answer.split() for right, answer in pairs) / len(pairs)
    if silent:
        found["invented"] = sum(silent) / len(silent)
    return found


def by_speaker(written: Sequence[str], spoken: Sequence[str], speakers: Sequence[str]) -> dict[str, float]:
    """Word error rate of each speaker with words, the worst first."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for answer, right, speaker in zip(written, spoken, speakers, strict=True):
        if right:
            rows.setdefault(speaker, []).append((answer, right))
    found = {speaker: speech_errors(*zip(*pairs, strict=True))["wer"] for speaker, pairs in rows.items()}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
