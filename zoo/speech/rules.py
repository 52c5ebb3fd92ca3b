"""Which tokens a speech model may write next: suppressed ones, and the order of timestamps.

Radford et al. 2022, arXiv:2212.04356, section 4.5; openai/whisper decoding.py.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.speech.conventions import SpeechConventions

__all__ = ["SpeechRule", "naive_timestamps"]


class SpeechRule:
    """A rule for `zoo.generate`: new tokens (N, n) and logits (N, V) -> logits (N, V), -inf for what may not come."""

    def __init__(
        self, speech: SpeechConventions, vocab_size: int, device: torch.device, timestamps: bool = False
    ) -> None:
        if timestamps and speech.no_timestamps_id is None:
            raise ValueError("timestamps need a model that has them; leave timestamps off")
        self.speech, self.timestamps = speech, timestamps
        always = {i for i in speech.suppress if 0 <= i < vocab_size}
        first = always | {i for i in speech.begin_suppress if 0 <= i < vocab_size}
        self.always, self.first = (
            torch.tensor(sorted(ids), dtype=torch.int64, device=device) for ids in (always, first)
        )

    def __call__(self, new: Tensor, logits: Tensor) -> Tensor:
        ids = self.always if new.shape[1] else self.first
        logits = logits.index_fill(1, ids, -math.inf) if len(ids) else logits  # (N, V)
        return self._ordered(new, logits) if self.timestamps else logits

    def _ordered(self, new: Tensor, logits: Tensor) -> Tensor:
        """Timestamps stand at both ends of each segment, never go back, and come where they are likelier than text."""
        speech, n = self.speech, new.shape[1]
        assert speech.no_timestamps_id is not None
        begin = speech.no_timestamps_id + 1
        ids = torch.arange(logits.shape[1], device=logits.device)
        stamps = ids >= begin  # (V,)
        wrong = (ids == speech.no_timestamps_id).expand(logits.shape)  # (N, V)
        if n == 0:
            wrong = wrong | ~stamps
            if speech.max_initial_timestamp is not None:
                wrong = wrong | (ids > begin + speech.max_initial_timestamp)
        else:
            last = new[:, -1:] >= begin  # (N, 1)
            before = new[:, -2:-1] >= begin if n > 1 else torch.ones_like(last)
            latest = torch.where(new >= begin, new, begin - 1).amax(1, keepdim=True)  # (N, 1)
            wrong = wrong | (last & before & stamps)  # a pair is whole: text follows
            wrong = wrong | (last & ~before & (ids < speech.end_id))  # a segment has ended: another begins, or the end
            wrong = wrong | (stamps & (ids < torch.where(last & ~before, latest, latest + 1)))
        logits = logits.masked_fill(wrong, -math.inf)
        chances = logits.float().log_softmax(-1)  # (N, V)
        likelier = chances[:, begin:].logsumexp(-1) > chances[:, :begin].amax(-1)  # (N,)
        return logits.masked_fill(likelier[:, None] & ~stamps, -math.inf)


def naive_timestamps(speech: SpeechConventions, new: list[int], logits: Tensor) -> Tensor:
    """`SpeechRule._ordered` of one row (V,), rule by rule."""
    assert speech.no_timestamps_id is not None
    begin, logits = speech.no_timestamps_id + 1, logits.clone()
    logits[speech.no_timestamps_id] = -math.inf
    if not new:
        logits[:begin] = -math.inf
        if speech.max_initial_timestamp is not None:
            logits[begin + speech.max_initial_timestamp + 1 :] = -math.inf
    else:
        last, before = new[-1] >= begin, len(new) < 2 or new[-2] >= begin
        if last and before:
            logits[begin:] = -math.inf
        elif last:
            logits[: speech.end_id] = -math.inf
        given = [token for token in new if token >= begin]
        if given:
            logits[begin : max(given) if last and not before else max(given) + 1] = -math.inf
    chances = logits.log_softmax(-1)
    if chances[begin:].logsumexp(-1) > chances[:begin].max():
        logits[:begin] = -math.inf
    return logits
