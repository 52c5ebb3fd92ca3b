"""Mamba and Mamba-2 to and from transformers' classes.

zoo                                    transformers
embed.weight                           backbone.embeddings.weight (and lm_head.weight, tied)
stack.blocks.i.residuals.mixer.norm    backbone.layers.i.norm
stack.blocks.i.mixer.conv              ... mixer.conv1d                          (C, W) for (C, 1, W)
stack.blocks.i.mixer.{in_proj,out}     ... mixer.{in_proj,out_proj}
stack.blocks.i.mixer.{A_log,D}         ... mixer.{A_log,D}
stack.blocks.i.mixer.{x_proj,dt_proj}  ... mixer.{x_proj,dt_proj}                Mamba
stack.blocks.i.mixer.dt_bias           ... mixer.dt_proj.bias, or mixer.dt_bias  Mamba, Mamba-2
stack.blocks.i.mixer.norm              ... mixer.norm                            Mamba-2
stack.norm                             backbone.norm_f

Their `residual_in_fp32` keeps the stream in fp32 whatever the weights' dtype; ours has the dtype of the weights.
"""

from __future__ import annotations

import math
from typing import Any

from zoo.blocks.api import MixerConfig
from zoo.blocks.mixers.mamba import MambaConfig
from zoo.blocks.mixers.mamba2 import HEAD_DIM, Mamba2Config
from zoo.interop.family import Family, Weights, common
from zoo.interop.fields import Fields
from zoo.interop.weights import Rule, both, kinds_of, linear
from zoo.models.gpt import GPTConfig
from zoo.registry import ConfigError

__all__ = ["MAMBA", "MAMBA2", "bare_mamba", "mamba_rules"]

_NO_LIMIT = ((0.0, math.inf), [0.0, math.inf], [0.0, {"__float__": "Infinity"}])
"""Of the steps: as their class has it, and as two versions write it."""
_ONE_WAY = {"tied": False, "scan": "row"}
"""Choices of two directions, where there is one."""
MAX_LEN = 2048  # what both were trained at; neither model has a longest row


class _MambaFamily(Family):
    """Compares without what these models have no use for: heads of the family, a feed-forward, a longest row."""

    def config_to(self, config: Any, weights: Weights = None) -> dict[str, Any]:
        return super().config_to(_bare(config, self.model_type), weights)


def _bare(config: GPTConfig, kind: str) -> GPTConfig:
    """The same computation in the words that `_read` chooses."""
    default = GPTConfig()
    mixer = _mixer(config, kind)
    if isinstance(mixer, MambaConfig):
        mixer = bare_mamba(mixer, config.dim)
    else:
        mixer = mixer.model_copy(update={"head_dim": _head_dim(mixer, config.dim), "chunk": 64, **_ONE_WAY})
    unused = {"heads": default.heads, "max_len": MAX_LEN}
    if config.layout == "mixer_only":
        unused["ffn"] = default.ffn
    return config.model_copy(update={"mixer": mixer, **unused})


def bare_mamba(mixer: MambaConfig, dim: int) -> MambaConfig:
    """The same mixer without what it has no use for, its defaults told as such."""
    rank = None if mixer.dt_rank == math.ceil(dim / 16) else mixer.dt_rank
    return mixer.model_copy(update={"dt_rank": rank, **_ONE_WAY})


def _mixer(config: GPTConfig, kind: str) -> Any:
    mixer: MixerConfig = config.mixer
    if mixer.registered_name != kind:
        raise ConfigError(
            f"mixer '{mixer.registered_name}' has no counterpart in transformers' class; choices: {kind}",
            config.registered_name,
        )
    return mixer


def _head_dim(mixer: Mamba2Config, dim: int) -> int:
    return mixer.head_dim or min(HEAD_DIM, int(mixer.expand * dim))


