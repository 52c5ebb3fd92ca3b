"""Decision Transformer on windows of continuous control, against Hugging Face's, with relu and dropout 0.

All have fp32 weights, fused attention, no padding, and heads for the next state and return, whose results nothing
reads: Hugging Face's computes them at every call, so ours do too. Its tables wpe and wte, 131,200 parameters of which
one row is read, are frozen: the rest is the same number of parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.arms import OURS, Arm, Family, Target, supervised
from benchmarks.speed.language import FUSED

__all__ = ["FAMILY", "DecisionCase"]


@dataclass(frozen=True, kw_only=True)
class DecisionCase:
    name: str
    batch: int
    steps: int
    dim: int = 128
    depth: int = 3
    heads: int = 1
    state_dim: int = 11
    action_dim: int = 3
    max_timestep: int = 1000
    smoke: bool = False

    def inputs(self) -> list[Tensor]:
        """states, actions, returns-to-go, timesteps."""
        states = torch.randn(self.batch, self.steps, self.state_dim)
        actions = torch.rand(self.batch, self.steps, self.action_dim)
        start = torch.randint(self.max_timestep - self.steps, (self.batch, 1))
        return [states, actions, torch.rand(self.batch, self.steps), start + torch.arange(self.steps)]

    def wanted(self) -> Tensor:
        return torch.rand(self.batch, self.steps, self.action_dim)


FAMILY: Family[DecisionCase] = Family(
    "decision",
    cases=(
        DecisionCase(name="k20-b64", batch=64, steps=20),
        DecisionCase(name="smoke", batch=2, steps=4, dim=16, depth=1, max_timestep=30, smoke=True),
    ),
    targets=(Target("time", 1.05), Target("memory", 1.05)),
)


@FAMILY.peer(OURS)
def zoo(case: DecisionCase) -> Arm:
    from zoo import create_model

    sizes = {"dim": case.dim, "depth": case.depth, "heads": case.heads, "max_timestep": case.max_timestep}
    model = create_model(
        "decision", state_dim=case.state_dim, action_dim=case.action_dim, predict_next=True, context=case.steps, **sizes
    )
    return supervised(_Whole(model), case.inputs(), [case.wanted()], loss=F.mse_loss)


class _Whole(nn.Module):
    """All three predictions, as Hugging Face's forward pass makes them; the actions come out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        x = self.model.features(*inputs)
        self.model.predict_next(x)
        return self.model.actions(x)


@FAMILY.peer("transformers")
def transformers(case: DecisionCase) -> Arm:
    from transformers import DecisionTransformerConfig, DecisionTransformerModel

    config = DecisionTransformerConfig(
        state_dim=case.state_dim,
        act_dim=case.action_dim,
        max_ep_len=case.max_timestep,
        hidden_size=case.dim,
        n_layer=case.depth,
        n_head=case.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        **FUSED,
    )
    model = DecisionTransformerModel(config)
    model.encoder.wpe.requires_grad_(False)
    model.encoder.wte.requires_grad_(False)
    return supervised(_Positional(model), case.inputs(), [case.wanted()], loss=F.mse_loss)


class _Positional(nn.Module):
    """Hugging Face's with our order of inputs; the actions come out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, states: Tensor, actions: Tensor, returns: Tensor, timesteps: Tensor) -> Tensor:
        given = {"states": states, "actions": actions, "returns_to_go": returns[..., None], "timesteps": timesteps}
        return self.model(**given, return_dict=False)[1]
