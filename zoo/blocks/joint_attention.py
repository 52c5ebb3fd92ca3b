"""Attention over two sequences at once, each with weights of its own. Esser et al. 2024, arXiv:2403.03206 (MM-DiT).

x (B, T, D) --qkv--> q, k, v (B, H, T, K)  \\                                            / (B, T, D) --out--> x
                                            softmax(q k' / sqrt K) v over T + S tokens <
c (B, S, D) --qkv--> q, k, v (B, H, S, K)  /                                            \\ (B, S, D) --out--> c
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.blocks.api import NormConfig, Slot
from zoo.blocks.init import init_linear
from zoo.registry import ConfigError

__all__ = ["JointAttention"]


class JointAttention(nn.Module):
    """x (B, T, D), c (B, S, D) -> (B, T, D), (B, S, D).

    qk_norm: a norm over each head's queries and keys, one for each sequence. read_only: c is read and has no output,
    None; its queries' weights stay without use, as in Stable Diffusion 3's last block.
    """

    def __init__(self, slot: Slot, *, qk_norm: NormConfig | None = None, read_only: bool = False) -> None:
        super().__init__()
        dim, heads = slot.dim, slot.heads
        if dim % heads:
            raise ConfigError(f"dim {dim} is not a multiple of heads {heads}; change one", slot.where)
        self.heads, self.read_only = heads, read_only
        self._std, self._out_std = slot.std(dim), slot.output_std(dim)
        self.qkv, self.context_qkv = nn.Linear(dim, 3 * dim), nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.context_out = None if read_only else nn.Linear(dim, dim)
        norms = [qk_norm.build(dim // heads) if qk_norm is not None else nn.Identity() for _ in range(4)]
        self.q_norm, self.k_norm, self.context_q_norm, self.context_k_norm = norms
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (self.qkv, self.context_qkv):
            init_linear(linear, self._std)
        for linear in (self.out, self.context_out):
            if linear is not None:
                init_linear(linear, self._out_std)

    def forward(self, x: Tensor, c: Tensor, c_mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """c_mask (B, S) bool, True = a real token of c; masked ones are never read."""
        t = x.shape[1]
        q, k, v = self._heads(self.qkv(x))  # (B, H, T, K) each
        q, k = self.q_norm(q), self.k_norm(k)
        if self.read_only:
            dim = x.shape[2]
            kv = F.linear(c, self.context_qkv.weight[dim:], self.context_qkv.bias[dim:])  # (B, S, 2 D)
            c_k, c_v = self._heads(kv)
        else:
            c_q, c_k, c_v = self._heads(self.context_qkv(c))  # (B, H, S, K) each
            q = torch.cat((q, self.context_q_norm(c_q)), dim=2)  # (B, H, T + S, K)
        k = torch.cat((k, self.context_k_norm(c_k)), dim=2)  # (B, H, T + S, K)
        v = torch.cat((v, c_v), dim=2)
        mask = None if c_mask is None else F.pad(c_mask, (t, 0), value=True)[:, None, None]  # (B, 1, 1, T + S)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # (B, H, T or T + S, K)
        y = y.transpose(1, 2).flatten(2)  # (B, T or T + S, D)
        if self.context_out is None:
            return self.out(y), None
        return self.out(y[:, :t]), self.context_out(y[:, t:])  # (B, T, D), (B, S, D)

    def _heads(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, T, n D) -> n of (B, H, T, K)."""
        head_dim = self.out.in_features // self.heads
        return x.unflatten(2, (-1, self.heads, head_dim)).permute(2, 0, 3, 1, 4).unbind(0)
