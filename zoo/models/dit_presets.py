"""The published sizes of DiT, over the latents of 256 x 256 images. Each count of parameters is a test.

Counts are those of the original without its fixed position table, which is made in every pass here: XL/2 has
674,834,720 trained parameters, and 675,129,632 with the 256 x 1152 table.
"""

from __future__ import annotations

from typing import Any

from zoo.models.dit import DiTConfig
from zoo.registry import register_preset

__all__: list[str] = []

_PAPER = "Peebles & Xie 2022, arXiv:2212.09748"
_WIDTHS: dict[str, dict[str, Any]] = {
    "s": {"dim": 384, "depth": 12, "heads": 6},
    "b": {"dim": 768, "depth": 12, "heads": 12},
    "l": {"dim": 1024, "depth": 24, "heads": 16},
    "xl": {"dim": 1152, "depth": 28, "heads": 16},
}

for _size, _width in _WIDTHS.items():
    for _patch in (2, 4, 8):
        _summary = f"DiT-{_size.upper()}/{_patch} over 4 x 32 x 32 latents, 1000 classes."
        register_preset(DiTConfig, f"dit_{_size}_{_patch}", _summary, _PAPER, {"patch_size": _patch, **_width})

register_preset(
    DiTConfig,
    "dit_digits",
    "A small DiT for 8 x 8 digits, as recipe=dit trains it.",
    _PAPER,
    {"image_size": 8, "channels": 1, "num_classes": 10, "learned_sigma": False, "dim": 96, "depth": 3, "heads": 4},
)
