"""Weights of Vision Transformers to and from timm, both ways and exact.

    zoo                              timm
    patches.weight                   patch_embed.proj.weight
    prefix.weight (P, D)             cls_token, dist_token, reg_token
    stack.position.weight            pos_embed (1, P + N, D)
    stack.blocks.i.mixer.{qkv,out}   blocks.i.attn.{qkv,proj}
    stack.blocks.i.ffn.{up,down}     blocks.i.mlp.{fc1,fc2}

A timm table without rows for its prefix tokens (`no_embed_class`) becomes one whose rows there are zeros.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from zoo.interop.names import inverse, rename
from zoo.models.vit import ViT, ViTConfig

__all__ = ["from_timm", "to_timm"]

StateDict = Mapping[str, Tensor]

_TIMM_BLOCK = {
    "residuals.mixer.norm": "norm1",
    "mixer.qkv": "attn.qkv",
    "mixer.out": "attn.proj",
    "residuals.ffn.norm": "norm2",
    "ffn.up": "mlp.fc1",
    "ffn.down": "mlp.fc2",
}
_TIMM = {
    "patches": "patch_embed.proj",
    "stack.norm": "norm",
    "head.linear": "head",
    "distillation_head": "head_dist",
}


def from_timm(state: StateDict, config: ViTConfig) -> dict[str, Tensor]:
    """Our state dict from a timm VisionTransformer's, of the same shape. Raises ConfigError for a key left over."""
    ours: dict[str, Tensor] = {}
    left = dict(state)
    prefix = [left.pop(name)[0] for name in ("cls_token", "dist_token", "reg_token") if name in left]  # (n, D) each
    if prefix:
        ours["prefix.weight"] = torch.cat(prefix)
    if "pos_embed" in left:
        table = left.pop("pos_embed")[0]  # (P or fewer + N, D)
        tokens = _patches(config)
        heading, grid = table[: len(table) - tokens], table[len(table) - tokens :]
        missing = table.new_zeros(sum(map(len, prefix)) - len(heading), config.dim)
        ours["stack.position.weight"] = torch.cat([heading, missing, grid])
    for name, tensor in left.items():
        ours[rename(name, inverse(_TIMM_BLOCK), inverse(_TIMM), "blocks", "stack.blocks")] = tensor
    return ours


def to_timm(model: ViT) -> dict[str, Tensor]:
    """State dict for a timm VisionTransformer of the same shape, from our model."""
    theirs: dict[str, Tensor] = {}
    config, state = model.config, dict(model.state_dict())
    prefix = state.pop("prefix.weight", torch.empty(0, config.dim))[None]  # (1, P, D)
    class_tokens = prefix.shape[1] - config.registers
    names = ["cls_token", "dist_token"][:class_tokens]
    theirs |= {name: prefix[:, i : i + 1] for i, name in enumerate(names)}
    if config.registers:
        theirs["reg_token"] = prefix[:, class_tokens:]
    if "stack.position.weight" in state:
        theirs["pos_embed"] = state.pop("stack.position.weight")[None]
    for name, tensor in state.items():
        theirs[rename(name, _TIMM_BLOCK, _TIMM, "stack.blocks", "blocks")] = tensor
    return theirs


def _patches(config: ViTConfig) -> int:
    (height, width), (rows, columns) = config.image_size, config.patch_size
    return (height // rows) * (width // columns)
