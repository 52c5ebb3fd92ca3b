"""ModernBERT to and from transformers' ModernBertForMaskedLM.

    zoo                              transformers
    embed.weight                     model.embeddings.tok_embeddings.weight (and decoder.weight, tied)
    stack.input_norm                 model.embeddings.norm
    stack.blocks.i.mixer.{qkv,out}   model.layers.i.attn.{Wqkv,Wo}
    stack.blocks.i.ffn.{gate,up}     model.layers.i.mlp.Wi, one above the other
    stack.blocks.i.ffn.down          model.layers.i.mlp.Wo
    head.transform                   head.{dense,norm}
    head.bias                        decoder.bias

`local_attention` counts both sides: 128 there is a window of 65 here, the token itself and 64 to each side.
"""

from __future__ import annotations

from typing import Any

from zoo.blocks.norms import LayerNormConfig
from zoo.interop.family import Family, Weights, attention_at, common, glu, layered, plain_width
from zoo.interop.fields import Fields, activation_name
from zoo.interop.rope import rope_from, write_rope
from zoo.interop.weights import Rule, both, kinds_of, linear
from zoo.models.bert import BERTConfig
from zoo.registry import ConfigError

__all__ = ["MODERNBERT"]

_FULL, _LOCAL = "full_attention", "sliding_attention"


def _read(fields: Fields, weights: Weights) -> BERTConfig:
    depth, max_len = fields.int("num_hidden_layers", 22), fields.int("max_position_embeddings", 8192)
    masked = weights is None or "head.dense.weight" in weights
    if weights is not None and "classifier.weight" in weights:
        raise ConfigError("ModernBERT's classifier has a head of its own; choices: ModernBertForMaskedLM")
    every = fields.int("global_attn_every_n_layers", 3)
    types = fields.get("layer_types", [_LOCAL if i % every else _FULL for i in range(depth)])
    if len(types) != depth or set(types) - {_FULL, _LOCAL}:
        fields.refuse("layer_types", types, f"{depth} of {_FULL}, {_LOCAL}")
    bases = {_FULL: fields.float("global_rope_theta", 160000.0), _LOCAL: fields.float("local_rope_theta", 10000.0)}
    given = fields.get("rope_parameters", {})
    fields.only("rope_scaling", None)
    bias, dropout = fields.bool("attention_bias", False), fields.float("attention_dropout", 0.0)
    window = fields.int("local_attention", 128) // 2 + 1
    mixers = {}
    for each in (_FULL, _LOCAL):
        rope = rope_from(fields, {"rope_theta": bases[each], **(given.get(each) or {})}, max_len)
        mixers[each] = {"name": "attention", "bias": bias, "out_bias": bias, "dropout": dropout, "position": rope}
    mixers[_LOCAL]["window"] = window
    fields.only("position_embedding_type", "absolute", "rope")
    fields.get("layer_norm_eps")  # stands in published files beside norm_eps, and is not read there either
    fields.get("classifier_pooling")
    fields.get("embedding_dropout")
    if masked:
        fields.only("decoder_bias", True)
        fields.only("tie_word_embeddings", True)
        fields.only("classifier_activation", "gelu", "gelu_python")
    for name in ("decoder_bias", "tie_word_embeddings", "classifier_activation"):
        fields.get(name)
    return BERTConfig(
        dim=fields.int("hidden_size", 768),
        depth=depth,
        heads=fields.int("num_attention_heads", 12),
        mixer=layered([mixers[each] for each in types]),  # type: ignore[arg-type]
        ffn={
            "name": "geglu",
            "hidden": fields.int("intermediate_size", 1152),
            "activation": fields.activation("hidden_activation", "gelu"),
            "bias": fields.bool("mlp_bias", False),
            "dropout": fields.float("mlp_dropout", 0.0),
        },  # type: ignore[arg-type]
        norm={
            "name": "layernorm",
            "eps": fields.float("norm_eps", 1e-5),
            "bias": fields.bool("norm_bias", False),
        },  # type: ignore[arg-type]
        residual={"name": "pre", "first_norm": False},  # type: ignore[arg-type]
        position="none",  # type: ignore[arg-type]
        vocab_size=fields.int("vocab_size", 50368),
        max_len=max_len,
        token_types=0,
        head_bias=fields.bool("classifier_bias", False),
        pooler=False,
        masked_lm=masked,
        head_dropout=fields.float("classifier_dropout", 0.0),
        init_std=fields.float("initializer_range", 0.02),
    )


