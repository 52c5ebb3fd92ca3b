"""Image classification with a Vision Transformer, against timm's and Hugging Face's.

All arms have a class token, learned positions, fp32 weights, dropout 0 and fused attention, and the same number of
parameters. Training is cross-entropy in training mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.arms import OURS, Arm, Family, Target, supervised

__all__ = ["FAMILY", "ViTCase"]


@dataclass(frozen=True, kw_only=True)
class ViTCase:
    name: str
    image_size: int
    patch_size: int
    batch: int
    dim: int
    depth: int
    heads: int
    classes: int = 10
    smoke: bool = False

    def images(self) -> Tensor:
        return torch.randn(self.batch, 3, self.image_size, self.image_size)  # (B, C, H, W)

    def labels(self) -> Tensor:
        return torch.randint(0, self.classes, (self.batch,))  # (B,)


FAMILY: Family[ViTCase] = Family(
    "vit",
    cases=(
        ViTCase(
            name="small16-224-b4", image_size=224, patch_size=16, batch=4, dim=384, depth=12, heads=6, classes=1000
        ),
        ViTCase(name="p4-32-b64", image_size=32, patch_size=4, batch=64, dim=192, depth=6, heads=3),
        ViTCase(name="smoke", image_size=8, patch_size=2, batch=2, dim=32, depth=1, heads=2, smoke=True),
    ),
    targets=(Target("time", 1.05), Target("memory", 1.05), Target("share", 0.60)),
)


@FAMILY.peer(OURS)
def zoo(case: ViTCase) -> Arm:
    from zoo import create_model

    sizes = {"image_size": case.image_size, "patch_size": case.patch_size, "num_classes": case.classes}
    model = create_model("vit", dim=case.dim, depth=case.depth, heads=case.heads, pool="cls", **sizes)
    return supervised(model, [case.images()], [case.labels()])


@FAMILY.peer("timm")
def timm(case: ViTCase) -> Arm:
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(
        img_size=case.image_size,
        patch_size=case.patch_size,
        num_classes=case.classes,
        embed_dim=case.dim,
        depth=case.depth,
        num_heads=case.heads,
    )
    return supervised(model, [case.images()], [case.labels()])


@FAMILY.peer("transformers")
def transformers(case: ViTCase) -> Arm:
    from transformers import ViTConfig, ViTForImageClassification

    settings: dict[str, Any] = {
        "image_size": case.image_size,
        "patch_size": case.patch_size,
        "num_labels": case.classes,
        "hidden_size": case.dim,
        "num_hidden_layers": case.depth,
        "num_attention_heads": case.heads,
        "intermediate_size": 4 * case.dim,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "attn_implementation": "sdpa",
    }
    model = ViTForImageClassification(ViTConfig(**settings))
    return supervised(model, [case.images()], [case.labels()], output=lambda result: result.logits)
