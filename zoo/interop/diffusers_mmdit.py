"""Weights of Stable Diffusion 3's transformer from diffusers' SD3Transformer2DModel.

    zoo                                        diffusers
    patches, text                              pos_embed.proj, context_embedder
    (made in every pass)                       pos_embed.pos_embed
    time.{up,down}                             time_text_embed.timestep_embedder.linear_{1,2}
    pooled_{up,down}                           time_text_embed.text_embedder.linear_{1,2}
    blocks.i.attention.qkv, .context_qkv       transformer_blocks.i.attn.to_{q,k,v}, .add_{q,k,v}_proj
    blocks.i.attention.out, .context_out       transformer_blocks.i.attn.to_out.0, .to_add_out
    blocks.i.attention.{q,k}_norm              transformer_blocks.i.attn.norm_{q,k}, of the text norm_added_{q,k}
    blocks.i.{ffn,context_ffn}.{up,down}       transformer_blocks.i.{ff,ff_context}.net.{0.proj,2}
    modulation.projection                      norm1.linear, norm1_context.linear of each block, then norm_out.linear
    head                                       proj_out

Where a norm has no gate, diffusers stores scale before shift: in the last norm, and in the last block's text.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from zoo.interop.names import inverse, rename
from zoo.models.mmdit import MMDiTConfig

__all__ = ["from_diffusers"]

_BLOCK = {
    "attention.out": "attn.to_out.0",
    "attention.context_out": "attn.to_add_out",
    "attention.q_norm": "attn.norm_q",
    "attention.k_norm": "attn.norm_k",
    "attention.context_q_norm": "attn.norm_added_q",
    "attention.context_k_norm": "attn.norm_added_k",
    "ffn.up": "ff.net.0.proj",
    "ffn.down": "ff.net.2",
    "context_ffn.up": "ff_context.net.0.proj",
    "context_ffn.down": "ff_context.net.2",
}
_OTHER = {
    "patches": "pos_embed.proj",
    "text": "context_embedder",
    "time.up": "time_text_embed.timestep_embedder.linear_1",
    "time.down": "time_text_embed.timestep_embedder.linear_2",
    "pooled_up": "time_text_embed.text_embedder.linear_1",
    "pooled_down": "time_text_embed.text_embedder.linear_2",
    "head": "proj_out",
}


def from_diffusers(state: Mapping[str, Tensor], config: MMDiTConfig) -> dict[str, Tensor]:
    """Our state dict from an SD3Transformer2DModel's of the same shape. Raises ConfigError for a key left over."""
    left = dict(state)
    left.pop("pos_embed.pos_embed", None)
    ours: dict[str, Tensor] = {}
    for kind in ("weight", "bias"):
        rows = []
        for layer in range(config.depth):
            place = f"transformer_blocks.{layer}"
            for stream in ("norm1", "norm1_context"):
                made = left.pop(f"{place}.{stream}.linear.{kind}")
                last = stream == "norm1_context" and layer == config.depth - 1
                rows.append(_swapped(made) if last else made)
            for name, theirs in (("qkv", "to_{}"), ("context_qkv", "add_{}_proj")):
                three = [left.pop(f"{place}.attn.{theirs.format(letter)}.{kind}") for letter in "qkv"]
                ours[f"blocks.{layer}.attention.{name}.{kind}"] = torch.cat(three)
        rows.append(_swapped(left.pop(f"norm_out.linear.{kind}")))
        ours[f"modulation.projection.{kind}"] = torch.cat(rows)
    for name, tensor in left.items():
        ours[rename(name, inverse(_BLOCK), inverse(_OTHER), "transformer_blocks", "blocks")] = tensor
    return ours


def _swapped(rows: Tensor) -> Tensor:
    """Scale and shift (2 D, ...) as shift and scale."""
    scale, shift = rows.chunk(2)
    return torch.cat((shift, scale))
