"""GPT-2 to and from transformers' GPT2LMHeadModel.

Their matrices (`Conv1D`) are (inputs, outputs), ours (outputs, inputs).

zoo                              transformers
embed.weight                     transformer.wte.weight (and lm_head.weight, tied)
stack.position.weight            transformer.wpe.weight
stack.blocks.i.mixer.{qkv,out}   transformer.h.i.attn.{c_attn,c_proj}
stack.blocks.i.ffn.{up,down}     transformer.h.i.mlp.{c_fc,c_proj}
"""

from __future__ import annotations

from typing import Any

from zoo.interop.family import Family, Weights, attention_at, common, mlp, plain_width
from zoo.interop.fields import Fields, activation_name
from zoo.interop.weights import Rule, both, linear
from zoo.models.gpt import GPTConfig

__all__ = ["GPT2"]


def _read(fields: Fields, weights: Weights) -> GPTConfig:
    dim, heads = fields.int("n_embd", 768), fields.int("n_head", 12)
    fields.only("scale_attn_by_inverse_layer_idx", False)
    fields.only("add_cross_attention", False)
    fields.get("reorder_and_upcast_attn")  # the same sums in another order and precision
    dropout = fields.float("resid_pdrop", 0.1)
    fields.get("embd_pdrop")
    mixer: dict[str, Any] = {"name": "attention", "dropout": fields.float("attn_pdrop", 0.1)}
    if not fields.bool("scale_attn_weights", True):
        mixer["scale"] = 1.0
    ffn = {
        "name": "mlp",
        "hidden": fields.int("n_inner", 4 * dim),
        "activation": fields.activation("activation_function", "gelu_new"),
    }
    return GPTConfig(
        dim=dim,
        depth=fields.int("n_layer", 12),
        heads=heads,
        mixer=mixer,  # type: ignore[arg-type]
        ffn=ffn,  # type: ignore[arg-type]
        norm={"name": "layernorm", "eps": fields.float("layer_norm_epsilon", 1e-5)},  # type: ignore[arg-type]
        vocab_size=fields.int("vocab_size", 50257),
        max_len=fields.int("n_positions", 1024),
        tie_embeddings=fields.bool("tie_word_embeddings", True),
        dropout=dropout,
        init_std=fields.float("initializer_range", 0.02),
    )


def _write(config: GPTConfig) -> dict[str, Any]:
    mixer, ffn = attention_at(config, 0), mlp(config)
    return {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocab_size,
        "n_positions": config.max_len,
        "n_embd": config.dim,
        "n_layer": config.depth,
        "n_head": config.heads,
        "n_inner": plain_width(config),
        "activation_function": activation_name(ffn.activation),
        "layer_norm_epsilon": getattr(config.norm, "eps", 1e-5),
        "scale_attn_weights": mixer.scale != 1.0,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": mixer.dropout,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": None,  # theirs are those of GPT-2's own vocabulary
        "eos_token_id": None,
        **common(config),
    }


def _rules(config: GPTConfig) -> list[Rule]:
    rules = [both("stack.position.weight", "transformer.wpe.weight"), *linear("stack.norm", "transformer.ln_f")]
    if config.tie_embeddings:
        rules.append(both("embed.weight", "transformer.wte.weight", "lm_head.weight"))
    else:
        rules += [both("embed.weight", "transformer.wte.weight"), both("head.weight", "lm_head.weight")]
    for layer in range(config.depth):
        ours, theirs = f"stack.blocks.{layer}", f"transformer.h.{layer}"
        rules += linear(f"{ours}.residuals.mixer.norm", f"{theirs}.ln_1")
        rules += linear(f"{ours}.residuals.ffn.norm", f"{theirs}.ln_2")
        rules += linear(f"{ours}.mixer.qkv", f"{theirs}.attn.c_attn", view="transposed")
        rules += linear(f"{ours}.mixer.out", f"{theirs}.attn.c_proj", view="transposed")
        rules += linear(f"{ours}.ffn.up", f"{theirs}.mlp.c_fc", view="transposed")
        rules += linear(f"{ours}.ffn.down", f"{theirs}.mlp.c_proj", view="transposed")
    return rules


GPT2 = Family(
    "gpt2", "transformer", _read, _write, _rules, heads=("lm_head.",), buffers=(".attn.bias", ".attn.masked_bias")
)
