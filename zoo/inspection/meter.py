"""Where the FLOPs of a forward pass go, module by module, on the meta device.

Two kinds of work are told apart. Products with a parameter (a linear map, a convolution, an expert) are seen by torch's
counter, and their shapes say it all. What a mixer does between its projections is its core: scores and weighted sums,
a recurrence, a scan. There torch's counter sees how a form computes (a chunked recurrence takes other products than a
loop does, and a scan none at all), not what is computed. So the core is what the mixer itself declares,
`Sublayer.core_flops`, from the shapes that really came in, and what the counter sees there is left out. Where a module
declares nothing, the counter's figure stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from zoo.blocks.api import Sublayer

__all__ = ["Core", "Meter", "Product", "declares_core", "metered"]


@dataclass(frozen=True)
class Product:
    """One operator that torch's counter knows."""

    place: str
    """The innermost module that ran it, as in `named_modules`."""
    flops: int
    inputs: tuple[int, ...]
    output: tuple[int, ...]
    weighted: bool
    """Whether one factor is a parameter."""


@dataclass(frozen=True)
class Core:
    """One call of a sublayer that declares its core."""

    place: str
    sublayer: Sublayer
    batch: int
    tokens: int
    memory: int
    """Tokens of the second sequence; 0 where there is none."""

    @property
    def flops(self) -> int:
        """As declared, causal scores in full."""
        return self.sublayer.core_flops(self.batch, self.tokens, self.memory)

    @property
    def hidden_flops(self) -> int:
        """The part of them that goes to pairs of tokens which a mask hides."""
        return self.sublayer.hidden_flops(self.batch, self.tokens, self.memory)

    def step_flops(self, length: int, memory: int) -> int:
        """Of these tokens as the newest of rows of `length`, one after the other."""
        ends = range(length - self.tokens + 1, length + 1)
        return sum(self.sublayer.step_flops(self.batch, end, memory) for end in ends)


@dataclass
class Meter:
    """What one pass took."""

    products: list[Product] = field(default_factory=list)
    cores: list[Core] = field(default_factory=list)

    @property
    def product_flops(self) -> int:
        return sum(product.flops for product in self.products)

    @property
    def flops(self) -> int:
        return self.product_flops + sum(core.flops for core in self.cores)


def declares_core(module: nn.Module) -> bool:
    """Whether a module says itself what its core takes."""
    return isinstance(module, Sublayer) and type(module).core_flops is not Sublayer.core_flops


@contextmanager
def metered(model: nn.Module) -> Iterator[Meter]:
    """A meter of everything that `model`, on the meta device, runs inside the context."""
    meter, stack = Meter(), [""]
    # a vector, such as the learned B and C of a scan that does not select, may be a factor within a core
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters() if parameter.dim() > 1}
    cores: list[nn.Module] = []  # sublayers under way that declare their core; those inside them are part of it

    def counted(formula: Callable[..., int]) -> Callable[..., int]:
        def count(*args: Any, out_val: Any, **keywords: Any) -> int:
            flops = formula(*args, out_val=out_val, **keywords)
            tensors = [value for value in args if isinstance(value, Tensor)]
            weighted = any(tensor.untyped_storage()._cdata in weights for tensor in tensors)
            if weighted or not cores:
                shapes = (
                    tuple(tensors[0].shape),
                    tuple(out_val[0].shape if isinstance(out_val, tuple) else out_val.shape),
                )
                meter.products.append(Product(stack[-1], flops, *shapes, weighted))
            return flops

        count._get_raw = True  # type: ignore[attr-defined]  # torch's mark of a formula that takes tensors, not shapes
        return count

    def enter(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            stack.append(name)
            if declares_core(module):
                if not cores:
                    x, context = args[0], args[1] if len(args) > 1 else keywords["context"]
                    memory = 0 if context.memory is None else context.memory.shape[1]
                    meter.cores.append(Core(name, module, x.shape[0], x.shape[1], memory))  # type: ignore[arg-type]
                cores.append(module)

        return hook

    def leave(module: nn.Module, *_: Any) -> None:
        stack.pop()
        if declares_core(module):
            cores.pop()

    hooks = []
    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(enter(name), with_kwargs=True))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    formulas = {operator: counted(formula) for operator, formula in flop_registry.items()}
    try:
        with FlopCounterMode(display=False, custom_mapping=formulas):
            yield meter
    finally:
        for hook in hooks:
            hook.remove()
