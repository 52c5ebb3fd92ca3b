"""Llama, Mistral, Qwen3, Gemma 2 and OLMo 2 to and from transformers' ...ForCausalLM; the frame of other decoders.

    zoo                              transformers
    embed.weight                     model.embed_tokens.weight
    stack.blocks.i.mixer.qkv         model.layers.i.self_attn.{q,k,v}_proj, one above the other
    stack.blocks.i.mixer.out         model.layers.i.self_attn.o_proj
    stack.blocks.i.mixer.{q,k}_norm  model.layers.i.self_attn.{q,k}_norm           Qwen3, OLMo 2
    stack.blocks.i.ffn.{gate,up,down}  model.layers.i.mlp.{gate,up,down}_proj
    stack.norm, head.weight          model.norm, lm_head.weight (untied)

Rotary pairs are channels i and i + K/2 on both sides (layout "half"), so no channel moves. Norms of a layer:

    Llama ... (pre)     mixer: input_layernorm                  ffn: post_attention_layernorm
    OLMo 2 (res_post)   mixer: post_attention_layernorm         ffn: post_feedforward_layernorm
    Gemma 2 (sandwich)  mixer: input_, post_attention_layernorm ffn: pre_, post_feedforward_layernorm

Their dynamic rope scaling takes the longest row of the batch for all and remembers it; ours takes each row's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zoo.blocks.ffn.glu import GLUConfig
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.blocks.residual import ResPostConfig, SandwichConfig
from zoo.interop.family import Family, Weights, attention_at, common, glu, layered, plain_width
from zoo.interop.fields import Fields, activation_name
from zoo.interop.rope import read_rope, write_rope
from zoo.interop.weights import Rule, both, fused, kinds_of, linear
from zoo.models.gpt import GPTConfig

__all__ = [
    "GEMMA2",
    "LLAMA",
    "MISTRAL",
    "OLMO2",
    "QWEN3",
    "attention_rules",
    "glu_rules",
    "read_llama",
    "rules_of",
    "write_llama",
]

LayerRules = Callable[[GPTConfig, int, str, str], list[Rule]]
"""Rules of a sublayer from the config, its layer, and the layer's name here and there."""

_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"vocab": 32000, "dim": 4096, "hidden": 11008, "max_len": 2048, "eps": 1e-6},
    "mistral": {
        "vocab": 32000,
        "dim": 4096,
        "hidden": 14336,
        "max_len": 131072,
        "eps": 1e-6,
        "kv": 8,
        "window": 4096,
    },
    "mixtral": {
        "vocab": 32000,
        "dim": 4096,
        "hidden": 14336,
        "max_len": 131072,
        "eps": 1e-5,
        "kv": 8,
        "base": 1e6,
    },
    "qwen3": {
        "vocab": 151936,
        "dim": 4096,
        "hidden": 22016,
        "max_len": 32768,
        "eps": 1e-6,
        "kv": 32,
        "head_dim": 128,
        "window": 4096,
    },
    "qwen3_moe": {
        "vocab": 151936,
        "dim": 2048,
        "depth": 24,
        "hidden": 6144,
        "max_len": 32768,
        "eps": 1e-6,
        "kv": 4,
        "window": 4096,
    },
    "gemma2": {
        "vocab": 256000,
        "dim": 2304,
        "depth": 26,
        "heads": 8,
        "kv": 4,
        "hidden": 9216,
        "head_dim": 256,
        "max_len": 8192,
        "eps": 1e-6,
        "window": 4096,
        "tied": True,
        "activation": "gelu_pytorch_tanh",
    },
    "olmo2": {"vocab": 50304, "dim": 4096, "hidden": 11008, "max_len": 2048, "eps": 1e-5},
}
"""What transformers' classes take where config.json is silent; 32 layers and 32 heads unless said."""


