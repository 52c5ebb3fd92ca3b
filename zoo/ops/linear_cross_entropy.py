"""Cross-entropy of a linear map without its logits: chunks of tokens, whose gradients are taken while they are there.

A vocabulary of 30 thousand makes the logits of a batch its largest tensor, and the plain form keeps two or three of
that size. Here a chunk of tokens has its logits, its loss and its gradients one after the other in one buffer, so that
N x V never exists (Hsu et al. 2024, Liger, arXiv:2410.10989; Wijmans et al. 2024, arXiv:2411.09009, which go further
and skip small gradients; nothing is skipped here). torch >= 2.14 has a form of the same idea without soft-cap.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["linear_cross_entropy", "linear_cross_entropy_score", "naive_linear_cross_entropy"]

ENTRIES = 1 << 23
"""Logits of one chunk where `chunk` is not given: 32 MiB in fp32."""
PLAIN = 1 << 18
"""Up to this many logits in all the plain form is taken: there it is up to 2.2 times as fast, from 2^18 on slower."""


@dataclass(frozen=True)
class _Options:
    ignore_index: int
    label_smoothing: float
    soft_cap: float | None
    chunk: int
    dtype: torch.dtype
    """Of the products; statistics and sums are in fp32 or better."""


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    soft_cap: float | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Sum (0-dim, fp32 or better) of the cross-entropies of x @ weight.T + bias, as F.cross_entropy(reduction="sum").

    x: (N, D); weight: (V, D); targets: (N,) int64 in 0..V-1, or `ignore_index` for tokens that count nothing;
    bias: (V,). All three of x, weight and bias may need gradients, or any of them.
    label_smoothing: the target is (1 - e) of its class and e / V of every class, torch's definition.
    soft_cap: logits become c tanh(logits / c) (Gemma Team 2024, arXiv:2408.00118).
    chunk: tokens at a time; None takes what makes about ENTRIES logits.

    Small calls, torch.compile and export take the plain form. The gradients are made in the forward pass, so a second
    derivative is refused. Under autocast the products are in its dtype.
    """
    options = _options(x, weight, ignore_index, label_smoothing, soft_cap, chunk)
    if torch.compiler.is_compiling() or (chunk is None and x.shape[0] * weight.shape[0] <= PLAIN):
        logits = _capped(F.linear(x, weight, bias), soft_cap)  # (N, V)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return F.cross_entropy(
            logits, targets, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="sum"
        )
    wanted = tuple(torch.is_grad_enabled() and t is not None and t.requires_grad for t in (x, weight, bias))
    if not any(wanted):
        return _pass(x, weight, bias, targets, options, wanted)[0]
    return _LinearCrossEntropy.apply(x, weight, bias, targets, options, wanted)  # type: ignore[return-value]


