"""Qwen3-Next to and from transformers' Qwen3NextForCausalLM: layers of Gated DeltaNet between gated attention.

    zoo                               transformers
    Gated DeltaNet
    ....mixer.{qkv,gate}              ....linear_attn.in_proj_qkvz   key head by key head: q, k, its v's, their gates
    ....mixer.{beta,decay.alpha}      ....linear_attn.in_proj_ba     likewise
    ....mixer.conv                    ....linear_attn.conv1d         (C, W) for (C, 1, W)
    ....mixer.decay.{A_log,dt_bias}   ....linear_attn.{A_log,dt_bias}
    ....mixer.{norm.norm,out}         ....linear_attn.{norm,out_proj}
    attention
    ....mixer.{qkv,gate}              ....self_attn.{q,k,v}_proj     q_proj head by head: q, gate
    ....mixer.{q_norm,k_norm,out}     ....self_attn.{q_norm,k_norm,o_proj}
    experts (see hf_moe.py)
    ....ffn.{router,experts}          ....mlp.{gate,experts}
    ....ffn.{shared,shared_gate}      ....mlp.{shared_expert,shared_expert_gate}

The layers' norms, the last one and those of queries and keys scale by 1 + weight, that of Gated DeltaNet by its weight.
The part that predicts a second token ahead (`mtp.`) is left aside, as transformers does.
"""

from __future__ import annotations

from typing import Any

from zoo.blocks.api import FFNConfig, MixerConfig
from zoo.blocks.ffn.glu import GLUConfig, SwiGLUConfig
from zoo.blocks.ffn.moe import MoEConfig
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.blocks.mixers.delta import DeltaConfig
from zoo.blocks.mixers.gated_delta import GatedDeltaConfig
from zoo.blocks.mixers.hybrid import HybridConfig
from zoo.blocks.mixers.kda import KDAConfig
from zoo.blocks.positions import RopeConfig
from zoo.interop.family import Family, Weights, common, experts, ffns, glu, layered, layered_ffn
from zoo.interop.fields import Fields, activation_name
from zoo.interop.hf_llama import glu_rules, rules_of
from zoo.interop.hf_moe import expert_rules, gated_expert
from zoo.interop.rope import rope_from, write_rope
from zoo.interop.weights import Rule, both, by_part, kinds_of, linear
from zoo.models.gpt import GPTConfig
from zoo.registry import ConfigError

__all__ = ["FULL", "LINEAR", "QWEN3_NEXT", "DeltaFamily", "layer_types", "told_delta"]

LINEAR, FULL = "linear_attention", "full_attention"
"""Their names of the two kinds of layers."""


class DeltaFamily(Family):
    """Compares delta rules with all their widths told: a config may leave some to the family's."""

    def config_to(self, config: Any, weights: Weights = None) -> dict[str, Any]:
        if config.depth:
            mixers = tuple(told_delta(config, layer) for layer in range(config.depth))
            config = config.model_copy(update={"mixer": HybridConfig(pattern=mixers)})
        return super().config_to(config, weights)

    def name(self, name: str, bare: bool = False) -> str | None:
        return None if name.startswith("mtp.") else super().name(name, bare)


def told_delta(config: GPTConfig, layer: int) -> MixerConfig:
    """The mixer of one layer; a delta rule with its widths filled in, and without what only two directions need."""
    mixer = config.mixer.at(layer, config.depth)
    if not isinstance(mixer, DeltaConfig):
        return mixer
    heads = mixer.heads or config.heads
    width = mixer.head_dim or config.dim // heads
    values = mixer.value_dim(width)
    told: dict[str, Any] = {"heads": heads, "head_dim": width, "expand_v": values / width}
    told["value_heads"] = None if mixer.value_heads == heads else mixer.value_heads
    if isinstance(mixer, KDAConfig):
        told["rank"] = None if mixer.rank == values else mixer.rank
    return mixer.model_copy(update={**told, "chunk": 64, "tied": False, "scan": "row"})


def layer_types(fields: Fields, default: list[str]) -> list[str]:
    """The kind of each layer. Raises ConfigError for others than the two, and for too many or few."""
    types = fields.get("layer_types", default)
    if len(types) != len(default) or set(types) - {LINEAR, FULL}:
        fields.refuse("layer_types", types, f"{len(default)} of {LINEAR}, {FULL}")
    return types


