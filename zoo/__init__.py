"""A zoo of sequence architectures: shared blocks, the families built from them, and the tools around.

Importing this package costs nothing: torch is loaded when the first function below is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Config",
    "ConfigError",
    "Context",
    "Generated",
    "GenerationConfig",
    "PromptCache",
    "Recorder",
    "Slot",
    "__version__",
    "count",
    "create_ffn",
    "create_mixer",
    "create_model",
    "create_norm",
    "from_hf",
    "generate",
    "list_ffns",
    "list_mixers",
    "list_models",
    "list_norms",
    "list_positions",
    "list_residuals",
    "load_pretrained",
    "prefill",
    "register",
    "save_pretrained",
    "state_bytes",
    "to_hf",
    "transcribe",
    "upcycle",
]

_HOMES = {
    "zoo.registry": ("Config", "ConfigError", "register"),
    "zoo.blocks.api": ("Context", "Recorder", "Slot"),
    "zoo.blocks.ffn.upcycle": ("upcycle",),
    "zoo.inspection": ("count",),
    "zoo.interop.hub": ("from_hf", "to_hf"),
    "zoo.generation": ("Generated", "GenerationConfig", "PromptCache", "generate", "prefill", "state_bytes"),
    "zoo.speech": ("transcribe",),
    "zoo.library": (
        "create_ffn",
        "create_mixer",
        "create_model",
        "create_norm",
        "list_ffns",
        "list_mixers",
        "list_models",
        "list_norms",
        "list_positions",
        "list_residuals",
        "load_pretrained",
        "save_pretrained",
    ),
}
_WHERE = {name: home for home, names in _HOMES.items() for name in names}

if TYPE_CHECKING:
    from zoo.blocks.api import Context, Recorder, Slot
    from zoo.blocks.ffn.upcycle import upcycle
    from zoo.generation import Generated, GenerationConfig, PromptCache, generate, prefill, state_bytes
    from zoo.inspection import count
    from zoo.interop.hub import from_hf, to_hf
    from zoo.library import (
        create_ffn,
        create_mixer,
        create_model,
        create_norm,
        list_ffns,
        list_mixers,
        list_models,
        list_norms,
        list_positions,
        list_residuals,
        load_pretrained,
        save_pretrained,
    )
    from zoo.registry import Config, ConfigError, register
    from zoo.speech import transcribe


if not TYPE_CHECKING:  # a type checker would take any name for an attribute

    def __getattr__(name: str) -> Any:
        if name not in _WHERE:
            raise AttributeError(f"module 'zoo' has no attribute '{name}'")
        return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
