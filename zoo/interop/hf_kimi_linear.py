"""Kimi Linear to and from transformers' KimiLinearForCausalLM: layers of KDA between latent attention, with experts.

    zoo                                  transformers' files                              in its memory
    KDA
    ....mixer.qkv                        ....self_attn.{q,k,v}_proj
    ....mixer.conv                       ....self_attn.{q,k,v}_conv1d                     conv1d
    ....mixer.beta                       ....self_attn.b_proj
    ....mixer.decay.alpha.{down,up}      ....self_attn.{f_a_proj,f_b_proj}                forget_gate.f_...
    ....mixer.decay.{A_log,dt_bias}      ....self_attn.{A_log,dt_bias}                    forget_gate....
    ....mixer.gate.{down,up}             ....self_attn.{g_a_proj,g_b_proj}
    ....mixer.{norm.norm,out}            ....self_attn.{o_norm,o_proj}
    latent attention: see hf_deepseek.py
    ....ffn.{gate,up,down}               ....mlp.{gate,up,down}_proj                      the first, dense layers
    ....ffn.router.{weight,bias}         ....block_sparse_moe.gate.{weight,e_score_...}   mlp.gate
    ....ffn.experts.{gate,up,down}       ....block_sparse_moe.experts.e.{w1,w3,w2}        mlp.experts
    ....ffn.shared                       ....block_sparse_moe.shared_experts              mlp.shared_experts

Both layouts are read, that of the files is written. No layer has positions: what a published config says of a rotation
is not read (`mla_use_nope`). The norms of the latents have an epsilon of 1e-6 whatever `rms_norm_eps` is.
"""

from __future__ import annotations

import re
from typing import Any

from zoo.blocks.api import FFNConfig
from zoo.blocks.ffn.glu import GLUConfig, SwiGLUConfig
from zoo.blocks.ffn.moe import MoEConfig
from zoo.blocks.mixers.kda import KDAConfig
from zoo.blocks.mixers.mla import MLAConfig
from zoo.interop.family import Weights, common, experts, ffns, glu, latent_widths, layered, layered_ffn
from zoo.interop.fields import Fields, activation_name
from zoo.interop.hf_deepseek import latent_rules
from zoo.interop.hf_llama import glu_rules, rules_of
from zoo.interop.hf_moe import expert_rules, gated_expert
from zoo.interop.hf_qwen3_next import FULL, LINEAR, DeltaFamily, layer_types, told_delta
from zoo.interop.weights import Rule, both
from zoo.models.gpt import GPTConfig
from zoo.registry import ConfigError

__all__ = ["KIMI_LINEAR"]

_RENAMED = (
    (r"\.self_attn\.forget_gate\.", ".self_attn."),
    (r"\.mlp\.(gate|experts|shared_experts)\.", r".block_sparse_moe.\1."),
    (r"\.block_sparse_moe\.(gate|up|down)_proj\.", r".mlp.\1_proj."),
)
"""From the names in transformers' memory, and from those it writes for a dense layer, to those of published files."""


_WITHIN = ("num_heads", "head_dim", "short_conv_kernel_size", "full_attn_layers", "kda_layers")
"""What the published config says in `linear_attn_config`."""


def _rename(name: str) -> str:
    for found, wanted in _RENAMED:
        name = re.sub(found, wanted, name)
    return name