def _read(fields: Fields, weights: Weights) -> GPTConfig:
    dim, depth = fields.int("hidden_size", 2048), fields.int("num_hidden_layers", 48)
    max_len, bias = fields.int("max_position_embeddings", 32768), fields.bool("attention_bias", False)
    norm = {"name": "rmsnorm", "eps": fields.float("rms_norm_eps", 1e-6), "unit_offset": True}
    fields.only("hidden_act", "silu", "swish")
    fields.only("use_sliding_window", False)
    fields.get("output_router_logits")
    keys = fields.int("linear_num_key_heads", 16)
    values, width = fields.int("linear_num_value_heads", 32), fields.int("linear_key_head_dim", 128)
    linear_mixer = {
        "name": "gated_delta",
        "heads": keys,
        "value_heads": None if values == keys else values,
        "head_dim": width,
        "expand_v": fields.int("linear_value_head_dim", 128) / max(width, 1),
        "conv": fields.int("linear_conv_kernel_dim", 4),
        "norm_eps": norm["eps"],
    }
    full_mixer = {
        "name": "attention",
        "kv_heads": fields.int("num_key_value_heads", 2),
        "head_dim": fields.int("head_dim", 256),
        "bias": bias,
        "out_bias": bias,
        "qk_norm": norm,
        "gate": "elementwise",
        "dropout": fields.float("attention_dropout", 0.0),
    }
    every = max(fields.int("full_attention_interval", 4), 1)
    types = layer_types(fields, [LINEAR if (layer + 1) % every else FULL for layer in range(depth)])
    return GPTConfig(
        dim=dim,
        depth=depth,
        heads=fields.int("num_attention_heads", 16),
        mixer=layered([full_mixer if kind == FULL else linear_mixer for kind in types]),  # type: ignore[arg-type]
        ffn=_read_ffn(fields, depth),
        norm=norm,  # type: ignore[arg-type]
        position=_read_rope(fields, max_len),  # type: ignore[arg-type]
        vocab_size=fields.int("vocab_size", 151936),
        max_len=max_len,
        tie_embeddings=fields.bool("tie_word_embeddings", False),
        init_std=fields.float("initializer_range", 0.02),
    )


def _read_ffn(fields: Fields, depth: int) -> FFNConfig:
    dense = SwiGLUConfig(hidden=fields.int("intermediate_size", 5632))
    moe = MoEConfig(
        experts=fields.int("num_experts", fields.int("num_local_experts", 512)),
        top_k=fields.int("num_experts_per_tok", 10),
        expert=SwiGLUConfig(hidden=fields.int("moe_intermediate_size", 512)),
        shared=SwiGLUConfig(hidden=fields.int("shared_expert_intermediate_size", 512)),
        shared_gate=True,
        normalise=fields.bool("norm_topk_prob", True),
        balance=fields.float("router_aux_loss_coef", 0.001),
    )
    plain, step = fields.get("mlp_only_layers", []), max(fields.int("decoder_sparse_step", 1), 1)
    layers: list[FFNConfig] = [dense if layer in plain or (layer + 1) % step else moe for layer in range(depth)]
    return layered_ffn(layers, moe)


def _read_rope(fields: Fields, max_len: int) -> dict[str, Any]:
    old = {"rope_theta": fields.float("rope_theta", 10000.0), **(fields.get("rope_scaling") or {})}
    parameters = {**old, **(fields.get("rope_parameters") or {})}
    share = fields.float("partial_rotary_factor", 0.25)
    share = parameters.pop("partial_rotary_factor", None) or share
    return {**rope_from(fields, parameters, max_len), "fraction": share}


def _write_rope(position: Any) -> dict[str, Any]:
    if not isinstance(position, RopeConfig):
        return write_rope(position)
    whole = position.model_copy(update={"fraction": 1.0})
    return {**write_rope(whole), "partial_rotary_factor": position.fraction}


def _mixer_at(config: GPTConfig, layer: int) -> GatedDeltaConfig | AttentionConfig:
    mixer: Any = told_delta(config, layer)
    if not isinstance(mixer, GatedDeltaConfig | AttentionConfig):
        raise ConfigError(
            f"mixer '{mixer.registered_name}' has no counterpart in transformers' class; "
            "choices: gated_delta, attention",
            config.registered_name,
        )
    if isinstance(mixer, AttentionConfig) and mixer.gate != "elementwise":
        raise ConfigError(
            f"gate '{mixer.gate}' has no counterpart in transformers' class; choices: elementwise",
            config.registered_name,
        )
    return mixer


def _write(config: GPTConfig) -> dict[str, Any]:
    mixers, layers = [_mixer_at(config, layer) for layer in range(config.depth)], ffns(config)
    full = next((m for m in mixers if isinstance(m, AttentionConfig)), AttentionConfig())
    delta = next((m for m in mixers if isinstance(m, GatedDeltaConfig)), GatedDeltaConfig(heads=16, head_dim=128))
    moe = experts(config) or MoEConfig()
    dense = next((ffn for ffn in layers if isinstance(ffn, GLUConfig)), gated_expert(moe))
    shared = glu(config.model_copy(update={"ffn": moe.shared})) if moe.shared is not None else gated_expert(moe)
    heads, width = delta.heads or config.heads, delta.head_dim or 128
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": dense.width(config.dim),
        "num_hidden_layers": config.depth,
        "layer_types": [FULL if isinstance(mixer, AttentionConfig) else LINEAR for mixer in mixers],
        "num_attention_heads": config.heads,
        "num_key_value_heads": full.kv_heads or config.heads,
        "head_dim": full.head_dim or config.dim // config.heads,
        "attention_bias": full.bias,
        "attention_dropout": full.dropout,
        "linear_num_key_heads": heads,
        "linear_num_value_heads": delta.value_heads or heads,
        "linear_key_head_dim": width,
        "linear_value_head_dim": delta.value_dim(width),
        "linear_conv_kernel_dim": delta.conv,
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": gated_expert(moe).width(config.dim),
        "shared_expert_intermediate_size": shared.width(config.dim),
        "norm_topk_prob": moe.renormalises,
        "router_aux_loss_coef": moe.balance,
        "mlp_only_layers": [layer for layer, ffn in enumerate(layers) if not isinstance(ffn, MoEConfig)],
        "decoder_sparse_step": 1,
        "hidden_act": activation_name(dense.activation, "gelu_pytorch_tanh"),
        "max_position_embeddings": config.max_len,
        "rms_norm_eps": getattr(config.norm, "eps", 1e-6),
        "rope_parameters": _write_rope(full.position or config.position),
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": None,  # theirs are those of one vocabulary
        "eos_token_id": None,
        "pad_token_id": None,
        **common(config),
    }


