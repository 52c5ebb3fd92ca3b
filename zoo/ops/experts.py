"""Experts on the tokens routed to them: pairs (token, expert) sorted by expert, and one matrix product a group.

    token n chose experts e(n, 1 .. k) with weights w(n, 1 .. k):     y_n = sum_j w(n, j) f_e(n, j)(x_n)

    take            (N, D) -> (M, D)   the token of every pair, M = N k, the pairs of expert 0 first
    grouped_linear  (M, I) -> (M, O)   the rows of each expert times its own matrix
    add_up          (M, D) -> (N, D)   the sum over each token's pairs

No pair is ever padded or dropped to make groups equal (Gale et al. 2022, arXiv:2211.15841). `take` and `add_up` are
each other's backward pass, and both are gathers: the inverse of the sorting permutation stands for every scatter.
A choice of expert E means nobody: such pairs stand last, belong to no group, and are worth zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

__all__ = [
    "Pairs",
    "add_up",
    "grouped_linear",
    "naive_experts",
    "naive_grouped_linear",
    "sort_pairs",
    "take",
    "take_weights",
]


class Pairs(NamedTuple):
    """Pairs of a token and one of its experts, sorted by expert."""

    token: Tensor
    """(M,) int64, the token of each pair."""
    place: Tensor | None
    """(N, k) int64, where the pairs of each token stand; None where tokens have unequal numbers of pairs."""
    ends: Tensor
    """(E,) int32: the pairs of expert e are those from ends[e - 1] to ends[e]; later ones are nobody's."""
    order: Tensor | None = None
    """(M,) int64, where each pair stood in the flattened (N, k); None as with `place`."""


