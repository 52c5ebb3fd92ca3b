"""Routers: which experts work on which tokens, and with what weights.

    scores s = softmax(W x) or sigmoid(W x)   (E,) per token, fp32 under any autocast

    tokens choose (Shazeer et al. 2017, arXiv:1701.06538): each token its k best experts, by s + b where a bias
        balances the loads (Wang et al. 2024, arXiv:2408.15664); the weights are s, renormalised to sum to 1 or not.
        With groups, only the experts of the best groups stand to choose, a group's worth being the sum of its two
        best (DeepSeek-AI 2024, arXiv:2412.19437).
    experts choose (Zhou et al. 2022, arXiv:2202.09368): each expert the k T / E tokens of the row that score best
        for it, so all experts have equal loads, and a token has none or many.

Renormalised, the weight of a single chosen expert is 1 whatever the router says, and no gradient of the task reaches
it: at k = 1 the weight is the score itself (Fedus et al. 2021, arXiv:2101.03961).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.blocks.api import Slot
from zoo.ops.experts import Pairs, sort_pairs, take_weights
from zoo.ops.precision import full_precision

if TYPE_CHECKING:
    from zoo.blocks.ffn.moe import MoEConfig

__all__ = ["ExpertChoice", "Router", "Routing", "TokenChoice", "best_groups", "capacity_drop", "row_capacity"]


class Routing(NamedTuple):
    """What a router decided for x (B, T, D)."""

    logits: Tensor
    """(B, T, E)."""
    scores: Tensor
    """(B, T, E)."""
    pairs: Pairs
    weights: Tensor
    """(M, 1), one for each pair."""
    wanted: Tensor | None = None
    """(B, T, k) int64, the experts that the tokens chose, before any was too full; E on padding."""
    served: Tensor | None = None
    """(B, T, k) int64, the same with E where the expert was too full."""


class Router(nn.Module):
    """Logits of the experts. Weights stay in fp32 when the model is cast to half precision."""

    bias: Tensor | None

    def __init__(self, config: MoEConfig, slot: Slot) -> None:
        super().__init__()
        self.config, self.where = config, slot.where
        self._std = slot.std(slot.dim)
        self.weight = nn.Parameter(torch.empty(config.experts, slot.dim))
        self.register_buffer("bias", torch.zeros(config.experts) if config.bias_rate else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.weight, std=self._std, a=-2 * self._std, b=2 * self._std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        def wide(value: Tensor) -> Tensor:
            made = fn(value)
            if made.dtype not in (torch.float16, torch.bfloat16):
                return made
            return value.to(made.device, torch.promote_types(value.dtype, torch.float32))

        return super()._apply(wide, recurse)

    def logits(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, E) in fp32 or better."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        with full_precision(x):
            return F.linear(x.to(dtype), self.weight.to(dtype))

    def scores(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1) if self.config.scores == "softmax" else logits.sigmoid()

    def forward(self, x: Tensor, real: Tensor | None) -> Routing:
        """x (B, T, D); real (B, T) bool, the tokens that are served, or None for all."""
        raise NotImplementedError

    @torch.no_grad()
    def move_bias(self, load: Tensor) -> None:
        """One step of the bias, up for experts below the mean load (E,) and down for those above it."""
        if self.bias is not None:
            load = load.to(self.bias)
            self.bias.add_((load.mean() - load).sign(), alpha=self.config.bias_rate)


class TokenChoice(Router):
    """Each token chooses its experts."""

    def forward(self, x: Tensor, real: Tensor | None) -> Routing:
        config = self.config
        logits, scores, wanted, weights = self.choose(x)
        if real is not None:
            wanted = wanted.masked_fill(~real[..., None], config.experts)
        factor = config.capacity if self.training else config.eval_capacity
        served = wanted
        if factor is not None:
            limit = row_capacity(real, x.shape[-2], factor * config.top_k / config.experts)
            served = capacity_drop(wanted, limit, config.experts)
        pairs = sort_pairs(served.flatten(0, 1), config.experts)
        return Routing(logits, scores, pairs, take_weights(weights.flatten(0, 1), pairs), wanted, served)

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x (..., D) -> logits and scores (..., E), the chosen experts and their weights (..., k)."""
        logits = self.logits(x)  # (..., E)
        scores = self.scores(logits)  # (..., E)
        wanted = self._best(scores.detach())  # (..., k)
        weights = scores.gather(-1, wanted)  # (..., k)
        if self.config.renormalises:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)  # sigmoids may all be 0
        if self.config.scale != 1.0:
            weights = weights * self.config.scale
        return logits, scores, wanted, weights

    def _best(self, scores: Tensor) -> Tensor:
        """Scores (..., E) -> the best experts (..., k), the best one first."""
        worth = scores if self.bias is None else scores + self.bias
        if self.config.groups > 1:
            allowed = best_groups(worth, self.config.groups, self.config.top_groups)  # (..., E)
            worth = worth.masked_fill(~allowed, -torch.inf)
        return worth.topk(self.config.top_k, dim=-1).indices


