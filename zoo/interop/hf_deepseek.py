"""DeepSeek-V3 (and R1, of the same form) to and from transformers' DeepseekV3ForCausalLM.

    zoo                              transformers
    ....mixer.q.{down,norm,up}       ....self_attn.{q_a_proj,q_a_layernorm,q_b_proj}, or mixer.q: q_proj
    ....mixer.{kv_down,kv_norm}      ....self_attn.{kv_a_proj_with_mqa,kv_a_layernorm}
    ....mixer.{kv_up,out}            ....self_attn.{kv_b_proj,o_proj}
    ....ffn.{gate,up,down}           ....mlp.{gate,up,down}_proj                      the first, dense layers
    ....ffn.router.{weight,bias}     ....mlp.gate.{weight,e_score_correction_bias}
    ....ffn.experts, ffn.shared      ....mlp.experts (see hf_moe.py), mlp.shared_experts

Rotary pairs are neighbours on both sides. Of YaRN's two factors, `mscale_all_dim` lengthens the scores by its square
and `mscale / mscale_all_dim` cos and sin; one of them has to be 1, as in all published models. The published weights
have 8 bits (`quantization_config`), which is refused: take a copy in bfloat16. The layer behind the last one, which
predicts a second token ahead, is left aside, as transformers does.
"""

from __future__ import annotations

import math
from typing import Any

from zoo.blocks.api import FFNConfig
from zoo.blocks.ffn.glu import GLUConfig, SwiGLUConfig
from zoo.blocks.ffn.moe import MoEConfig
from zoo.blocks.mixers.mla import MLAConfig
from zoo.blocks.positions import RopeConfig
from zoo.blocks.positions.rotary_scaling import YarnScalingConfig
from zoo.interop.family import Family, Weights, common, experts, ffns, glu, latent_widths, layered_ffn
from zoo.interop.fields import Fields, activation_name
from zoo.interop.hf_llama import glu_rules, rules_of
from zoo.interop.hf_moe import expert_rules, gated_expert
from zoo.interop.rope import rope_from, write_rope
from zoo.interop.weights import Rule, both, kinds_of, linear
from zoo.models.gpt import GPTConfig
from zoo.registry import ConfigError

__all__ = ["DEEPSEEK_V3", "latent_rules"]

_MTP = ("enorm", "hnorm", "eh_proj", "embed_tokens", "shared_head.norm", "shared_head.head")
_NORMS = ("input_layernorm", "post_attention_layernorm")


def _read(fields: Fields, weights: Weights) -> GPTConfig:
    dim, depth = fields.int("hidden_size", 7168), fields.int("num_hidden_layers", 61)
    heads, max_len = fields.int("num_attention_heads", 128), fields.int("max_position_embeddings", 4096)
    nope, rope = fields.int("qk_nope_head_dim", 128), fields.int("qk_rope_head_dim", 64)
    bias, eps = fields.bool("attention_bias", False), fields.float("rms_norm_eps", 1e-6)
    for name, value in {"num_key_value_heads": heads, "head_dim": rope, "qk_head_dim": nope + rope}.items():
        fields.only(name, value)
    for name, value in {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}.items():
        fields.only(name, value)
    for name in ("num_nextn_predict_layers", "num_mtp_layers", "ep_size", "auto_map", "aux_loss_alpha", "seq_aux"):
        fields.get(name)  # what is not read, machines, code, training
    position, yarn_factor = _read_rope(fields, max_len)
    no_rank = "q_lora_rank" in fields and fields.get("q_lora_rank") is None
    mixer = MLAConfig(
        nope_dim=nope,
        rope_dim=rope,
        value_dim=fields.int("v_head_dim", 128),
        kv_rank=fields.int("kv_lora_rank", 512),
        q_rank=None if no_rank else fields.int("q_lora_rank", 1536),
        bias=bias,
        out_bias=bias,
        dropout=fields.float("attention_dropout", 0.0),
        yarn_factor=yarn_factor,  # type: ignore[arg-type]
    )
    dense = SwiGLUConfig(
        hidden=fields.int("intermediate_size", 18432), activation=fields.activation("hidden_act", "silu")
    )  # type: ignore[arg-type]
    moe, first = _read_experts(fields, dense), fields.int("first_k_dense_replace", 3)
    layers: list[FFNConfig] = [dense if layer < first else moe for layer in range(depth)]
    return GPTConfig(
        dim=dim,
        depth=depth,
        heads=heads,
        mixer=mixer,
        ffn=_first_dense(layers, first) if first < depth else layered_ffn(layers, moe),  # type: ignore[arg-type]
        norm={"name": "rmsnorm", "eps": eps},  # type: ignore[arg-type]
        position=position,  # type: ignore[arg-type]
        vocab_size=fields.int("vocab_size", 129280),
        max_len=max_len,
        tie_embeddings=fields.bool("tie_word_embeddings", False),
        init_std=fields.float("initializer_range", 0.02),
    )


