"""The law of mixers as a comparison: a batch cut into calls, padded and packed, against each document alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.parts import MAX_LEN, rows
from zoo.blocks.api import Context, Sublayer
from zoo.blocks.fixed_state import FixedState
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.blocks.positions.indices import token_positions


@dataclass(frozen=True)
class Layout:
    """Two rows of tokens: where they are cut into calls, which tokens are real, and what document each belongs to."""

    splits: tuple[int, ...]
    mask: Tensor
    """(2, T) bool"""
    documents: Tensor | None = None
    """(2, T) int, or None"""

    @property
    def length(self) -> int:
        return self.mask.shape[1]

    def unpacked(self) -> Layout:
        return Layout(self.splits, self.mask)

    def context(self, start: int = 0, stop: int | None = None) -> Context:
        """Of the tokens from start to stop. A document that goes on from an earlier call needs its positions."""
        piece, positions = slice(start, stop), None
        if self.documents is not None:
            context = Context(token_mask=self.mask, documents=self.documents)
            positions = token_positions(self.length, context)[:, piece]
        return Context(
            token_mask=self.mask[:, piece],
            documents=None if self.documents is None else self.documents[:, piece],
            positions=positions,
        )

    def alone(self, row: int) -> list[Tensor]:
        """Places of the real tokens of each document of a row."""
        places = self.mask[row].nonzero().flatten()
        if self.documents is None:
            return [places]
        cuts = (self.documents[row, places].diff() != 0).nonzero().flatten() + 1
        return list(places.tensor_split(cuts))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Lengths to 14, up to 4 cuts, padding on a side or anywhere, up to a document a token."""
    length = draw(st.integers(2, 14))
    flags = st.lists(st.booleans(), min_size=length, max_size=length)
    splits = draw(st.sets(st.integers(1, length - 1), max_size=4))
    kind = draw(st.sampled_from(["full", "left", "right", "anywhere"]))
    mask = torch.ones(2, length, dtype=torch.bool)
    if kind == "anywhere":
        mask = torch.tensor([draw(flags), draw(flags)])
        mask[1, 0] = True  # one real token at least
    elif kind != "full":
        padding = draw(st.integers(1, length))
        mask[0, slice(padding) if kind == "left" else slice(length - padding, None)] = False
    begins = torch.tensor([draw(flags), draw(flags)]) if draw(st.booleans()) else None
    return Layout(tuple(sorted(splits)), mask, None if begins is None else begins.cumsum(1))


def compared(mixer: Sublayer, layout: Layout, tolerance: float) -> None:
    """In one pass and, where the mixer keeps a state, call by call: equal to each document alone. Other content of
    masked tokens changes no bit."""
    dtype = next(mixer.parameters()).dtype
    x, mask = rows(2, layout.length, dtype), layout.mask
    noisy = torch.where(mask[..., None], x, 50.0)
    if of_one_document(mixer):
        layout = layout.unpacked()
    expected = observed(mixer, x, layout, documents_alone)
    ways = [in_one_pass] if mixer.init_state(2, MAX_LEN) is None else [in_one_pass, call_by_call]
    for way in ways:
        found = observed(mixer, x, layout, way)
        for name, value in found.items():
            size = max(1.0, expected[name].abs().max().item())
            error = (value - expected[name]).abs().max().item() if value.numel() else 0.0
            assert error <= tolerance * size, f"{way.__name__}, {name}: {error:.1e} of {size:.1e}"
        y, states = way(mixer, noisy.requires_grad_(), layout)  # gradients on: the same kernels as above
        for name, value in {"outputs": y * mask[..., None], **states}.items():
            assert torch.equal(value, found[name]), f"{way.__name__}: masked tokens change {name}"


def of_one_document(mixer: Sublayer) -> bool:
    """Whether a state of it refuses several documents: sinks and chunks belong to one."""
    config = getattr(mixer, "config", None)
    return isinstance(config, AttentionConfig) and bool(config.sinks or config.chunk)


def observed(mixer: Sublayer, x: Tensor, layout: Layout, way: Any) -> dict[str, Tensor]:
    """Outputs of real tokens and last states, and the gradients of a weighted sum of either."""
    x = x.detach().requires_grad_()
    y, states = way(mixer, x, layout)
    assert y.dtype == x.dtype
    y = y * layout.mask[..., None]
    leaves = {"x": x, **dict(mixer.named_parameters())}
    found = {"outputs": y.detach(), **{name: value.detach() for name, value in states.items()}}
    for told, results in (("outputs", [y]), ("states", list(states.values()))):
        if results:
            loss = torch.stack([(value * weights(value)).sum() for value in results]).sum()
            options = {"allow_unused": True, "materialize_grads": True, "retain_graph": told == "outputs"}
            grads = torch.autograd.grad(loss, list(leaves.values()), **options)
            found |= {f"gradient of {told} by {name}": grad for name, grad in zip(leaves, grads, strict=True)}
    return found


def weights(like: Tensor) -> Tensor:
    return torch.linspace(-1.0, 1.0, like.numel(), dtype=like.dtype).view(like.shape).sin()


def documents_alone(mixer: Sublayer, x: Tensor, layout: Layout) -> tuple[Tensor, dict[str, Tensor]]:
    """Real tokens only, a batch of one and an empty state for each document."""
    outputs, states = torch.zeros_like(x), []
    for row in range(x.shape[0]):
        state = mixer.init_state(1, MAX_LEN)
        for places in layout.alone(row):
            if len(places):
                state = mixer.init_state(1, MAX_LEN)
                y = mixer(x[row : row + 1, places], Context(), state)
                outputs = outputs.index_put((torch.tensor(row), places), y[0])
        states.append(tensors(state))
    return outputs, {name: torch.cat([held[name] for held in states]) for name in states[0]}


def in_one_pass(mixer: Sublayer, x: Tensor, layout: Layout) -> tuple[Tensor, dict[str, Tensor]]:
    return mixer(x, layout.context()), {}


def call_by_call(mixer: Sublayer, x: Tensor, layout: Layout) -> tuple[Tensor, dict[str, Tensor]]:
    state, pieces = mixer.init_state(2, MAX_LEN), []
    for start, stop in pairwise((0, *layout.splits, layout.length)):
        pieces.append(mixer(x[:, start:stop], layout.context(start, stop), state))
    assert state.length.tolist() == layout.mask.sum(1).tolist()
    return torch.cat(pieces, 1), tensors(state)


def run_in_pieces(mixer: Sublayer, x: Tensor, splits: list[int]) -> tuple[Tensor, Any]:
    """Outputs of the pieces of x that `splits` cut, through one state, and that state."""
    state = mixer.init_state(x.shape[0], MAX_LEN, dtype=next(mixer.parameters()).dtype)
    pieces = [mixer(x[:, a:b], Context(), state) for a, b in pairwise([0, *splits, x.shape[1]])]
    return torch.cat(pieces, 1), state


def tensors(state: Any) -> dict[str, Tensor]:
    """What a state of constant size holds. Those of attention grow, and are compared by what is read from them."""
    return {f"state {name}": value for name, value in state.tensors.items()} if isinstance(state, FixedState) else {}
