"""Efficiency: time, throughput, state and peak memory against the length of a row, beside attention in one process.

    python -m benchmarks.run suite=efficiency mixer=attention,mamba2,gated_delta size=small

A causal language model is built with the arm's mixer, at the parameters of attention, and once more with attention.
The two take turns in one process, so that a machine that others use weighs on both alike, and a ratio is taken within
each round (benchmarks/speed/measure.py). Tasks:

    training    forward and backward of a row of T tokens
    prefill     a row of T tokens into an empty state, and the logits of its last token
    decoding    one token more, after T of them

Primary: time_ratio@<longest T>, CPU time over attention's, the median over the rounds; below 1 is faster. Attention
itself is measured beside a second copy of itself: how far its ratio is from 1 says what the machine's noise is.

    time_ratio@T, time_ratio_low@T, time_ratio_high@T   median and quartiles of the ratios
    seconds@T, tokens_per_second@T                      of this machine, at the lower quartile
    peak_ratio@T, peak_bytes@T                          growth of memory in a call, but for decoding (speed/memory.py)
    state_bytes@T, state_ratio@T                        of one row after T tokens
    exponent                                            slope of log(seconds) against log(T): 1 linear, 2 quadratic

Known: attention's scores grow with T^2 and its state with T; recurrences cost the same for every token and keep a state
of fixed size, so that ratios fall as T grows. Where they cross depends on kernels and width. These rows are timings:
unlike all others they are not the same bits when run again.

Papers: Vaswani et al. 2017, arXiv:1706.03762; Gu & Dao 2023, arXiv:2312.00752.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.speed.measure import Spread, alternate, exponent
from benchmarks.speed.memory import peak
from benchmarks.suites.api import Arm, Job, Outcome, Size, Task
from benchmarks.suites.costs import costs, state_bytes
from benchmarks.suites.matching import match_params, params_of
from benchmarks.suites.synthetic import named
from zoo.blocks.api import Capability, Context, ModelConfig, Slot, check
from zoo.registry import ConfigError, decode

__all__ = ["SUITE", "Efficiency"]

Call = Callable[[], None]
SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": {"dim": 64, "depth": 1, "heads": 4, "vocabulary": 64, "lengths": [16, 32], "batch": 1, "rounds": 2},
    "small": {
        "dim": 128,
        "depth": 2,
        "heads": 4,
        "vocabulary": 256,
        "lengths": [128, 512, 2048],
        "batch": 1,
        "rounds": 5,
    },
    "paper": {
        "dim": 1024,
        "depth": 12,
        "heads": 16,
        "vocabulary": 32_000,
        "lengths": [1024, 4096, 16_384, 65_536],
        "batch": 1,
        "rounds": 11,
    },
}
STEPS = 4096
"""Room in a state for tokens that are decoded after its T."""
MAPPED = 65536
"""Blocks of memory from this size on get pages of their own, so that what is freed is seen to be."""


class Efficiency:
    name = "efficiency"
    title = "Time, state and memory against length"
    paper = "Gu & Dao 2023, arXiv:2312.00752"
    version = 1
    seeds = 3

    def tasks(self, size: Size) -> Sequence[Task]:
        longest = SETTINGS[size]["lengths"][-1]
        told = {"training": "a training step", "prefill": "reading a row", "decoding": "one token more"}
        return [
            Task(
                name=name,
                primary=f"time_ratio@{longest}",
                higher_is_better=False,
                title=f"Time over attention's, {text} at {longest} tokens",
            )
            for name, text in told.items()
        ]

    def arms(self, task: str, mixers: Sequence[Any]) -> Sequence[Arm]:
        return [Arm(name=named(mixer)[0], mixer=mixer) for mixer in mixers]

    def rates(self, task: str, size: Size) -> Sequence[float]:
        """Nothing is trained."""
        return []

    def settings(self, task: str, size: Size) -> Mapping[str, Any]:
        return SETTINGS[size] | {"match": "params", "to": "attention", "tolerance": 0.01}

    def run(self, job: Job) -> Outcome:
        """Raises ConfigError where the mixer cannot serve, or cannot be matched."""
        settings = job.settings
        device = "cuda" if torch.cuda.is_available() else "cpu"
        reference = _config("attention", settings)
        config, changed = _config(job.arm.mixer, settings), {}
        wanted = params_of(reference)
        if job.arm.mixer != settings["to"]:
            config, hidden = match_params(config, wanted, settings["tolerance"])
            changed = {"model.ffn.hidden": hidden}
        if job.task != "training":
            stepping = Slot(dim=settings["dim"], heads=settings["heads"], needs=Capability.STEP, where="mixer")
            check(decode("mixer", job.arm.mixer), stepping)
        torch.manual_seed(job.seed)
        arm, peer = (made.build().to(device).train(job.task == "training") for made in (config, reference))
        make = {"training": _training, "prefill": _prefill, "decoding": _decoding}[job.task]
        metrics: dict[str, float] = {}
        seconds: list[float] = []
        for length in settings["lengths"]:
            ids = torch.randint(settings["vocabulary"], (settings["batch"], length), device=device)
            found = _timed(make(arm, ids), make(peer, ids), settings["rounds"], device)
            tokens = settings["batch"] * (1 if job.task == "decoding" else length)
            seconds.append(found["seconds"])
            found["tokens_per_second"] = tokens / found["seconds"]
            found["state_bytes"] = float(state_bytes(arm, length))
            found["state_ratio"] = found["state_bytes"] / state_bytes(peer, length)
            metrics |= {f"{name}@{length}": value for name, value in found.items()}
        # Peaks come last: they need an allocator that maps every larger block by itself, which costs time.
        for length in settings["lengths"] if job.task != "decoding" else ():
            ids = torch.randint(settings["vocabulary"], (settings["batch"], length), device=device)
            metrics |= {f"{name}@{length}": value for name, value in _peaks((arm, peer), make, ids, device).items()}
        metrics["exponent"] = exponent(settings["lengths"], seconds)
        longest = settings["lengths"][-1]
        matched = {"to": settings["to"], "reference": wanted, "arm": params_of(config), "changed": changed}
        return Outcome(
            metrics=metrics,
            matched={"params": matched, "not matched": ["flops", "state bytes"]},
            curves={
                "length": [float(length) for length in settings["lengths"]],
                "seconds": seconds,
                **{
                    name: [metrics[f"{name}@{length}"] for length in settings["lengths"]]
                    for name in ("time_ratio", "state_bytes")
                },
            },
            **costs(arm, (torch.zeros(1, longest, dtype=torch.long),), longest, longest),
        )


def _config(mixer: Any, settings: Mapping[str, Any]) -> ModelConfig:
    choices = {name: settings[name] for name in ("dim", "depth", "heads")}
    longest = settings["lengths"][-1] + STEPS
    fixed = {"family": "gpt", "vocab_size": settings["vocabulary"], "max_len": longest, "position": "rope"}
    return decode("model", {**fixed, **choices, "mixer": mixer}, "model")


def _timed(ours: Call, theirs: Call, rounds: int, device: str) -> dict[str, float]:
    """Seconds, and the ratio with its quartiles. Raises ConfigError where a call fails."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    timings = alternate({"arm": ours, "attention": theirs}, rounds, wait=wait)
    for name, why in timings.failed.items():
        raise ConfigError(f"{name} fails: {why}", "mixer")
    clock = "wall" if device == "cuda" else "cpu"
    ratio: Spread = timings.ratio("arm", "attention", clock)
    return {
        "seconds": timings.seconds("arm", clock).q1,
        "time_ratio": ratio.median,
        "time_ratio_low": ratio.q1,
        "time_ratio_high": ratio.q3,
    }