def _read(fields: Fields, weights: Weights) -> GPTConfig:
    dim, depth = fields.int("hidden_size", 2304), fields.int("num_hidden_layers", 27)
    heads, bias = fields.int("num_attention_heads", 32), fields.bool("attention_bias", False)
    nope, rope = fields.int("qk_nope_head_dim", 128), fields.int("qk_rope_head_dim", 64)
    eps, within = fields.float("rms_norm_eps", 1e-5), fields.get("linear_attn_config", {})
    fields.only("num_key_value_heads", heads)
    fields.only("qk_head_dim", nope + rope)
    fields.only("mla_use_nope", True)
    fields.only("tie_word_embeddings", False)  # their class ties nothing
    fields.only("hidden_act", "silu", "swish")
    for name in ("head_dim", "rope_theta", "rope_scaling", "rope_parameters", "rope_interleave"):
        fields.get(name)  # of a rotation that there is none of
    for name in ("num_nextn_predict_layers", "auto_map", "output_router_logits", "ep_size"):
        fields.get(name)  # what is not read, code, training, machines
    for name, value in within.items():
        if name not in _WITHIN and value not in (None, False):
            fields.refuse(f"linear_attn_config.{name}", value, ", ".join(_WITHIN))
    linear_mixer = {
        "name": "kda",
        "heads": within.get("num_heads", fields.int("linear_num_heads", 32)),
        "head_dim": within.get("head_dim", fields.int("linear_head_dim", 128)),
        "conv": within.get("short_conv_kernel_size", fields.int("linear_conv_kernel_dim", 4)),
        "norm_eps": eps,
    }
    full_mixer = {
        "name": "mla",
        "nope_dim": nope,
        "rope_dim": rope,
        "value_dim": fields.int("v_head_dim", 128),
        "kv_rank": fields.int("kv_lora_rank", 512),
        "q_rank": fields.get("q_lora_rank"),
        "bias": bias,
        "out_bias": bias,
        "dropout": fields.float("attention_dropout", 0.0),
    }
    types = layer_types(fields, _default_types(within, depth))
    return GPTConfig(
        dim=dim,
        depth=depth,
        heads=heads,
        mixer=layered([full_mixer if kind == FULL else linear_mixer for kind in types]),  # type: ignore[arg-type]
        ffn=_read_ffn(fields, depth),
        norm={"name": "rmsnorm", "eps": eps},  # type: ignore[arg-type]
        position="none",  # type: ignore[arg-type]
        vocab_size=fields.int("vocab_size", 163840),
        max_len=_int(fields, "max_position_embeddings", "model_max_length", 1048576),
        tie_embeddings=False,
        init_std=fields.float("initializer_range", 0.02),
    )


def _int(fields: Fields, name: str, published: str, default: int) -> int:
    """A number under transformers' name, or that of the published config."""
    return fields.int(name, fields.int(published, default))


def _default_types(within: dict[str, Any], depth: int) -> list[str]:
    """The published config numbers its layers from 1; without it every fourth layer after the first is full."""
    if "full_attn_layers" in within and "kda_layers" in within:
        return [FULL if layer + 1 in within["full_attn_layers"] else LINEAR for layer in range(depth)]
    return [FULL if layer and layer % 4 == 0 else LINEAR for layer in range(depth)]


def _read_ffn(fields: Fields, depth: int) -> FFNConfig:
    for name, value in {"moe_router_activation_func": "sigmoid", "use_grouped_topk": True, "moe_layer_freq": 1}.items():
        fields.only(name, value)
    hidden = fields.int("moe_intermediate_size", 1024)
    shared = _int(fields, "n_shared_experts", "num_shared_experts", 1)
    if not shared:
        fields.refuse("n_shared_experts", shared, "1 or more")
    dense = SwiGLUConfig(hidden=fields.int("intermediate_size", 9216))
    moe = MoEConfig(
        experts=_int(fields, "num_local_experts", "num_experts", 256),
        top_k=_int(fields, "num_experts_per_tok", "num_experts_per_token", 8),
        expert=SwiGLUConfig(hidden=hidden),
        shared=SwiGLUConfig(hidden=hidden * shared),
        scores="sigmoid",
        normalise=fields.bool("norm_topk_prob", fields.bool("moe_renormalize", True)),
        scale=fields.float("routed_scaling_factor", 2.446),
        groups=_int(fields, "n_group", "num_expert_group", 1),
        top_groups=fields.int("topk_group", 1),
        balance=0.0,
        bias_rate=1e-3,
    )
    first = fields.int("first_k_dense_replace", 1)
    types = fields.get("mlp_layer_types", ["dense" if layer < first else "sparse" for layer in range(depth)])
    if len(types) != depth or set(types) - {"dense", "sparse"}:
        fields.refuse("mlp_layer_types", types, f"{depth} of dense, sparse")
    layers: list[FFNConfig] = [dense if kind == "dense" else moe for kind in types]
    return layered_ffn(layers, moe)


def _mixer_at(config: GPTConfig, layer: int) -> KDAConfig | MLAConfig:
    mixer: Any = told_delta(config, layer)
    if not isinstance(mixer, KDAConfig | MLAConfig):
        raise ConfigError(
            f"mixer '{mixer.registered_name}' has no counterpart in transformers' class; choices: kda, mla",
            config.registered_name,
        )
    return mixer


