"""The functions of `import zoo`: list, create, save and load. Importing this module registers every part."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save
from torch import Tensor, nn

from zoo import registry
from zoo.autoload import import_all
from zoo.blocks.api import ModelConfig, Slot, Sublayer, check
from zoo.blocks.init import materialise
from zoo.files import write_text, write_whole
from zoo.registry import ConfigError

__all__ = [
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
]

import_all("zoo.blocks")
import_all("zoo.models")
import_all("zoo.diffusion")


def list_models() -> list[str]:
    """Names of all families and presets."""
    return registry.names("model")


def list_mixers() -> list[str]:
    """Names of all token mixers."""
    return registry.names("mixer")


def list_ffns() -> list[str]:
    """Names of all feed-forwards."""
    return registry.names("ffn")


def list_norms() -> list[str]:
    """Names of all norms."""
    return registry.names("norm")


def list_positions() -> list[str]:
    """Names of all positions."""
    return registry.names("position")


def list_residuals() -> list[str]:
    """Names of all residual connections."""
    return registry.names("residual")


def create_model(model: str | Mapping[str, Any] | registry.Config, **choices: Any) -> nn.Module:
    """A model from a family or preset name, a plain dict, or a config; `choices` change its fields.

        create_model("vit", image_size=32, patch_size=4, num_classes=10, mixer="attention")
        create_model("vit_tiny_patch16_224", mixer={"window": 8})

    Under `torch.device("meta")` it costs no memory; `zoo.blocks.materialise` gives it weights afterwards.
    Raises ConfigError for unknown names and keys, and for parts that do not fit.
    """
    return registry.decode("model", _with("model", model, choices), "model").build()


def create_mixer(mixer: str | Mapping[str, Any] | registry.Config, *, dim: int, **choices: Any) -> Sublayer:
    """A token mixer for use outside the zoo: `create_mixer("attention", dim=256, heads=4, causal=True, window=8)`.

    Keywords are the mixer's own choices, or else facts of the place (fields of `zoo.Slot`: causal, max_len,
    memory_dim ...). Called as `y = mixer(x, zoo.Context())` on x (B, T, D). Raises ConfigError.
    """
    config, slot = _config_and_slot("mixer", mixer, dim, choices)
    check(config, slot)
    return config.build(slot)


def create_ffn(ffn: str | Mapping[str, Any] | registry.Config, *, dim: int, **choices: Any) -> Sublayer:
    """A feed-forward: `create_ffn("swiglu", dim=256)`; keywords as in `create_mixer`."""
    config, slot = _config_and_slot("ffn", ffn, dim, choices)
    return config.build(slot)


def create_norm(norm: str | Mapping[str, Any] | registry.Config, *, dim: int, **choices: Any) -> nn.Module:
    """A norm over a last axis of width `dim`: `create_norm("rmsnorm", dim=256, eps=1e-5)`."""
    return registry.decode("norm", _with("norm", norm, choices), "norm").build(dim)


def save_pretrained(model: nn.Module, folder: str | os.PathLike[str]) -> Path:
    """Write config.json (plain values and names) and model.safetensors into `folder`; each replaces the old whole."""
    folder = Path(folder)
    config = getattr(model, "config", None)
    if not isinstance(config, ModelConfig) or not config.registered_name:
        raise ConfigError(f"{type(model).__name__} is no registered model, so it could not be loaded again")
    folder.mkdir(parents=True, exist_ok=True)
    weights = save(_unshared(model), metadata={"format": "pt"})
    write_whole(folder / "model.safetensors", lambda file: file.write(weights))
    write_text(folder / "config.json", json.dumps(registry.encode(config), indent=2) + "\n")
    return folder


def load_pretrained(folder: str | os.PathLike[str], device: torch.device | str = "cpu") -> nn.Module:
    """The model that `save_pretrained` wrote, in evaluation mode. Raises ConfigError for a folder that is not one."""
    folder = Path(folder)
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise ConfigError(
                f"{folder} has no {name}; give a folder that zoo.save_pretrained wrote, such as RUN/model"
            )
    try:
        plain = json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise ConfigError(f"{folder / 'config.json'} is not JSON: {error}") from None
    with torch.device("meta"):
        model = registry.decode("model", plain, str(folder / "config.json")).build()
    materialise(model, device)
    try:
        model.to(_float_dtype(folder / "model.safetensors"))
        missing, unexpected = load_model(model, str(folder / "model.safetensors"), strict=False, device=str(device))
    except (SafetensorError, RuntimeError) as error:
        raise ConfigError(f"{folder / 'model.safetensors'}: {str(error).splitlines()[0]}") from None
    if missing or unexpected:
        raise ConfigError(
            f"{folder / 'model.safetensors'} does not fit its config.json: missing {sorted(missing)[:3]}, "
            f"unexpected {sorted(unexpected)[:3]}"
        )
    return model.eval()


def _unshared(model: nn.Module) -> dict[str, Tensor]:
    """The state dict with each shared tensor under its first name only; `load_model` finds the others again."""
    kept: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tensor.shape)
        if place not in seen or not tensor.numel():
            kept[name] = tensor.contiguous()
        seen.add(place)
    return kept


def _float_dtype(path: Path) -> torch.dtype:
    """The dtype of the first floating weight, in which the whole model was saved."""
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  not a dict
            tensor = file.get_tensor(name)
            if tensor.is_floating_point():
                return tensor.dtype
    return torch.float32


def _with(kind: str, value: Any, choices: Mapping[str, Any]) -> Any:
    """A part's value with some choices changed."""
    if not choices:
        return value
    base = {registry.name_key(kind): value} if isinstance(value, str) else registry.encode(value)
    return registry.merge(base, registry.encode(choices))


def _config_and_slot(kind: str, value: Any, dim: int, choices: Mapping[str, Any]) -> tuple[Any, Slot]:
    """Keywords go to the part where it has such a field, else to the slot; what neither knows is the part's error."""
    fields = type(registry.decode(kind, value, kind)).model_fields
    facts = {k: v for k, v in choices.items() if k not in fields and k in Slot.__dataclass_fields__}
    for name, fact in {"dim": dim, **{k: facts[k] for k in ("heads", "depth") if k in facts}}.items():
        if not isinstance(fact, int) or isinstance(fact, bool) or fact < 1:
            raise ConfigError(f"should be a whole number of at least 1, got {fact!r}", name)
    if not isinstance(facts.get("causal", False), bool):
        raise ConfigError(f"should be True or False, got {facts['causal']!r}", "causal")
    own = {k: v for k, v in choices.items() if k not in facts}
    config = registry.decode(kind, _with(kind, value, own), kind)
    return config, Slot(dim=dim, where=f"{kind} {config.registered_name}", **facts)