class ExpertChoice(Router):
    """Each expert chooses its tokens, in each row by itself."""

    def forward(self, x: Tensor, real: Tensor | None) -> Routing:
        config, (batch, length, _) = self.config, x.shape
        logits = self.logits(x)  # (B, T, E)
        scores = self.scores(logits)  # (B, T, E)
        share = config.top_k / config.experts
        worth = scores if real is None else scores.masked_fill(~real[..., None], -torch.inf)
        most = int(row_capacity(None, length, share))  # C
        found = worth.mT.topk(most, dim=-1)  # (B, E, C)
        rows = torch.arange(batch, device=x.device)[:, None, None]
        weights = found.values
        if real is not None:  # a padded row's experts take as many as they would take without the padding
            over = torch.arange(most, device=x.device) >= row_capacity(real, length, share)  # (B, C)
            weights = weights.masked_fill(over[:, None], 0.0)
        token = (found.indices + rows * length).transpose(0, 1).flatten()  # (E B C,)
        ends = torch.arange(1, config.experts + 1, device=x.device, dtype=torch.int32) * (batch * most)
        weights = weights.transpose(0, 1).reshape(-1, 1) * config.scale  # (E B C, 1)
        return Routing(logits, scores, Pairs(token, None, ends), weights)


def best_groups(worth: Tensor, groups: int, kept: int) -> Tensor:
    """(..., E) -> bool (..., E), True for the experts of the `kept` groups whose two best experts are worth most."""
    grouped = worth.unflatten(-1, (groups, -1))  # (..., groups, E / groups)
    best = grouped.topk(2, dim=-1).values.sum(-1).topk(kept, dim=-1).indices  # (..., kept)
    allowed = torch.zeros((*worth.shape[:-1], groups), dtype=torch.bool, device=worth.device)
    return allowed.scatter(-1, best, True)[..., None].expand_as(grouped).flatten(-2)


def row_capacity(real: Tensor | None, length: int, share: float) -> Tensor | int:
    """The pairs that one expert takes of a row: `share` of its real tokens, rounded up; (B, 1) with a mask."""
    if real is None:
        return math.ceil(length * share - 1e-9)  # 1.1 * 10 is 11, not 12
    return (real.sum(-1, keepdim=True, dtype=torch.float64) * share - 1e-9).ceil().long()


def capacity_drop(wanted: Tensor, limit: Tensor | int, experts: int) -> Tensor:
    """Choices (B, T, k), E for nobody -> the same with E wherever an expert has had `limit` pairs of the row.

    limit: one number, or (B, 1).

    First come, first served: earlier tokens go before later ones, and of one token the better choice goes first. So
    no later token decides over an earlier one, which is what a causal slot needs. (Lepikhin et al. 2020,
    arXiv:2006.16668, serve all first choices of the row before any second one.)
    """
    flat = wanted.flatten(1)  # (B, T k)
    asked = F.one_hot(flat, experts + 1).cumsum(1)  # (B, T k, E + 1)
    number = asked.gather(-1, flat[..., None]).squeeze(-1)  # (B, T k), 1 for the first
    return torch.where(number <= limit, flat, experts).view_as(wanted)
