"""Rotary positions in transformers' words, both ways: rope_parameters, and rope_theta with rope_scaling before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from zoo.blocks.positions import RopeConfig
from zoo.interop.fields import Fields
from zoo.registry import ConfigError, encode

__all__ = ["read_rope", "rope_from", "write_rope"]

_KEYS = {
    "default": set[str](),
    "linear": {"factor"},
    "dynamic": {"factor", "original_max_position_embeddings"},
    "yarn": {
        *("factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "truncate"),
        *("mscale", "mscale_all_dim"),
    },
    "llama3": {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
}


def read_rope(fields: Fields, max_len: int, base: float = 10000.0) -> dict[str, Any]:
    """The position of a config whose layers all rotate alike."""
    parameters = fields.get("rope_parameters") or {}
    scaling = fields.get("rope_scaling") or {}
    base = fields.float("rope_theta", base)
    fields.only("partial_rotary_factor", 1.0, 1)
    fields.only("rope_interleaved", False)
    return rope_from(fields, {"rope_theta": base, **scaling, **parameters}, max_len)


def rope_from(fields: Fields, parameters: Mapping[str, Any], max_len: int) -> dict[str, Any]:
    """The position of one dict of rope parameters."""
    values = dict(parameters)
    kind = values.pop("rope_type", None) or values.get("type", "default")
    values.pop("type", None)
    base = values.pop("rope_theta", 10000.0)
    if kind not in _KEYS:
        fields.refuse("rope_type", kind, ", ".join(_KEYS))
    if values.pop("partial_rotary_factor", 1.0) not in (None, 1, 1.0):
        fields.refuse("partial_rotary_factor", parameters["partial_rotary_factor"], "1.0")
    unknown = sorted(name for name, value in values.items() if name not in _KEYS[kind] and value is not None)
    if unknown:
        fields.refuse(f"rope parameter {unknown[0]}", values[unknown[0]], ", ".join(sorted(_KEYS[kind])) or "none")
    position: dict[str, Any] = {"name": "rope", "base": float(base)}
    if kind == "default":
        return position
    original = values.get("original_max_position_embeddings") or max_len
    factor = values.get("factor")
    if factor is None:
        if kind != "yarn":
            raise ConfigError(f"rope_type '{kind}' needs a factor", fields.where)
        factor = max_len / original
    scaling: dict[str, Any] = {"name": {"dynamic": "dynamic_ntk"}.get(kind, kind), "factor": float(factor)}
    if kind == "dynamic" and original != max_len:
        fields.refuse("original_max_position_embeddings", original, f"max_position_embeddings {max_len}")
    if kind != "linear":
        scaling["original_max_len"] = original
    if kind == "yarn":
        scaling |= {"beta_fast": float(values.get("beta_fast") or 32), "beta_slow": float(values.get("beta_slow") or 1)}
        scaling["truncate"] = values.get("truncate") is not False
        if values.get("attention_factor") is not None:
            scaling["attention_factor"] = float(values["attention_factor"])
        elif values.get("mscale") and values.get("mscale_all_dim"):
            one, other = (_growth(factor, values[name]) for name in ("mscale", "mscale_all_dim"))
            scaling["attention_factor"] = one / other
    if kind == "llama3":
        for name in ("low_freq_factor", "high_freq_factor"):
            if values.get(name) is None:
                raise ConfigError(f"rope_type 'llama3' needs {name}", fields.where)
            scaling[name] = float(values[name])
    return {**position, "scaling": scaling}


def write_rope(position: Any) -> dict[str, Any]:
    """rope_parameters of a rotary position. Raises ConfigError for another one."""
    if not isinstance(position, RopeConfig):
        name = position.registered_name if position is not None else "none"
        raise ConfigError(f"position '{name}' has no counterpart in transformers' class; choices: rope")
    if position.layout != "half" or position.fraction != 1.0:
        raise ConfigError(
            f"rope with layout '{position.layout}' and fraction {position.fraction} has no counterpart in "
            "transformers' class; choices: layout 'half', fraction 1.0"
        )
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": position.base}
    values = encode(position.scaling)
    kind = {"none": "default", "dynamic_ntk": "dynamic"}.get(values["name"], values["name"])
    if kind not in _KEYS:
        raise ConfigError(
            f"rope scaling '{values['name']}' has no counterpart in transformers; "
            "choices: none, linear, dynamic_ntk, yarn, llama3"
        )
    parameters["rope_type"] = kind
    for name, value in values.items():
        if name != "name" and value is not None:
            parameters["original_max_position_embeddings" if name == "original_max_len" else name] = value
    if kind == "dynamic":
        del parameters["original_max_position_embeddings"]  # there it is max_position_embeddings
    return parameters


def _growth(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
