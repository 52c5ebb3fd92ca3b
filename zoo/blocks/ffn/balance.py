"""Balance among experts: auxiliary losses, loads, and the bias that needs no loss. Padding never counts.

With n real tokens, k choices each, f_e the share of all choices that fell on expert e (hard counts, no gradient) and
P_e the mean of the scores (normalised over experts where they are sigmoids):

    balance    E sum_e f_e P_e                Fedus et al. 2021, arXiv:2101.03961, over the micro-batch
    sequence   the same over each row, and the mean of the rows   DeepSeek-AI 2024, arXiv:2412.19437
    z          mean (log sum_e exp(logit_e))^2   Zoph et al. 2022, arXiv:2202.08906

A uniform router gives 1 for the first two, whatever k is, so the loss is then the coefficient itself. (transformers
counts choices per token, which makes it k times the coefficient.) Layers are summed. Without a real token all are 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from zoo.blocks.auxiliary import Auxiliary
from zoo.blocks.ffn.router import Router, Routing

if TYPE_CHECKING:
    from zoo.blocks.ffn.moe import MoEConfig

__all__ = ["balance_loss", "expert_report", "loads", "sequence_balance_loss", "tell", "update_biases", "z_loss"]


def loads(experts: Tensor, count: int) -> Tensor:
    """Choices (B, T, k), `count` for nobody -> how often each expert was chosen in each row: (B, E) int64."""
    flat = experts.flatten(1)  # (B, T k)
    counts = torch.zeros(flat.shape[0], count + 1, dtype=torch.int64, device=flat.device)
    return counts.scatter_add_(1, flat, torch.ones_like(flat))[:, :-1]


def balance_loss(shares: Tensor, load: Tensor, real: Tensor | None = None) -> Tensor:
    """shares (B, T, E), which sum to 1 over E; load (B, E); real (B, T) bool -> scalar."""
    return sequence_balance_loss(*_one_row(shares, load, real))


def sequence_balance_loss(shares: Tensor, load: Tensor, real: Tensor | None = None) -> Tensor:
    """As `balance_loss`, for each row by itself; the mean over the rows that have a real token."""
    if real is not None:
        shares = shares.masked_fill(~real[..., None], 0.0)
    mass = shares.sum(1)  # (B, E)
    tokens = _count(real, shares)  # (B,)
    load = load.to(shares.dtype)
    f = load / load.sum(-1, keepdim=True).clamp(min=1)  # (B, E)
    each = shares.shape[-1] * (f * mass).sum(-1) / tokens.clamp(min=1)  # (B,)
    return each.sum() / (tokens > 0).sum().clamp(min=1)


def z_loss(logits: Tensor, real: Tensor | None = None) -> Tensor:
    """logits (B, T, E), real (B, T) bool -> scalar."""
    squares = logits.logsumexp(-1).square()  # (B, T)
    if real is not None:
        squares = squares.masked_fill(~real, 0.0)
    return squares.sum() / _count(real, logits).sum().clamp(min=1)


def _one_row(shares: Tensor, load: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The rows of a batch end to end."""
    return shares.flatten(0, 1)[None], load.sum(0, keepdim=True), None if real is None else real.reshape(1, -1)


def _count(real: Tensor | None, like: Tensor) -> Tensor:
    """(B,) real tokens of each row of (B, T, E)."""
    if real is None:
        return torch.full(like.shape[:1], like.shape[1], device=like.device)
    return real.sum(-1)


def tell(aux: Auxiliary, where: str, config: MoEConfig, routing: Routing, real: Tensor | None) -> None:
    """Put the losses that the config asks for, and the measures, into `aux`.

    Measures: load (E,), choices that fell on each expert, before any was dropped; dropped, choices that found their
    expert full; entropy, of the shares, in nats, summed over tokens; tokens.
    """
    logits, scores = routing.logits, routing.scores
    shares = scores if config.scores == "softmax" else scores / (scores.sum(-1, keepdim=True) + 1e-20)  # (B, T, E)
    if config.z_loss:
        aux.losses[where, "z_loss"] = config.z_loss * z_loss(logits, real)
    plain = shares.detach()
    entropy = -torch.special.xlogy(plain, plain).sum(-1)  # (B, T)
    aux.measures[where, "entropy"] = (entropy if real is None else entropy.masked_fill(~real, 0.0)).sum()
    aux.measures[where, "tokens"] = _count(real, logits).sum().to(logits.dtype)
    if routing.wanted is None or routing.served is None:  # experts that choose have equal loads
        return
    load = loads(routing.wanted, config.experts)  # (B, E)
    if config.balance:
        aux.losses[where, "balance_loss"] = config.balance * balance_loss(shares, load, real)
    if config.sequence_balance:
        aux.losses[where, "sequence_loss"] = config.sequence_balance * sequence_balance_loss(shares, load, real)
    aux.measures[where, "load"] = load.sum(0).to(logits.dtype)
    if config.capacity is not None:
        aux.measures[where, "dropped"] = (routing.wanted != routing.served).sum().to(logits.dtype)


def expert_report(measures: Mapping[tuple[str, str], Tensor]) -> dict[str, Tensor]:
    """Measures of one or more forward passes as scalars over all layers.

    router_entropy: mean over tokens and layers, in nats. load_violation: largest load over the mean load, less 1
    (MaxVio of arXiv:2408.15664), mean over layers. dead_experts: those without a token, all layers together.
    dropped_share: of all choices, where there is a capacity.
    """
    by_name: dict[str, list[Tensor]] = {}
    for (_, name), value in measures.items():
        by_name.setdefault(name, []).append(value)
    if "entropy" not in by_name:
        return {}
    each = torch.stack(by_name["entropy"]) / torch.stack(by_name["tokens"]).clamp(min=1)
    report = {"router_entropy": each.mean()}
    if "load" in by_name:
        means = [load.mean().clamp(min=1e-9) for load in by_name["load"]]
        worst = [
            load.max() / mean - (load.sum() > 0).to(load) for load, mean in zip(by_name["load"], means, strict=True)
        ]
        report["load_violation"] = torch.stack(worst).mean()
        report["dead_experts"] = torch.stack([(load == 0).sum() for load in by_name["load"]]).sum().to(each)
    if "dropped" in by_name:
        total = torch.stack([load.sum() for load in by_name["load"]]).sum().clamp(min=1)
        report["dropped_share"] = torch.stack(by_name["dropped"]).sum() / total
    return report


def update_biases(model: nn.Module, measures: Mapping[tuple[str, str], Tensor]) -> None:
    """Move the routers' biases (`bias_rate`) by the loads of an optimizer step: call it once after each step.

    A forward pass never moves them, so the micro-batches of a step and what checkpointing recomputes all choose by
    the same bias. With several ranks the measures are to be summed over them first, which keeps the copies equal.
    """
    for router in model.modules():
        if isinstance(router, Router) and (router.where, "load") in measures:
            router.move_bias(measures[router.where, "load"])
