"""Whisper to and from transformers' WhisperForConditionalGeneration, with tokenizer.json and generation_config.json.

    zoo                              transformers
    embed.weight                     model.decoder.embed_tokens.weight, also proj_out.weight
    stem.{first,second}              model.encoder.{conv1,conv2}
    decoder.position.weight          model.decoder.embed_positions.weight
    encoder.position.weight          model.encoder.embed_positions.weight, where it holds other numbers than the sines
    ....blocks.i.mixer.{qkv,out}     ....layers.i.self_attn.{q,k,v}_proj, out_proj; k_proj has no bias
    decoder.blocks.i.cross.{q,kv}    ....layers.i.encoder_attn.{q}_proj, {k,v}_proj
    ....blocks.i.ffn.{up,down}       ....layers.i.{fc1,fc2}
    {en,de}coder.norm                model.{en,de}coder.layer_norm

The sines are made here, so their stored table is compared, and written, but no parameter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.blocks.positions import sinusoid
from zoo.interop.family import Family, Weights, attention_at, mlp, plain_width
from zoo.interop.fields import Fields, activation_name
from zoo.interop.weights import Rule, both, fused, linear
from zoo.models.whisper import WhisperConfig
from zoo.speech.conventions import SpeechConventions

__all__ = ["WHISPER"]

_TABLE = "model.encoder.embed_positions.weight"
_OTHER_USES = (
    "forced_decoder_ids",
    "apply_spec_augment",
    "mask_time_prob",
    "mask_time_length",
    "mask_time_min_masks",
    "mask_feature_prob",
    "mask_feature_length",
    "mask_feature_min_masks",
    "classifier_proj_size",
    "median_filter_width",
    "num_hidden_layers",
    "max_length",
    "alignment_heads",
)
"""Fields of training, of generation and of the classifier's class."""


def _sines(rows: int, dim: int) -> Tensor:
    return sinusoid(torch.arange(rows), dim, convention="whisper")  # (rows, D)


def _read(fields: Fields, weights: Weights) -> WhisperConfig:
    for name in _OTHER_USES:
        fields.get(name)
    dim, heads, hidden = (
        fields.int("d_model", 384),
        fields.int("encoder_attention_heads", 6),
        fields.int("encoder_ffn_dim", 1536),
    )
    fields.only("decoder_attention_heads", 6 if heads == 6 else heads, heads)
    fields.only("decoder_ffn_dim", 1536 if hidden == 1536 else hidden, hidden)
    fields.only("scale_embedding", False)
    fields.only("tie_word_embeddings", True)
    fields.only("use_weighted_layer_sum", False)
    depth, encoder_depth = fields.int("decoder_layers", 4), fields.int("encoder_layers", 4)
    rows = fields.int("max_source_positions", 1500)
    table = weights.get(_TABLE) if weights is not None else None
    changed = table is not None and not torch.allclose(table.cpu().float(), _sines(rows, dim), atol=2e-3)
    return WhisperConfig(
        dim=dim,
        depth=depth,
        encoder_depth=encoder_depth if encoder_depth != depth else None,
        heads=heads,
        mixer={
            "name": "attention",
            "key_bias": False,
            "dropout": fields.float("attention_dropout", 0.0),
        },  # type: ignore[arg-type]
        ffn={
            "name": "mlp",
            "hidden": hidden,
            "activation": fields.activation("activation_function", "gelu"),
            "dropout": fields.float("activation_dropout", 0.0),
        },  # type: ignore[arg-type]
        encoder_position={"name": "learned"} if changed else None,  # type: ignore[arg-type]
        vocab_size=fields.int("vocab_size", 51865),
        max_len=fields.int("max_target_positions", 448),
        max_frames=2 * rows,
        mels=fields.int("num_mel_bins", 80),
        start_id=fields.int("decoder_start_token_id", 50257),
        init_std=fields.float("init_std", 0.02),
        dropout=fields.float("dropout", 0.0),
    )


