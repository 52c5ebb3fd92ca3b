"""Mixture of experts: a router sends each token through a few of many feed-forwards.

Shazeer et al. 2017, arXiv:1701.06538; one expert a token: Fedus et al. 2021, arXiv:2101.03961 (Switch); many small
experts and shared ones: Dai et al. 2024, arXiv:2401.06066 (DeepSeekMoE).

    y = sum over the chosen experts e of  w_e f_e(x)   [+ shared(x)]          weigh: output
    y = sum over the chosen experts e of  f_e(w_e x)   [+ shared(x)]          weigh: input (Llama 4)

    router x -> pairs (token, expert) sorted by expert -> f_e on each group -> sum over each token's pairs

The operator is zoo/ops/experts.py; router.py says who works on what, balance.py what keeps the loads even.
    Mixtral      experts 8, top_k 2                     Switch   top_k 1, expert mlp, capacity 1.25
    DeepSeek-V3  experts 256, top_k 8, scores sigmoid, groups 8, top_groups 4, scale 2.5, bias_rate 1e-3, shared
    Qwen3        experts 128, top_k 8                   Llama 4  top_k 1, scores sigmoid, weigh input, shared
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.api import Context, FFNConfig, Slot, Step, Sublayer
from zoo.blocks.ffn.balance import tell
from zoo.blocks.ffn.experts import build_experts
from zoo.blocks.ffn.glu import SwiGLUConfig
from zoo.blocks.ffn.router import ExpertChoice, Routing, TokenChoice
from zoo.blocks.init import init_linear
from zoo.ops.experts import add_up, take
from zoo.registry import ConfigError, part, register

__all__ = ["MoE", "MoEConfig"]

Coefficient = Annotated[float, Field(ge=0)]
Factor = Annotated[float, Field(gt=0)]


@register("ffn", "moe", paper="Shazeer et al. 2017, arXiv:1701.06538")
class MoEConfig(FFNConfig):
    """Mixture of experts, a few of which work on each token."""

    experts: Annotated[int, Field(ge=1)] = 8
    """Number of routed experts E."""
    top_k: Annotated[int, Field(ge=1)] = 2
    """Experts of each token; its mean where experts choose."""
    expert: Annotated[FFNConfig, part("ffn")] = SwiGLUConfig()
    """One expert: mlp, swiglu or geglu, with its own width."""
    shared: Annotated[FFNConfig | None, part("ffn")] = None
    """A feed-forward that works on every token. Several shared experts are one of their joint width."""
    shared_gate: bool = False
    """Multiply the shared output by a sigmoid of x (Qwen Team 2024, Qwen1.5-MoE)."""
    router: Literal["tokens", "experts"] = "tokens"
    """Who chooses. Experts compare all tokens of a row, later ones too, so that is for two-sided slots only."""
    scores: Literal["softmax", "sigmoid"] = "softmax"
    normalise: bool | None = None
    """The weights of a token's experts sum to 1 (times `scale`). None: where tokens choose more than one; with one
    the weight would be 1 whatever the router says, and it got no gradient."""
    scale: Factor = 1.0
    """Factor on the weights (DeepSeek-V3's routed scaling, 2.5)."""
    weigh: Literal["output", "input"] = "output"
    """What the weight multiplies: the expert's output, or its input (Llama 4)."""
    groups: Annotated[int, Field(ge=1)] = 1
    """Equal groups of experts (DeepSeek-V3: one a machine)."""
    top_groups: Annotated[int, Field(ge=1)] = 1
    """Groups in which a token may choose."""
    capacity: Factor | None = None
    """While training an expert takes at most capacity * top_k * T / E tokens of a row of T real ones, rounded up,
    first come first served; the others pass by it, on the residual connection alone. None: no limit.
    (Switch and GShard count over a device's batch; by rows, no row depends on its neighbours. Documents that are
    packed into one row share its room.)"""
    eval_capacity: Factor | None = None
    """The same in evaluation. A limit breaks what generation relies on, that one pass equals many steps."""
    balance: Coefficient = 0.01
    """Coefficient of the load-balancing loss."""
    sequence_balance: Coefficient = 0.0
    """Coefficient of the same by rows (DeepSeek-V3: 1e-4)."""
    z_loss: Coefficient = 0.0
    """Coefficient of the router's z-loss (ST-MoE: 1e-3)."""
    bias_rate: Coefficient = 0.0
    """Step of the bias that balances loads without a loss (DeepSeek-V3: 1e-3); 0: no bias."""

    @property
    def renormalises(self) -> bool:
        return self.top_k > 1 if self.normalise is None else self.normalise

    @property
    def dropless(self) -> bool:
        """Whether each token is served whatever the others are."""
        return self.router == "tokens" and self.capacity is None and self.eval_capacity is None

    def scaled(self, share: float) -> Self:
        shared = None if self.shared is None else self.shared.scaled(share)
        return self.model_copy(update={"expert": self.expert.scaled(share), "shared": shared})

    def build(self, slot: Slot) -> MoE:
        return MoE(self, slot)


class MoE(Sublayer):
    """(B, T, D) -> (B, T, D). Padding is served by no expert but the shared one, and counts nowhere."""

    def __init__(self, config: MoEConfig, slot: Slot) -> None:
        super().__init__()
        _check(config, slot)
        self.config, self.where = config, slot.where
        self.pointwise = config.dropless  # type: ignore[misc]
        self._std = slot.std(slot.dim)
        self.router = (TokenChoice if config.router == "tokens" else ExpertChoice)(config, slot)
        self.experts = build_experts(config.expert, config.experts, slot)
        self.shared = config.shared.build(slot.at(where=f"{slot.where}.shared")) if config.shared is not None else None
        self.shared_gate = nn.Linear(slot.dim, 1, bias=False) if config.shared_gate else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.shared_gate is not None:
            init_linear(self.shared_gate, self._std)

    def forward(self, x: Tensor, context: Context, state: Any = None) -> Tensor:
        real = context.counted if context.counted is not None else context.token_mask  # (B, T)
        real = None if real is None else real[:, -x.shape[1] :]  # of the last column alone (context.last_only)
        routing = self.router(x, real)
        if self.training and context.aux is not None:
            tell(context.aux, self.where, self.config, routing, real)
        name = f"{self.where}.router"
        if context.record is not None and context.record.wants(name):
            context.record.add(name, routing.scores)  # (B, T, E)
        y = self._routed(x, routing)  # (B, T, D)
        if self.shared is None:
            return y
        common = self.shared(x, context)  # (B, T, D)
        return y + (common if self.shared_gate is None else common * torch.sigmoid(self.shared_gate(x)))

    def _routed(self, x: Tensor, routing: Routing) -> Tensor:
        flat, pairs, weights = x.flatten(0, 1), routing.pairs, routing.weights  # (N, D), ..., (M, 1)
        h = take(flat, pairs)  # (M, D)
        if self.config.weigh == "input":
            y = self.experts(h * weights.to(h.dtype), pairs.ends)  # (M, D)
        else:
            y = self.experts(h, pairs.ends)
            y = y * weights.to(y.dtype)
        return add_up(y, pairs, flat.shape[0]).view(x.shape)  # (B, T, D)

    def step(self, state: Any) -> Step | None:
        shared = self.shared.step(None) if self.shared is not None else None
        if not isinstance(self.router, TokenChoice) or not self.pointwise or (self.shared is not None and not shared):
            return None
        router, gate, inside = self.router, self.shared_gate, self.config.weigh == "input"
        ready: dict[int, Callable[[Tensor], Tensor]] = {}

        def serve(expert: int, x: Tensor) -> Tensor:
            if expert not in ready:  # made when it is first chosen: of many experts most may never be
                ready[expert] = self.experts.one(expert)
            return ready[expert](x)  # (1, D)

        def step(x: Tensor, context: Context) -> Tensor:
            if x.shape[0] > 1 or x.device.type != "cpu":
                return self(x[None], context)[0]  # (N, D)
            _, _, chosen, weights = router.choose(x)  # (1, k) each: a few products take less than sorting
            y: Any = 0.0
            for expert, weight in zip(chosen[0].tolist(), weights[0].tolist(), strict=True):
                y = y + (serve(expert, x * weight) if inside else serve(expert, x) * weight)
            if shared is not None:
                common = shared(x, context)
                y = y + (common if gate is None else common * torch.sigmoid(gate(x)))
            return y  # (1, D)

        return step

    def idle_parameters(self) -> int:
        total = sum(parameter.numel() for parameter in self.experts.parameters())
        return total - total * self.config.top_k // self.config.experts


def _check(config: MoEConfig, slot: Slot) -> None:
    """Raises ConfigError for choices that do not go together."""
    experts, k, groups = config.experts, config.top_k, config.groups
    if k > experts:
        raise ConfigError(f"top_k {k} should be at most experts {experts}; change one", slot.where)
    if config.renormalises and k == 1:
        raise ConfigError(
            "normalise makes the weight of one expert 1 whatever the router says, which then learns nothing; "
            "leave normalise unset, or choose top_k 2 or more",
            slot.where,
        )
    if config.shared_gate and config.shared is None:
        raise ConfigError("shared_gate needs a shared expert: set shared too", slot.where)
    if config.router == "experts":
        if slot.causal:
            raise ConfigError(
                "router 'experts' compares a token with later ones, and this place must not see them; choices: tokens",
                slot.where,
            )
        fixed = {"normalise": config.normalise, "groups": groups > 1, "bias_rate": config.bias_rate}
        fixed |= {"capacity": config.capacity, "eval_capacity": config.eval_capacity}
        fixed |= {"sequence_balance": config.sequence_balance}
        if wrong := [name for name, value in fixed.items() if value]:
            raise ConfigError(f"{wrong[0]} has no meaning with router 'experts', whose loads are equal", slot.where)
    if groups > 1 and (experts % groups or experts // groups < 2):
        raise ConfigError(f"experts {experts} do not make {groups} equal groups of two or more", slot.where)
    if config.top_groups > groups:
        raise ConfigError(f"top_groups {config.top_groups} should be at most groups {groups}", slot.where)
    if groups > 1 and config.top_groups * (experts // groups) < k:
        raise ConfigError(f"{config.top_groups} of {groups} groups hold fewer than top_k {k} experts", slot.where)
