"""Any image model of timm as a comparison arm: `model=timm model.name=resnet18`.

Wightman 2019, doi:10.5281/zenodo.4414861.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor, nn

from zoo.blocks.api import ModelConfig
from zoo.models.vit import Size
from zoo.registry import ConfigError, nearest, register

__all__ = ["TimmConfig", "TimmModel"]


@register("model", "timm", paper="Wightman 2019, doi:10.5281/zenodo.4414861")
class TimmConfig(ModelConfig):
    """A model of the timm library, from random weights."""

    name: str
    """Name in `timm.list_models()`."""
    image_size: Size | None = None
    """Passed on to models that are built for one size, such as ViTs; convolutional ones do without."""
    channels: Annotated[int, Field(ge=1)] = 3
    num_classes: Annotated[int, Field(ge=0)] = 1000
    options: Mapping[str, Any] = Field(default_factory=dict)
    """Further keywords of the model's constructor, e.g. {"patch_size": 4}."""

    def build(self) -> TimmModel:
        return TimmModel(self)


class TimmModel(nn.Module):
    """images (B, C, H, W) -> logits (B, classes)."""

    def __init__(self, config: TimmConfig) -> None:
        super().__init__()
        import timm

        self.config = config
        if not timm.is_model(config.name):
            near = nearest(config.name, timm.list_models())
            raise ConfigError(f"timm has no model '{config.name}'{near}; timm.list_models() lists them", "model.name")
        options: dict[str, Any] = {"in_chans": config.channels, "num_classes": config.num_classes, **config.options}
        if config.image_size is not None:
            options["img_size"] = config.image_size
        try:
            self.model = _create(config.name, options)
        except (TypeError, ValueError, AssertionError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"timm's {config.name} refuses {options}: {reason}", "model") from None

    def forward_features(self, images: Tensor) -> Tensor:
        """The model's own features, as timm returns them."""
        return self.model.forward_features(images)  # pyright: ignore[reportCallIssue]

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images)  # (B, classes)


def _create(name: str, options: dict[str, Any]) -> nn.Module:
    import timm

    try:
        return timm.create_model(name, pretrained=False, **options)
    except TypeError as error:
        if "img_size" not in options or "img_size" not in str(error):
            raise
        # Convolutional models have no fixed size and refuse the keyword.
        return timm.create_model(name, pretrained=False, **{k: v for k, v in options.items() if k != "img_size"})
