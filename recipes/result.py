"""result.json: what a run came to, written whole, readable by any JSON parser.

Keys: recipe, model, mixer, seed, status ("ok", "failed", "interrupted"), error, metrics {name: value},
baselines {method: {name: value}}, params, params_non_embedding, params_active, params_active_non_embedding,
flops_per_token, state_bytes, steps, examples, tokens, seconds, device, versions, config_hash. Active are the parameters
that one token passes through: all of them where there are no experts. A key without a value is null; so is a figure
that is not finite.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from zoo.files import write_text
from zoo.registry import ConfigError

KEYS = (
    "recipe",
    "model",
    "mixer",
    "seed",
    "status",
    "error",
    "metrics",
    "baselines",
    "params",
    "params_non_embedding",
    "params_active",
    "params_active_non_embedding",
    "flops_per_token",
    "state_bytes",
    "steps",
    "examples",
    "tokens",
    "seconds",
    "device",
    "versions",
    "config_hash",
)
NOT_HASHED = ("out", "resume", "checkpoint", "mode", "logger")
"""Settings that do not change what is trained."""


def new_result(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A result with everything that is known before a run."""
    model = settings.get("model") or {}
    mixer = model.get("mixer")
    known = {
        "recipe": settings.get("name"),
        "model": model.get("family"),
        "mixer": mixer.get("name") if isinstance(mixer, Mapping) else mixer,
        "seed": settings.get("seed"),
        "metrics": {},
        "baselines": {},
        "versions": versions(),
        "config_hash": config_hash(settings),
    }
    return {key: known.get(key) for key in KEYS}


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write JSON, whole; the figures of an earlier file stay if that fails. Raises OSError."""
    write_text(path, json.dumps(finite(result), indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_result(path: Path) -> dict[str, Any]:
    """What `write_result` wrote; empty where there is none. Raises ConfigError for a damaged file."""
    if not path.exists():
        return {}
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # no JSON, or no text at all
        held = None
    if not isinstance(held, dict):
        raise ConfigError(f"'{path}' is damaged; remove it to go on without it", "checkpoint")
    return held


def finite(value: Any) -> Any:
    """The value with plain types only, and None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if hasattr(value, "item"):  # a number of numpy or torch
        return finite(value.item())
    return str(value)


def config_hash(settings: Mapping[str, Any]) -> str:
    """12 hex digits of what is trained: equal for equal settings, in whatever order and folder."""
    trained = {key: value for key, value in settings.items() if key not in NOT_HASHED}
    text = json.dumps(finite(trained), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a figure depends on."""
    found = {"python": platform.python_version()}
    for name in ("torch", "lightning", "timm", "numpy", "scikit-learn"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    import zoo

    return {"zoo": zoo.__version__, **found}
