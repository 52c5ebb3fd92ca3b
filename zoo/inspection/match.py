"""Making one model as large as another: one whole number is changed until a count agrees, or the match is refused.

    solve(build, target, low=1, high=4096, tolerance=0.01)     build(value) -> a count that grows with value
    match_model("gpt", "params", to="gpt2", knob="ffn")         the same for a model's config

Three matchings, never mixed (shared protocol: parameters, FLOPs, state bytes): what is matched and what is not is in
the record, so that a table can say it. Nothing is run: models are built and counted on the meta device.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from zoo.inspection.count import count_parameters, shadow
from zoo.inspection.examples import example
from zoo.inspection.meter import metered
from zoo.inspection.states import state_bytes
from zoo.registry import ConfigError, decode, encode, merge, nearest

__all__ = ["Match", "Matched", "match_model", "solve"]


@dataclass(frozen=True)
class Match:
    """The value that brings a count closest to its target."""

    value: int
    reached: float
    target: float

    @property
    def error(self) -> float:
        """(reached - target) / target."""
        return self.reached / self.target - 1.0


def solve(
    build: Callable[[int], float],
    target: float,
    *,
    low: int,
    high: int,
    tolerance: float = 0.01,
    step: int = 1,
    what: str = "the count",
    knob: str = "the value",
) -> Match:
    """The value among low, low + step, ... up to high whose count `build(value)` is closest to `target`.

    `build` must not fall as the value grows; it is asked for about 2 log2((high - low) / step) values. `what` and
    `knob` name both in errors. Raises ConfigError where the closest count is further than `tolerance` (a share of the
    target) away, and says what the neighbours reach.
    """
    if target <= 0:
        raise ConfigError(f"{what} of the reference should be above 0, got {target:g}", "match")
    if low > high or step < 1:
        raise ConfigError(f"{knob} has no value from {low} to {high} in steps of {step}", "match")
    counts: dict[int, float] = {}

    def counted(place: int) -> float:
        value = low + place * step
        if value not in counts:
            counts[value] = build(value)
        return counts[value]

    first, last = 0, (high - low) // step
    if counted(last) < counted(first):
        raise ConfigError(f"{what} falls as {knob} grows: it cannot be solved by it", "match")
    while last - first > 1:  # the target lies between the counts at `first` and at `last`, or outside both ends
        middle = (first + last) // 2
        if counted(middle) < target:
            first = middle
        else:
            last = middle
    best = min((first, last), key=lambda place: abs(counted(place) - target))
    found = Match(low + best * step, counted(best), target)
    if abs(found.error) > tolerance:
        tried = ", ".join(
            f"{counted(place):,.0f} at {knob}={low + place * step}" for place in dict.fromkeys((first, last))
        )
        raise ConfigError(
            f"{what} {target:,.0f} cannot be reached within {100 * tolerance:g} percent by {knob} from {low} to {high}"
            f"{'' if step == 1 else f' in steps of {step}'}; closest: {tried}",
            "match",
        )
    return found


Knob = Literal["ffn", "width", "depth", "state"]
What = Literal["params", "params_non_embedding", "flops", "state"]
KNOBS: dict[str, Knob] = {"params": "ffn", "params_non_embedding": "ffn", "flops": "ffn", "state": "state"}
"""What is changed where nobody says other."""
WIDEST = 1 << 20


@dataclass(frozen=True)
class Matched:
    """A model's config after matching, and what to tell of it."""

    config: Any
    record: dict[str, Any]
    """Plain values: what, reference, target, reached, error, changed {field: [before, after]}, and not_matched
    {count: [this model's, the reference's]} where the reference is a model."""

    def __str__(self) -> str:
        r = self.record
        changed = ", ".join(f"{key}: {before} -> {after}" for key, (before, after) in r["changed"].items())
        told = f"{r['what']} {r['reached']:,.0f} for {r['target']:,.0f} ({100 * r['error']:+.2f} percent) by {changed}"
        others = [f"{name} {own:,.0f} to {other:,.0f}" for name, (own, other) in r["not_matched"].items()]
        return f"{told}; not matched: {', '.join(others)}" if others else told


