"""Diffusion Transformer: a noisy image, a time and a class -> a prediction. Peebles & Xie 2022, arXiv:2212.09748.

    x (B, C, H, W) -> patches (B, h w, D) + fixed 2-d positions -> stack -> norm, linear -> (B, C or 2 C, H, W)
    t (B,), labels (B,) -> time (B, D), class (B, D)

How time and class enter, `conditioning`:

    adaln_zero        their sum shifts, scales and gates every branch; each block starts as the identity
    adaln             the same without gates
    cross_attention   they are a second sequence of two tokens, read after every mixer
    in_context        they are two tokens before the patches, and dropped after the stack

    start    time, class: normal, 0.02      modulations, final linear: 0, so a new model answers 0 for everything

The projections of all adaLN layers, the last norm's too, are one matrix product; the original has one a block. Weights
start with 1 / sqrt(inputs) instead of Xavier's uniform, which differs from it by up to 1.6 in fused projections.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.adaln import AdaLNConfig, AdaLNZeroConfig, Modulation, modulate, plain_norm
from zoo.blocks.api import Capability, Context, FFNConfig, MixerConfig, PositionConfig, Recorder, ResidualConfig, Slot
from zoo.blocks.conditions import LabelEmbedding, TimestepEmbedding
from zoo.blocks.embeddings import PatchEmbedding
from zoo.blocks.ffn.mlp import MLPConfig
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.blocks.positions import Sincos2dConfig
from zoo.blocks.residual import PreConfig
from zoo.blocks.stack import Stack, TransformerConfig
from zoo.models.vit import Size
from zoo.registry import ConfigError, part, register

__all__ = ["DiT", "DiTConfig", "unpatchify"]

Conditioning = Literal["adaln_zero", "adaln", "cross_attention", "in_context"]
_ADAPTIVE: dict[str, ResidualConfig] = {"adaln_zero": AdaLNZeroConfig(), "adaln": AdaLNConfig()}


@register("model", "dit", paper="Peebles & Xie 2022, arXiv:2212.09748")
class DiTConfig(TransformerConfig):
    """Diffusion Transformer over image or latent patches, told the time and a class."""

    dim: Annotated[int, Field(ge=1)] = 384
    depth: Annotated[int, Field(ge=0)] = 12
    heads: Annotated[int, Field(ge=1)] = 6
    image_size: Size = (32, 32)
    """(height, width) of the images or latents; other sizes run too, as positions are made for the grid at hand."""
    patch_size: Size = (2, 2)
    channels: Annotated[int, Field(ge=1)] = 4
    num_classes: Annotated[int, Field(ge=0)] = 1000
    """0: told the time alone."""
    label_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the labels replaced by "no class" while training, for classifier-free guidance; 0: no such label."""
    learned_sigma: bool = True
    """Twice the channels out: the second half interpolates the variance (Nichol & Dhariwal 2021, arXiv:2102.09672)."""
    conditioning: Conditioning = "adaln_zero"
    residual: Annotated[ResidualConfig | None, part("residual")] = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """None: what `conditioning` asks for, adaLN or pre-norm. Others go with cross_attention and in_context."""
    ffn: Annotated[FFNConfig, part("ffn")] = MLPConfig(activation="gelu_tanh")
    position: Annotated[PositionConfig, part("position")] = Sincos2dConfig()
    init_std: Annotated[float, Field(gt=0)] | Literal["fan_in"] = "fan_in"
    scale_branches: bool = False

    @property
    def cross_mixer(self) -> MixerConfig:
        return self.mixer.for_memory() or AttentionConfig()

    @property
    def adaptive(self) -> bool:
        """Whether the condition enters through the norms."""
        return self.conditioning in _ADAPTIVE

    def resolved(self) -> TransformerConfig:
        """The stack's choices, with the residual that the conditioning asks for."""
        if not self.adaptive:
            return self.model_copy(update={"residual": self.residual or PreConfig()})
        asked = _ADAPTIVE[self.conditioning]
        if self.residual not in (None, asked):
            raise ConfigError(
                f"'{self.residual.registered_name}' does not fit conditioning='{self.conditioning}', which is a "
                "residual connection itself; choices: adaln_zero, adaln without residual; cross_attention, in_context",
                "dit.residual",
            )
        return self.model_copy(update={"residual": asked, "final_norm": False})

    def build(self) -> DiT:
        return DiT(self)