@torch.no_grad()
def linear_cross_entropy_score(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    soft_cap: float | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(sum of cross-entropies, number of targets that have the largest logit), both 0-dim, without gradients."""
    options = _options(x, weight, ignore_index, label_smoothing, soft_cap, chunk)
    loss, _, correct = _pass(x, weight, bias, targets, options, (False, False, False), count=True)
    return loss, correct


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, targets, options: _Options, wanted: tuple[bool, ...]) -> Tensor:
        loss, ctx.made, _ = _pass(x, weight, bias, targets, options, wanted)
        ctx.save_for_backward(x, weight, bias, targets)
        ctx.options, ctx.wanted = options, wanted
        return loss

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "linear_cross_entropy has no second derivative (create_graph=True); "
                "take F.cross_entropy(F.linear(x, weight, bias), targets) for it"
            )
        (grad,) = grads
        x, weight, bias, targets = ctx.saved_tensors
        # The gradients are handed over and scaled where they lie: a copy of a table's gradient costs more than its
        # product. A graph that is retained and run again makes them anew.
        made, ctx.made = ctx.made, None
        if made is None:
            _, made, _ = _pass(x, weight, bias, targets, ctx.options, ctx.wanted)
        if grad.device.type != "cpu" or grad.item() != 1.0:
            for gradient in made:
                if gradient is not None:
                    gradient.mul_(grad)
        return *made, None, None, None


def _options(
    x: Tensor, weight: Tensor, ignore_index: int, label_smoothing: float, soft_cap: float | None, chunk: int | None
) -> _Options:
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing should be from 0 to 1, got {label_smoothing}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk should be at least 1, got {chunk}")
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    dtype = x.dtype if x.dtype == torch.float64 else dtype  # autocast leaves fp64 alone
    size = chunk if chunk is not None else max(1, ENTRIES // weight.shape[0])
    return _Options(ignore_index, label_smoothing, soft_cap, size, dtype)


@torch.no_grad()
def _pass(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    options: _Options,
    wanted: tuple[bool, ...],
    count: bool = False,
) -> tuple[Tensor, tuple[Tensor | None, ...], Tensor]:
    """Loss, gradients of (x, weight, bias) where wanted, and the number of right predictions where counted."""
    with torch.autocast(x.device.type, enabled=False):
        return _chunks(x, weight, bias, targets, options, wanted, count)


def _chunks(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    options: _Options,
    wanted: tuple[bool, ...],
    count: bool,
) -> tuple[Tensor, tuple[Tensor | None, ...], Tensor]:
    tokens, classes, dtype = x.shape[0], weight.shape[0], options.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    table = weight.to(dtype)
    size = min(options.chunk, max(tokens, 1))
    if tokens > size:  # chunks of one size, not a small one at the end
        size = -(-tokens // -(-tokens // size))
    loss = torch.zeros((), dtype=wide, device=x.device)
    correct = torch.zeros((), dtype=torch.long, device=x.device)
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format) if wanted[0] else None
    grad_w = torch.zeros(weight.shape, dtype=wide, device=x.device) if wanted[1] and tokens != size else None
    grad_b = torch.zeros(classes, dtype=wide, device=x.device) if wanted[2] else None
    buffer = torch.empty(size, classes, dtype=wide, device=x.device) if tokens else None  # (n, V)
    for start in range(0, tokens, size):
        rows = slice(start, min(start + size, tokens))
        part = x[rows].to(dtype)  # (n, D)
        assert buffer is not None
        z = buffer[: part.shape[0]]
        if dtype == wide:
            torch.mm(part, table.t(), out=z)
        else:
            z.copy_(part @ table.t())
        if bias is not None:
            z += bias
        slope: Tensor | None = None  # (n, V) derivative of the soft-cap
        if options.soft_cap is not None:
            z.div_(options.soft_cap).tanh_()
            slope = 1.0 - z.square() if any(wanted) else None
            z.mul_(options.soft_cap)
        real = targets[rows] != options.ignore_index  # (n,)
        classes_of = torch.where(real, targets[rows], 0)[:, None]  # (n, 1)
        picked = z.gather(1, classes_of)[:, 0]  # (n,)
        if count:
            top, predicted = z.max(1)
            correct += ((predicted == classes_of[:, 0]) & real).sum()
        else:
            top = z.amax(1)  # (n,)
        e = options.label_smoothing
        mean = z.mean(1) if e else picked
        total = z.sub_(top[:, None]).exp_().sum(1)  # (n,)
        each = top + total.log() - (1.0 - e) * picked - e * mean  # (n,)
        loss += torch.where(real, each, 0.0).sum()
        if not any(wanted):
            continue
        weights = real.to(wide)  # (n,)
        z.mul_((weights / total)[:, None])  # probabilities
        if e:
            z.sub_((weights * (e / classes))[:, None])
        z.scatter_add_(1, classes_of, ((e - 1.0) * weights)[:, None])
        if slope is not None:
            z.mul_(slope)
        if grad_b is not None:
            grad_b += z.sum(0)
        z = z.to(dtype)  # (n, V) gradient of the logits
        if grad_x is not None:
            if grad_x.dtype == dtype:
                torch.mm(z, table, out=grad_x[rows])
            else:
                grad_x[rows] = z @ table
        if grad_w is not None and dtype == wide:
            torch.addmm(grad_w, z.t(), part, out=grad_w)
        elif grad_w is not None:
            grad_w += z.t() @ part
        elif wanted[1]:
            grad_w = z.t() @ part  # the only chunk
    return (
        loss,
        (grad_x, _as(grad_w, weight), None if bias is None else _as(grad_b, bias)),
        correct,
    )


def _as(gradient: Tensor | None, like: Tensor) -> Tensor | None:
    return None if gradient is None else gradient.to(like.dtype)


def _capped(logits: Tensor, soft_cap: float | None) -> Tensor:
    return logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap)


def naive_linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    soft_cap: float | None = None,
) -> Tensor:
    """The specification: token by token, minus the expected log-probability under the smoothed target."""
    loss = (x.sum() + weight.sum()) * 0
    classes = weight.shape[0]
    for row, target in zip(x, targets.tolist(), strict=True):
        if target == ignore_index:
            continue
        logits = weight @ row if bias is None else weight @ row + bias  # (V,)
        if soft_cap is not None:
            logits = soft_cap * torch.tanh(logits / soft_cap)
        log_p = logits - logits.exp().sum().log()
        wanted = torch.full_like(log_p, label_smoothing / classes)
        wanted[target] += 1.0 - label_smoothing
        loss = loss - (wanted * log_p).sum()
    return loss
