"""Jamba to and from transformers' JambaForCausalLM: Mamba and attention, dense feed-forwards and experts.

    zoo                                        transformers
    stack.blocks.i.residuals.{mixer,ffn}.norm  model.layers.i.{input_layernorm,pre_ff_layernorm}
    ....mixer.{qkv,out}                        ....self_attn.{q,k,v,o}_proj, as in hf_llama.py      attention
    ....mixer.{in_proj,conv,A_log ...}         ....mamba.{in_proj,conv1d,A_log ...}, as in hf_mamba.py
    ....mixer.inner_norms.{0,1,2}              ....mamba.{dt,b,c}_layernorm
    ....ffn.{gate,up,down}                     ....feed_forward.{gate,up,down}_proj                 dense layers
    ....ffn.router.weight, ffn.experts         ....feed_forward.router.weight, experts (see hf_moe.py)
    stack.norm                                 model.final_layernorm

Which layers are attention and which have experts is told by a period and an offset each; one expert is a dense layer.
Their auxiliary loss takes all layers as one, ours adds those of the layers up; the coefficient goes over as it is.
"""

from __future__ import annotations

import math
from typing import Any

from zoo.blocks.api import FFNConfig
from zoo.blocks.ffn.glu import GLUConfig, SwiGLUConfig
from zoo.blocks.ffn.moe import MoEConfig
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.blocks.mixers.hybrid import HybridConfig
from zoo.blocks.mixers.mamba import MambaConfig
from zoo.interop.family import Family, Weights, common, experts, ffns, glu, layered, layered_ffn
from zoo.interop.fields import Fields
from zoo.interop.hf_llama import attention_rules, glu_rules
from zoo.interop.hf_mamba import bare_mamba, mamba_rules
from zoo.interop.hf_moe import expert_rules, gated_expert
from zoo.interop.weights import Rule, both
from zoo.models.gpt import GPTConfig
from zoo.registry import ConfigError

__all__ = ["JAMBA"]


class _JambaFamily(Family):
    """Compares the Mamba layers without what they have no use for."""

    def config_to(self, config: Any, weights: Weights = None) -> dict[str, Any]:
        mixers = [bare_mamba(m, config.dim) if isinstance(m, MambaConfig) else m for m in _mixers(config)]
        if mixers:
            config = config.model_copy(update={"mixer": HybridConfig(pattern=tuple(mixers))})
        return super().config_to(config, weights)


def _mixers(config: GPTConfig) -> list[AttentionConfig | MambaConfig]:
    """Of the layers. Raises ConfigError for others: transformers' class has none."""
    mixers: list[Any] = [config.mixer.at(layer, config.depth) for layer in range(config.depth)]
    for mixer in mixers:
        if not isinstance(mixer, (AttentionConfig, MambaConfig)):
            raise ConfigError(
                f"mixer '{mixer.registered_name}' has no counterpart in transformers' class; choices: attention, mamba",
                config.registered_name,
            )
    return mixers