def _mixer_rules(config: GPTConfig, layer: int, ours: str, theirs: str) -> list[Rule]:
    mixer = _mixer_at(config, layer)
    if isinstance(mixer, AttentionConfig):
        return _attention_rules(config, mixer, f"{ours}.mixer", f"{theirs}.self_attn")
    return _delta_rules(config, mixer, f"{ours}.mixer", f"{theirs}.linear_attn")


def _attention_rules(config: GPTConfig, mixer: AttentionConfig, ours: str, theirs: str) -> list[Rule]:
    heads = mixer.heads or config.heads
    width = mixer.head_dim or config.dim // heads
    wide, shared = heads * width, (mixer.kv_heads or heads) * width
    both_parts = by_part(heads, (width, width))  # queries, then gates
    order = (*both_parts[:wide], *range(2 * wide, 2 * (wide + shared)), *both_parts[wide:])
    rules = [
        Rule(
            (f"{ours}.qkv.{kind}", f"{ours}.gate.{kind}"),
            tuple(f"{theirs}.{part}_proj.{kind}" for part in "qkv"),
            ours_rows=(wide + 2 * shared, wide),
            theirs_rows=(2 * wide, shared, shared),
            order=order,
        )
        for kind in kinds_of(mixer.bias)
    ]
    rules += linear(f"{ours}.out", f"{theirs}.o_proj", kinds_of(mixer.out_bias))
    return rules + [both(f"{ours}.{part}_norm.weight", f"{theirs}.{part}_norm.weight") for part in "qk"]


def _delta_rules(config: GPTConfig, mixer: GatedDeltaConfig, ours: str, theirs: str) -> list[Rule]:
    keys = mixer.heads or config.heads
    each, width = (mixer.value_heads or keys) // keys, mixer.head_dim or config.dim // keys
    values = each * mixer.value_dim(width)  # of the value heads of one key head
    return [
        Rule(
            (f"{ours}.qkv.weight", f"{ours}.gate.weight"),
            (f"{theirs}.in_proj_qkvz.weight",),
            ours_rows=(keys * (2 * width + values), keys * values),
            order=by_part(keys, (width, width, values, values)),
        ),
        Rule(
            (f"{ours}.beta.weight", f"{ours}.decay.alpha.weight"),
            (f"{theirs}.in_proj_ba.weight",),
            ours_rows=(keys * each, keys * each),
            order=by_part(keys, (each, each)),
        ),
        both(f"{ours}.conv.weight", f"{theirs}.conv1d.weight", view="depthwise"),
        *(both(f"{ours}.decay.{name}", f"{theirs}.{name}") for name in ("A_log", "dt_bias")),
        both(f"{ours}.norm.norm.weight", f"{theirs}.norm.weight"),
        both(f"{ours}.out.weight", f"{theirs}.out_proj.weight"),
    ]


def _ffn_rules(config: GPTConfig, layer: int, ours: str, theirs: str) -> list[Rule]:
    ffn: Any = ffns(config)[layer]
    here, there = f"{ours}.ffn", f"{theirs}.mlp"
    if not isinstance(ffn, MoEConfig):
        return glu_rules(here, there, glu(config.model_copy(update={"ffn": ffn})))
    shared = glu(config.model_copy(update={"ffn": ffn.shared or SwiGLUConfig()}))
    return [
        both(f"{here}.router.weight", f"{there}.gate.weight"),
        *expert_rules(config, ffn, f"{here}.experts", f"{there}.experts"),
        *glu_rules(f"{here}.shared", f"{there}.shared_expert", shared),
        both(f"{here}.shared_gate.weight", f"{there}.shared_expert_gate.weight"),
    ]


QWEN3_NEXT = DeltaFamily(
    "qwen3_next",
    "model",
    _read,
    _write,
    lambda config: rules_of(config, _mixer_rules, _ffn_rules),
    heads=("lm_head.",),
    buffers=("rotary_emb.inv_freq",),
)
