"""Vision Transformer: an image as a row of patches. Dosovitskiy et al. 2020, arXiv:2010.11929.

    images (B, C, H, W) -> patches (B, h w, D) -> [class, distillation, registers | patches] (B, P + h w, D)
                        -> stack -> pool -> logits (B, classes)

Distillation token: Touvron et al. 2020, arXiv:2012.12877. Mean pooling: Beyer et al. 2022, arXiv:2205.01580.
Registers, which are never pooled: Darcet et al. 2023, arXiv:2309.16588.
Any image size that the patches divide: position tables are resampled to the grid at hand.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from zoo.blocks.api import Capability, Context, PositionConfig, Recorder, Slot
from zoo.blocks.embeddings import PatchEmbedding, PrefixTokens
from zoo.blocks.heads import ClassificationHead
from zoo.blocks.init import init_linear
from zoo.blocks.positions import LearnedPositionConfig
from zoo.blocks.stack import Stack, TransformerConfig
from zoo.registry import part, register, register_preset

__all__ = ["ViT", "ViTConfig"]

Side = Annotated[int, Field(ge=1)]
Size = Annotated[tuple[Side, Side], BeforeValidator(lambda value: (value, value) if isinstance(value, int) else value)]


@register("model", "vit", paper="Dosovitskiy et al. 2020, arXiv:2010.11929")
class ViTConfig(TransformerConfig):
    """Vision Transformer: an encoder over image patches, with a classifier."""

    dim: Annotated[int, Field(ge=1)] = 192
    depth: Annotated[int, Field(ge=0)] = 12
    heads: Annotated[int, Field(ge=1)] = 3
    image_size: Size = (224, 224)
    """(height, width) the position table is made for; one number for a square."""
    patch_size: Size = (16, 16)
    channels: Annotated[int, Field(ge=1)] = 3
    num_classes: Annotated[int, Field(ge=0)] = 1000
    """0: no classifier, the pooled features come out."""
    pool: Literal["cls", "mean"] = "cls"
    registers: Annotated[int, Field(ge=0)] = 0
    distilled: bool = False
    position: Annotated[PositionConfig, part("position")] = LearnedPositionConfig()
    scale_branches: bool = False

    def build(self) -> ViT:
        return ViT(self)


class ViT(nn.Module):
    """images (B, C, H, W) -> logits (B, classes).

    A distilled model has two heads: it returns both logits while training, their mean in evaluation.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.patches = PatchEmbedding(config.channels, config.patch_size, config.dim)
        grid = self.patches.grid(*config.image_size)
        class_token = config.pool == "cls" or config.distilled
        self.prefix = PrefixTokens(
            config.dim,
            class_token=class_token,
            distilled=config.distilled,
            registers=config.registers,
            init_std=config.init_std,
        )
        slot = Slot(
            dim=config.dim,
            heads=config.heads,
            max_len=self.prefix.count + grid[0] * grid[1],
            grid=grid,
            prefix=self.prefix.count,
            needs=Capability.BIDIRECTIONAL,
            where="vit",
        )
        self.stack = Stack(config, slot)
        self.head = ClassificationHead(config.dim, config.num_classes, pool=config.pool)
        wanted = config.distilled and config.num_classes > 0
        self.distillation_head = nn.Linear(config.dim, config.num_classes) if wanted else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.distillation_head is not None:
            init_linear(self.distillation_head, self.config.init_std)

    def forward_features(self, images: Tensor, record: Recorder | None = None) -> Tensor:
        """Tokens after the stack and its final norm: (B, P + h w, D), in the order of the module docstring."""
        return self._tokens(images, record)[0]

    def _tokens(self, images: Tensor, record: Recorder | None) -> tuple[Tensor, Context]:
        x, grid = self.patches(images)  # (B, h w, D)
        context = Context(grid=grid, prefix=self.prefix.count, record=record)
        x = self.prefix(x)  # (B, P + h w, D)
        return self.stack(x, context), context

    def forward(self, images: Tensor, record: Recorder | None = None) -> Any:
        x, context = self._tokens(images, record)  # (B, P + h w, D)
        logits = self.head(x, context)  # (B, classes), or (B, D) without a classifier
        if self.distillation_head is None:
            return logits
        distilled = self.distillation_head(x[:, 1])  # (B, classes)
        return (logits, distilled) if self.training else (logits + distilled) / 2


def _preset(name: str, summary: str, paper: str, **choices: Any) -> None:
    register_preset(ViTConfig, name, summary, paper, choices)


_VIT, _DEIT = "Dosovitskiy et al. 2020, arXiv:2010.11929", "Touvron et al. 2020, arXiv:2012.12877"
_preset(
    "vit_digits",
    "A small ViT for 8 x 8 digits, as recipe=vit trains it.",
    _VIT,
    image_size=8,
    patch_size=2,
    channels=1,
    num_classes=10,
    dim=64,
    depth=4,
    heads=4,
    pool="mean",
    init_std=0.07,
    ffn={"ratio": 2.0},
)
_WIDTHS: dict[str, dict[str, Any]] = {
    "tiny": {"dim": 192, "depth": 12, "heads": 3},
    "small": {"dim": 384, "depth": 12, "heads": 6},
    "base": {"dim": 768, "depth": 12, "heads": 12},
    "large": {"dim": 1024, "depth": 24, "heads": 16},
}

for _size, _width in _WIDTHS.items():
    _title = _size.title()
    _preset(f"vit_{_size}_patch16_224", f"ViT-{_title}/16 at 224 x 224.", _VIT, **_width)
    if _size != "tiny":
        _preset(f"vit_{_size}_patch32_224", f"ViT-{_title}/32 at 224 x 224.", _VIT, patch_size=32, **_width)
    if _size != "large":
        _preset(f"deit_{_size}_patch16_224", f"DeiT-{_title}/16 at 224 x 224.", _DEIT, **_width)
        _summary = f"DeiT-{_title}/16 at 224 x 224, with a distillation token."
        _preset(f"deit_{_size}_distilled_patch16_224", _summary, _DEIT, distilled=True, **_width)