def _write(config: GPTConfig) -> dict[str, Any]:
    mixers, layers = [_mixer_at(config, layer) for layer in range(config.depth)], ffns(config)
    delta = next((m for m in mixers if isinstance(m, KDAConfig)), KDAConfig(heads=32, head_dim=128))
    full = next((m for m in mixers if isinstance(m, MLAConfig)), MLAConfig())
    moe, widths = experts(config) or MoEConfig(), latent_widths(config, full)
    hidden = gated_expert(moe).width(config.dim)
    shared = glu(config.model_copy(update={"ffn": moe.shared})).width(config.dim) if moe.shared is not None else hidden
    dense = next((ffn for ffn in layers if isinstance(ffn, GLUConfig)), gated_expert(moe))
    return {
        "architectures": ["KimiLinearForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": dense.width(config.dim),
        "num_hidden_layers": config.depth,
        "layer_types": [FULL if isinstance(mixer, MLAConfig) else LINEAR for mixer in mixers],
        "linear_num_heads": delta.heads or config.heads,
        "linear_head_dim": delta.head_dim or 128,
        "linear_conv_kernel_dim": delta.conv,
        "num_attention_heads": widths["heads"],
        "num_key_value_heads": widths["heads"],
        "qk_nope_head_dim": widths["nope_dim"],
        "qk_rope_head_dim": widths["rope_dim"],
        "v_head_dim": widths["value_dim"],
        "kv_lora_rank": widths["kv_rank"],
        "q_lora_rank": full.q_rank,
        "attention_bias": full.bias,
        "attention_dropout": full.dropout,
        "mlp_layer_types": ["sparse" if isinstance(ffn, MoEConfig) else "dense" for ffn in layers],
        "num_experts": moe.experts,
        "num_experts_per_token": moe.top_k,
        "moe_intermediate_size": hidden,
        "num_shared_experts": max(shared // hidden, 1),
        "moe_renormalize": moe.renormalises,
        "routed_scaling_factor": moe.scale,
        "num_expert_group": moe.groups,
        "topk_group": moe.top_groups,
        "hidden_act": activation_name(dense.activation, "gelu_pytorch_tanh"),
        "model_max_length": config.max_len,
        "rms_norm_eps": getattr(config.norm, "eps", 1e-5),
        "tie_word_embeddings": False,
        "bos_token_id": None,  # theirs are those of one vocabulary
        "eos_token_id": None,
        "pad_token_id": None,
        **common(config),
    }


def _mixer_rules(config: GPTConfig, layer: int, ours: str, theirs: str) -> list[Rule]:
    mixer = _mixer_at(config, layer)
    if isinstance(mixer, MLAConfig):
        return latent_rules(config, layer, ours, theirs)
    here, there = f"{ours}.mixer", f"{theirs}.self_attn"
    heads, width = mixer.heads or config.heads, mixer.head_dim or 1  # told
    keys, values = heads * width, (mixer.value_heads or heads) * mixer.value_dim(width)
    wide = (keys, keys, values)
    names = {"beta": "b_proj", "decay.alpha.down": "f_a_proj", "decay.alpha.up": "f_b_proj"}
    names |= {"gate.down": "g_a_proj", "gate.up": "g_b_proj", "norm.norm": "o_norm", "out": "o_proj"}
    return [
        Rule((f"{here}.qkv.weight",), tuple(f"{there}.{part}_proj.weight" for part in "qkv"), theirs_rows=wide),
        Rule(
            (f"{here}.conv.weight",),
            tuple(f"{there}.{part}_conv1d.weight" for part in "qkv"),
            theirs_rows=wide,
            view="depthwise",
            other=both(f"{here}.conv.weight", f"{there}.conv1d.weight", view="depthwise"),
        ),
        both(f"{here}.decay.A_log", f"{there}.A_log", view="heads"),
        both(f"{here}.decay.dt_bias", f"{there}.dt_bias"),
        *(both(f"{here}.{mine}.weight", f"{there}.{its}.weight") for mine, its in names.items()),
    ]


def _ffn_rules(config: GPTConfig, layer: int, ours: str, theirs: str) -> list[Rule]:
    ffn: Any = ffns(config)[layer]
    here, there = f"{ours}.ffn", f"{theirs}.block_sparse_moe"
    if not isinstance(ffn, MoEConfig):
        return glu_rules(here, f"{theirs}.mlp", glu(config.model_copy(update={"ffn": ffn})))
    shared = glu(config.model_copy(update={"ffn": ffn.shared or SwiGLUConfig()}))
    return [
        both(f"{here}.router.weight", f"{there}.gate.weight"),
        both(f"{here}.router.bias", f"{there}.gate.e_score_correction_bias"),
        *expert_rules(config, ffn, f"{here}.experts", f"{there}.experts", ("w1", "w3", "w2")),
        *glu_rules(f"{here}.shared", f"{there}.shared_experts", shared),
    ]


KIMI_LINEAR = DeltaFamily(
    "kimi_linear",
    "model",
    _read,
    _write,
    lambda config: rules_of(config, _mixer_rules, _ffn_rules),
    heads=("lm_head.",),
    rename=_rename,
)