def match_model(
    model: Any,
    what: What,
    to: Any,
    *,
    knob: Knob | None = None,
    tolerance: float = 0.01,
    length: int | None = None,
    memory_length: int | None = None,
) -> Matched:
    """`model`'s config with one field solved so that its count `what` is that of `to`, within `tolerance`.

    model, to: a config, or what `zoo.create_model` takes; `to` may be a number too.
    what: "params" (or "params_non_embedding"), "flops" of a forward pass, or "state" bytes, of one row of `length`.
    knob: "ffn" (the feed-forward's hidden width), "width", "depth", or "state" (the mixer's `state_field`).
    Raises ConfigError where the knob has no field here, or cannot reach the count.
    """
    import zoo.library  # noqa: F401  registers every part

    if what not in KNOBS:
        raise ConfigError(f"unknown count '{what}'{nearest(what, KNOBS)}; choices: {', '.join(KNOBS)}", "match")
    config, chosen = decode("model", model, "model"), knob or KNOBS[what]
    reference = None if isinstance(to, int | float) else decode("model", to, "to")
    target = float(to) if reference is None else _counts(reference, what, length, memory_length)
    path, step = _field(config, chosen)

    def changed(value: int) -> Any:
        return _with(config, path, value)

    high = step
    while high < WIDEST * step and _counts(changed(high), what, length, memory_length) < target:
        if high > step and _stands_still(changed, high, what, length, memory_length):
            break
        high *= 2
    found = solve(
        lambda value: _counts(changed(value), what, length, memory_length),
        target,
        low=step,
        high=high,
        step=step,
        tolerance=tolerance,
        what=what,
        knob=".".join(path),
    )
    solved = changed(found.value)
    before, after = _at(config, path), _at(solved, path)
    others = [name for name in ("params", "flops", "state") if not what.startswith(name)] if reference else []
    unmatched = {name: [_counts(one, name, length, memory_length) for one in (solved, reference)] for name in others}
    record = {
        "what": what,
        "reference": getattr(reference, "registered_name", "") if reference is not None else target,
        "target": target,
        "reached": found.reached,
        "error": found.error,
        "changed": {".".join(path): [before, after]},
        "not_matched": {name: pair for name, pair in unmatched.items() if pair != [0.0, 0.0]},
    }
    return Matched(solved, record)


def _counts(config: Any, what: str, length: int | None, memory_length: int | None) -> float:
    model = shadow(config).eval()
    if what == "params":
        return count_parameters(model)[0]
    if what == "params_non_embedding":
        return count_parameters(model)[1]
    shapes = example(config, 1, length, memory_length)
    if what == "state":
        return state_bytes(model, shapes, 1, shapes.tokens) if shapes.step is not None else 0.0
    with metered(model) as meter, torch.no_grad():
        model(*shapes.args)
    return meter.flops


def _stands_still(changed: Callable[[int], Any], value: int, what: str, *lengths: int | None) -> bool:
    """Whether the count no longer grows, as the state of a window that is longer than the row."""
    return _counts(changed(value), what, *lengths) == _counts(changed(value // 2), what, *lengths)


def _field(config: Any, knob: str) -> tuple[tuple[str, ...], int]:
    """The path of the knob's field in a model's config, and the steps in which it moves."""
    fields = type(config).model_fields
    if knob == "width" and "dim" in fields:
        return ("dim",), _width_step(config)
    if knob == "depth" and "depth" in fields:
        return ("depth",), 1
    if knob == "ffn" and "ffn" in fields and getattr(config, "layout", "") != "mixer_only":
        for path in (("ffn", "hidden"), ("ffn", "expert", "hidden")):
            if _has(config, path):
                return path, 1
    if knob == "state" and "mixer" in fields and config.mixer.state_field is not None:
        return ("mixer", config.mixer.state_field), 1
    choices = ", ".join(get_args(Knob))
    name = config.registered_name
    if knob not in get_args(Knob):
        raise ConfigError(f"unknown knob '{knob}'{nearest(knob, get_args(Knob))}; choices: {choices}", "knob")
    mixer = f" with mixer={config.mixer.registered_name}" if knob == "state" and "mixer" in fields else ""
    raise ConfigError(f"'{name}'{mixer} has no field for '{knob}'; choose another of {choices}", "knob")


def _width_step(config: Any) -> int:
    """The smallest step of the width at which heads stay whole, and even for rotation, and the mixer builds."""
    heads = getattr(config, "heads", 1)
    for step in (2 * heads, math.lcm(2 * heads, 8), math.lcm(2 * heads, 64)):
        with contextlib.suppress(ConfigError):
            for times in (1, 2, 3):
                shadow(config.model_copy(update={"dim": step * times}))
            return step
    raise ConfigError(f"no steps of dim fit {heads} heads and mixer={config.mixer.registered_name}", "knob")


def _has(config: Any, path: tuple[str, ...]) -> bool:
    for name in path[:-1]:
        config = getattr(config, name, None)
    return path[-1] in getattr(type(config), "model_fields", {})


def _at(config: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        config = getattr(config, name)
    return config


def _with(config: Any, path: tuple[str, ...], value: int) -> Any:
    """The config with the knob at `value`; a field that is a share of D / H gets the share that makes so many."""
    given: Any = value
    if isinstance(_at(config, path), float):
        given = (value + 0.5) * config.heads / config.dim  # cut to an int where it is used
    for name in reversed(path):
        given = {name: given}
    return decode("model", merge(encode(config), given), "model")
