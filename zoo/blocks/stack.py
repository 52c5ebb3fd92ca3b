"""A stack of residual blocks, the trunk of every family.

    x (B, T, E) -> [input positions] -> [input norm] -> [E to D] -> depth x block -> [final norm] -> (B, T, D)

    block     for each entry of the layout, one residual connection around one or more sublayers
    layouts   sequential  mixer, ffn                     parallel  mixer + ffn (Wang & Komatsuzaki 2021, GPT-J)
              macaron     ffn/2, mixer, ffn/2 (Lu et al. 2019, arXiv:1906.02762)
              mixer_only  mixer
    A stack that reads a second sequence has a `cross` sublayer after the mixer.

The same fields choose a stack in every family: `TransformerConfig`. What is a fact of the place, not a choice, comes
in the slot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.blocks.api import (
    Context,
    FFNConfig,
    MixerConfig,
    ModelConfig,
    NormConfig,
    PositionConfig,
    ResidualConfig,
    Slot,
    Step,
    Sublayer,
    check,
)
from zoo.blocks.ffn.mlp import MLPConfig
from zoo.blocks.init import init_linear
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.blocks.norms import LayerNormConfig
from zoo.blocks.positions import NoPositionConfig
from zoo.blocks.positions.indices import token_positions
from zoo.blocks.residual import PreConfig
from zoo.blocks.state import StackState
from zoo.registry import ConfigError, describe, names, part

__all__ = ["LAYOUTS", "Block", "Stack", "TransformerConfig"]

LAYOUTS: dict[str, tuple[str, ...]] = {
    "sequential": ("mixer", "ffn"),
    "parallel": ("mixer+ffn",),
    "macaron": ("ffn/2", "mixer", "ffn/2"),
    "mixer_only": ("mixer",),
}


class TransformerConfig(ModelConfig):
    """The choices of a stack. Families add their stems and heads."""

    dim: Annotated[int, Field(ge=1)] = 256
    depth: Annotated[int, Field(ge=0)] = 6
    heads: Annotated[int, Field(ge=1)] = 4
    mixer: Annotated[MixerConfig, part("mixer")] = AttentionConfig()
    ffn: Annotated[FFNConfig, part("ffn")] = MLPConfig()
    norm: Annotated[NormConfig, part("norm")] = LayerNormConfig()
    residual: Annotated[ResidualConfig, part("residual")] = PreConfig()
    position: Annotated[PositionConfig, part("position")] = NoPositionConfig()
    layout: Literal["sequential", "parallel", "macaron", "mixer_only"] = "sequential"
    final_norm: bool | None = None
    """Norm after the last block; None: where the residual leaves the stream without one."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """On the stack's input and on every branch's output."""
    drop_path: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Stochastic depth of the last block; it grows linearly from 0 at the first (Huang et al. 2016)."""
    input_norm: bool = False
    """Norm after the input positions, before the first block (BERT)."""
    init_std: Annotated[float, Field(gt=0)] | Literal["fan_in"] = 0.02
    """Standard deviation of the initial weights, or 1 / sqrt(inputs) of each matrix."""
    scale_branches: bool = True
    """Start each branch's output projection at init_std / sqrt(residual branches) (Radford et al. 2019, GPT-2)."""
    checkpointing: bool = False
    """Recompute each block in backward instead of keeping its activations (Chen et al. 2016, arXiv:1604.06174)."""

    @property
    def cross_mixer(self) -> MixerConfig:
        """What reads the second sequence, in a stack that has one."""
        return self.mixer


def entries(layout: str, cross: bool) -> tuple[str, ...]:
    """The layout's entries, with `cross` after the mixer where there is a second sequence."""
    found: list[str] = []
    for entry in LAYOUTS[layout]:
        found.append(entry)
        if cross and "mixer" in entry:
            found.append("cross")
    return tuple(found)


