"""Weight maps both ways from one list of rules.

A rule says that some tensors of ours, one below the other, are some tensors of theirs, one below the other: one name
on both sides is a new name, several are a fused projection on one side and its parts on the other. Read from left to
right a list of rules writes a checkpoint, from right to left it loads one, so neither direction can go astray alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor, nn

from zoo.registry import ConfigError

__all__ = [
    "Rule",
    "View",
    "both",
    "by_part",
    "fused",
    "kinds_of",
    "linear",
    "load_weights",
    "stored",
    "to_ours",
    "to_theirs",
]

View = Literal["same", "transposed", "row", "depthwise", "stacked", "heads"]
"""How theirs differs from ours: not at all, (..., inputs, outputs) as GPT-2's Conv1D, (1, N) for our (N,), (C, 1, W) of
torch's Conv1d for our (C, W), (O, I) of one expert for our (1, O, I) in a stack, or (1, 1, H, 1) for our (H,)."""


@dataclass(frozen=True)
class Rule:
    """Ours, one below the other, equal theirs, one below the other."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    ours_rows: tuple[int, ...] = ()
    """Rows of each, where there are several."""
    theirs_rows: tuple[int, ...] = ()
    axis: int = 0
    """Along which several stand: 1 for the outputs of stacked experts."""
    order: tuple[int, ...] = ()
    """Rows of theirs in the order of ours, where the two sort them differently (see by_part); empty: the same order."""
    view: View = "same"
    aliases: tuple[str, ...] = ()
    """Further names that the same tensor has in their files, because their modules share it."""
    kept: bool = True
    """False for weights of theirs that are read and not written, or that have no place here."""
    other: Rule | None = None
    """The same tensors of ours in another layout of theirs, read where all of that is there, and not written."""


def both(ours: str, theirs: str, *aliases: str, view: View = "same") -> Rule:
    """One tensor under two names."""
    return Rule((ours,), (theirs,), view=view, aliases=aliases)


def linear(ours: str, theirs: str, kinds: Sequence[str] = ("weight", "bias"), view: View = "same") -> list[Rule]:
    """Weight and bias of one module; the bias has one axis and the same view everywhere."""
    return [both(f"{ours}.{k}", f"{theirs}.{k}", view=view if k == "weight" else "same") for k in kinds]


def fused(ours: str, theirs: Sequence[str], rows: Sequence[int], kinds: Sequence[str]) -> list[Rule]:
    """One module of ours that holds several of theirs."""
    return [Rule((f"{ours}.{k}",), tuple(f"{t}.{k}" for t in theirs), theirs_rows=tuple(rows)) for k in kinds]


def by_part(groups: int, widths: Sequence[int]) -> tuple[int, ...]:
    """Rows that lie group by group, each group holding parts of these widths, in the order part by part."""
    size, starts = sum(widths), accumulate(widths, initial=0)
    return tuple(
        group * size + start + row
        for start, width in zip(starts, widths, strict=False)
        for group in range(groups)
        for row in range(width)
    )


def kinds_of(bias: bool) -> tuple[str, ...]:
    return ("weight", "bias") if bias else ("weight",)


def stored(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint of ours holds: parameters by their first names, and the buffers that are not made anew."""
    kept = model.state_dict(keep_vars=True).keys()
    return dict(model.named_parameters()) | {name: b for name, b in model.named_buffers() if name in kept}


def to_ours(rules: Iterable[Rule], theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict from theirs. Raises ConfigError for a weight that is missing, or left over without a rule."""
    ours = dict(load_weights(rules, theirs.keys(), theirs.__getitem__))
    return ours


def load_weights(
    rules: Iterable[Rule], names: Iterable[str], get: Callable[[str], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Our names and tensors, rule by rule, so that only one rule's tensors are held twice.

    `names` are all names of theirs, `get` reads one. Raises ConfigError for a weight missing or left over, before it
    reads any.
    """
    left = set(names)
    rules = [rule.other if rule.other is not None and left.issuperset(rule.other.theirs) else rule for rule in rules]
    sources: list[tuple[Rule, list[str]]] = []
    for rule in rules:
        found = [name for name in rule.theirs if name in left]
        if len(found) < len(rule.theirs) and len(rule.theirs) == 1:
            found = [name for name in rule.aliases if name in left][:1]
        if len(found) < len(rule.theirs) and rule.kept:
            absent = next(name for name in rule.theirs if name not in left)
            raise ConfigError(f"weight '{absent}' is missing; is it a model of the same family and shape?")
        sources.append((rule, found))
    known = {name for rule in rules for name in (*rule.theirs, *rule.aliases)}
    if left - known:
        name = min(left - known)
        raise ConfigError(f"weight '{name}' has no counterpart; is it a model of the same family and shape?")
    for rule, found in sources:
        if rule.kept:
            whole = _joined([_seen(get(name), rule.view) for name in found], rule.axis)
            whole = _sorted(whole, rule.order, to_ours=True)
            yield from zip(rule.ours, _parts(whole, rule.ours_rows, rule.axis), strict=True)


def to_theirs(rules: Iterable[Rule], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their state dict from ours, each shared tensor under one name. Raises ConfigError for a weight without a rule."""
    theirs: dict[str, Tensor] = {}
    used: set[str] = set()
    for rule in rules:
        if not rule.kept:
            continue
        absent = [name for name in rule.ours if name not in ours]
        if absent:
            raise ConfigError(f"weight '{absent[0]}' is missing; is it a model of the same family and shape?")
        whole = _sorted(_joined([ours[name] for name in rule.ours], rule.axis), rule.order, to_ours=False)
        for name, part in zip(rule.theirs, _parts(whole, rule.theirs_rows, rule.axis), strict=True):
            theirs[name] = _shown(part, rule.view).contiguous()
        used.update(rule.ours)
    left = ours.keys() - used
    if left:
        raise ConfigError(f"weight '{min(left)}' has no counterpart; is it a model of the same family and shape?")
    return theirs


def _seen(tensor: Tensor, view: View) -> Tensor:
    """Ours from theirs."""
    if view == "transposed":
        return tensor.mT.contiguous()
    if view == "depthwise":
        return tensor.flatten(1)
    if view == "stacked":
        return tensor[None]
    return tensor.reshape(-1) if view in ("row", "heads") else tensor


def _shown(tensor: Tensor, view: View) -> Tensor:
    """Theirs from ours."""
    if view == "depthwise":
        return tensor[:, None]
    if view == "stacked":
        return tensor.squeeze(0)
    if view == "heads":
        return tensor[None, None, :, None]
    return tensor[None] if view == "row" else _seen(tensor, view)


def _joined(tensors: list[Tensor], axis: int) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, axis)


def _sorted(whole: Tensor, order: tuple[int, ...], *, to_ours: bool) -> Tensor:
    """The rows in the order of the other side. Raises ConfigError unless there are as many."""
    if not order:
        return whole
    if len(order) != len(whole):
        raise ConfigError(f"a fused weight has {len(whole)} rows where the config says {len(order)}")
    places = torch.tensor(order, device=whole.device)
    return whole[places if to_ours else places.argsort()]


def _parts(whole: Tensor, rows: tuple[int, ...], axis: int) -> tuple[Tensor, ...]:
    if not rows:
        return (whole,)
    if sum(rows) != whole.shape[axis]:
        told = f"{' + '.join(map(str, rows[:4]))}{' + ...' if len(rows) > 4 else ''}"
        raise ConfigError(f"a fused weight has {whole.shape[axis]} rows where the config says {told}")
    return whole.split(rows, axis)
