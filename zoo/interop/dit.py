"""Weights of DiT to and from the original's checkpoints (facebookresearch/DiT), both ways and exact.

zoo                                facebookresearch/DiT
patches                            x_embedder.proj
time.{up,down}                     t_embedder.mlp.{0,2}
label.weight                       y_embedder.embedding_table.weight
(made in every pass)               pos_embed (1, h w, D)
stack.blocks.i.mixer.{qkv,out}     blocks.i.attn.{qkv,proj}
stack.blocks.i.ffn.{up,down}       blocks.i.mlp.{fc1,fc2}
modulation.projection              blocks.i.adaLN_modulation.1 of all i, then final_layer.adaLN_modulation.1
head                               final_layer.linear
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from zoo.blocks.positions import sincos2d_table
from zoo.interop.names import inverse, rename
from zoo.models.dit import DiT, DiTConfig
from zoo.registry import ConfigError

__all__ = ["from_original", "to_original"]

_BLOCK = {"mixer.qkv": "attn.qkv", "mixer.out": "attn.proj", "ffn.up": "mlp.fc1", "ffn.down": "mlp.fc2"}
_OTHER = {
    "patches": "x_embedder.proj",
    "time.up": "t_embedder.mlp.0",
    "time.down": "t_embedder.mlp.2",
    "label": "y_embedder.embedding_table",
    "head": "final_layer.linear",
}


def from_original(state: Mapping[str, Tensor], config: DiTConfig) -> dict[str, Tensor]:
    """Our state dict from an original's of the same shape; `ema` of a training checkpoint is such a state dict.

    Raises ConfigError for a key left over, and for positions that are not the fixed table.
    """
    left = dict(state)
    table = left.pop("pos_embed", None)
    if table is not None:
        expected = _table(config).to(table)
        if table.shape != expected.shape or not torch.allclose(table, expected, atol=1e-5):
            raise ConfigError(
                f"pos_embed {tuple(table.shape)} is not the fixed table of a grid {_grid(config)}; set image_size and "
                "patch_size as the checkpoint's"
            )
    ours: dict[str, Tensor] = {}
    for kind in ("weight", "bias"):
        rows = [left.pop(name) for name in _modulations(config, kind) if name in left]
        if rows:
            ours[f"modulation.projection.{kind}"] = torch.cat(rows)
    for name, tensor in left.items():
        ours[rename(name, inverse(_BLOCK), inverse(_OTHER), "blocks", "stack.blocks")] = tensor
    return ours


def to_original(model: DiT) -> dict[str, Tensor]:
    """State dict for an original DiT of the same shape, from our model with adaln_zero."""
    config, state = model.config, dict(model.state_dict())
    if config.conditioning != "adaln_zero":
        raise ConfigError(f"the original has conditioning='adaln_zero' only, got '{config.conditioning}'")
    theirs = {"pos_embed": _table(config).to(state["head.weight"])}
    for kind in ("weight", "bias"):
        rows = state.pop(f"modulation.projection.{kind}")
        pieces = rows.split([*[6 * config.dim] * config.depth, 2 * config.dim])
        theirs |= dict(zip(_modulations(config, kind), pieces, strict=True))
    for name, tensor in state.items():
        theirs[rename(name, _BLOCK, _OTHER, "stack.blocks", "blocks")] = tensor
    return theirs


def _modulations(config: DiTConfig, kind: str) -> list[str]:
    """The original's names, in the order of our rows."""
    blocks = [f"blocks.{layer}" for layer in range(config.depth)]
    return [f"{place}.adaLN_modulation.1.{kind}" for place in (*blocks, "final_layer")]


def _grid(config: DiTConfig) -> tuple[int, int]:
    (height, width), (rows, columns) = config.image_size, config.patch_size
    return height // rows, width // columns


def _table(config: DiTConfig) -> Tensor:
    return sincos2d_table(_grid(config), config.dim, dtype=torch.float64)[None]  # (1, h w, D)