class Block(nn.Module):
    """One layer: sublayers by name, and for each entry of the layout the residual connection around it."""

    def __init__(self, config: TransformerConfig, slot: Slot) -> None:
        super().__init__()
        self.entries: list[tuple[str, tuple[str, ...]]] = []  # residual's name, sublayers' names
        self.residuals = nn.ModuleDict()
        for entry in entries(config.layout, slot.memory_dim is not None):
            kinds, _, divisor = entry.partition("/")
            members = []
            for kind in kinds.split("+"):
                name = kind if kind not in self._modules else f"{kind}_after"
                self.add_module(name, self._sublayer(kind, config, slot.at(where=f"{slot.where}.{name}")))
                members.append(name)
            place = "_and_".join(members)
            around = slot.at(branch_weight=1.0 / float(divisor or 1), first=slot.layer == 0 and not self.entries)
            self.residuals[place] = config.residual.at(slot.layer, slot.depth).build(around, config.norm)
            self.entries.append((place, tuple(members)))
        together = [n for n, (_, members) in enumerate(self.entries) if not all(map(self._pointwise, members))]
        self.alone = max(together, default=-1) + 1 if slot.layer == slot.depth - 1 else None
        """In the last block: the first of the entries at its end that look at each token alone."""

    def _pointwise(self, name: str) -> bool:
        return self._modules[name].pointwise  # type: ignore[union-attr, return-value]

    @staticmethod
    def _sublayer(kind: str, config: TransformerConfig, slot: Slot) -> Sublayer:
        if kind == "ffn":
            return config.ffn.at(slot.layer, slot.depth).build(slot)
        mixer = (config.cross_mixer if kind == "cross" else config.mixer).at(slot.layer, slot.depth)
        slot = slot if kind == "cross" else slot.at(memory_dim=None)
        check(mixer, slot)
        return mixer.build(slot)

    def forward(self, x: Tensor, context: Context, state: dict[str, Any] | None = None) -> Tensor:
        parts, residuals = self._modules, self.residuals._modules
        for number, (place, members) in enumerate(self.entries):
            if context.last_only and number == self.alone:
                x = x[:, -1:]  # what follows looks at each token alone

            def branch(h: Tensor, members: tuple[str, ...] = members) -> Tensor:
                total: Any = None
                for name in members:
                    y = parts[name](h, context, state[name] if state is not None else None)  # type: ignore[misc]
                    total = y if total is None else total + y
                return total  # (B, T, D)

            x = residuals[place](x, branch, context)  # type: ignore[misc]  # (B, T, D)
        return x

    def step(self, state: dict[str, Any]) -> Step | None:
        """See Sublayer.step."""
        places: list[tuple[Any, list[Step]]] = []
        for place, members in self.entries:
            steps = [self._modules[name].step(state[name]) for name in members]  # type: ignore[union-attr, operator]
            if any(found is None for found in steps):
                return None
            places.append((self.residuals[place].forward, steps))

        def step(x: Tensor, context: Context) -> Tensor:
            for residual, steps in places:
                first, *others = steps

                def branch(h: Tensor, first: Step = first, others: list[Step] = others) -> Tensor:
                    y = first(h, context)
                    for other in others:
                        y = y + other(h, context)
                    return y  # (N, D)

                x = residual(x, branch, context)
            return x

        return step

    def sublayers(self) -> dict[str, Sublayer]:
        """Sublayers by name, in the order they run."""
        return {name: self._modules[name] for _, members in self.entries for name in members}  # type: ignore[misc]


