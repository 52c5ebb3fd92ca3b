"""What the maps of one model_type consist of, and the strict comparison behind writing.

A config is written by taking from it what transformers' class has a field for, and reading the result back: unless
that gives the same computation, the first difference is told and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from zoo.blocks.api import FFNConfig, ModelConfig
from zoo.blocks.ffn.glu import GLUConfig
from zoo.blocks.ffn.hybrid import FFNHybridConfig
from zoo.blocks.ffn.mlp import MLPConfig
from zoo.blocks.ffn.moe import MoEConfig
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.blocks.mixers.hybrid import HybridConfig
from zoo.blocks.mixers.mla import MLAConfig
from zoo.blocks.positions import RopeConfig
from zoo.blocks.positions.rotary_scaling import YarnScalingConfig
from zoo.blocks.stack import TransformerConfig
from zoo.interop.fields import Fields
from zoo.interop.weights import Rule, stored, to_ours, to_theirs
from zoo.registry import ConfigError, encode

__all__ = [
    "Family",
    "Weights",
    "attention_at",
    "common",
    "experts",
    "ffns",
    "glu",
    "latent_widths",
    "layered",
    "layered_ffn",
    "mlp",
    "plain_width",
    "same_computation",
]

Part = TypeVar("Part")

Weights = Mapping[str, Tensor] | None
"""Their weights by name, or None where only a config is at hand. They say which heads a checkpoint has."""


@dataclass(frozen=True)
class Family:
    """Maps of one model_type of transformers."""

    model_type: str
    prefix: str
    """Name of the trunk inside their models with a head; a bare trunk's weights lack it."""
    read: Callable[[Fields, Weights], ModelConfig]
    write: Callable[[Any], dict[str, Any]]
    """Config of ours to a plain config, with `architectures`. Need not check anything."""
    rules: Callable[[Any], list[Rule]]
    heads: tuple[str, ...] = ()
    """Beginnings of the names of weights outside the trunk."""
    rename: Callable[[str], str] = lambda name: name
    """From names of earlier versions."""
    attach: Callable[[Any, Path], None] = lambda model, folder: None
    """Gives a model what else its folder holds, such as a tokenizer."""
    attached: Callable[[Any, Path], None] = lambda model, folder: None
    """Writes that into a folder."""
    buffers: tuple[str, ...] = ()
    """Ends of the names of stored tables that are not weights."""

    def name(self, name: str, bare: bool = False) -> str | None:
        """The present name of a weight in a file; None for a table that is not read. `bare`: a trunk without head."""
        if name.endswith(self.buffers) and self.buffers:
            return None
        name = self.rename(name)
        return f"{self.prefix}.{name}" if bare and not name.startswith(self.heads or ("\n",)) else name

    def is_bare(self, names: Any) -> bool:
        return bool(self.prefix) and not any(name.startswith(f"{self.prefix}.") for name in names)

    def canonical(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Their weights under their present names."""
        bare = self.is_bare(state)
        named = ((self.name(name, bare), tensor) for name, tensor in state.items())
        return {name: tensor for name, tensor in named if name is not None}

    def config_from(self, plain: Mapping[str, Any], weights: Weights = None, where: str = "config.json") -> ModelConfig:
        """Our config from their plain one. Raises ConfigError for what has no counterpart."""
        fields = Fields(plain, where)
        config = self.read(fields, weights)
        fields.close()
        return config

    def config_to(self, config: ModelConfig, weights: Weights = None) -> dict[str, Any]:
        """Their plain config from ours. Raises ConfigError for what has no counterpart."""
        plain = {"model_type": self.model_type, **self.write(config)}
        back = self.config_from(plain, weights)
        same_computation(config, back, f"transformers' '{self.model_type}'")
        return plain

    def from_huggingface(self, state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Our state dict from theirs. Raises ConfigError for a weight missing or left over."""
        return to_ours(self.rules(config), self.canonical(state))

    def to_huggingface(self, model: nn.Module) -> dict[str, Tensor]:
        """Their state dict from our model, each shared tensor under one name. Raises ConfigError."""
        return to_theirs(self.rules(model.config), _own(model))

    def sketch(self, model: nn.Module) -> dict[str, Tensor]:
        """The same without what has no rule, to tell from the config, in better words, why it has none."""
        own = _own(model)
        rules = [rule for rule in self.rules(model.config) if all(name in own for name in rule.ours)]
        return to_theirs(rules, {name: own[name] for rule in rules for name in rule.ours})


def _own(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in stored(model).items()}


def same_computation(config: ModelConfig, other: ModelConfig, what: str) -> None:
    """Refuse `config` where it computes something else than `other`, which is what `what` can hold of it."""
    mine, its = _computed(config), _computed(other)
    for name in sorted(mine.keys() | its.keys(), key=_names_first):
        if mine.get(name) != its.get(name):
            raise ConfigError(
                f"{name} {mine.get(name)!r} has no counterpart in {what}; choices: {its.get(name)!r}",
                config.registered_name,
            )


def common(config: TransformerConfig) -> dict[str, Any]:
    """The spread of initial weights, in their words."""
    return {} if config.init_std == "fan_in" else {"initializer_range": config.init_std}


def attention_at(config: TransformerConfig, layer: int) -> AttentionConfig:
    """The attention of one layer. Raises ConfigError for another mixer: transformers' class has none."""
    mixer = config.mixer.at(layer, config.depth)
    if not isinstance(mixer, AttentionConfig):
        raise ConfigError(
            f"mixer '{mixer.registered_name}' has no counterpart in transformers' class; choices: attention",
            config.registered_name,
        )
    return mixer


def mlp(config: TransformerConfig) -> MLPConfig:
    if not isinstance(config.ffn, MLPConfig):
        raise ConfigError(
            f"ffn '{config.ffn.registered_name}' has no counterpart in transformers' class; choices: mlp",
            config.registered_name,
        )
    return config.ffn


def glu(config: TransformerConfig) -> GLUConfig:
    if not isinstance(config.ffn, GLUConfig):
        raise ConfigError(
            f"ffn '{config.ffn.registered_name}' has no counterpart in transformers' class; choices: swiglu, geglu",
            config.registered_name,
        )
    return config.ffn


def plain_width(config: TransformerConfig) -> int:
    """Hidden width of the feed-forward."""
    ffn = config.ffn
    if isinstance(ffn, GLUConfig):
        return ffn.width(config.dim)
    return mlp(config).hidden or int(config.dim * mlp(config).ratio)


def ffns(config: TransformerConfig) -> list[FFNConfig]:
    """The feed-forwards of the layers, those of the longer stack where there are two."""
    depth = max(config.depth, getattr(config, "encoder_depth", None) or 0)
    return [config.ffn.at(layer, config.depth) for layer in range(depth)]


def experts(config: TransformerConfig) -> MoEConfig | None:
    """The first mixture of experts among the layers' feed-forwards."""
    return next((ffn for ffn in ffns(config) if isinstance(ffn, MoEConfig)), None)


def layered(mixers: list[dict[str, Any]]) -> dict[str, Any]:
    """The mixer of a list of layers' mixers: one for all, or the shortest pattern that repeats."""
    if not mixers:
        return {"name": "attention"}
    pattern = _pattern(mixers)
    return pattern[0] if len(pattern) == 1 else {"name": HybridConfig.registered_name, "pattern": pattern}


def layered_ffn(layers: list[FFNConfig], without: FFNConfig) -> FFNConfig:
    """The same of feed-forwards; `without` any layers."""
    pattern = _pattern(layers) or [without]
    return pattern[0] if len(pattern) == 1 else FFNHybridConfig(pattern=tuple(pattern))


def _pattern(parts: list[Part]) -> list[Part]:
    """The shortest beginning that gives all of them when it is repeated."""
    periods = range(1, len(parts) + 1)
    fits = (p for p in periods if all(part == parts[i % p] for i, part in enumerate(parts)))
    return parts[: next(fits, 0)]


def _names_first(path: str) -> tuple[str, bool, str]:
    """Which part it is comes before that part's own choices."""
    place, _, leaf = path.rpartition(".")
    return place, leaf != "name", leaf


_BALANCE = ("balance", "sequence_balance", "z_loss", "bias_rate", "capacity")
_TRAINING = (
    "init_std",
    "scale_branches",
    "checkpointing",
    "drop_path",
    "dropout",
    "embedding_std",
    "head_dropout",
    "context",
)


def _computed(config: ModelConfig) -> dict[str, Any]:
    """All that decides what a model computes in evaluation, with defaults filled in, by dotted names."""
    plain = {name: value for name, value in encode(config).items() if name not in _TRAINING}
    if isinstance(config, TransformerConfig):
        wanted = config.final_norm
        plain["final_norm"] = not config.residual.normalised if wanted is None else wanted
        plain["layers"] = {str(layer): _attention(config, layer) for layer in range(config.depth)}
        del plain["mixer"]
        plain["position"] = encode(config.position) if config.position.place == "input" else None
        layers = [_feed_forward(ffn, config.dim) for ffn in ffns(config)]
        alike = all(layer == layers[0] for layer in layers)
        plain["ffn"] = layers[0] if layers and alike else {str(i): layer for i, layer in enumerate(layers)}
        depth = getattr(config, "encoder_depth", None)
        if "encoder_depth" in plain:
            plain["encoder_depth"] = config.depth if depth is None else depth
        if plain.get("cross") is not None:
            plain["cross"] = _attention(config.model_copy(update={"mixer": config.cross_mixer}), 0)
        if "embedding_dim" in plain:
            plain["embedding_dim"] = plain["embedding_dim"] or config.dim
    return _flat(plain)


def _feed_forward(ffn: Any, dim: int) -> dict[str, Any]:
    if isinstance(ffn, GLUConfig):
        return {"gated": True, "hidden": ffn.width(dim), "activation": ffn.activation, "bias": ffn.bias}
    if isinstance(ffn, MLPConfig):
        hidden = ffn.hidden or int(dim * ffn.ratio)
        return {"gated": False, "hidden": hidden, "activation": ffn.activation, "bias": ffn.bias}
    if isinstance(ffn, MoEConfig):
        plain = {name: value for name, value in encode(ffn).items() if name not in _BALANCE}
        plain |= {"normalise": ffn.renormalises, "has_bias": ffn.bias_rate > 0}
        return plain | {"expert": _feed_forward(ffn.expert, dim), "shared": _feed_forward(ffn.shared, dim)}
    return encode(ffn) or {}


def _attention(config: TransformerConfig, layer: int) -> dict[str, Any]:
    mixer: Any = config.mixer.at(layer, config.depth)
    plain = {name: value for name, value in encode(mixer).items() if name != "dropout"}
    if isinstance(mixer, AttentionConfig):
        heads = mixer.heads or config.heads
        width = mixer.head_dim or config.dim // heads
        plain |= {"heads": heads, "kv_heads": mixer.kv_heads or heads, "head_dim": width}
        plain["value_dim"] = mixer.value_dim or width
        plain["scale"] = round(width**-0.5 if mixer.scale is None else mixer.scale, 9)
        if mixer.qk_norm is None:
            del plain["qk_norm_over"]
        if not mixer.temperature:
            del plain["temperature_floor"]
        plain["position"] = encode(_position(config, mixer))
    if isinstance(mixer, MLAConfig):
        position = _position(config, mixer)
        plain |= {**latent_widths(config, mixer), "position": encode(position)}
        if not (isinstance(position, RopeConfig) and isinstance(position.scaling, YarnScalingConfig)):
            del plain["yarn_factor"]
    return plain


def _position(config: TransformerConfig, mixer: AttentionConfig | MLAConfig) -> Any:
    return mixer.position or (config.position if config.position.place in ("rotary", "bias") else None)


def latent_widths(config: TransformerConfig, mixer: MLAConfig) -> dict[str, int]:
    """The widths of a latent attention, by the names of its fields, with the defaults filled in."""
    heads = mixer.heads or config.heads
    nope = mixer.nope_dim or config.dim // heads
    rope = -(-nope // 8) * 4 if mixer.rope_dim is None else mixer.rope_dim
    widths = {"heads": heads, "nope_dim": nope, "rope_dim": rope, "value_dim": mixer.value_dim or nope}
    return widths | {"kv_rank": mixer.kv_rank or 4 * nope}


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {path: value}
    found: dict[str, Any] = {}
    for name, item in value.items():
        if name in ("init_std", "antialias"):
            continue
        found |= _flat(item, f"{path}.{name}" if path else name)
    return found
