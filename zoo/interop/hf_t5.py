"""T5 1.0 and 1.1 to and from transformers' T5ForConditionalGeneration.

    zoo                              transformers
    embed.weight                     shared.weight
    {en,de}coder.blocks.i.mixer.qkv  {en,de}coder.block.i.layer.0.SelfAttention.{q,k,v}, one above the other
    decoder.blocks.i.cross.{q,kv}    decoder.block.i.layer.1.EncDecAttention.{q}, {k,v}
    ....blocks.0.mixer.bias.weight   ....block.0.layer.0.SelfAttention.relative_attention_bias.weight, of all layers
    ....ffn.{up,down}                ....DenseReluDense.{wi,wo}; gated: {gate,up} are {wi_0,wi_1}
    head.weight (untied)             lm_head.weight

1.1 says `tie_word_embeddings` false, which in transformers switches the scaling of the head's input off; version 5
then says true all the same, beside `scale_decoder_outputs` false, and unties where the file holds an `lm_head.weight`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zoo.blocks.ffn.glu import GLUConfig
from zoo.blocks.positions import T5BiasConfig
from zoo.interop.family import Family, Weights, attention_at, plain_width
from zoo.interop.fields import ACTIVATIONS, Fields, activation_name
from zoo.interop.weights import Rule, both, fused, linear
from zoo.models.t5 import T5Config

__all__ = ["T5", "rules_of", "shape_of"]

_ONLY = ("weight",)


def _read(fields: Fields, weights: Weights) -> T5Config:
    dim, depth = fields.int("d_model", 512), fields.int("num_layers", 6)
    form = str(fields.get("feed_forward_proj", "relu"))
    gated, activation = form.startswith("gated-"), form.removeprefix("gated-")
    activation = "gelu_new" if form == "gated-gelu" else activation  # as transformers reads it
    if activation not in ACTIVATIONS:
        fields.refuse("feed_forward_proj", form, f"a name or gated- and a name of {', '.join(ACTIVATIONS)}")
    fields.get("dense_act_fn")  # both follow from feed_forward_proj
    fields.get("is_gated_act")
    tied = fields.bool("tie_word_embeddings", True)
    scaled = fields.bool("scale_decoder_outputs", tied)
    if tied and not scaled:  # transformers 5 writes 1.1 in this way, and the weights decide
        tied = weights is not None and "lm_head.weight" not in weights
    fields.only("is_decoder", False)
    eps = fields.float("layer_norm_epsilon", 1e-6)
    hidden = fields.int("d_ff", 2048)
    ffn: dict[str, Any] = {"name": "mlp", "activation": ACTIVATIONS[activation], "hidden": hidden, "bias": False}
    if gated:
        ffn["name"] = "swiglu" if ACTIVATIONS[activation] == "silu" else "geglu"
    fields.get("n_positions")  # of no effect: distances have no end
    encoder_depth = fields.int("num_layers", 6)
    depth = fields.int("num_decoder_layers", depth)
    buckets, reach = (
        fields.int("relative_attention_num_buckets", 32),
        fields.int("relative_attention_max_distance", 128),
    )
    mixer = {"name": "attention", "head_dim": fields.int("d_kv", 64), "bias": False, "out_bias": False, "scale": 1.0}
    return T5Config(
        dim=dim,
        depth=depth,
        encoder_depth=encoder_depth if encoder_depth != depth else None,
        heads=fields.int("num_heads", 8),
        mixer=mixer,  # type: ignore[arg-type]
        ffn=ffn,  # type: ignore[arg-type]
        norm={"name": "rmsnorm", "eps": eps},  # type: ignore[arg-type]
        position={
            "name": "t5_bias",
            "num_buckets": buckets,
            "max_distance": reach,
            "init_std": dim**-0.5,
        },  # type: ignore[arg-type]
        vocab_size=fields.int("vocab_size", 32128),
        start_id=fields.int("decoder_start_token_id", fields.int("pad_token_id", 0)),
        tie_embeddings=tied,
        scale_head=scaled,
        dropout=fields.float("dropout_rate", 0.1),
        max_len=fields.int("n_positions", 512),
    )


def shape_of(config: T5Config) -> dict[str, Any]:
    """Their fields of all but the feed-forwards and the head."""
    mixer, position = attention_at(config, 0), config.position
    bias = position if isinstance(position, T5BiasConfig) else T5BiasConfig()
    return {
        "is_encoder_decoder": True,
        "vocab_size": config.vocab_size,
        "d_model": config.dim,
        "d_kv": mixer.head_dim or config.dim // config.heads,
        "num_layers": config.depth if config.encoder_depth is None else config.encoder_depth,
        "num_decoder_layers": config.depth,
        "num_heads": config.heads,
        "relative_attention_num_buckets": bias.num_buckets,
        "relative_attention_max_distance": bias.max_distance,
        "layer_norm_epsilon": getattr(config.norm, "eps", 1e-6),
        "tie_word_embeddings": config.tie_embeddings,
        "dropout_rate": config.dropout,
        "decoder_start_token_id": config.start_id,
        "pad_token_id": config.start_id,
    }


def _write(config: T5Config) -> dict[str, Any]:
    ffn = config.ffn
    activation = activation_name(getattr(ffn, "activation", "relu"))
    if isinstance(ffn, GLUConfig):  # there "gated-gelu" is the tanh form
        activation = {"gelu_new": "gated-gelu", "gelu": "gated-gelu_python"}.get(activation, f"gated-{activation}")
    return shape_of(config) | {
        "architectures": ["T5ForConditionalGeneration"],
        "d_ff": plain_width(config),
        "feed_forward_proj": activation,
        "scale_decoder_outputs": config.scale_head,
        "n_positions": config.max_len,
    }


def _dense_rules(config: T5Config, layer: int, ours: str, theirs: str) -> list[Rule]:
    gated = isinstance(config.ffn, GLUConfig)
    names = {"gate": "wi_0", "up": "wi_1", "down": "wo"} if gated else {"up": "wi", "down": "wo"}
    pairs = names.items()
    return [r for mine, name in pairs for r in linear(f"{ours}.{mine}", f"{theirs}.DenseReluDense.{name}", _ONLY)]


FFNRules = Callable[[T5Config, int, str, str], list[Rule]]
"""Rules of a feed-forward from the config, its layer, and its name here and there."""


def rules_of(config: T5Config, ffn_rules: FFNRules = _dense_rules) -> list[Rule]:
    """All weights; the feed-forwards may be others than T5's."""
    copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    rules = [both("embed.weight", "shared.weight", *copies, *(("lm_head.weight",) if config.tie_embeddings else ()))]
    if not config.tie_embeddings:
        rules.append(both("head.weight", "lm_head.weight"))
    depth = config.depth if config.encoder_depth is None else config.encoder_depth
    mixer = attention_at(config, 0)
    rows = (config.heads * (mixer.head_dim or config.dim // config.heads),) * 3
    for side, layers in (("encoder", depth), ("decoder", config.depth)):
        rules += linear(f"{side}.norm", f"{side}.final_layer_norm", _ONLY)
        if layers:
            table = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            rules.append(both(f"{side}.blocks.0.mixer.bias.weight", table))
        for layer in range(layers):
            ours, theirs = f"{side}.blocks.{layer}", f"{side}.block.{layer}.layer"
            places = [("mixer", f"{theirs}.0", "SelfAttention")]
            if side == "decoder":
                places.append(("cross", f"{theirs}.1", "EncDecAttention"))
            for place, where, name in places:
                q, k, v, out = (f"{where}.{name}.{part}" for part in "qkvo")
                if place == "mixer":
                    rules += fused(f"{ours}.mixer.qkv", (q, k, v), rows, _ONLY)
                else:
                    rules += linear(f"{ours}.cross.q", q, _ONLY) + fused(f"{ours}.cross.kv", (k, v), rows[1:], _ONLY)
                rules += linear(f"{ours}.{place}.out", out, _ONLY)
                rules += linear(f"{ours}.residuals.{place}.norm", f"{where}.layer_norm", _ONLY)
            where = f"{theirs}.{len(places)}"
            rules += ffn_rules(config, layer, f"{ours}.ffn", where)
            rules += linear(f"{ours}.residuals.ffn.norm", f"{where}.layer_norm", _ONLY)
    # An old file of Google's holds a bias that nothing reads.
    unread = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    return [*rules, Rule((), (unread,), kept=False)]


T5 = Family("t5", "", _read, _write, rules_of)
