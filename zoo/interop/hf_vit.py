"""Weights of Vision Transformers to and from transformers' ViTForImageClassification, both ways and exact.

    zoo                              transformers
    patches.weight                   vit.embeddings.patch_embeddings.projection.weight
    prefix.weight (1, D)             vit.embeddings.cls_token
    stack.position.weight            vit.embeddings.position_embeddings
    stack.blocks.i.mixer.qkv         vit.layers.i.attention.{q,k,v}_proj, one above the other
    stack.blocks.i.mixer.out         vit.layers.i.attention.o_proj
    stack.blocks.i.ffn.{up,down}     vit.layers.i.mlp.{fc1,fc2}

Names are those of transformers 5; those of version 4, which published checkpoints hold, are read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from zoo.interop.family import Weights, attention_at, mlp, plain_width
from zoo.interop.fields import Fields, activation_name
from zoo.interop.names import inverse, rename
from zoo.models.vit import ViT, ViTConfig
from zoo.registry import ConfigError

__all__ = ["from_huggingface", "read_vit", "to_huggingface", "write_vit"]

_BLOCK = {
    "residuals.mixer.norm": "layernorm_before",
    "mixer.out": "attention.o_proj",
    "residuals.ffn.norm": "layernorm_after",
    "ffn.up": "mlp.fc1",
    "ffn.down": "mlp.fc2",
}
_OTHER = {
    "patches": "vit.embeddings.patch_embeddings.projection",
    "stack.norm": "vit.layernorm",
    "head.linear": "classifier",
}
_VERSION_4 = {
    "vit.encoder.layer.": "vit.layers.",
    "attention.attention.query.": "attention.q_proj.",
    "attention.attention.key.": "attention.k_proj.",
    "attention.attention.value.": "attention.v_proj.",
    "attention.output.dense.": "attention.o_proj.",
    "intermediate.dense.": "mlp.fc1.",
    "output.dense.": "mlp.fc2.",
}


def from_huggingface(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict from theirs, of the same shape. Raises ConfigError for a weight left over."""
    left = {_version_5(name): tensor for name, tensor in state.items()}
    ours = {
        "prefix.weight": left.pop("vit.embeddings.cls_token")[0],
        "stack.position.weight": left.pop("vit.embeddings.position_embeddings")[0],
    }
    for name in [name for name in left if ".q_proj." in name]:
        stacked = torch.cat([left.pop(name.replace(".q_proj.", f".{part}_proj.")) for part in "qkv"])
        layer, kind = name.split(".")[2], name.rsplit(".", 1)[1]
        ours[f"stack.blocks.{layer}.mixer.qkv.{kind}"] = stacked
    for name, tensor in left.items():
        ours[rename(name, inverse(_BLOCK), inverse(_OTHER), "vit.layers", "stack.blocks")] = tensor
    return ours


def to_huggingface(model: ViT) -> dict[str, Tensor]:
    """Their state dict from our model. Raises ConfigError for what their model does not have."""
    state = dict(model.state_dict())
    prefix = state.pop("prefix.weight", torch.empty(0))
    if len(prefix) != 1 or "stack.position.weight" not in state:
        raise ConfigError("transformers' ViT has one class token and learned positions; this model differs")
    theirs = {
        "vit.embeddings.cls_token": prefix[None],
        "vit.embeddings.position_embeddings": state.pop("stack.position.weight")[None],
    }
    for name in [name for name in state if ".mixer.qkv." in name]:
        layer, kind = name.split(".")[2], name.rsplit(".", 1)[1]
        for part, tensor in zip("qkv", state.pop(name).chunk(3), strict=True):
            theirs[f"vit.layers.{layer}.attention.{part}_proj.{kind}"] = tensor
    for name, tensor in state.items():
        theirs[rename(name, _BLOCK, _OTHER, "stack.blocks", "vit.layers")] = tensor
    return theirs


def read_vit(fields: Fields, weights: Weights) -> ViTConfig:
    """Our config from theirs, with as many classes as the weights say."""
    labels = len(fields.get("id2label", {0: "", 1: ""}))
    size, patch = fields.get("image_size", 224), fields.get("patch_size", 16)
    fields.only("pooler_act", "tanh")
    return ViTConfig(
        dim=fields.int("hidden_size", 768),
        depth=fields.int("num_hidden_layers", 12),
        heads=fields.int("num_attention_heads", 12),
        mixer={
            "name": "attention",
            "bias": fields.bool("qkv_bias", True),
            "dropout": fields.float("attention_probs_dropout_prob", 0.0),
        },  # type: ignore[arg-type]
        ffn={
            "name": "mlp",
            "hidden": fields.int("intermediate_size", 3072),
            "activation": fields.activation("hidden_act", "gelu"),
        },  # type: ignore[arg-type]
        norm={"name": "layernorm", "eps": fields.float("layer_norm_eps", 1e-12)},  # type: ignore[arg-type]
        image_size=tuple(size) if isinstance(size, list) else size,
        patch_size=tuple(patch) if isinstance(patch, list) else patch,
        channels=fields.int("num_channels", 3),
        num_classes=labels if weights is None else len(weights["classifier.weight"]),
        dropout=fields.float("hidden_dropout_prob", 0.0),
        init_std=fields.float("initializer_range", 0.02),
    )


def write_vit(config: ViTConfig) -> dict[str, Any]:
    """Their config from ours."""
    mixer = attention_at(config, 0)
    labels = [f"LABEL_{i}" for i in range(config.num_classes)]
    size, patch = list(config.image_size), list(config.patch_size)
    return {
        "architectures": ["ViTForImageClassification"],
        "hidden_size": config.dim,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": plain_width(config),
        "hidden_act": activation_name(mlp(config).activation),
        "layer_norm_eps": getattr(config.norm, "eps", 1e-12),
        "image_size": size[0] if size[0] == size[1] else size,
        "patch_size": patch[0] if patch[0] == patch[1] else patch,
        "num_channels": config.channels,
        "qkv_bias": mixer.bias,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": mixer.dropout,
        "id2label": {str(i): name for i, name in enumerate(labels)},
        "label2id": {name: i for i, name in enumerate(labels)},
        **({} if config.init_std == "fan_in" else {"initializer_range": config.init_std}),
    }


def _version_5(name: str) -> str:
    for old, new in _VERSION_4.items():
        name = name.replace(old, new)
    return name
