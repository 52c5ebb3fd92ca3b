"""One token a row and step: the likeliest one, or a drawn one."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from zoo.generation.config import GenerationConfig
from zoo.generation.decoder import Decoder
from zoo.generation.logits import Rule, draw, processed
from zoo.generation.prompts import Prompts
from zoo.generation.result import Generated
from zoo.generation.stopping import REASONS, Stopping

__all__ = ["check_finite", "generate_single", "seen_tokens"]

INTERVAL = 8
"""Steps between two questions to a device whether all rows have ended; the CPU is asked at every step."""


def seen_tokens(prompts: Prompts, history: Prompts | None, vocab_size: int) -> Tensor:
    """(B, V) bool: which tokens each row holds."""
    count = torch.zeros(prompts.ids.shape[0], vocab_size, dtype=torch.long, device=prompts.ids.device)
    for rows in (prompts, history):
        if rows is not None:
            count.scatter_add_(1, rows.ids, torch.ones_like(rows.ids) if rows.mask is None else rows.mask.long())
    return count > 0


def check_finite(chosen: Tensor, step: int, logits: Tensor | None = None) -> None:
    """Raises ValueError unless the log-probabilities (N,) of the tokens just chosen are numbers.

    They are not where the row's logits hold NaN or inf, or are all -inf. One number is asked of the device.
    """
    if math.isfinite(float(chosen.sum())):
        return
    row = int((~chosen.isfinite()).nonzero()[0, 0])
    what = "not all numbers (NaN or inf)"
    if logits is not None and bool((logits[row] == -math.inf).all()):
        what = "all -inf: no token is possible"
    raise ValueError(f"the logits of row {row} are {what}, at new token {step}; check the weights and the precision")


def generate_single(
    decoder: Decoder,
    prompts: Prompts,
    config: GenerationConfig,
    *,
    vocab_size: int,
    generator: torch.Generator | None = None,
    history: Prompts | None = None,
    stream: Callable[[Tensor], object] | None = None,
    rule: Rule | None = None,
) -> Generated:
    """Greedy search or sampling, see `zoo.generate`."""
    ids, device = prompts.ids, prompts.ids.device
    count, limit = config.num_sequences, config.max_new_tokens
    logits = decoder.logits(ids, prompts.mask, config.prefill_chunk)  # (B, V)
    seen = seen_tokens(prompts, history, vocab_size) if config.repetition_penalty != 1.0 else None
    if count > 1:
        rows = torch.arange(ids.shape[0], device=device).repeat_interleave(count)
        decoder.reorder(rows)
        logits = logits.index_select(0, rows)  # (N, V)
        seen = None if seen is None else seen.index_select(0, rows)
    n = logits.shape[0]
    tokens = torch.zeros(n, limit, dtype=torch.int64, device=device)
    log_probs = torch.zeros(n, limit, dtype=logits.dtype, device=device)
    reasons = torch.zeros(n, dtype=torch.int64, device=device)
    lengths = torch.full((n,), limit, dtype=torch.int64, device=device)
    stopping = Stopping(config, device)
    host = device.type == "cpu"
    plain = not config.samples and seen is None
    made = 0
    for step in range(limit):
        choice = logits if rule is None else rule(tokens[:, :step], logits)  # (N, V)
        choice = choice if plain else processed(choice, config, seen)
        token = draw(choice, generator) if config.samples else choice.argmax(-1)  # (N,)
        chosen = logits.log_softmax(-1).gather(1, token[:, None])  # (N, 1)
        if host:
            check_finite(chosen[:, 0], step, logits)
        tokens[:, step], log_probs[:, step] = token, chosen[:, 0]
        made = step + 1
        if stream is not None:
            stream(token.masked_fill(reasons > 0, -1))
        if stopping.kinds:
            going = reasons == 0
            code = stopping(tokens[:, :made])
            ended = going & (code > 0)
            reasons = torch.where(ended, code, reasons)
            lengths.masked_fill_(ended, made)
            if (host or made % INTERVAL == 0) and bool((reasons > 0).all()):
                break
        if made == limit:
            break
        if seen is not None:
            seen.scatter_(1, token[:, None], True)
        mask = None
        if config.keep_state and stopping.kinds:  # a row that has ended must leave its state as it is
            going = (reasons == 0)[:, None]  # (N, 1)
            mask = None if host and bool(going.all()) else going
        logits = decoder.logits(token[:, None], mask)  # (N, V)
    if not host and not bool(log_probs[:, :made].isfinite().all()):
        wrong = int((~log_probs[:, :made].isfinite()).any(0).nonzero()[0, 0])
        check_finite(log_probs[:, wrong], wrong)
    ends = lengths.clamp(max=made).tolist()
    new = [row[:end] for row, end in zip(tokens, ends, strict=True)]
    each = [row[:end] for row, end in zip(log_probs, ends, strict=True)]
    given = [row for row in prompts.rows() for _ in range(count)]
    whole = [torch.cat(pair) for pair in zip(given, new, strict=True)]
    return Generated(
        sequences=whole,
        new=new,
        log_probs=each,
        scores=torch.stack([row.sum() for row in each]),
        finished=tuple(REASONS[code] for code in reasons.tolist()),
        pending=torch.stack([row[-1:] for row in whole]),
        state=decoder.state if config.keep_state else None,
    )