def _peaks(
    models: tuple[nn.Module, nn.Module], make: Callable[..., Call], ids: torch.Tensor, device: str
) -> dict[str, float]:
    """Peak memory of a call and its ratio; nothing where the system does not tell it."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(-3, MAPPED)  # M_MMAP_THRESHOLD of glibc
    try:
        found: list[int] = []
        for model in models:
            call = make(model, ids)
            call()
            found.append(peak(call, device))
    except OSError:  # no /proc
        return {}
    return {"peak_bytes": float(found[0])} | ({"peak_ratio": found[0] / found[1]} if found[1] else {})


def _training(model: Any, ids: torch.Tensor) -> Call:
    def call() -> None:
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        model.zero_grad(set_to_none=True)

    return call


def _prefill(model: Any, ids: torch.Tensor) -> Call:
    @torch.no_grad()
    def call() -> None:
        state = model.init_state(len(ids), ids.shape[1])
        model.head(model.features(ids, Context(last_only=True), state))

    return call


@torch.no_grad()
def _decoding(model: Any, ids: torch.Tensor) -> Call:
    """A call decodes one token; the state grows by it, which is little beside its T."""
    state = model.init_state(len(ids), ids.shape[1] + STEPS)
    model.features(ids, Context(last_only=True), state)
    step = model.step(state)
    token = ids[:, -1]

    @torch.no_grad()
    def call() -> None:
        x = step(token)[:, None] if step is not None else model.features(token[:, None], Context(), state)
        model.head(x)

    return call


SUITE = Efficiency()