def _read(fields: Fields, weights: Weights) -> GPTConfig:
    dim, depth = fields.int("hidden_size", 4096), fields.int("num_hidden_layers", 32)
    heads, eps = fields.int("num_attention_heads", 32), fields.float("rms_norm_eps", 1e-6)
    fields.only("head_dim", dim // max(heads, 1))
    fields.only("hidden_act", "silu", "swish")
    fields.only("mamba_inner_layernorms", True)
    for name in ("use_mamba_kernels", "use_mambapy", "use_associative_scan", "auto_map"):
        fields.get(name)  # ways to compute the same, and code
    norm: dict[str, Any] = {"name": "rmsnorm", "eps": eps}
    attention, mamba = _read_attention(fields, heads), _read_mamba(fields, dim, norm)
    dense = SwiGLUConfig(hidden=fields.int("intermediate_size", 14336))
    moe = MoEConfig(
        experts=max(fields.int("num_experts", fields.int("num_local_experts", 16)), 1),
        top_k=fields.int("num_experts_per_tok", 2),
        expert=dense,
        normalise=False,
        balance=fields.float("router_aux_loss_coef", 0.001),
    )
    seeing, sparse = _read_layers(fields, "attn", depth, 8, 4), _read_layers(fields, "expert", depth, 2, 1)
    layers: list[FFNConfig] = [moe if layer in sparse and moe.experts > 1 else dense for layer in range(depth)]
    return GPTConfig(
        dim=dim,
        depth=depth,
        heads=heads,
        mixer=layered([attention if layer in seeing else mamba for layer in range(depth)]),  # type: ignore[arg-type]
        ffn=layered_ffn(layers, dense),
        norm=norm,  # type: ignore[arg-type]
        position="none",  # type: ignore[arg-type]
        vocab_size=fields.int("vocab_size", 65536),
        max_len=fields.int("max_position_embeddings", 262144),
        tie_embeddings=fields.bool("tie_word_embeddings", False),
        init_std=fields.float("initializer_range", 0.02),
    )


def _read_attention(fields: Fields, heads: int) -> dict[str, Any]:
    kv_heads = fields.int("num_key_value_heads", heads if "num_key_value_heads" in fields else 8)
    mixer: dict[str, Any] = {"name": "attention", "bias": False, "out_bias": False}
    mixer |= {"kv_heads": kv_heads} if kv_heads != heads else {}
    return mixer | {"dropout": fields.float("attention_dropout", 0.0)}


def _read_mamba(fields: Fields, dim: int, norm: dict[str, Any]) -> dict[str, Any]:
    conv, rank = fields.int("mamba_d_conv", 4), fields.get("mamba_dt_rank", "auto")
    if not conv:
        fields.refuse("mamba_d_conv", conv, "1 or more")
    return {
        "name": "mamba",
        "expand": float(fields.int("mamba_expand", 2)),
        "state_size": fields.int("mamba_d_state", 16),
        "conv": conv,
        "conv_bias": fields.bool("mamba_conv_bias", True),
        "bias": fields.bool("mamba_proj_bias", False),
        "dt_rank": None if rank in ("auto", math.ceil(dim / 16)) else fields.int("mamba_dt_rank", None),
        "inner_norm": norm,
    }


def _read_layers(fields: Fields, name: str, depth: int, period: int, offset: int) -> range:
    """The layers of a period and an offset, whose defaults are given."""
    period = fields.int(f"{name}_layer_period", period)
    offset = fields.int(f"{name}_layer_offset", offset)
    if offset >= period:
        fields.refuse(f"{name}_layer_offset", offset, f"less than {name}_layer_period {period}")
    return range(offset, depth, period)


def _write_layers(name: str, found: list[int], depth: int) -> dict[str, int]:
    """Period and offset of the layers found, none of them being an offset past the end."""
    offset = found[0] if found else depth
    period = found[1] - found[0] if len(found) > 1 else depth
    return {f"{name}_layer_period": max(period, offset + 1), f"{name}_layer_offset": offset}


def _write(config: GPTConfig) -> dict[str, Any]:
    mixers, layers, moe = _mixers(config), ffns(config), experts(config)
    attention = next((m for m in mixers if isinstance(m, AttentionConfig)), AttentionConfig())
    mamba = next((m for m in mixers if isinstance(m, MambaConfig)), MambaConfig())
    dense = next((ffn for ffn in layers if isinstance(ffn, GLUConfig)), None)
    dense = dense or (glu(config) if moe is None else gated_expert(moe))
    seeing = [layer for layer, mixer in enumerate(mixers) if isinstance(mixer, AttentionConfig)]
    sparse = [layer for layer, ffn in enumerate(layers) if isinstance(ffn, MoEConfig)]
    return {
        "architectures": ["JambaForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": dense.width(config.dim),
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "num_key_value_heads": attention.kv_heads or config.heads,
        "attention_dropout": attention.dropout,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_len,
        "rms_norm_eps": getattr(config.norm, "eps", 1e-6),
        **_write_layers("attn", seeing, config.depth),
        **_write_layers("expert", sparse, config.depth),
        "num_experts": 1 if moe is None else moe.experts,
        "num_experts_per_tok": 1 if moe is None else moe.top_k,
        "router_aux_loss_coef": 0.001 if moe is None else moe.balance,
        "mamba_d_state": mamba.state_size,
        "mamba_d_conv": mamba.conv,
        "mamba_expand": round(mamba.expand),
        "mamba_dt_rank": mamba.dt_rank or math.ceil(config.dim / 16),
        "mamba_conv_bias": mamba.conv_bias,
        "mamba_proj_bias": mamba.bias,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": None,  # theirs are those of one vocabulary
        "eos_token_id": None,
        "pad_token_id": None,
        **common(config),
    }


def _mixer_rules(config: GPTConfig, layer: int, ours: str, theirs: str) -> list[Rule]:
    mixer = _mixers(config)[layer]
    if not isinstance(mixer, MambaConfig):
        return attention_rules(config, layer, ours, theirs)
    norms = enumerate(("dt", "b", "c"))
    return [
        *mamba_rules(mixer, f"{ours}.mixer", f"{theirs}.mamba"),
        *(both(f"{ours}.mixer.inner_norms.{n}.weight", f"{theirs}.mamba.{name}_layernorm.weight") for n, name in norms),
    ]


def _ffn_rules(config: GPTConfig, layer: int, ours: str, theirs: str) -> list[Rule]:
    ffn, here, there = config.ffn.at(layer, config.depth), f"{ours}.ffn", f"{theirs}.feed_forward"
    if isinstance(ffn, MoEConfig):
        router = both(f"{here}.router.weight", f"{there}.router.weight")
        return [router, *expert_rules(config, ffn, f"{here}.experts", f"{there}.experts")]
    return glu_rules(here, there, glu(config.model_copy(update={"ffn": ffn})))


def _rules(config: GPTConfig) -> list[Rule]:
    rules = [both("stack.norm.weight", "model.final_layernorm.weight")]
    if config.tie_embeddings:
        rules.append(both("embed.weight", "model.embed_tokens.weight", "lm_head.weight"))
    else:
        rules += [both("embed.weight", "model.embed_tokens.weight"), both("head.weight", "lm_head.weight")]
    for layer in range(config.depth):
        ours, theirs = f"stack.blocks.{layer}", f"model.layers.{layer}"
        for place, norm in {"mixer": "input_layernorm", "ffn": "pre_ff_layernorm"}.items():
            rules.append(both(f"{ours}.residuals.{place}.norm.weight", f"{theirs}.{norm}.weight"))
        rules += _mixer_rules(config, layer, ours, theirs) + _ffn_rules(config, layer, ours, theirs)
    return rules


JAMBA = _JambaFamily("jamba", "model", _read, _write, _rules, heads=("lm_head.",))