class DiT(nn.Module):
    """x (B, C, H, W), t (B,) in 0 ... 1000, labels (B,) int -> (B, C, H, W), or (B, 2 C, H, W) with a learned sigma.

    labels None, or `null_label` in a row: no class. While training, labels are dropped at random.
    """

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.dim
        self.patches = PatchEmbedding(config.channels, config.patch_size, dim)
        self.time = TimestepEmbedding(dim)
        self.label = (
            LabelEmbedding(config.num_classes, dim, dropout=config.label_dropout) if config.num_classes else None
        )
        told = 1 if self.label is None else 2
        self.prefix = told if config.conditioning == "in_context" else 0
        grid = self.patches.grid(*config.image_size)
        self.modulation = Modulation(dim, dim) if config.adaptive else None
        slot = Slot(
            dim=dim,
            heads=config.heads,
            max_len=self.prefix + grid[0] * grid[1],
            grid=grid,
            prefix=self.prefix,
            memory_dim=dim if config.conditioning == "cross_attention" else None,
            cond_dim=dim if config.adaptive else None,
            needs=Capability.BIDIRECTIONAL,
            where="dit",
            shared={Modulation: self.modulation} if self.modulation is not None else {},
        )
        self.stack = Stack(config.resolved(), slot)
        self.norm = None
        if self.modulation is not None:
            self.norm, self.final_place = plain_norm(config.norm, dim), self.modulation.claim(2)
            self.modulation.finish()
        rows, columns = config.patch_size
        self.out_channels = config.channels * (2 if config.learned_sigma else 1)
        self.head = nn.Linear(dim, rows * columns * self.out_channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @property
    def null_label(self) -> int:
        """The label that stands for "no class". Raises ConfigError for a model without one."""
        if self.label is None:
            raise ConfigError("a model without classes has no label for 'no class'; set num_classes above 0", "dit")
        return self.label.null

    def forward(self, x: Tensor, t: Tensor, labels: Tensor | None = None, record: Recorder | None = None) -> Tensor:
        batch = x.shape[0]
        x, grid = self.patches(x)  # (B, h w, D)
        told = [self.time(t)] if self.label is None else [self.time(t), self.label(labels, batch)]  # (B, D) each
        context = Context(grid=grid, prefix=self.prefix, record=record)
        if self.modulation is not None:
            context.cond = self.modulation(sum(told[1:], told[0]))  # (B, 1, D) each
        elif self.prefix:
            x = torch.cat((torch.stack(told, dim=1).to(x.dtype), x), dim=1)  # (B, P + h w, D)
        else:
            context.memory = torch.stack(told, dim=1)  # (B, 2, D)
        x = self.stack(x, context)[:, self.prefix :]  # (B, h w, D)
        if self.norm is not None:
            shift, scale = context.cond[self.final_place]  # type: ignore[index]
            x = modulate(self.norm(x), shift, scale)
        return unpatchify(self.head(x), grid, self.config.patch_size)  # (B, C or 2 C, H, W)


def unpatchify(x: Tensor, grid: tuple[int, int], patch: tuple[int, int]) -> Tensor:
    """(B, h w, ph pw C) -> (B, C, h ph, w pw): each token is a patch, whose channels vary fastest."""
    (h, w), (rows, columns) = grid, patch
    x = x.unflatten(-1, (rows, columns, -1)).unflatten(1, (h, w))  # (B, h, w, ph, pw, C)
    return x.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)  # (B, C, H, W)