def _read(fields: Fields, weights: Weights) -> GPTConfig:
    second = fields.model_type == "mamba2"
    dim, depth = (
        fields.int("hidden_size", 4096 if second else 768),
        fields.int("num_hidden_layers", 64 if second else 32),
    )
    expand, conv = fields.int("expand", 2), fields.int("conv_kernel", 4)
    if not conv:
        fields.refuse("conv_kernel", conv, "1 or more")
    fields.only("hidden_act", "silu", "swish")
    fields.only("intermediate_size", expand * dim)
    for name in ("time_step_min", "time_step_max", "time_step_floor", "time_step_scale", "time_step_init_scheme"):
        fields.get(name)  # initial values
    for name in ("residual_in_fp32", "rescale_prenorm_residual", "use_mambapy", "use_associative_scan", "chunk_size"):
        fields.get(name)  # precision, initial values, and ways to compute the same
    for name, value in {"d_model": dim, "d_inner": expand * dim, "n_layer": depth, "rms_norm": True}.items():
        fields.only(name, value)  # the authors' own names, in files of the first conversion
    for name in ("fused_add_norm", "pad_vocab_size_multiple", "ssm_cfg"):
        fields.get(name)
    rank = fields.get("time_step_rank", "auto")
    mixer: dict[str, Any] = {
        "name": fields.model_type,
        "expand": float(expand),
        "state_size": fields.int("state_size", 128 if second else 16),
        "conv": conv,
        "conv_bias": fields.bool("use_conv_bias", True),
        "bias": fields.bool("use_bias", False),
    }
    eps = fields.float("layer_norm_epsilon", 1e-5)
    if second:
        fields.only("time_step_limit", *_NO_LIMIT)
        head_dim = fields.int("head_dim", 64)
        fields.only("num_heads", expand * dim // max(head_dim, 1))
        mixer |= {"head_dim": head_dim, "groups": fields.int("n_groups", 8), "norm_eps": eps}
    else:
        mixer["dt_rank"] = None if rank in ("auto", math.ceil(dim / 16)) else fields.int("time_step_rank", None)
    return GPTConfig(
        dim=dim,
        depth=depth,
        mixer=mixer,  # type: ignore[arg-type]
        norm={"name": "rmsnorm", "eps": eps},  # type: ignore[arg-type]
        position="none",  # type: ignore[arg-type]
        layout="mixer_only",
        vocab_size=fields.int("vocab_size", 32768 if second else 50280),
        max_len=MAX_LEN,
        tie_embeddings=fields.bool("tie_word_embeddings", not second),
        init_std=fields.float("initializer_range", 0.1),
    )


def _write(kind: str, config: GPTConfig) -> dict[str, Any]:
    mixer = _mixer(config, kind)
    plain: dict[str, Any] = {
        "architectures": [{"mamba": "MambaForCausalLM", "mamba2": "Mamba2ForCausalLM"}[kind]],
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "num_hidden_layers": config.depth,
        "state_size": mixer.state_size,
        "expand": round(mixer.expand),
        "conv_kernel": mixer.conv,
        "use_conv_bias": mixer.conv_bias,
        "use_bias": mixer.bias,
        "layer_norm_epsilon": getattr(config.norm, "eps", 1e-5),
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": None,  # theirs are those of one vocabulary
        "eos_token_id": None,
        "pad_token_id": None,
        **common(config),
    }
    if kind == "mamba":
        return plain | {"time_step_rank": mixer.dt_rank or math.ceil(config.dim / 16)}
    head_dim = _head_dim(mixer, config.dim)
    heads = round(mixer.expand) * config.dim // head_dim
    return plain | {"head_dim": head_dim, "num_heads": heads, "n_groups": mixer.groups}


def _rules(kind: str, config: GPTConfig) -> list[Rule]:
    mixer = _mixer(config, kind)
    rules = [both("stack.norm.weight", "backbone.norm_f.weight")]
    if config.tie_embeddings:
        rules.append(both("embed.weight", "backbone.embeddings.weight", "lm_head.weight"))
    else:
        rules += [both("embed.weight", "backbone.embeddings.weight"), both("head.weight", "lm_head.weight")]
    for layer in range(config.depth):
        ours, theirs = f"stack.blocks.{layer}.mixer", f"backbone.layers.{layer}.mixer"
        rules.append(both(f"stack.blocks.{layer}.residuals.mixer.norm.weight", f"backbone.layers.{layer}.norm.weight"))
        rules += mamba_rules(mixer, ours, theirs)
    return rules


def mamba_rules(mixer: MambaConfig | Mamba2Config, ours: str, theirs: str) -> list[Rule]:
    """One mixer."""
    rules = linear(f"{ours}.in_proj", f"{theirs}.in_proj", kinds_of(mixer.bias))
    rules += linear(f"{ours}.conv", f"{theirs}.conv1d", kinds_of(mixer.conv_bias), view="depthwise")
    rules += [both(f"{ours}.{name}", f"{theirs}.{name}") for name in ("A_log", "D")]
    if isinstance(mixer, MambaConfig):
        rules += [both(f"{ours}.{name}.weight", f"{theirs}.{name}.weight") for name in ("x_proj", "dt_proj")]
        rules.append(both(f"{ours}.dt_bias", f"{theirs}.dt_proj.bias"))
    else:
        rules += [both(f"{ours}.{name}", f"{theirs}.{name}") for name in ("dt_bias", "norm.weight")]
    return rules + linear(f"{ours}.out", f"{theirs}.out_proj", kinds_of(mixer.bias))


def _family(kind: str) -> Family:
    return _MambaFamily(
        kind,
        "backbone",
        _read,
        lambda config: _write(kind, config),
        lambda config: _rules(kind, config),
        heads=("lm_head.",),
        rename=lambda name: name.replace("embedding.", "embeddings."),
    )


MAMBA, MAMBA2 = _family("mamba"), _family("mamba2")
