"""BART and Marian to and from transformers' BartForConditionalGeneration and MarianMTModel.

    zoo                              transformers
    embed.weight                     model.shared.weight
    source_embed.weight              model.encoder.embed_tokens.weight, where the source has its own vocabulary
    {en,de}coder.position.weight     model.{en,de}coder.embed_positions.weight (BART)
    {en,de}coder.input_norm          model.{en,de}coder.layernorm_embedding (BART)
    ....blocks.i.mixer.{qkv,out}     ....layers.i.self_attn.{q,k,v}_proj, out_proj
    decoder.blocks.i.cross.{q,kv}    ....layers.i.encoder_attn.{q}_proj, {k,v}_proj
    ....blocks.i.ffn.{up,down}       ....layers.i.{fc1,fc2}
    head.bias                        final_logits_bias (1, V), a buffer there; BART's is zero and then left out here

Marian's sines are computed here, so their stored table is not read.
"""

from __future__ import annotations

from typing import Any

from zoo.interop.family import Family, Weights, attention_at, mlp, plain_width
from zoo.interop.fields import Fields, activation_name
from zoo.interop.weights import Rule, both, fused, linear
from zoo.models.transformer import OriginalTransformerConfig

__all__ = ["BART", "MARIAN"]


def _read(fields: Fields, weights: Weights) -> OriginalTransformerConfig:
    marian = fields.model_type == "marian"
    dim = fields.int("d_model", 1024)
    depth, encoder_depth = fields.int("decoder_layers", 12), fields.int("encoder_layers", 12)
    fields.get("num_hidden_layers")
    heads, hidden = fields.int("encoder_attention_heads", 16), fields.int("encoder_ffn_dim", 4096)
    fields.only("decoder_attention_heads", 16 if heads == 16 else heads, heads)
    fields.only("decoder_ffn_dim", 4096 if hidden == 4096 else hidden, hidden)
    fields.only("is_decoder", False)
    fields.only("normalize_before", False)
    fields.only("add_final_layer_norm", False)
    fields.only("normalize_embedding", not marian)
    fields.only("static_position_embeddings", marian)
    fields.only("extra_pos_embeddings", 2, *((0,) if marian else ()))
    fields.only("add_bias_logits", False)
    fields.only("scale_attn_weights", True)
    vocab = fields.int("vocab_size", 58101 if marian else 50265)
    choices: dict[str, Any] = {"vocab_size": vocab, "head_bias": marian}
    fields.only("tie_word_embeddings", True)
    if marian:
        target = fields.int("decoder_vocab_size", vocab)
        shared = fields.bool("share_encoder_decoder_embeddings", True)
        if shared and target != vocab:
            fields.refuse("decoder_vocab_size", target, f"{vocab}, or share_encoder_decoder_embeddings false")
        if not shared:
            choices |= {"vocab_size": target, "source_vocab_size": vocab}
    elif weights is not None and "final_logits_bias" in weights:
        choices["head_bias"] = bool(weights["final_logits_bias"].any())
    start = fields.int("decoder_start_token_id", 58100 if marian else 2)
    position = {"name": "sinusoidal", "convention": "halves"} if marian else {"name": "learned", "offset": 2}
    return OriginalTransformerConfig(
        dim=dim,
        depth=depth,
        encoder_depth=encoder_depth if encoder_depth != depth else None,
        heads=heads,
        mixer={"name": "attention", "dropout": fields.float("attention_dropout", 0.0)},  # type: ignore[arg-type]
        ffn={
            "name": "mlp",
            "hidden": hidden,
            "activation": fields.activation("activation_function", "gelu"),
            "dropout": fields.float("activation_dropout", 0.0),
        },  # type: ignore[arg-type]
        position=position,  # type: ignore[arg-type]
        max_len=fields.int("max_position_embeddings", 1024),
        input_norm=not marian,
        scale_embeddings=fields.bool("scale_embedding", False),
        init_std=fields.float("init_std", 0.02),
        start_id=start,
        dropout=fields.float("dropout", 0.1),
        **choices,
    )


