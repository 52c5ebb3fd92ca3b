"""What a model costs: parameters, FLOPs, state bytes, activation memory, and where attention overtakes the rest.

    zoo.count("llama3_8b", length=1000)          by rows and tokens; any family, name, plain dict or built model
    zoo.count(model, *inputs)                    one forward pass on these inputs
    python -m zoo count model=llama3_8b length=1000

Nothing is run and no weight is made: a twin of the model passes shapes on, on the meta device.

Parameters. Shared ones count once. "Active parameters" has no fixed convention: MiniMax leaves the looked-up tables
out, DeepSeek and Qwen count them, so both figures are given.

FLOPs, 2 per multiply-add: products with parameters, convolutions, attention scores and weighted sums, recurrences and
scans as their formulas are written (meter.py). Norms, activations, softmax and exponentials are not counted. Causal
scores count in full, as a square or a band, and once more as the pairs alone that the mask leaves (about half). A
training step is taken as 3 forward passes: each product has two of its size in backward (Kaplan et al. 2020,
arXiv:2001.08361). Experts: every token at every expert it chooses, as if none were full.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from zoo import registry
from zoo.blocks.api import ModelConfig, Sublayer
from zoo.blocks.stack import Block
from zoo.inspection.activations import activation_bytes
from zoo.inspection.examples import Example, example
from zoo.inspection.meter import Core, Meter, metered
from zoo.inspection.states import state_bytes
from zoo.registry import Config

__all__ = ["Count", "count", "count_parameters", "idle_parameters"]


@dataclass(frozen=True)
class Count:
    """Parameters, shared ones once, and FLOPs and bytes of the rows that were asked for.

    None: not asked for (inputs were given), or without a meaning for the family.
    """

    params: int
    params_non_embedding: int
    """Without tables that are looked up: token embeddings and learned positions."""
    params_active: int
    """Without the experts that a token leaves aside."""
    params_active_non_embedding: int
    """Without these and without the tables."""
    flops_forward: int
    """Of all rows; causal scores in full."""
    flops_visible: int
    """The same with the pairs of tokens alone that the masks leave."""
    batch: int | None = None
    tokens: int | None = None
    """Of a row, as the trunk or the decoder reads it."""
    memory: int | None = None
    """Of the second sequence of a row."""
    flops_step: int | None = None
    """One more token of every row, as the last of `tokens`."""
    state_bytes: int | None = None
    """Of all rows, once they are that long."""
    activation_bytes: int | None = None
    """What a forward pass of training keeps (activations.py)."""
    crossover: int | None = None
    """Tokens of a row from which on scores and weighted sums take more than all else in the layers; causal in full."""
    crossover_visible: int | None = None
    """The same counting the pairs alone that the masks leave."""

    @property
    def flops_training(self) -> int:
        """One training step without the optimizer: 3 forward passes."""
        return 3 * self.flops_forward


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """(all, without looked-up tables); tied weights count once, and a table that is also a head counts as a table."""
    tables = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding) or getattr(module, "is_table", False)
        for parameter in module.parameters(recurse=False)
    }
    sizes = [(id(parameter) in tables, parameter.numel()) for parameter in model.parameters()]
    return sum(size for _, size in sizes), sum(size for table, size in sizes if not table)


def idle_parameters(model: nn.Module) -> int:
    """Parameters that one token does not pass through: those of the experts that it leaves aside."""
    return sum(module.idle_parameters() for module in model.modules() if isinstance(module, Sublayer))


def count(
    model: nn.Module | str | Mapping[str, Any] | Config,
    *inputs: Any,
    batch: int = 1,
    length: int | None = None,
    memory_length: int | None = None,
    dtype: torch.dtype = torch.float32,
    **keywords: Any,
) -> Count:
    """Count `model(*inputs, **keywords)`, or, without inputs, `batch` rows of `length` tokens.

    model: a built model, on any device, or what `zoo.create_model` takes.
    length: 1,000 tokens by default, or max_len where that is less; families over images have it from their config.
    memory_length: of the source, as long as the target by default. dtype: of weights and states, for the bytes.
    Raises ConfigError for a length that the config has itself.
    """
    twin = shadow(model)
    if inputs or keywords:
        return _counted(twin, [_meta(value) for value in inputs], {name: _meta(v) for name, v in keywords.items()})
    return counted_by_length(twin, batch, length, memory_length, dtype)


def counted_by_length(
    twin: Any, batch: int, length: int | None, memory_length: int | None, dtype: torch.dtype = torch.float32
) -> Count:
    """`count` of a model that is on the meta device already, by rows and tokens."""
    for name, value in (("batch", batch), ("length", length), ("memory_length", memory_length)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise registry.ConfigError(f"should be a whole number of at least 1, got {value!r}", name)
    shapes = example(getattr(twin, "config", None), batch, length, memory_length)
    training, twin = twin.training, twin.to(dtype).eval()
    inputs = [
        value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value for value in shapes.args
    ]
    with metered(twin) as meter, torch.no_grad():
        twin(*inputs)
    found: dict[str, Any] = {"batch": batch, "tokens": shapes.tokens, "memory": shapes.memory or None}
    if shapes.step is not None:
        found["flops_step"] = _step_flops(twin, shapes, batch)
        found["state_bytes"] = state_bytes(twin, shapes, batch, shapes.tokens)
    if not getattr(twin.config, "checkpointing", False):
        found["activation_bytes"] = activation_bytes(twin.train(), *inputs)
    found["crossover"], found["crossover_visible"] = _crossovers(twin, meter)
    twin.train(training)
    return _parameters(twin, meter, found)


def shadow(model: nn.Module | str | Mapping[str, Any] | Config) -> nn.Module:
    """The same model on the meta device, in the same mode."""
    if not isinstance(model, nn.Module):
        import zoo.library  # noqa: F401  registers every part

        with torch.device("meta"):
            return registry.decode("model", model, "model").build()
    config = getattr(model, "config", None)
    if isinstance(config, ModelConfig):
        with torch.device("meta"):
            twin = config.build()
    else:
        twin = copy.deepcopy(model).to("meta")
    return twin.train(model.training)


def _counted(twin: nn.Module, inputs: list[Any], keywords: dict[str, Any]) -> Count:
    with metered(twin) as meter, torch.no_grad():
        twin(*inputs, **keywords)
    return _parameters(twin, meter, {})


def _parameters(twin: nn.Module, meter: Meter, found: dict[str, Any]) -> Count:
    params, params_non_embedding = count_parameters(twin)
    idle = idle_parameters(twin)
    visible = meter.flops - sum(core.hidden_flops for core in meter.cores)
    active, active_non_embedding = params - idle, params_non_embedding - idle
    return Count(params, params_non_embedding, active, active_non_embedding, meter.flops, visible, **found)


def _step_flops(twin: Any, shapes: Example, batch: int) -> int:
    """One more token: the products of any token, and the cores as far down the row."""
    assert shapes.step is not None
    with torch.no_grad():
        state = twin.init_state(batch, 2, device="meta")
        shapes.step(twin, state)  # what reads a second sequence takes it in
        with metered(twin) as meter:
            shapes.step(twin, state)
    return meter.product_flops + sum(core.step_flops(shapes.tokens, shapes.memory) for core in meter.cores)


def _crossovers(twin: nn.Module, meter: Meter) -> tuple[int | None, int | None]:
    """Where the layers' scores and weighted sums overtake their products and recurrences, in full and visible alone.

    None where they never do, and where not all sublayers see the same number of tokens.
    """
    lengths = {core.tokens for core in meter.cores} | {core.memory for core in meter.cores if core.memory}
    blocks = [f"{name}." for name, module in twin.named_modules() if isinstance(module, Block)]
    if len(lengths) != 1 or not blocks:
        return None, None
    (tokens,) = lengths
    inside = sum(product.flops for product in meter.products if product.place.startswith(tuple(blocks)))
    pairs = [core for core in meter.cores if _sees_pairs(core)]
    others = sum(core.flops for core in meter.cores if core not in pairs)

    def overtakes(visible: bool) -> Callable[[int], bool]:
        def at(length: int) -> bool:
            scores = 0
            for core in pairs:
                sizes = core.batch, length, length if core.memory else 0
                scores += core.sublayer.core_flops(*sizes)
                scores -= core.sublayer.hidden_flops(*sizes) if visible else 0
            return scores * tokens >= (inside + others) * length

        return at

    return _first(overtakes(False)), _first(overtakes(True))


def _sees_pairs(core: Core) -> bool:
    """Whether a token costs more in a longer row."""
    sizes = [(1, n, n if core.memory else 0) for n in (1, 2)]
    one, two = (core.sublayer.core_flops(*size) for size in sizes)
    return two > 2 * one


def _first(holds: Callable[[int], bool], limit: int = 1 << 24) -> int | None:
    """The smallest whole number up to `limit` for which `holds`, which stays true once it is; None without one."""
    if not holds(limit):
        return None
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, Tensor) else value
