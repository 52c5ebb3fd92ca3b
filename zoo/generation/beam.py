"""Beam search: the best few rows of each prompt go on side by side (Sutskever et al. 2014, arXiv:1409.3215).

Each step ranks all continuations of a prompt's K running beams by their summed log-probabilities. Continuations that
end are answers if they are among the K best, and the K best answers are kept, scored

    sum of log-probabilities / n ** length_penalty        n new tokens, the end token included

The K best that do not end run on. `early_stopping` says when a prompt is done (GenerationConfig); at `max_new_tokens`
everything ends. Rules and scores are those of transformers; Wu et al. 2016 (arXiv:1609.08144, section 7) divide by
((5 + n) / 6) ** alpha instead. The repetition penalty acts on log-probabilities here, as it does there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.generation.config import GenerationConfig
from zoo.generation.decoder import Decoder
from zoo.generation.logits import Rule, penalised
from zoo.generation.prompts import Prompts
from zoo.generation.result import Generated
from zoo.generation.single import INTERVAL, check_finite, seen_tokens
from zoo.generation.stopping import REASONS, Stopping

__all__ = ["generate_beams"]


class Answers:
    """The K best finished rows of each of B prompts."""

    def __init__(self, batch: int, beams: int, limit: int, like: Tensor) -> None:
        self.beams = beams
        self.scores = like.new_full((batch, beams), -math.inf)
        self.tokens = torch.zeros(batch, beams, limit, dtype=torch.int64, device=like.device)
        self.log_probs = like.new_zeros(batch, beams, limit)
        self.lengths = torch.zeros(batch, beams, dtype=torch.int64, device=like.device)
        self.codes = torch.zeros_like(self.lengths)

    def add(self, scores: Tensor, tokens: Tensor, log_probs: Tensor, length: int, codes: Tensor) -> None:
        """Candidates (B, M) with their tokens and log-probabilities (B, M, limit); a score of -inf is none."""
        self.scores, best = torch.cat((self.scores, scores), dim=1).topk(self.beams, dim=1)  # (B, K)
        self.tokens = _take(torch.cat((self.tokens, tokens), dim=1), best)
        self.log_probs = _take(torch.cat((self.log_probs, log_probs), dim=1), best)
        fresh = torch.full_like(codes, length)
        self.lengths = torch.cat((self.lengths, fresh), dim=1).gather(1, best).where(self.scores > -math.inf, 0)
        self.codes = torch.cat((self.codes, codes), dim=1).gather(1, best)


def _take(rows: Tensor, index: Tensor) -> Tensor:
    """rows (B, M, L) at index (B, K) -> (B, K, L)."""
    return rows.gather(1, index[..., None].expand(-1, -1, rows.shape[-1]))


def generate_beams(
    decoder: Decoder,
    prompts: Prompts,
    config: GenerationConfig,
    *,
    vocab_size: int,
    history: Prompts | None = None,
    rule: Rule | None = None,
) -> Generated:
    """Beam search, see `zoo.generate`."""
    device, batch = prompts.ids.device, prompts.ids.shape[0]
    beams, limit, power = config.beams, config.max_new_tokens, config.length_penalty
    host = device.type == "cpu"
    logits = decoder.logits(prompts.ids, prompts.mask, config.prefill_chunk)  # (B, V)
    start = torch.arange(batch, device=device).repeat_interleave(beams)
    decoder.reorder(start)
    logits = logits.index_select(0, start)  # (B K, V)
    seen = None
    if config.repetition_penalty != 1.0:
        seen = seen_tokens(prompts, history, vocab_size).index_select(0, start)  # (B K, V)
    stopping = Stopping(config, device)
    candidates = min((1 + max(stopping.kinds, 1)) * beams, beams * vocab_size)
    base = torch.arange(batch, device=device)[:, None] * beams  # (B, 1)
    running = logits.new_full((batch, beams), -math.inf)
    running[:, 0] = 0.0  # all beams are the prompt: only the first counts
    tokens = torch.zeros(batch, beams, limit, dtype=torch.int64, device=device)
    log_probs = logits.new_zeros(batch, beams, limit)
    answers = Answers(batch, beams, limit, logits)
    open_rows = torch.ones(batch, 1, dtype=torch.bool, device=device)
    rank = torch.arange(candidates, device=device)
    for step in range(limit):
        length = step + 1
        each = logits.log_softmax(-1)  # (B K, V)
        if host:
            check_finite(each.amax(-1), step, logits)
        if seen is not None:
            each = penalised(each, seen, config.repetition_penalty)
        if rule is not None:
            each = rule(tokens[..., :step].flatten(0, 1), each)
        each = each.view(batch, beams, -1)
        sums, index = (running[..., None] + each).flatten(1).topk(candidates, dim=1)  # (B, M)
        beam, token = index // vocab_size, index % vocab_size
        rows = _take(tokens, beam)  # (B, M, limit)
        rows[..., step] = token
        parts = _take(log_probs, beam)
        parts[..., step] = each.flatten(1).gather(1, index)
        codes = stopping(rows[..., :length])  # (B, M)
        ends = codes > 0 if length < limit else torch.ones_like(codes, dtype=torch.bool)
        counted = ends & (rank < beams) & open_rows
        answers.add((sums / length**power).masked_fill(~counted, -math.inf), rows, parts, length, codes)
        if length == limit:
            break
        running, kept = sums.masked_fill(ends, -math.inf).topk(beams, dim=1)  # (B, K)
        tokens, log_probs, token = _take(rows, kept), _take(parts, kept), token.gather(1, kept)
        origin = (base + beam.gather(1, kept)).flatten()  # (B K,)
        worst = answers.scores[:, -1:]  # (B, 1), -inf until K have finished
        reach = limit if config.early_stopping == "exact" and power > 0 else length
        open_rows = open_rows & (running[:, :1] / reach**power > worst)
        if config.early_stopping == "first":
            open_rows = open_rows & (worst == -math.inf)
        if (host or length % INTERVAL == 0) and not bool(open_rows.any()):
            break
        if seen is not None:
            seen = seen.index_select(0, origin).scatter(1, token.view(-1, 1), True)
        decoder.reorder(origin)
        logits = decoder.logits(token.view(-1, 1))  # (B K, V)
    return _result(answers, prompts, config.num_sequences)


def _result(answers: Answers, prompts: Prompts, count: int) -> Generated:
    scores = answers.scores[:, :count].flatten()  # (N,)
    if bool(scores.isnan().any()):
        raise ValueError("the logits are not all numbers (NaN or inf); check the weights and the precision")
    lengths = answers.lengths[:, :count].flatten().tolist()
    new = [row[:n] for row, n in zip(answers.tokens[:, :count].flatten(0, 1), lengths, strict=True)]
    each = [row[:n] for row, n in zip(answers.log_probs[:, :count].flatten(0, 1), lengths, strict=True)]
    given = [row for row in prompts.rows() for _ in range(count)]
    whole = [torch.cat(pair) for pair in zip(given, new, strict=True)]
    return Generated(
        sequences=whole,
        new=new,
        log_probs=each,
        scores=scores,
        finished=tuple(REASONS[code] for code in answers.codes[:, :count].flatten().tolist()),
        pending=torch.stack([row[-1:] for row in whole]),
    )