def _write(kind: str, architecture: str, config: OriginalTransformerConfig) -> dict[str, Any]:
    mixer, ffn = attention_at(config, 0), mlp(config)
    depth = config.depth if config.encoder_depth is None else config.encoder_depth
    smallest = min(config.vocab_size, config.source_vocab_size or config.vocab_size)
    plain: dict[str, Any] = {
        "architectures": [architecture],
        "is_encoder_decoder": True,
        "vocab_size": config.source_vocab_size or config.vocab_size,
        "d_model": config.dim,
        "encoder_layers": depth,
        "decoder_layers": config.depth,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": plain_width(config),
        "decoder_ffn_dim": plain_width(config),
        "activation_function": activation_name(ffn.activation),
        "max_position_embeddings": config.max_len,
        "scale_embedding": config.scale_embeddings,
        "dropout": config.dropout,
        "attention_dropout": mixer.dropout,
        "activation_dropout": ffn.dropout,
        "decoder_start_token_id": config.start_id,
        "bos_token_id": None,  # theirs are those of one vocabulary
        "eos_token_id": None,
        "forced_eos_token_id": None,
        "pad_token_id": min(config.start_id, smallest - 1) if kind == "marian" else 1,
        "tie_word_embeddings": config.tie_embeddings,
    }
    if config.init_std != "fan_in":
        plain["init_std"] = config.init_std
    if kind == "marian":
        plain["decoder_vocab_size"] = config.vocab_size
        plain["share_encoder_decoder_embeddings"] = config.source_vocab_size is None
    return plain


def _rules(kind: str, config: OriginalTransformerConfig) -> list[Rule]:
    marian, own = kind == "marian", config.source_vocab_size is not None
    copies = ("model.decoder.embed_tokens.weight", "lm_head.weight")
    if own:
        rules = [
            both("source_embed.weight", "model.encoder.embed_tokens.weight"),
            both("embed.weight", copies[0], "lm_head.weight"),
        ]
    else:
        rules = [both("embed.weight", "model.shared.weight", "model.encoder.embed_tokens.weight", *copies)]
    if config.head_bias:
        rules.append(both("head.bias", "final_logits_bias", view="row"))
    else:
        rules.append(Rule((), ("final_logits_bias",), kept=False))
    rows = (config.dim,) * 3
    depth = config.depth if config.encoder_depth is None else config.encoder_depth
    kinds = ("weight", "bias")
    for side, layers in (("encoder", depth), ("decoder", config.depth)):
        table = f"model.{side}.embed_positions.weight"
        rules.append(Rule((), (table,), kept=False) if marian else both(f"{side}.position.weight", table))
        if not marian:
            rules += linear(f"{side}.input_norm", f"model.{side}.layernorm_embedding")
        for layer in range(layers):
            ours, theirs = f"{side}.blocks.{layer}", f"model.{side}.layers.{layer}"
            q, k, v = (f"{theirs}.self_attn.{part}_proj" for part in "qkv")
            rules += fused(f"{ours}.mixer.qkv", (q, k, v), rows, kinds)
            rules += linear(f"{ours}.mixer.out", f"{theirs}.self_attn.out_proj")
            rules += linear(f"{ours}.residuals.mixer.norm", f"{theirs}.self_attn_layer_norm")
            if side == "decoder":
                q, k, v = (f"{theirs}.encoder_attn.{part}_proj" for part in "qkv")
                rules += linear(f"{ours}.cross.q", q) + fused(f"{ours}.cross.kv", (k, v), rows[1:], kinds)
                rules += linear(f"{ours}.cross.out", f"{theirs}.encoder_attn.out_proj")
                rules += linear(f"{ours}.residuals.cross.norm", f"{theirs}.encoder_attn_layer_norm")
            rules += linear(f"{ours}.ffn.up", f"{theirs}.fc1") + linear(f"{ours}.ffn.down", f"{theirs}.fc2")
            rules += linear(f"{ours}.residuals.ffn.norm", f"{theirs}.final_layer_norm")
    return rules


def _family(kind: str, architecture: str) -> Family:
    return Family(
        kind,
        "model",
        _read,
        lambda config: _write(kind, architecture, config),
        lambda config: _rules(kind, config),
        heads=("final_logits_bias", "lm_head."),
    )


BART = _family("bart", "BartForConditionalGeneration")
MARIAN = _family("marian", "MarianMTModel")
