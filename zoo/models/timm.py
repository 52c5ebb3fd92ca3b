"""Any image model of timm as a comparison arm: `model=timm model.name=resnet18`.

Wightman 2019, doi:10.5281/zenodo.4414861.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from zoo.blocks.api import ModelConfig
from zoo.registry import ConfigError, nearest, register

__all__ = ["TimmConfig", "TimmModel"]

Size = Annotated[tuple[int, int], BeforeValidator(lambda value: (value, value) if isinstance(value, int) else value)]


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
            self.model = timm.create_model(config.name, pretrained=False, **options)
        except TypeError:
            # Convolutional models have no fixed size and refuse the keyword.
            options.pop("img_size", None)
            self.model = timm.create_model(config.name, pretrained=False, **options)

    def forward_features(self, images: Tensor) -> Tensor:
        """The model's own features, as timm returns them."""
        return self.model.forward_features(images)  # pyright: ignore[reportCallIssue]

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images)  # (B, classes)