def read_llama(fields: Fields, weights: Weights) -> GPTConfig:
    """The config, with the dense feed-forward where some layers have experts."""
    kind, default = fields.model_type, _DEFAULTS[fields.model_type]
    dim, depth = fields.int("hidden_size", default["dim"]), fields.int("num_hidden_layers", default.get("depth", 32))
    heads = fields.int("num_attention_heads", default.get("heads", 32))
    kv_heads = fields.int("num_key_value_heads", default.get("kv", heads))
    max_len = fields.int("max_position_embeddings", default["max_len"])
    width = fields.int("head_dim", default.get("head_dim", dim // max(heads, 1)))
    bias = fields.bool("attention_bias", False) if kind not in ("mistral", "mixtral") else False
    eps = fields.float("rms_norm_eps", default["eps"])
    mixer: dict[str, Any] = {"name": "attention", "bias": bias, "out_bias": bias}
    mixer |= {"kv_heads": kv_heads} if kv_heads != heads else {}
    mixer |= {"head_dim": width} if width * heads != dim else {}
    mixer |= {"dropout": fields.float("attention_dropout", 0.0)}
    activation = default.get("activation", "silu")
    if kind == "gemma2":
        activation = fields.get("hidden_act", activation)  # an older name; `hidden_activation` wins
        activation = fields.activation("hidden_activation", activation)
    else:
        activation = fields.activation("hidden_act", activation)
    mlp_bias = fields.bool("mlp_bias", False) if kind == "llama" else False
    hidden = fields.int("intermediate_size", default["hidden"])
    norm: dict[str, Any] = {"name": "rmsnorm", "eps": eps}
    choices: dict[str, Any] = {}
    if kind in ("qwen3", "qwen3_moe"):
        mixer |= {"qk_norm": dict(norm)}
    if kind == "olmo2":
        mixer |= {"qk_norm": dict(norm), "qk_norm_over": "all"}
        choices |= {"residual": "res_post", "final_norm": True}
    if kind == "gemma2":
        scalar = fields.float("query_pre_attn_scalar", 256)
        mixer |= {"scale": scalar**-0.5} if scalar != width else {}
        if "attn_logit_softcapping" not in fields or fields.get("attn_logit_softcapping") is not None:
            mixer |= {"softcap": fields.float("attn_logit_softcapping", 50.0)}
        if "final_logit_softcapping" not in fields or fields.get("final_logit_softcapping") is not None:
            choices |= {"logit_soft_cap": fields.float("final_logit_softcapping", 30.0)}
        fields.only("use_bidirectional_attention", None, False)
        norm |= {"unit_offset": True}
        choices |= {"residual": "sandwich", "scale_embeddings": True}
    return GPTConfig(
        dim=dim,
        depth=depth,
        heads=heads,
        mixer=_windows(fields, mixer, depth),  # type: ignore[arg-type]
        ffn={
            "name": "swiglu" if activation == "silu" else "geglu",
            "hidden": hidden,
            "activation": activation,
            "bias": mlp_bias,
        },  # type: ignore[arg-type]
        norm=norm,  # type: ignore[arg-type]
        position=read_rope(fields, max_len, default.get("base", 10000.0)),  # type: ignore[arg-type]
        vocab_size=fields.int("vocab_size", default["vocab"]),
        max_len=max_len,
        tie_embeddings=fields.bool("tie_word_embeddings", default.get("tied", False)),
        init_std=fields.float("initializer_range", 0.02),
        **choices,
    )


def _windows(fields: Fields, mixer: dict[str, Any], depth: int) -> dict[str, Any]:
    """The mixer of all layers, where some or all may have a window."""
    kind = fields.model_type
    if kind in ("llama", "olmo2"):
        fields.only("sliding_window", None)
        fields.only("layer_types", None, ["full_attention"] * depth)
        return mixer
    window = fields.get("sliding_window", None if "sliding_window" in fields else _DEFAULTS[kind].get("window"))
    if kind in ("qwen3", "qwen3_moe") and not fields.bool("use_sliding_window", False):
        window = None
    if kind in ("mistral", "mixtral", "qwen3_moe"):
        fields.get("max_window_layers")  # which the class of Qwen3-MoE does not look at
        fields.only("layer_types", None, ["full_attention" if window is None else "sliding_attention"] * depth)
        return {**mixer, "window": window} if window is not None else mixer
    full, sliding = "full_attention", "sliding_attention"
    types = [full if i % 2 else sliding for i in range(depth)]
    if kind == "qwen3":
        first = fields.int("max_window_layers", 28)
        types = [sliding if window is not None and i >= first else full for i in range(depth)]
    types = fields.get("layer_types", types)
    if len(types) != depth or set(types) - {full, sliding} or (window is None and sliding in types):
        fields.refuse("layer_types", types, f"{depth} of {full}, {sliding} (with a sliding_window)")
    return layered([{**mixer, "window": window} if each == sliding else mixer for each in types])


def write_llama(kind: str, architecture: str, config: GPTConfig) -> dict[str, Any]:
    """Their plain config of a decoder whose feed-forward is dense."""
    mixers = [attention_at(config, layer) for layer in range(config.depth)]
    mixer = mixers[0] if mixers else AttentionConfig()
    width = mixer.head_dim or config.dim // config.heads
    activation = activation_name(glu(config).activation, "gelu_pytorch_tanh")
    windows = {each.window for each in mixers}
    plain: dict[str, Any] = {
        "architectures": [architecture],
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": plain_width(config),
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "num_key_value_heads": mixer.kv_heads or config.heads,
        "max_position_embeddings": config.max_len,
        "rms_norm_eps": getattr(config.norm, "eps", 1e-6),
        "rope_parameters": write_rope(mixer.position or config.position),
        "attention_dropout": mixer.dropout,
        "tie_word_embeddings": config.tie_embeddings,
        "hidden_activation" if kind == "gemma2" else "hidden_act": activation,
        "bos_token_id": None,  # theirs are those of one vocabulary
        "eos_token_id": None,
        "pad_token_id": None,
        **common(config),
    }
    if kind != "olmo2":
        plain["head_dim"] = width
    if kind not in ("mistral", "mixtral"):
        plain["attention_bias"] = mixer.bias
    if kind == "llama":
        plain["mlp_bias"] = glu(config).bias
    if kind in ("mistral", "mixtral", "qwen3", "qwen3_moe", "gemma2"):
        plain["sliding_window"] = next((each for each in windows if each is not None), None)
    if kind in ("qwen3", "gemma2"):
        plain["layer_types"] = ["full_attention" if m.window is None else "sliding_attention" for m in mixers]
    if kind in ("qwen3", "qwen3_moe"):
        plain["use_sliding_window"] = plain["sliding_window"] is not None
    if kind == "gemma2":
        scalar = width if mixer.scale is None else mixer.scale**-2
        plain["query_pre_attn_scalar"] = round(scalar) if abs(scalar - round(scalar)) < 1e-9 * scalar else scalar
        plain["attn_logit_softcapping"] = mixer.softcap
        plain["final_logit_softcapping"] = config.logit_soft_cap
    return plain


def attention_rules(config: GPTConfig, layer: int, ours: str, theirs: str) -> list[Rule]:
    """The attention of one layer."""
    mixer = attention_at(config, layer)
    width = mixer.head_dim or config.dim // config.heads
    shared = (mixer.kv_heads or config.heads) * width
    parts = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
    rules = fused(f"{ours}.mixer.qkv", parts, (config.heads * width, shared, shared), kinds_of(mixer.bias))
    rules += linear(f"{ours}.mixer.out", f"{theirs}.self_attn.o_proj", kinds_of(mixer.out_bias))
    if getattr(mixer.qk_norm, "affine", False):
        for part in "qk":
            rules.append(both(f"{ours}.mixer.{part}_norm.weight", f"{theirs}.self_attn.{part}_norm.weight"))
    return rules


def glu_rules(ours: str, theirs: str, ffn: GLUConfig) -> list[Rule]:
    """One gated feed-forward."""
    parts = ("gate", "up", "down")
    return [r for part in parts for r in linear(f"{ours}.{part}", f"{theirs}.{part}_proj", kinds_of(ffn.bias))]


def _dense_rules(config: GPTConfig, layer: int, ours: str, theirs: str) -> list[Rule]:
    return glu_rules(f"{ours}.ffn", f"{theirs}.mlp", glu(config))


def rules_of(
    config: GPTConfig, mixer_rules: LayerRules = attention_rules, ffn_rules: LayerRules = _dense_rules
) -> list[Rule]:
    """All weights of a decoder: the frame is the same for all, the sublayers may be others."""
    rules = [both("stack.norm.weight", "model.norm.weight")]
    if config.tie_embeddings:
        rules.append(both("embed.weight", "model.embed_tokens.weight", "lm_head.weight"))
    else:
        rules += [both("embed.weight", "model.embed_tokens.weight"), both("head.weight", "lm_head.weight")]
    before, after = {"mixer": "input_layernorm", "ffn": "post_attention_layernorm"}, {}
    if isinstance(config.residual, SandwichConfig):
        before |= {"ffn": "pre_feedforward_layernorm"}
        after = {"mixer": "post_attention_layernorm", "ffn": "post_feedforward_layernorm"}
    if isinstance(config.residual, ResPostConfig):
        before = {"mixer": "post_attention_layernorm", "ffn": "post_feedforward_layernorm"}
    for layer in range(config.depth):
        ours, theirs = f"stack.blocks.{layer}", f"model.layers.{layer}"
        for place, norm in before.items():
            rules.append(both(f"{ours}.residuals.{place}.norm.weight", f"{theirs}.{norm}.weight"))
        for place, norm in after.items():
            rules.append(both(f"{ours}.residuals.{place}.out_norm.weight", f"{theirs}.{norm}.weight"))
        rules += mixer_rules(config, layer, ours, theirs) + ffn_rules(config, layer, ours, theirs)
    return rules


def _family(kind: str, architecture: str) -> Family:
    return Family(
        kind,
        "model",
        read_llama,
        lambda config: write_llama(kind, architecture, config),
        rules_of,
        heads=("lm_head.",),
        buffers=("rotary_emb.inv_freq",),
    )


LLAMA = _family("llama", "LlamaForCausalLM")
MISTRAL = _family("mistral", "MistralForCausalLM")
QWEN3 = _family("qwen3", "Qwen3ForCausalLM")
GEMMA2 = _family("gemma2", "Gemma2ForCausalLM")
OLMO2 = _family("olmo2", "Olmo2ForCausalLM")