def _first_dense(layers: list[FFNConfig], first: int) -> FFNConfig | dict[str, Any]:
    return {"name": "hybrid", "first": layers[:first], "pattern": layers[first : first + 1]} if first else layers[0]


def _read_experts(fields: Fields, dense: GLUConfig) -> MoEConfig:
    hidden, shared = fields.int("moe_intermediate_size", 2048), fields.int("n_shared_experts", 1)
    if not shared:
        fields.refuse("n_shared_experts", shared, "1 or more")
    return MoEConfig(
        experts=fields.int("n_routed_experts", fields.int("num_local_experts", 256)),
        top_k=fields.int("num_experts_per_tok", 8),
        expert=dense.model_copy(update={"hidden": hidden}),
        shared=dense.model_copy(update={"hidden": hidden * shared}),
        scores="sigmoid",
        normalise=fields.bool("norm_topk_prob", True),
        scale=fields.float("routed_scaling_factor", 2.5),
        groups=fields.int("n_group", 8),
        top_groups=fields.int("topk_group", 4),
        balance=0.0,
        sequence_balance=1e-4,
        bias_rate=1e-3,
    )


def _read_rope(fields: Fields, max_len: int) -> tuple[dict[str, Any], str]:
    """The position, and what YaRN's factor lengthens (see MLAConfig.yarn_factor)."""
    old = {"rope_theta": fields.float("rope_theta", 10000.0), **(fields.get("rope_scaling") or {})}
    parameters = {**old, **(fields.get("rope_parameters") or {})}
    over, scores = parameters.pop("mscale", None), parameters.pop("mscale_all_dim", None)
    kind = parameters.get("rope_type") or parameters.get("type", "default")
    of_scores = bool(scores) and kind == "yarn"
    if of_scores:
        if over != scores or parameters.get("attention_factor") not in (None, 1, 1.0):
            fields.refuse("mscale", over, f"mscale_all_dim {scores} without attention_factor")
        growth = math.log(parameters["factor"]) if parameters["factor"] > 1 else 0.0
        parameters["attention_factor"] = None if scores == 1 else 0.1 * scores * growth + 1.0
    layout = "interleaved" if fields.bool("rope_interleave", True) else "half"
    return {**rope_from(fields, parameters, max_len), "layout": layout}, "scores" if of_scores else "rotary"


def _write_rope(position: Any, mixer: MLAConfig) -> dict[str, Any]:
    if isinstance(position, RopeConfig):
        position = position.model_copy(update={"layout": "half"})  # told by rope_interleave
    parameters = write_rope(position)
    scaling: Any = getattr(position, "scaling", None)
    if isinstance(scaling, YarnScalingConfig) and mixer.yarn_factor == "scores":
        factor, growth = parameters.pop("attention_factor", None), 0.1 * math.log(scaling.factor)
        if factor == 1.0 or not growth:
            return parameters | {"attention_factor": 1.0}
        mscale = 1.0 if factor is None else (factor - 1.0) / growth
        parameters |= {"mscale": mscale, "mscale_all_dim": mscale}
    return parameters


def _latent_at(config: GPTConfig, layer: int) -> MLAConfig:
    mixer = config.mixer.at(layer, config.depth)
    if not isinstance(mixer, MLAConfig):
        raise ConfigError(
            f"mixer '{mixer.registered_name}' has no counterpart in transformers' class; choices: mla",
            config.registered_name,
        )
    return mixer


