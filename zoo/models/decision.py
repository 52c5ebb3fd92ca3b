"""Decision Transformer: acting as predicting the next action of a good episode. Chen et al. 2021, arXiv:2106.01345.

    R_0 s_0 a_0 R_1 s_1 a_1 ...   return-to-go, state and action of each step: three tokens, each with a map into D of
                                  its own, plus the ONE timestep embedding of their step
    (B, 3 T, D) -> norm -> causal stack -> action head on the tokens of s_t, which see R_t and s_t but not a_t

At a rollout R_0 is the return that is wanted, and R_{t+1} = R_t - r_t. Without return-to-go (`return_to_go: false`) two
tokens a step remain, and the same network is behaviour cloning.

Actions are discrete (logits) or continuous (in -1 .. 1, by tanh). Order is told by the timesteps alone, so the stack
has no positions of its own by default; the paper's code empties GPT-2's for the same reason. States are vectors: the
paper's convolutions over Atari's screens are left out.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.api import Capability, Context, FFNConfig, NormConfig, Recorder, Slot
from zoo.blocks.embeddings import TokenEmbedding
from zoo.blocks.ffn.mlp import MLPConfig
from zoo.blocks.init import init_linear
from zoo.blocks.norms import LayerNormConfig
from zoo.blocks.stack import Stack, TransformerConfig
from zoo.blocks.state import StackState
from zoo.registry import ConfigError, part, register, register_preset

__all__ = ["DecisionConfig", "DecisionTransformer"]

_PAPER = "Chen et al. 2021, arXiv:2106.01345"


@register("model", "decision", paper=_PAPER)
class DecisionConfig(TransformerConfig):
    """Decision Transformer: actions from wanted returns, states and earlier actions."""

    dim: Annotated[int, Field(ge=1)] = 128
    depth: Annotated[int, Field(ge=0)] = 3
    heads: Annotated[int, Field(ge=1)] = 1
    ffn: Annotated[FFNConfig, part("ffn")] = MLPConfig(activation="relu")
    norm: Annotated[NormConfig, part("norm")] = LayerNormConfig(eps=1e-5)
    input_norm: bool = True
    """Norm of the summed embeddings, before the first block."""
    state_dim: Annotated[int, Field(ge=1)] = 17
    """Features of a state."""
    action_dim: Annotated[int, Field(ge=1)] = 4
    """Number of discrete actions, or features of a continuous one."""
    discrete: bool = False
    action_tanh: bool = True
    """Keep continuous actions within -1 .. 1."""
    return_to_go: bool = True
    """False: behaviour cloning, with two tokens a step."""
    context: Annotated[int, Field(ge=1)] = 20
    """Steps that the model is trained on at once; longer rows are taken too."""
    max_timestep: Annotated[int, Field(ge=1)] = 4096
    """Rows of the timestep table: the longest episode."""
    predict_next: bool = False
    """Heads for the next state and return-to-go on the action tokens. The paper has them and does not train them."""

    @property
    def tokens(self) -> int:
        """Tokens a step."""
        return 3 if self.return_to_go else 2

    def build(self) -> DecisionTransformer:
        return DecisionTransformer(self)


class DecisionTransformer(nn.Module):
    """states (B, T, S), actions (B, T) or (B, T, A), returns-to-go (B, T) -> logits or actions (B, T, A)."""

    def __init__(self, config: DecisionConfig) -> None:
        super().__init__()
        if config.predict_next and not config.return_to_go:
            raise ConfigError("needs return_to_go: the next one is among what it predicts", "decision.predict_next")
        self.config = config
        dim, tokens = config.dim, config.tokens
        slot = Slot(
            dim=dim,
            heads=config.heads,
            max_len=tokens * config.context,
            causal=True,
            needs=Capability.CAUSAL,
            init_std=config.init_std,
            where="decision",
        )
        self._slot = slot
        std = slot.std(dim)
        self.embed_timestep = TokenEmbedding(config.max_timestep, dim, init_std=std)
        self.embed_return = nn.Linear(1, dim) if config.return_to_go else None
        self.embed_state = nn.Linear(config.state_dim, dim)
        self.embed_action = (
            TokenEmbedding(config.action_dim, dim, init_std=std)
            if config.discrete
            else nn.Linear(config.action_dim, dim)
        )
        self.stack = Stack(config, slot)
        self.head = nn.Linear(dim, config.action_dim)
        self.next_state = nn.Linear(dim, config.state_dim) if config.predict_next else None
        self.next_return = nn.Linear(dim, 1) if config.predict_next else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (self.embed_return, self.embed_state, self.embed_action, self.head):
            if isinstance(linear, nn.Linear):
                init_linear(linear, self._slot.std(linear.in_features))
        for linear in (self.next_state, self.next_return):
            if linear is not None:
                init_linear(linear, self._slot.std(linear.in_features))

    def forward(
        self,
        states: Tensor,
        actions: Tensor,
        returns: Tensor | None = None,
        timesteps: Tensor | None = None,
        *,
        step_mask: Tensor | None = None,
        state: StackState | None = None,
        record: Recorder | None = None,
    ) -> Tensor:
        """Logits of discrete actions, or continuous actions, (B, T, A); those at t do not see a_t.

        timesteps: (B, T) or (T,) int; None: 0 .. T - 1. step_mask: (B, T) bool, True = a real step; padding may stand
        anywhere and hold anything finite. state: whole steps go on from what it has seen.
        Raises ValueError for returns that are missing or not wanted, and for a timestep beyond `max_timestep`.
        """
        x = self.features(states, actions, returns, timesteps, step_mask=step_mask, state=state, record=record)
        return self.actions(x)

    def features(
        self,
        states: Tensor,
        actions: Tensor,
        returns: Tensor | None = None,
        timesteps: Tensor | None = None,
        *,
        step_mask: Tensor | None = None,
        state: StackState | None = None,
        record: Recorder | None = None,
    ) -> Tensor:
        """What the heads read, (B, T, tokens, D): of return-to-go, state and action, or of the last two."""
        b, t = states.shape[:2]
        tokens = self.config.tokens
        if timesteps is None:
            timesteps = torch.arange(t, device=states.device)
        context = Context(record=record)
        if step_mask is not None:
            context.token_mask = step_mask[..., None].expand(-1, -1, tokens).reshape(b, t * tokens)  # (B, 3 T)
            timesteps = timesteps.expand(b, -1).masked_fill(~step_mask, 0)
            actions = actions.masked_fill(~step_mask, 0) if self.config.discrete else actions
        time = self._time(timesteps)  # (T, D) or (B, T, D)
        parts = [*self._observed(states, returns), self.embed_action(actions)]  # (B, T, D) each
        x = torch.stack(parts, dim=2) + time[..., None, :]  # (B, T, 3, D)
        x = self.stack(x.view(b, t * tokens, -1), context, state)  # (B, 3 T, D)
        return x.view(b, t, tokens, -1)

    def step(
        self,
        state: StackState,
        states: Tensor,
        returns: Tensor | None = None,
        timestep: int = 0,
        *,
        previous: Tensor | None = None,
    ) -> Tensor:
        """Logits or actions (B, A) at one more step of every row, after what `state` has seen.

        states (B, S) and returns (B,) of this step, and its number. previous: actions (B,) or (B, A) that were taken a
        step before; None where there was none, or where `state` holds it already.
        """
        parts = [part[:, None] + self._time(timestep) for part in self._observed(states, returns)]  # (B, 1, D) each
        if previous is not None:
            parts.insert(0, self.embed_action(previous)[:, None] + self._time(timestep - 1))
        return self._act(self.stack(torch.cat(parts, dim=1), Context(), state)[:, -1])

    def actions(self, x: Tensor) -> Tensor:
        """Logits or actions (B, T, A) from `features`."""
        return self._act(x[:, :, -2])

    def predict_next(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Next states (B, T, S) and returns-to-go (B, T) from `features`; needs `predict_next` in the config."""
        if self.next_state is None or self.next_return is None:
            raise ValueError("this model predicts actions alone; build it with predict_next=True")
        return self.next_state(x[:, :, -1]), self.next_return(x[:, :, -1]).squeeze(-1)

    def init_state(
        self, batch: int, max_steps: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Any:
        """Empty state for `batch` rows of up to `max_steps` steps."""
        return self.stack.init_state(batch, self.config.tokens * max_steps, device=device, dtype=dtype)

    def _observed(self, states: Tensor, returns: Tensor | None) -> list[Tensor]:
        """Embeddings (..., D) of [return-to-go and] state."""
        if (returns is None) == self.config.return_to_go:
            told = "needs returns-to-go" if returns is None else "takes no returns-to-go: return_to_go is false"
            raise ValueError(f"this model {told}")
        embedded = [self.embed_state(states)]
        if self.embed_return is not None and returns is not None:
            embedded.insert(0, self.embed_return(returns[..., None]))
        return embedded

    def _time(self, timesteps: Tensor | int) -> Tensor:
        """Rows (..., D) of the timestep table. Raises ValueError beyond it (on a GPU: an assertion of the kernel's)."""
        limit = self.config.max_timestep
        if isinstance(timesteps, int):
            _check_timesteps(timesteps, timesteps, limit)
            return self.embed_timestep.weight[timesteps]
        if timesteps.device.type == "cpu" and timesteps.numel() and not torch.compiler.is_compiling():
            _check_timesteps(int(timesteps.min()), int(timesteps.max()), limit)
        return self.embed_timestep(timesteps)

    def _act(self, x: Tensor) -> Tensor:
        """(..., D) of state tokens -> (..., A)."""
        actions = self.head(x)
        return torch.tanh(actions) if self.config.action_tanh and not self.config.discrete else actions


def _check_timesteps(least: int, most: int, limit: int) -> None:
    if least < 0 or most >= limit:
        wrong = least if least < 0 else most
        raise ValueError(f"timestep {wrong} is outside the table of max_timestep={limit}; build it with a longer one")


register_preset(
    DecisionConfig,
    "decision_hopper",
    "The paper's size for D4RL's Hopper.",
    _PAPER,
    {"state_dim": 11, "action_dim": 3, "max_timestep": 1000, "dropout": 0.1, "mixer": {"dropout": 0.1}},
)
register_preset(
    DecisionConfig,
    "decision_cartpole",
    "A small Decision Transformer for CartPole, as recipe=decision trains it.",
    _PAPER,
    {
        "state_dim": 4,
        "action_dim": 2,
        "discrete": True,
        "max_timestep": 500,
        "context": 10,
        "dim": 64,
        "depth": 2,
        "heads": 2,
        "init_std": "fan_in",
        "mixer": {"window": 30},
    },
)
