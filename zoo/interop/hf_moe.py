"""Mixtral and Qwen3-MoE to and from transformers' ...ForCausalLM: Mistral and Qwen3 (hf_llama.py) with experts.

    zoo                                  transformers
    ....ffn.router.weight                ....mlp.gate.weight
    ....ffn.experts.{gate,up,down}       ....mlp.experts.e.{gate,up,down}_proj, one expert below the other
                                         Mixtral's files: ....block_sparse_moe.experts.e.{w1,w3,w2}

In memory transformers 5 holds `gate_up_proj` (E, 2 F, D) and `down_proj` (E, D, F) instead. Both layouts are read; the
one by one layout, which every version reads, is written.

Their auxiliary loss takes all layers as one, ours adds those of the layers up; the coefficient goes over as it is.
"""

from __future__ import annotations

from typing import Any

from zoo.blocks.api import FFNConfig
from zoo.blocks.ffn.glu import GLUConfig
from zoo.blocks.ffn.moe import MoEConfig
from zoo.interop.family import Family, Weights, experts, ffns, glu, layered_ffn
from zoo.interop.fields import Fields
from zoo.interop.hf_llama import glu_rules, read_llama, rules_of, write_llama
from zoo.interop.weights import Rule, both
from zoo.models.gpt import GPTConfig
from zoo.registry import ConfigError

__all__ = ["MIXTRAL", "QWEN3_MOE", "expert_rules", "gated_expert"]


def _read_mixtral(fields: Fields, weights: Weights) -> GPTConfig:
    dense = read_llama(fields, weights)
    fields.get("router_jitter_noise")  # while training
    moe = MoEConfig(
        experts=fields.int("num_local_experts", fields.int("num_experts", 8)),
        top_k=fields.int("num_experts_per_tok", 2),
        expert=dense.ffn,
        normalise=True,
        balance=fields.float("router_aux_loss_coef", 0.001),
    )
    return dense.model_copy(update={"ffn": moe})


def _read_qwen3_moe(fields: Fields, weights: Weights) -> GPTConfig:
    dense = read_llama(fields, weights)
    hidden = fields.int("moe_intermediate_size", 768)
    moe = MoEConfig(
        experts=fields.int("num_experts", fields.int("num_local_experts", 128)),
        top_k=fields.int("num_experts_per_tok", 8),
        expert=dense.ffn.model_copy(update={"hidden": hidden}),
        normalise=fields.bool("norm_topk_prob", False),
        balance=fields.float("router_aux_loss_coef", 0.001),
    )
    plain, step = fields.get("mlp_only_layers", []), max(fields.int("decoder_sparse_step", 1), 1)
    layers: list[FFNConfig] = [
        dense.ffn if layer in plain or (layer + 1) % step else moe for layer in range(dense.depth)
    ]
    return dense.model_copy(update={"ffn": layered_ffn(layers, moe)})


def _write(kind: str, architecture: str, config: GPTConfig) -> dict[str, Any]:
    moe = experts(config) or MoEConfig()
    layers = ffns(config)
    dense = next((ffn for ffn in layers if isinstance(ffn, GLUConfig)), moe.expert)
    plain = write_llama(kind, architecture, config.model_copy(update={"ffn": dense}))
    plain |= {"num_experts_per_tok": moe.top_k, "router_aux_loss_coef": moe.balance}
    width = gated_expert(moe).width(config.dim)
    if kind == "mixtral":
        return plain | {"num_local_experts": moe.experts, "intermediate_size": width}
    return plain | {
        "num_experts": moe.experts,
        "moe_intermediate_size": width,
        "norm_topk_prob": moe.renormalises,
        "mlp_only_layers": [layer for layer, ffn in enumerate(layers) if not isinstance(ffn, MoEConfig)],
        "decoder_sparse_step": 1,
    }


def gated_expert(moe: MoEConfig) -> GLUConfig:
    """One expert. Raises ConfigError for an mlp."""
    if not isinstance(moe.expert, GLUConfig):
        name = moe.expert.registered_name
        raise ConfigError(f"expert '{name}' has no counterpart in transformers' class; choices: swiglu, geglu", "ffn")
    return moe.expert


def expert_rules(
    config: GPTConfig, moe: MoEConfig, ours: str, theirs: str, names: tuple[str, str, str] | None = None
) -> list[Rule]:
    """Experts one by one in files (`names` of gate, up and down), and stacked in a model of transformers 5."""
    count, width = moe.experts, gated_expert(moe).width(config.dim)
    gate, up, down = (
        tuple(f"{theirs}.{number}.{name}.weight" for number in range(count))
        for name in names or ("gate_proj", "up_proj", "down_proj")
    )
    pair = (f"{ours}.gate.weight", f"{ours}.up.weight")
    stacked = Rule(pair, (f"{theirs}.gate_up_proj",), ours_rows=(width, width), axis=1)
    ones = (1,) * count
    return [
        Rule(pair, gate + up, ours_rows=(count, count), theirs_rows=ones + ones, view="stacked", other=stacked),
        Rule(
            (f"{ours}.down.weight",),
            down,
            theirs_rows=ones,
            view="stacked",
            other=both(f"{ours}.down.weight", f"{theirs}.down_proj"),
        ),
    ]


def _mixtral_rules(config: GPTConfig, layer: int, ours: str, theirs: str) -> list[Rule]:
    moe, where = experts(config) or MoEConfig(), f"{theirs}.block_sparse_moe"
    return [
        both(f"{ours}.ffn.router.weight", f"{where}.gate.weight"),
        *expert_rules(config, moe, f"{ours}.ffn.experts", f"{where}.experts", ("w1", "w3", "w2")),
    ]


def _qwen3_moe_rules(config: GPTConfig, layer: int, ours: str, theirs: str) -> list[Rule]:
    ffn = ffns(config)[layer]
    if isinstance(ffn, MoEConfig):
        return [
            both(f"{ours}.ffn.router.weight", f"{theirs}.mlp.gate.weight"),
            *expert_rules(config, ffn, f"{ours}.ffn.experts", f"{theirs}.mlp.experts"),
        ]
    return glu_rules(f"{ours}.ffn", f"{theirs}.mlp", glu(config.model_copy(update={"ffn": ffn})))


MIXTRAL = Family(
    "mixtral",
    "model",
    _read_mixtral,
    lambda config: _write("mixtral", "MixtralForCausalLM", config),
    lambda config: rules_of(config, ffn_rules=_mixtral_rules),
    heads=("lm_head.",),
    rename=lambda name: name.replace(".mlp.", ".block_sparse_moe."),
    buffers=("rotary_emb.inv_freq",),
)
QWEN3_MOE = Family(
    "qwen3_moe",
    "model",
    _read_qwen3_moe,
    lambda config: _write("qwen3_moe", "Qwen3MoeForCausalLM", config),
    lambda config: rules_of(config, ffn_rules=_qwen3_moe_rules),
    heads=("lm_head.",),
    buffers=("rotary_emb.inv_freq",),
)
