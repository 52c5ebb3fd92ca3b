"""Llama 4's language model to and from transformers' Llama4ForCausalLM (model_type llama4_text).

    zoo                              transformers
    ....mixer.{qkv,out}              ....self_attn.{q,k,v,o}_proj, as in hf_llama.py
    ....ffn.{gate,up,down}           ....feed_forward.{gate,up,down}_proj             dense layers
    ....ffn.router.weight            ....feed_forward.router.weight
    ....ffn.experts.{gate,up}        ....feed_forward.experts.gate_up_proj            (E, D, 2 F)
    ....ffn.experts.down             ....feed_forward.experts.down_proj               (E, F, D)
    ....ffn.shared                   ....feed_forward.shared_expert

Of four layers (iRoPE) three rotate, neighbours being the pairs, and see chunks of 8,192 tokens; the fourth has no
positions, sees everything, and its queries grow with their positions. Queries and keys are normalised without weights
before the rotation here, after it there: lengths do not turn. Where a row is padded on the left, their queries count
the padding as positions, from `floor_scale` tokens on; ours never do.
"""

from __future__ import annotations

from typing import Any

from zoo.blocks.api import FFNConfig
from zoo.blocks.ffn.glu import GLUConfig, SwiGLUConfig
from zoo.blocks.ffn.moe import MoEConfig
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.blocks.positions import RopeConfig
from zoo.interop.family import Family, Weights, attention_at, common, experts, ffns, glu, layered, layered_ffn
from zoo.interop.fields import Fields, activation_name
from zoo.interop.hf_llama import attention_rules, glu_rules, rules_of
from zoo.interop.hf_moe import gated_expert
from zoo.interop.rope import read_rope, write_rope
from zoo.interop.weights import Rule, both
from zoo.models.gpt import GPTConfig

__all__ = ["LLAMA4"]

_CHUNKED, _FULL = "chunked_attention", "full_attention"


def _read(fields: Fields, weights: Weights) -> GPTConfig:
    dim, depth = fields.int("hidden_size", 5120), fields.int("num_hidden_layers", 48)
    heads, max_len = fields.int("num_attention_heads", 40), fields.int("max_position_embeddings", 131072)
    eps = fields.float("rms_norm_eps", 1e-5)
    for name in ("router_jitter_noise", "for_llm_compressor", "cache_implementation"):
        fields.get(name)  # training, and how a library holds it
    dense = SwiGLUConfig(
        hidden=fields.int("intermediate_size_mlp", 16384), activation=fields.activation("hidden_act", "silu")
    )  # type: ignore[arg-type]
    expert = dense.model_copy(update={"hidden": fields.int("intermediate_size", 8192)})
    moe = MoEConfig(
        experts=fields.int("num_local_experts", 16),
        top_k=fields.int("num_experts_per_tok", 1),
        expert=expert,
        shared=expert,
        scores="sigmoid",
        normalise=False,
        weigh="input",
        balance=fields.float("router_aux_loss_coef", 0.001),
    )
    step = fields.int("interleave_moe_layer_step", 1)
    sparse = fields.get("moe_layers", list(range(step - 1, depth, step)) if step else [])
    layers: list[FFNConfig] = [moe if layer in sparse else dense for layer in range(depth)]
    return GPTConfig(
        dim=dim,
        depth=depth,
        heads=heads,
        mixer=_read_mixers(fields, dim, depth, heads, eps),  # type: ignore[arg-type]
        ffn=layered_ffn(layers, moe),
        norm={"name": "rmsnorm", "eps": eps},  # type: ignore[arg-type]
        position={**read_rope(fields, max_len, 500000.0), "layout": "interleaved"},  # type: ignore[arg-type]
        vocab_size=fields.int("vocab_size", 202048),
        max_len=max_len,
        tie_embeddings=fields.bool("tie_word_embeddings", False),
        init_std=fields.float("initializer_range", 0.02),
    )