def _write(config: GPTConfig) -> dict[str, Any]:
    mixer = _latent_at(config, 0) if config.depth else MLAConfig()
    moe, layers = experts(config) or MoEConfig(), ffns(config)
    dense = next((ffn for ffn in layers if isinstance(ffn, GLUConfig)), gated_expert(moe))
    sparse = [layer for layer, ffn in enumerate(layers) if isinstance(ffn, MoEConfig)]
    widths, position = latent_widths(config, mixer), mixer.position or config.position
    hidden = gated_expert(moe).width(config.dim)
    shared = glu(config.model_copy(update={"ffn": moe.shared})).width(config.dim) if moe.shared is not None else hidden
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": dense.width(config.dim),
        "moe_intermediate_size": hidden,
        "num_hidden_layers": config.depth,
        "num_attention_heads": widths["heads"],
        "num_key_value_heads": widths["heads"],
        "n_shared_experts": max(shared // hidden, 1),
        "n_routed_experts": moe.experts,
        "routed_scaling_factor": moe.scale,
        "kv_lora_rank": widths["kv_rank"],
        "q_lora_rank": mixer.q_rank,
        "qk_rope_head_dim": widths["rope_dim"],
        "qk_nope_head_dim": widths["nope_dim"],
        "v_head_dim": widths["value_dim"],
        "n_group": moe.groups,
        "topk_group": moe.top_groups,
        "num_experts_per_tok": moe.top_k,
        "first_k_dense_replace": min(sparse, default=config.depth),
        "norm_topk_prob": moe.renormalises,
        "hidden_act": activation_name(dense.activation, "gelu_pytorch_tanh"),
        "max_position_embeddings": config.max_len,
        "rms_norm_eps": getattr(config.norm, "eps", 1e-6),
        "rope_parameters": _write_rope(position, mixer),
        "rope_interleave": getattr(position, "layout", "") == "interleaved",
        "attention_bias": mixer.bias,
        "attention_dropout": mixer.dropout,
        "tie_word_embeddings": config.tie_embeddings,
        "num_nextn_predict_layers": 0,
        "bos_token_id": None,  # theirs are those of one vocabulary
        "eos_token_id": None,
        "pad_token_id": None,
        **common(config),
    }


def latent_rules(config: GPTConfig, layer: int, ours: str, theirs: str) -> list[Rule]:
    """The latent attention of one layer."""
    mixer, here, there = _latent_at(config, layer), f"{ours}.mixer", f"{theirs}.self_attn"
    if mixer.q_rank is None:
        rules = linear(f"{here}.q", f"{there}.q_proj", ("weight",))
    else:
        rules = linear(f"{here}.q.down", f"{there}.q_a_proj", kinds_of(mixer.bias))
        rules.append(both(f"{here}.q.norm.weight", f"{there}.q_a_layernorm.weight"))
        rules += linear(f"{here}.q.up", f"{there}.q_b_proj", ("weight",))
    rules += linear(f"{here}.kv_down", f"{there}.kv_a_proj_with_mqa", kinds_of(mixer.bias))
    rules.append(both(f"{here}.kv_norm.weight", f"{there}.kv_a_layernorm.weight"))
    rules += linear(f"{here}.kv_up", f"{there}.kv_b_proj", ("weight",))
    return rules + linear(f"{here}.out", f"{there}.o_proj", kinds_of(mixer.out_bias))


def _ffn_rules(config: GPTConfig, layer: int, ours: str, theirs: str) -> list[Rule]:
    ffn, here, there = config.ffn.at(layer, config.depth), f"{ours}.ffn", f"{theirs}.mlp"
    if not isinstance(ffn, MoEConfig):
        return glu_rules(here, there, glu(config.model_copy(update={"ffn": ffn})))
    rules = [both(f"{here}.router.weight", f"{there}.gate.weight")]
    rules.append(both(f"{here}.router.bias", f"{there}.gate.e_score_correction_bias"))
    rules += expert_rules(config, ffn, f"{here}.experts", f"{there}.experts")
    shared = glu(config.model_copy(update={"ffn": ffn.shared or SwiGLUConfig()}))
    return rules + glu_rules(f"{here}.shared", f"{there}.shared_experts", shared)


def _rules(config: GPTConfig) -> list[Rule]:
    rules = rules_of(config, latent_rules, _ffn_rules)
    if not config.depth:
        return rules
    beyond = f"model.layers.{config.depth}"  # with the sublayers of the last layer
    last = config.model_copy(update={"depth": config.depth + 1})
    unread = [both("", f"{beyond}.{name}.weight") for name in (*_MTP, *_NORMS)]
    for sublayer in (latent_rules, _ffn_rules):
        unread += sublayer(last, config.depth, "", beyond)
    names = [name for rule in unread for name in (*rule.theirs, *(rule.other.theirs if rule.other else ()))]
    return [*rules, Rule((), tuple(names), kept=False)]


DEEPSEEK_V3 = Family(
    "deepseek_v3", "model", _read, _write, _rules, heads=("lm_head.",), buffers=("rotary_emb.inv_freq",)
)