class Stack(nn.Module):
    """(B, T, D) -> (B, T, D), through `depth` blocks. `slot` gives the family's facts; layers are filled in here.

    `input_dim` is the width E of what comes in where it is not D: input positions, input norm and dropout then act at
    that width, and a linear map follows (Lan et al. 2019, arXiv:1909.11942; Clark et al. 2020, arXiv:2003.10555).
    """

    def __init__(self, config: TransformerConfig, slot: Slot, input_dim: int | None = None) -> None:
        super().__init__()
        width = input_dim or slot.dim
        self.checkpointing = config.checkpointing
        position, residual = config.position, config.residual
        scaled = config.scale_branches and not residual.normalised
        if position.needs_grid and slot.grid is None:
            fits = [
                name for name in names("position") if not getattr(describe("position", name).make, "needs_grid", True)
            ]
            raise ConfigError(
                f"position '{position.registered_name}' needs a grid of tokens, and this family has none; "
                f"choices: {', '.join(fits)}",
                slot.where,
            )
        inside = slot.at(init_std=config.init_std)
        branches = config.depth * len(entries(config.layout, slot.memory_dim is not None))
        blocks = []
        for layer in range(config.depth):
            here = inside.at(
                layer=layer,
                depth=config.depth,
                branches=branches if scaled else 1,
                branch_gain=residual.branch_gain(config.depth),
                dropout=config.dropout,
                drop_path=config.drop_path * layer / max(config.depth - 1, 1),
                position=position if position.place in ("rotary", "bias") else None,
                where=f"{slot.where}.{layer}",
            )
            blocks.append(Block(config, here))
        self.position = position.build(inside.at(dim=width)) if position.place == "input" else None
        self.input_norm = config.norm.build(width) if config.input_norm else None
        self.project = nn.Linear(width, slot.dim) if width != slot.dim else None
        self._std = inside.std(width)
        self.drop = nn.Dropout(config.dropout) if config.dropout else None
        self.blocks = nn.ModuleList(blocks)
        wanted = not residual.normalised if config.final_norm is None else config.final_norm
        self.norm = config.norm.build(config.dim) if wanted else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.project is not None:
            init_linear(self.project, self._std)

    def forward(self, x: Tensor, context: Context, state: StackState | None = None) -> Tensor:
        context = replace(context, memo={})  # what layers share belongs to this pass: a caller may reuse its context
        if state is not None and context.positions is None:
            seen = state.seen
            context.positions = token_positions(x.shape[1], context, offset=seen, device=x.device)  # (T,) or (B, T)
        if self.position is not None:
            x = self.position(x, context)  # (B, T, D)
        if self.input_norm is not None:
            x = self.input_norm(x)
        if self.drop is not None:
            x = self.drop(x)
        if self.project is not None:
            x = self.project(x)  # (B, T, E) -> (B, T, D)
        recompute = self.checkpointing and self.training and state is None and torch.is_grad_enabled()
        for layer, block in enumerate(self.blocks):
            if recompute:
                x = checkpoint(block, x, context, use_reentrant=False)  # type: ignore[assignment]
            else:
                x = block(x, context, state.layers[layer] if state is not None else None)
        if context.last_only:
            x = x[:, -1:]
        return x if self.norm is None else self.norm(x)  # (B, T, D), or (B, 1, D) of the last column

    def step(self, state: StackState) -> Callable[[Tensor], Tensor] | None:
        """What `forward` does to one new, unpadded token (N, E) of every row, whose rows agree in length, without
        gradients: -> (N, D). None where a sublayer has no such short cut, a module has hooks, or the stack is in
        training mode."""
        if self.training or any(module._forward_hooks or module._forward_pre_hooks for module in self.modules()):
            return None
        steps = [block.step(held) for block, held in zip(self.blocks, state.layers, strict=True)]  # type: ignore[operator]
        if any(found is None for found in steps):
            return None

        def step(x: Tensor) -> Tensor:
            context = Context()
            context.positions = token_positions(1, context, offset=state.seen, device=x.device)  # (1,)
            if self.position is not None:
                x = self.position(x[:, None], context)[:, 0]
            if self.input_norm is not None:
                x = self.input_norm(x)
            if self.project is not None:
                x = self.project(x)
            for layer in steps:
                x = layer(x, context)  # (N, D)
            return x if self.norm is None else self.norm(x)

        return step

    def init_state(
        self, batch: int, max_len: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> StackState:
        """Empty states of all sublayers for `batch` rows of up to `max_len` tokens."""
        layers = [
            {
                name: sublayer.init_state(batch, max_len, device=device, dtype=dtype)
                for name, sublayer in block.sublayers().items()  # type: ignore[operator]
            }
            for block in self.blocks
        ]
        return StackState(layers)