def _write(config: BERTConfig) -> dict[str, Any]:
    mixers = [attention_at(config, layer) for layer in range(config.depth)]
    rope, window = {}, 65
    for mixer in mixers:
        kind = _FULL if mixer.window is None else _LOCAL
        rope[kind] = write_rope(mixer.position or config.position)
        window = mixer.window or window
    ffn, norm = glu(config), config.norm
    return {
        "architectures": ["ModernBertForMaskedLM" if config.masked_lm else "ModernBertModel"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": plain_width(config),
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "hidden_activation": activation_name(ffn.activation, "gelu_pytorch_tanh"),
        "max_position_embeddings": config.max_len,
        "norm_eps": getattr(norm, "eps", 1e-5),
        "norm_bias": norm.bias if isinstance(norm, LayerNormConfig) else False,
        "attention_bias": mixers[0].bias if mixers else False,
        "attention_dropout": mixers[0].dropout if mixers else 0.0,
        "layer_types": [_FULL if mixer.window is None else _LOCAL for mixer in mixers],
        "rope_parameters": rope,
        "local_attention": 2 * (window - 1),
        "mlp_bias": ffn.bias,
        "mlp_dropout": ffn.dropout,
        "classifier_bias": config.head_bias,
        "classifier_dropout": config.head_dropout,
        "bos_token_id": None,  # theirs are those of one vocabulary
        "eos_token_id": None,
        "pad_token_id": None,
        "cls_token_id": None,
        "sep_token_id": None,
        **common(config),
    }


def _rules(config: BERTConfig) -> list[Rule]:
    ffn, norm = glu(config), kinds_of(isinstance(config.norm, LayerNormConfig) and config.norm.bias)
    rules = linear("stack.input_norm", "model.embeddings.norm", norm)
    rules += linear("stack.norm", "model.final_norm", norm)
    rules.append(both("embed.weight", "model.embeddings.tok_embeddings.weight", "decoder.weight"))
    hidden = plain_width(config)
    for layer in range(config.depth):
        ours, theirs = f"stack.blocks.{layer}", f"model.layers.{layer}"
        mixer = attention_at(config, layer)
        if layer:
            rules += linear(f"{ours}.residuals.mixer.norm", f"{theirs}.attn_norm", norm)
        rules += linear(f"{ours}.residuals.ffn.norm", f"{theirs}.mlp_norm", norm)
        rules += linear(f"{ours}.mixer.qkv", f"{theirs}.attn.Wqkv", kinds_of(mixer.bias))
        rules += linear(f"{ours}.mixer.out", f"{theirs}.attn.Wo", kinds_of(mixer.out_bias))
        for kind in kinds_of(ffn.bias):
            parts = (f"{ours}.ffn.gate.{kind}", f"{ours}.ffn.up.{kind}")
            rules.append(Rule(parts, (f"{theirs}.mlp.Wi.{kind}",), ours_rows=(hidden, hidden)))
        rules += linear(f"{ours}.ffn.down", f"{theirs}.mlp.Wo", kinds_of(ffn.bias))
    if config.masked_lm:
        rules += linear("head.transform.dense", "head.dense", kinds_of(config.head_bias))
        rules += linear("head.transform.norm", "head.norm", norm)
        rules.append(both("head.bias", "decoder.bias"))
    return rules


MODERNBERT = Family(
    "modernbert", "model", _read, _write, _rules, heads=("head.", "decoder.", "classifier."), buffers=("inv_freq",)
)
