"""A diffusion transformer's denoising step, against facebookresearch/DiT's form and diffusers'.

All arms have adaLN-Zero, a learned sigma, fp32 weights and fused attention. Training is the mean squared error of all
output channels, in training mode with label dropout. diffusers gives every block a timestep and label embedding of its
own, so it has more parameters and a little more work.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.speed.arms import BACKWARD, FORWARD, OURS, Arm, Family, Target, supervised

__all__ = ["FAMILY", "DiTCase"]


@dataclass(frozen=True, kw_only=True)
class DiTCase:
    name: str
    patch_size: int
    batch: int
    dim: int
    depth: int
    heads: int
    image_size: int = 32
    channels: int = 4
    classes: int = 1000
    smoke: bool = False

    def inputs(self) -> list[Tensor]:
        """Noisy latents (B, C, H, W), times (B,), labels (B,)."""
        x = torch.randn(self.batch, self.channels, self.image_size, self.image_size)
        return [x, torch.randint(1000, (self.batch,)), torch.randint(self.classes, (self.batch,))]

    def targets(self) -> list[Tensor]:
        return [torch.randn(self.batch, 2 * self.channels, self.image_size, self.image_size)]


FAMILY: Family[DiTCase] = Family(
    "dit",
    cases=(
        DiTCase(name="s4-b8", patch_size=4, batch=8, dim=384, depth=12, heads=6),
        DiTCase(name="smoke", patch_size=4, batch=2, dim=32, depth=1, heads=2, image_size=8, classes=10, smoke=True),
    ),
    targets=(
        Target("time", 0.95, mode=FORWARD),
        Target("time", 1.05, mode=BACKWARD),
        Target("memory", 1.05),
        Target("share", 0.60),
    ),
    unequal=0.25,  # diffusers: an embedder in each block, 11 of 0.6 M parameters more in s4
)


@FAMILY.peer(OURS)
def zoo(case: DiTCase) -> Arm:
    from zoo import create_model

    sizes = {"image_size": case.image_size, "patch_size": case.patch_size, "channels": case.channels}
    model = create_model("dit", dim=case.dim, depth=case.depth, heads=case.heads, num_classes=case.classes, **sizes)
    return supervised(model, case.inputs(), case.targets(), loss=F.mse_loss)


@FAMILY.peer("facebook")
def facebook(case: DiTCase) -> Arm:
    from benchmarks.speed.original_dit import OriginalDiT

    model = OriginalDiT(
        size=case.image_size,
        patch=case.patch_size,
        channels=case.channels,
        dim=case.dim,
        depth=case.depth,
        heads=case.heads,
        classes=case.classes,
    )
    return supervised(model, case.inputs(), case.targets(), loss=F.mse_loss)


@FAMILY.peer("diffusers")
def diffusers(case: DiTCase) -> Arm:
    from diffusers.models.transformers.dit_transformer_2d import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=case.heads,
        attention_head_dim=case.dim // case.heads,
        in_channels=case.channels,
        out_channels=2 * case.channels,
        num_layers=case.depth,
        sample_size=case.image_size,
        patch_size=case.patch_size,
        num_embeds_ada_norm=case.classes,
        upcast_attention=False,
    )
    return supervised(model, case.inputs(), case.targets(), output=lambda result: result.sample, loss=F.mse_loss)
