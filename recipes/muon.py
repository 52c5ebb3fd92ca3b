"""Muon: momentum whose update is made orthogonal (Jordan et al. 2024, kellerjordan.github.io/posts/muon), for the
matrices inside a stack, and AdamW for all other parameters.

    m <- beta m + g;  u = g + beta m;  W <- W - lr 0.2 sqrt(max(rows, columns)) orthogonal(u)

The factor gives updates the size of AdamW's, so one rate serves both (Liu et al. 2025, arXiv:2502.16982).
torch.optim.Muon and timm's work in bfloat16, which CPUs without that unit take many times longer for; here a CPU
works in the weights' own precision, and matrices of one shape are taken together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from recipes.sharding import part_like, whole

__all__ = ["Muon", "naive_orthogonal", "orthogonal"]

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonal(matrices: Tensor, steps: int = 5, eps: float = 1e-7) -> Tensor:
    """(M, N) or (B, M, N) -> matrices with the same singular vectors and singular values near 1 (about 0.7 to 1.2).

    Five Newton-Schulz steps of degree five. bfloat16 on a GPU, the matrices' own dtype elsewhere.
    """
    a, b, c = COEFFICIENTS
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x  # (..., m, n), m <= n
    x = x / (torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True) + eps)
    for _ in range(steps):
        gram = x @ x.mT  # (..., m, m)
        x = _plus_product(x, _plus_product(gram, gram, gram, b, c), x, a, 1.0)  # a x + (b gram + c gram gram) x
    return (x.mT if tall else x).to(matrices.dtype)


def _plus_product(added: Tensor, left: Tensor, right: Tensor, beta: float, alpha: float) -> Tensor:
    """beta added + alpha left right, of one matrix or a batch, in one call."""
    combine = torch.addmm if added.dim() == 2 else torch.baddbmm
    return combine(added, left, right, beta=beta, alpha=alpha)


def naive_orthogonal(matrix: Tensor, steps: int = 5, eps: float = 1e-7) -> Tensor:
    """The same through a singular value decomposition: the polynomial acts on each singular value alone."""
    a, b, c = COEFFICIENTS
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    s = s / (torch.linalg.vector_norm(s) + eps)
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag(s) @ v


class Muon(Optimizer):
    """Groups with `muon=True` hold matrices (M, N) and experts' stacks of them (E, M, N); the others are AdamW's.

    Each group has its own lr and weight_decay.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        *,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        fused: bool = False,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": 0.0, "muon": False, "momentum": momentum, "betas": betas, "eps": eps}
        super().__init__(groups, defaults)
        self.fused = fused

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            found = [p for p in group["params"] if p.grad is not None]
            if found:
                (self._muon if group["muon"] else self._adamw)(group, found)
        return loss

    def _muon(self, group: dict[str, Any], found: list[nn.Parameter]) -> None:
        lr, decay, beta = group["lr"], group["weight_decay"], group["momentum"]
        shapes: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for parameter in found:  # a matrix and one of its transpose's shape go together, each of a stack by itself
            shapes.setdefault(tuple(sorted(parameter.shape[-2:])), []).append(parameter)
        for shape, parameters in shapes.items():
            updates: list[Tensor] = []
            for parameter in parameters:
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                assert parameter.grad is not None
                state["momentum"].mul_(beta).add_(parameter.grad)
                update = whole(parameter.grad.add(state["momentum"], alpha=beta))
                wide = update.mT if update.shape[-2] > update.shape[-1] else update
                updates.append(wide if wide.dim() == 3 else wide[None])  # (E, m, n), of a single matrix (1, m, n)
            size = 0.2 * max(shape) ** 0.5
            made = orthogonal(torch.cat(updates)).split([len(update) for update in updates])
            for parameter, update in zip(parameters, made, strict=True):
                if decay:
                    parameter.mul_(1.0 - lr * decay)
                turned = parameter.shape[-2] > parameter.shape[-1]
                made_of = (update.mT if turned else update).reshape(parameter.shape)
                parameter.add_(part_like(made_of, parameter), alpha=-lr * size)

    def _adamw(self, group: dict[str, Any], found: list[nn.Parameter]) -> None:
        for parameter in found:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device if self.fused else None)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        states = [self.state[parameter] for parameter in found]
        adamw(
            list(found),
            [parameter.grad for parameter in found if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            foreach=False if self.fused else None,
            fused=self.fused,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