def _read_mixers(fields: Fields, dim: int, depth: int, heads: int, eps: float) -> dict[str, Any]:
    kv_heads, width = fields.int("num_key_value_heads", 8), fields.int("head_dim", 128)
    bias, interval = fields.bool("attention_bias", False), fields.int("no_rope_layer_interval", 4)
    mixer: dict[str, Any] = {"name": "attention", "bias": bias, "out_bias": bias}
    mixer |= {"kv_heads": kv_heads} if kv_heads != heads else {}
    mixer |= {"head_dim": width} if width * heads != dim else {}
    mixer |= {"dropout": fields.float("attention_dropout", 0.0)}
    rotary, still = dict(mixer), {**mixer, "position": "none"}
    if fields.bool("use_qk_norm", True):
        rotary |= {"qk_norm": {"name": "rmsnorm", "eps": eps, "affine": False}}
    floor, growth = int(fields.float("floor_scale", 8192)), fields.float("attn_scale", 0.1)
    if fields.get("attn_temperature_tuning", True) and growth:  # published as 4
        still |= {"temperature": growth, "temperature_floor": floor}
    turned = fields.get("no_rope_layers") or [int((layer + 1) % interval != 0) for layer in range(depth)]
    no_chunk = "attention_chunk_size" in fields and fields.get("attention_chunk_size") is None
    chunk = None if no_chunk else fields.int("attention_chunk_size", 8192)
    types = fields.get("layer_types") or [_CHUNKED if turn and chunk else _FULL for turn in turned]
    if len(types) != depth or set(types) - {_CHUNKED, _FULL} or (chunk is None and _CHUNKED in types):
        fields.refuse("layer_types", types, f"{depth} of {_CHUNKED} (with an attention_chunk_size), {_FULL}")
    if len(turned) != depth:
        fields.refuse("no_rope_layers", turned, f"{depth} of 0 and 1")
    return layered(
        [
            {**(rotary if turn else still), **({"chunk": chunk} if kind == _CHUNKED else {})}
            for turn, kind in zip(turned, types, strict=True)
        ]
    )


def _is_still(mixer: AttentionConfig) -> bool:
    return mixer.position is not None and mixer.position.place == "none"


def _write(config: GPTConfig) -> dict[str, Any]:
    mixers = [attention_at(config, layer) for layer in range(config.depth)]
    mixer = mixers[0] if mixers else AttentionConfig()
    moe, layers = experts(config) or MoEConfig(), ffns(config)
    dense = next((ffn for ffn in layers if isinstance(ffn, GLUConfig)), gated_expert(moe))
    turning = next((each for each in mixers if not _is_still(each)), mixer)
    still = next((each for each in mixers if _is_still(each)), AttentionConfig())
    position = turning.position or config.position
    if isinstance(position, RopeConfig):
        position = position.model_copy(update={"layout": "half"})  # neighbours in their class, always
    return {
        "architectures": ["Llama4ForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": gated_expert(moe).width(config.dim),
        "intermediate_size_mlp": dense.width(config.dim),
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "num_key_value_heads": mixer.kv_heads or config.heads,
        "head_dim": mixer.head_dim or config.dim // config.heads,
        "hidden_act": activation_name(dense.activation, "gelu_pytorch_tanh"),
        "max_position_embeddings": config.max_len,
        "rms_norm_eps": getattr(config.norm, "eps", 1e-5),
        "rope_parameters": write_rope(position),
        "attention_bias": mixer.bias,
        "attention_dropout": mixer.dropout,
        "attention_chunk_size": next((each.chunk for each in mixers if each.chunk), None),
        "layer_types": [_CHUNKED if each.chunk else _FULL for each in mixers],
        "no_rope_layers": [int(not _is_still(each)) for each in mixers],
        "use_qk_norm": turning.qk_norm is not None,
        "attn_temperature_tuning": still.temperature > 0,
        "attn_scale": still.temperature or 0.1,
        "floor_scale": still.temperature_floor,
        "num_local_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "moe_layers": [layer for layer, ffn in enumerate(layers) if isinstance(ffn, MoEConfig)],
        "router_aux_loss_coef": moe.balance,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": None,  # theirs are those of one vocabulary
        "eos_token_id": None,
        "pad_token_id": None,
        **common(config),
    }


def _ffn_rules(config: GPTConfig, layer: int, ours: str, theirs: str) -> list[Rule]:
    here, there = f"{ours}.ffn", f"{theirs}.feed_forward"
    ffn: Any = ffns(config)[layer]
    if not isinstance(ffn, MoEConfig):
        return glu_rules(here, there, glu(config.model_copy(update={"ffn": ffn})))
    width, pair = gated_expert(ffn).width(config.dim), (f"{here}.experts.gate.weight", f"{here}.experts.up.weight")
    shared = glu(config.model_copy(update={"ffn": ffn.shared or SwiGLUConfig()}))
    joined = f"{there}.experts.gate_up_proj"
    return [
        both(f"{here}.router.weight", f"{there}.router.weight"),
        Rule(pair, (joined,), ours_rows=(width, width), axis=1, view="transposed"),
        both(f"{here}.experts.down.weight", f"{there}.experts.down_proj", view="transposed"),
        *glu_rules(f"{here}.shared", f"{there}.shared_expert", shared),
    ]


LLAMA4 = Family(
    "llama4_text",
    "model",
    _read,
    _write,
    lambda config: rules_of(config, attention_rules, _ffn_rules),
    heads=("lm_head.",),
    buffers=("rotary_emb.inv_freq",),
)
