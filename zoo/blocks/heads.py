"""From tokens to answers: classes of a whole row, or logits over a vocabulary for every token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.blocks.api import Context
from zoo.blocks.embeddings import TokenEmbedding
from zoo.blocks.init import init_linear
from zoo.ops.linear_cross_entropy import linear_cross_entropy, linear_cross_entropy_score
from zoo.registry import ConfigError

__all__ = ["ClassificationHead", "HeadTransform", "LanguageModelHead", "Pool", "pool_tokens"]

Pool = Literal["cls", "mean", "max", "sum"]
SUM_TOKENS = 8


def pool_tokens(x: Tensor, context: Context, pool: Pool) -> Tensor:
    """x (B, T, D) -> (B, D).

    "cls":  the first real token of the row (the class token, also behind left padding).
    "mean", "max", "sum": over the real tokens after `context.prefix`; zeros for a row that has none. Only the sum tells
            how many tokens there are (Xu et al. 2018, arXiv:1810.00826); it comes divided by 8, to start at the size
            of the others.
    """
    mask = context.token_mask
    if pool == "cls":
        if mask is None:
            return x[:, 0]
        first = mask.to(torch.uint8).argmax(-1)  # (B,) index of the first True
        return x.gather(1, first[:, None, None].expand(-1, 1, x.shape[-1])).squeeze(1)
    x = x[:, context.prefix :]
    if mask is None:
        return x.mean(1) if pool == "mean" else x.amax(1) if pool == "max" else x.sum(1) / SUM_TOKENS
    real = mask[:, context.prefix :, None]  # (B, T', 1)
    if pool == "mean":
        return x.masked_fill(~real, 0).sum(1) / real.sum(1).clamp(min=1)
    if pool == "sum":
        return x.masked_fill(~real, 0).sum(1) / SUM_TOKENS
    return x.masked_fill(~real, float("-inf")).amax(1).masked_fill(~real.any(1), 0)


class ClassificationHead(nn.Module):
    """(B, T, D) -> logits (B, classes): pool, then norm, then a linear map; 0 classes give the pooled features.

    `norm` acts on the pooled vector (the "fc norm" of mean-pooled ViTs); a family's final norm stands before the head.
    `zero_init` starts the map at zero, so that all classes are equally likely (ViT, DiT); else normal with `init_std`.
    """

    def __init__(
        self,
        dim: int,
        classes: int,
        *,
        pool: Pool = "cls",
        norm: nn.Module | None = None,
        dropout: float = 0.0,
        zero_init: bool = False,
        init_std: float = 0.02,
    ) -> None:
        super().__init__()
        if pool not in get_args(Pool):
            raise ConfigError(f"pool should be 'cls', 'mean', 'max' or 'sum', got {pool!r}")
        self.pool: Pool = pool
        self.norm = norm if norm is not None else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(dim, classes) if classes else nn.Identity()
        self._std = 0.0 if zero_init else init_std
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if isinstance(self.linear, nn.Linear):
            _init(self.linear, self._std)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        x = self.norm(pool_tokens(x, context, self.pool))  # (B, D)
        return self.linear(self.dropout(x))  # (B, classes)

    def extra_repr(self) -> str:
        return f"pool={self.pool!r}"


class HeadTransform(nn.Module):
    """(..., D) -> (..., D'): dense, activation, norm, before the vocabulary (Devlin et al. 2018, arXiv:1810.04805).

    D' is D, or the width of narrower embeddings (ELECTRA); `norm` is one of width D'.
    """

    def __init__(
        self,
        dim: int,
        norm: nn.Module,
        *,
        out_dim: int | None = None,
        bias: bool = True,
        activation: Callable[[Tensor], Tensor] = F.gelu,
        init_std: float = 0.02,
    ) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(dim, out_dim or dim, bias=bias), norm
        self.activation, self._std = activation, init_std
        self.reset_parameters()

    def reset_parameters(self) -> None:
        _init(self.dense, self._std)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))  # (..., D')


class LanguageModelHead(nn.Module):
    """(..., D) -> logits (..., vocabulary): transform, scale, product with the table, soft-cap.

    `embedding` ties the table to the input's (Press & Wolf 2016, arXiv:1608.05859). The head then holds the embedding
    module itself, without registering it: the one parameter belongs to the embedding, is counted and saved once, and
    stays tied through deepcopy, dtype casts, `to_empty` and loading. Without it the head owns `weight` (vocabulary, D).

    `scale` multiplies the features (D^-0.5 in a tied T5). `soft_cap` c makes logits c tanh(logits / c) (Gemma Team
    2024, arXiv:2408.00118). `transform` is a module (..., D) -> (..., D) such as HeadTransform.
    """

    def __init__(
        self,
        dim: int,
        vocab_size: int,
        *,
        embedding: TokenEmbedding | None = None,
        bias: bool = False,
        scale: float = 1.0,
        soft_cap: float | None = None,
        transform: nn.Module | None = None,
        init_std: float = 0.02,
    ) -> None:
        super().__init__()
        if embedding is not None and tuple(embedding.weight.shape) != (vocab_size, dim):
            raise ConfigError(
                f"a tied head needs an embedding of {vocab_size} x {dim}, got {tuple(embedding.weight.shape)}; "
                "leave the head untied or change its widths"
            )
        if soft_cap is not None and soft_cap <= 0:
            raise ConfigError(f"soft_cap should be above 0 or None, got {soft_cap}")
        self.scale, self.soft_cap, self._std = scale, soft_cap, init_std
        self.transform = transform if transform is not None else nn.Identity()
        self._tied = (embedding,)  # a tuple: nn.Module would register a bare module as a child
        if embedding is None:
            self.weight = nn.Parameter(torch.empty(vocab_size, dim))
        self.bias = nn.Parameter(torch.empty(vocab_size)) if bias else None
        self.reset_parameters()

    @property
    def table(self) -> Tensor:
        """(vocabulary, D), the embedding's own parameter where the head is tied."""
        embedding = self._tied[0]
        return self.weight if embedding is None else embedding.weight

    def reset_parameters(self) -> None:
        if self._tied[0] is None:
            nn.init.normal_(self.weight, std=self._std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits = F.linear(self._scaled(x), self.table, self.bias)  # (..., vocabulary)
        return logits if self.soft_cap is None else self.soft_cap * torch.tanh(logits / self.soft_cap)

    def loss(self, x: Tensor, targets: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0) -> Tensor:
        """Sum (0-dim) of the cross-entropies over the real targets; x (..., D), targets (...) int64.

        Transform and vocabulary see only the tokens that have a target, and the logits are never held at once
        (zoo/ops/linear_cross_entropy.py). No real target gives 0, with zero gradients.
        """
        x, targets = self._real(x, targets, ignore_index)  # (N, D), (N,)
        return linear_cross_entropy(
            self._scaled(x),
            self.table,
            targets,
            self.bias,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            soft_cap=self.soft_cap,
        )

    @torch.no_grad()
    def score(
        self, x: Tensor, targets: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """(loss as in `loss`, number of real targets with the largest logit), both 0-dim, without gradients."""
        x, targets = self._real(x, targets, ignore_index)  # (N, D), (N,)
        return linear_cross_entropy_score(
            self._scaled(x),
            self.table,
            targets,
            self.bias,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            soft_cap=self.soft_cap,
        )

    def _scaled(self, x: Tensor) -> Tensor:
        x = self.transform(x)  # (..., D)
        return x if self.scale == 1.0 else x * self.scale

    @staticmethod
    def _real(x: Tensor, targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
        """The tokens (N, D) that have a target (N,). Where all have one nothing is copied."""
        if targets.shape != x.shape[:-1]:
            raise ValueError(
                f"targets should be {tuple(x.shape[:-1])} for x {tuple(x.shape)}, got {tuple(targets.shape)}"
            )
        x, targets = x.reshape(-1, x.shape[-1]), targets.reshape(-1)
        if torch.compiler.is_compiling():  # a count that depends on the data would break the graph
            return x, targets
        index = (targets != ignore_index).nonzero()[:, 0]  # (N,); its length is the one thing asked of the device
        if index.shape[0] == targets.shape[0]:
            return x, targets
        return x.index_select(0, index), targets.index_select(0, index)

    def extra_repr(self) -> str:
        rows, dim = self.table.shape
        return f"{dim}, {rows}, tied={self._tied[0] is not None}, scale={self.scale:g}, soft_cap={self.soft_cap}"


def _init(linear: nn.Linear, std: float) -> None:
    if std == 0.0:  # a truncated normal of no width has no density
        nn.init.zeros_(linear.weight)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
    else:
        init_linear(linear, std)