def sort_pairs(experts: Tensor, count: int) -> Pairs:
    """The choices (N, k) of N tokens, int64 from 0 to `count` (nobody), as M = N k sorted pairs."""
    tokens, k = experts.shape
    sorted_experts, order = experts.flatten().sort(stable=True)  # (M,) each
    numbers = torch.arange(tokens * k, device=experts.device)
    place = torch.empty_like(order).scatter_(0, order, numbers).view(tokens, k)  # the inverse permutation
    ends = torch.searchsorted(sorted_experts, torch.arange(count, device=experts.device), right=True, out_int32=True)
    return Pairs(order // k, place, ends, order)


def take(x: Tensor, pairs: Pairs) -> Tensor:
    """Tokens (N, D) -> the token of every pair (M, D)."""
    if pairs.place is None or torch.compiler.is_compiling():
        return x.index_select(0, pairs.token)
    return _Take.apply(x, pairs.token, pairs.place)  # type: ignore[return-value]


def take_weights(weights: Tensor, pairs: Pairs) -> Tensor:
    """The weights (N, k) of all choices in the order of the pairs: (M, 1)."""
    if pairs.order is None or pairs.place is None:
        raise ValueError("these pairs were not sorted from (N, k) choices")
    flat = weights.reshape(-1, 1)  # (M, 1)
    if torch.compiler.is_compiling():
        return flat.index_select(0, pairs.order)
    return _Take.apply(flat, pairs.order, pairs.place.view(-1, 1))  # type: ignore[return-value]


def add_up(y: Tensor, pairs: Pairs, tokens: int) -> Tensor:
    """Pairs (M, D) -> their sum for each of the tokens (N, D)."""
    if pairs.place is None:
        return y.new_zeros(tokens, y.shape[-1]).index_add(0, pairs.token, y)
    if torch.compiler.is_compiling():
        return _add_up(y, pairs.place)
    return _AddUp.apply(y, pairs.token, pairs.place)  # type: ignore[return-value]


def _add_up(y: Tensor, place: Tensor) -> Tensor:
    return y.index_select(0, place.flatten()).unflatten(0, place.shape).sum(1)  # (N, k, D) -> (N, D)


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, token: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(token, place)
        return x.index_select(0, token)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _AddUp.apply(grads[0], *ctx.saved_tensors), None, None  # type: ignore[return-value]


class _AddUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y: Tensor, token: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(token, place)
        return _add_up(y, place)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _Take.apply(grads[0], *ctx.saved_tensors), None, None  # type: ignore[return-value]


def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (M, I) in groups of rows that end at `ends` (E,) int32, each times its own weight (E, O, I)': -> (M, O).

    bias: (E, O). Rows after the last end come out as zeros, and so do their gradients. x and the weights have one
    dtype, as under autocast. On CUDA torch's grouped kernel is taken for bfloat16 with widths that are multiples of 8;
    elsewhere a loop over the groups, which asks a CUDA device for their sizes.
    """
    if not x.is_meta and torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    needs_graph = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if needs_graph or x.is_meta or torch.compiler.is_compiling():
        y = _product_op(x, weight, ends)
    else:
        y = _product(x, weight, ends)  # a step of decoding feels the way through an operator
    if bias is None:
        return y
    group = torch.searchsorted(ends, torch.arange(x.shape[0], device=x.device), right=True)  # (M,), E: nobody
    return y + F.pad(bias, (0, 0, 0, 1)).index_select(0, group).to(y.dtype)  # (M, O)


def _product(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """(M, I), (E, O, I) -> (M, O)."""
    if _kernel_fits(x, weight.shape[1], weight.shape[2]):
        y = F.grouped_mm(x, weight.mT, offs=ends)
        return y.masked_fill_(torch.arange(x.shape[0], device=x.device)[:, None] >= ends[-1], 0.0)
    y = x.new_empty(x.shape[0], weight.shape[1])
    start = 0
    for matrix, end in zip(weight.unbind(0), ends.tolist(), strict=True):
        if end > start:
            torch.mm(x[start:end], matrix.T, out=y[start:end])
        start = end
    y[start:].zero_()
    return y


def _outer(g: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    """Gradient of the weights: g (M, O), x (M, I) -> (E, O, I), the sum of g x' over each group."""
    if _kernel_fits(x, g.shape[1], x.shape[1]):
        return F.grouped_mm(g.contiguous().mT, x.contiguous(), offs=ends)
    out = g.new_empty(ends.shape[0], g.shape[1], x.shape[1])
    start = 0
    for matrix, end in zip(out.unbind(0), ends.tolist(), strict=True):
        torch.mm(g[start:end].T, x[start:end], out=matrix)  # zeros for an empty group
        start = end
    return out


def _kernel_fits(x: Tensor, outputs: int, inputs: int) -> bool:
    return x.is_cuda and x.dtype == torch.bfloat16 and not outputs % 8 and not inputs % 8 and hasattr(F, "grouped_mm")


# As operators of torch they trace without looking inside (torch.compile, torch.export, the meta device), and their
# FLOPs are counted.
_product_op: Any = torch.library.custom_op("zoo::grouped_linear", _product, mutates_args=())
_outer_op: Any = torch.library.custom_op("zoo::grouped_outer", _outer, mutates_args=())


@_product_op.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@_outer_op.register_fake
def _(g: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    return g.new_empty(ends.shape[0], g.shape[1], x.shape[1])


def _save(ctx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _product_backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight, ends = ctx.saved_tensors
    grad_x = _product_op(grad, weight.mT, ends) if ctx.needs_input_grad[0] else None  # (M, I)
    grad_weight = _outer_op(grad, x, ends) if ctx.needs_input_grad[1] else None  # (E, O, I)
    return grad_x, grad_weight, None


def _outer_backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    g, x, ends = ctx.saved_tensors
    grad_g = _product_op(x, grad, ends) if ctx.needs_input_grad[0] else None  # (M, O)
    grad_x = _product_op(g, grad.mT, ends) if ctx.needs_input_grad[1] else None  # (M, I)
    return grad_g, grad_x, None


_product_op.register_autograd(_product_backward, setup_context=_save)
_outer_op.register_autograd(_outer_backward, setup_context=_save)


@register_flop_formula(torch.ops.zoo.grouped_linear)
def _(x_shape: Sequence[int], weight_shape: Sequence[int], *args: Any, **kwargs: Any) -> int:
    return 2 * x_shape[0] * weight_shape[1] * weight_shape[2]  # every row once, whoever its expert is


@register_flop_formula(torch.ops.zoo.grouped_outer)
def _(g_shape: Sequence[int], x_shape: Sequence[int], *args: Any, **kwargs: Any) -> int:
    return 2 * g_shape[0] * g_shape[1] * x_shape[1]


def naive_grouped_linear(x: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None = None) -> Tensor:
    """Row by row."""
    rows, limits = [], ends.tolist()
    for m, row in enumerate(x):
        owners = [e for e, end in enumerate(limits) if m < end]
        if not owners:
            rows.append(row.new_zeros(weight.shape[1]))
            continue
        y = weight[owners[0]] @ row
        rows.append(y if bias is None else y + bias[owners[0]])
    return torch.stack(rows)


def naive_experts(
    x: Tensor, experts: Tensor, weights: Tensor, functions: Sequence[Callable[[Tensor], Tensor]]
) -> Tensor:
    """The formula of the module docstring, token by token; x (N, D), experts and weights (N, k). Expert E is nobody."""
    rows = []
    for token, chosen, shares in zip(x, experts.tolist(), weights, strict=True):
        total = torch.zeros_like(token)
        for expert, share in zip(chosen, shares, strict=True):
            if expert < len(functions):
                total = total + share * functions[expert](token)
        rows.append(total)
    return torch.stack(rows)