def _write(config: WhisperConfig) -> dict[str, Any]:
    mixer, ffn = attention_at(config, 0), mlp(config)
    plain: dict[str, Any] = {
        "architectures": ["WhisperForConditionalGeneration"],
        "is_encoder_decoder": True,
        "vocab_size": config.vocab_size,
        "num_mel_bins": config.mels,
        "d_model": config.dim,
        "encoder_layers": config.encoder_stack.depth,
        "decoder_layers": config.depth,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": plain_width(config),
        "decoder_ffn_dim": plain_width(config),
        "activation_function": activation_name(ffn.activation),
        "max_source_positions": config.max_frames // 2,
        "max_target_positions": config.max_len,
        "dropout": config.dropout,
        "attention_dropout": mixer.dropout,
        "activation_dropout": ffn.dropout,
        "decoder_start_token_id": config.start_id,
        "bos_token_id": None,  # theirs are those of one vocabulary; generation_config.json has the right ones
        "eos_token_id": None,
        "pad_token_id": None,
        "begin_suppress_tokens": None,
        "tie_word_embeddings": config.tie_embeddings,
    }
    if config.init_std != "fan_in":
        plain["init_std"] = config.init_std
    return plain


def _learned(config: WhisperConfig) -> bool:
    return config.encoder_stack.position.registered_name == "learned"


def _rules(config: WhisperConfig) -> list[Rule]:
    attention_at(config, 0)  # a mixer of another kind is told by its name, not by its shapes
    rules = [both("embed.weight", "model.decoder.embed_tokens.weight", "proj_out.weight")]
    rules += linear("stem.first", "model.encoder.conv1") + linear("stem.second", "model.encoder.conv2")
    rules.append(both("decoder.position.weight", "model.decoder.embed_positions.weight"))
    rules.append(both("encoder.position.weight", _TABLE) if _learned(config) else Rule((), (_TABLE,), kept=False))
    rows = (config.dim,) * 3
    for side, layers in (("encoder", config.encoder_stack.depth), ("decoder", config.depth)):
        rules += linear(f"{side}.norm", f"model.{side}.layer_norm")
        for layer in range(layers):
            ours, theirs = f"{side}.blocks.{layer}", f"model.{side}.layers.{layer}"
            q, k, v = (f"{theirs}.self_attn.{part}_proj" for part in "qkv")
            rules += fused(f"{ours}.mixer.qkv", (q, k, v), rows, ("weight",))
            rules += fused(f"{ours}.mixer.qkv", (q, v), rows[1:], ("bias",))
            rules += linear(f"{ours}.mixer.out", f"{theirs}.self_attn.out_proj")
            rules += linear(f"{ours}.residuals.mixer.norm", f"{theirs}.self_attn_layer_norm")
            if side == "decoder":
                q, k, v = (f"{theirs}.encoder_attn.{part}_proj" for part in "qkv")
                rules += linear(f"{ours}.cross.q", q) + fused(f"{ours}.cross.kv", (k, v), rows[1:], ("weight",))
                rules.append(both(f"{ours}.cross.kv.bias", f"{v}.bias"))
                rules += linear(f"{ours}.cross.out", f"{theirs}.encoder_attn.out_proj")
                rules += linear(f"{ours}.residuals.cross.norm", f"{theirs}.encoder_attn_layer_norm")
            rules += linear(f"{ours}.ffn.up", f"{theirs}.fc1") + linear(f"{ours}.ffn.down", f"{theirs}.fc2")
            rules += linear(f"{ours}.residuals.ffn.norm", f"{theirs}.final_layer_norm")
    return rules


class _WhisperFamily(Family):
    def to_huggingface(self, model: nn.Module) -> dict[str, Tensor]:
        config: Any = model.config
        theirs = super().to_huggingface(model)
        if not _learned(config):
            like = theirs["model.decoder.embed_tokens.weight"]
            theirs[_TABLE] = _sines(config.max_source_len, config.dim).to(like)
        return theirs


def _attach(model: Any, folder: Path) -> None:
    if (folder / "tokenizer.json").is_file():
        model.speech = SpeechConventions.from_folder(folder)


def _attached(model: Any, folder: Path) -> None:
    if model.speech is not None:
        model.speech.to_folder(folder)


WHISPER = _WhisperFamily(
    "whisper", "model", _read, _write, _rules, heads=("proj_out.",), attach=_attach, attached=_attached
)
