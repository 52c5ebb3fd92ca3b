"""A forward pass step by step: what happens, of which kind, shape in and out, parameters and FLOPs.

    python -m zoo walk model=llama3_8b length=1000

A decoder with attention has the 17 steps of the textbook: tokenise, look up, positions; in each layer normalise,
project, rotate, score, mask, weigh, project back, add, feed-forward, add; normalise, unembed, softmax, choose. Other
mixers show their own projections around their core, other families their own stems and heads. Layers that are alike
stand once. Over all steps and layers, parameters and FLOPs add up to those of `zoo.count`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from zoo.blocks.adaln import AdaLN
from zoo.blocks.api import Sublayer
from zoo.blocks.embeddings import TokenEmbedding
from zoo.blocks.heads import LanguageModelHead
from zoo.blocks.mixers.attention import Attention
from zoo.blocks.mixers.mla import LatentAttention
from zoo.blocks.residual import DeepNorm, LayerScale, Post, Pre, Residual, ResPost, Sandwich
from zoo.blocks.stack import Block, Stack
from zoo.inspection.count import shadow
from zoo.inspection.examples import example
from zoo.inspection.meter import Meter, metered
from zoo.models.encoder_decoder import EncoderDecoder
from zoo.models.gpt import GPT
from zoo.registry import Config, ConfigError

__all__ = ["Step", "Walk", "walk"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One step, of every row alike; shapes are those of one row."""

    operation: str
    kind: str
    """gather, elementwise, matmul, softmax, reduction, scan (a recurrence), none, or two of them."""
    given: str
    made: str
    params: int = 0
    """Of one layer, where it is in layers; a shared table counts where it is first used."""
    flops: int = 0
    """Likewise, causal scores in full."""
    layers: tuple[int, ...] = ()
    """The layers it is in, from 0; none for what is done once."""
    part: str = ""
    """encoder or decoder, where there are both."""

    @property
    def times(self) -> int:
        return max(1, len(self.layers))


@dataclass(frozen=True)
class Walk:
    """All steps in their order."""

    steps: list[Step] = field(default_factory=list)

    @property
    def params(self) -> int:
        return sum(step.params * step.times for step in self.steps)

    @property
    def flops(self) -> int:
        return sum(step.flops * step.times for step in self.steps)


def walk(
    model: nn.Module | str | Mapping[str, Any] | Config, length: int | None = None, memory_length: int | None = None
) -> Walk:
    """The steps of one row. Raises ConfigError for a family that is not made of stacks."""
    twin: Any = shadow(model).eval()
    stacks = {name: module for name, module in twin.named_modules() if isinstance(module, Stack)}
    config = getattr(twin, "config", None)
    name = getattr(config, "registered_name", type(twin).__name__)
    if any("." in place for place in stacks):
        told = f"'{name}' is made of whole models, and a walk follows one: walk that, e.g. model=bert; count shows all"
        raise ConfigError(told, "model")
    if not stacks:
        raise ConfigError(f"'{name}' is not made of a stack of blocks, which a walk follows; count shows it", "model")
    shapes = example(config, 1, length, memory_length)
    with metered(twin) as meter, torch.no_grad():
        twin(*shapes.args)
    return Walk(_Walker(twin, meter, shapes.args, stacks).steps)


class _Walker:
    """Makes the steps. A parameter belongs to the first step that claims it, a product to the step of its place."""

    def __init__(self, model: Any, meter: Meter, args: tuple[Any, ...], stacks: dict[str, Stack]) -> None:
        self.model, self.meter, self.dim = model, meter, model.config.dim
        self.steps: list[Step] = []
        self._owned: set[int] = set()
        self._part = ""
        first, last = self._span(list(stacks))
        both = len(stacks) > 1
        for number, (name, stack) in enumerate(stacks.items()):
            self._part = name if both else ""
            tokens = next((core.tokens for core in meter.cores if core.place.startswith(f"{name}.")), 0)
            tokens = tokens or self._tokens(name)
            self._stem(name, stack, args[number] if number < len(args) else None, first if number == 0 else -1, tokens)
            self._stack(name, stack, tokens)
        self._head(last, tokens)

    def _span(self, stacks: list[str]) -> tuple[int, int]:
        """The first and the last product inside the stacks."""
        places = [n for n, p in enumerate(self.meter.products) if p.place.split(".")[0] in stacks]
        return (places[0], places[-1]) if places else (0, -1)

    def _tokens(self, name: str) -> int:
        product = next((p for p in self.meter.products if p.place.startswith(f"{name}.")), None)
        return product.inputs[0] if product is not None else 0

    def _add(
        self, operation: str, kind: str, given: str, made: str, params: int = 0, flops: int = 0, **more: Any
    ) -> None:
        self.steps.append(Step(operation, kind, given, made, params, flops, part=self._part, **more))

    def _claim(self, *modules: Any) -> int:
        """Parameters of these modules that no step has yet."""
        total = 0
        for module in modules:
            own = module.parameters() if isinstance(module, nn.Module) else [module] if module is not None else []
            for parameter in own:
                if id(parameter) not in self._owned:
                    self._owned.add(id(parameter))
                    total += parameter.numel()
        return total

    def _flops(self, place: str) -> int:
        """Products at a place and below it."""
        return sum(p.flops for p in self.meter.products if p.place == place or p.place.startswith(f"{place}."))

    def _stem(self, name: str, stack: Stack, given: Any, first: int, tokens: int) -> None:
        model = self.model
        width = stack.project.in_features if stack.project is not None else self.dim
        ids = isinstance(given, torch.Tensor) and not given.is_floating_point()
        if ids:
            table = getattr(model, "source_embed", None) if name == "encoder" else None
            table = table or getattr(model, "embed", None)
            count = given.shape[1]
            self._add("tokenise the text", "none", "text", f"{count} ids")
            self._add("look up rows of the table", "gather", f"{count} ids", _shape(count, width), self._claim(table))
        for place, products in _by_place(self.meter.products[: max(first, 0)]).items():
            product = products[0]
            module = model.get_submodule(place)
            self._add(
                _title(place), "matmul", _shape(*product.inputs[1:] or product.inputs), _shape(*product.output[1:]),
                self._claim(module), sum(p.flops for p in products),
            )  # fmt: skip
        if first >= 0:
            others = {n: m for n, m in model.named_children() if not isinstance(m, Stack) and n != "head"}
            tables = [n for n, m in others.items() if isinstance(m, TokenEmbedding)]
            known = self._claim(*[m for n, m in others.items() if n in ("types", "prefix", "label", *tables)])
            if known:
                told = ", ".join(n for n in others if n in ("types", "prefix", "label", *tables) and n != "embed")
                self._add(
                    f"join learned vectors: {told}", "gather", _shape(tokens, width), _shape(tokens, width), known
                )
        x = _shape(tokens, width)
        if stack.position is not None:
            self._add("add positions", "elementwise", x, x, self._claim(stack.position))
        elif ids:
            self._add("add positions: none here", "none", x, x)
        if stack.input_norm is not None:
            self._add("normalise", "elementwise, reduction", x, x, self._claim(stack.input_norm))
        if stack.project is not None:
            made = _shape(tokens, stack.project.out_features)
            self._add("widen", "matmul", x, made, self._claim(stack.project), self._flops(f"{name}.project"))

    def _stack(self, name: str, stack: Stack, tokens: int) -> None:
        alike: dict[Any, list[int]] = {}
        seen = set(self._owned)  # what layers share is a matter of the first of them
        for layer, block in enumerate(stack.blocks):
            alike.setdefault(self._signature(f"{name}.blocks.{layer}", block, seen), []).append(layer)
        for layers in alike.values():
            place, block = f"{name}.blocks.{layers[0]}", stack.blocks[layers[0]]
            assert isinstance(block, Block)
            self._block(place, block, tokens, tuple(layers))
            for layer in layers[1:]:
                self._claim(stack.blocks[layer])
        if stack.norm is not None:
            x = _shape(tokens, self.dim)
            self._add("normalise, once", "elementwise, reduction", x, x, self._claim(stack.norm))

    def _signature(self, place: str, block: nn.Module, seen: set[int]) -> Any:
        """Equal for layers that do the same with other weights; `seen` learns the block's own."""
        skip = len(place)
        products = [(p.place[skip:], p.flops) for p in self.meter.products if p.place.startswith(f"{place}.")]
        cores = [(c.place[skip:], c.flops, c.hidden_flops) for c in self.meter.cores if c.place.startswith(f"{place}.")]
        own = [parameter for parameter in block.parameters() if id(parameter) not in seen]
        seen.update(map(id, own))
        sizes = [tuple(parameter.shape) for parameter in own]
        return tuple(products), tuple(cores), tuple(sizes)

    def _block(self, place: str, block: Block, tokens: int, layers: tuple[int, ...]) -> None:
        start = len(self.steps)
        for name, members in block.entries:
            residual: Any = block.residuals[name]
            sublayers = [(member, block.get_submodule(member)) for member in members]
            x = _shape(tokens, self.dim)
            before = isinstance(residual, Pre | Sandwich | LayerScale | AdaLN)
            told = "normalise, shift and scale" if isinstance(residual, AdaLN) else "normalise"
            alone = len(sublayers) == 1 and sublayers[0][0].startswith("ffn")
            if before and not alone:
                self._add(told, "elementwise, reduction", x, x, self._claim(residual.norm))
            for member, sublayer in sublayers:
                if member.startswith("ffn"):
                    norm = self._claim(residual.norm) if before and alone else 0
                    self._feed_forward(f"{place}.{member}", sublayer, x, told if before and alone else "", norm)
                else:
                    self._mixer(f"{place}.{member}", sublayer, tokens)
            if isinstance(residual, ResPost | Sandwich):
                after = residual.out_norm if isinstance(residual, Sandwich) else residual.norm
                self._add("normalise the branch", "elementwise, reduction", x, x, self._claim(after))
            gated = " through a gate" if type(residual).__name__ in ("AdaLNZero", "LayerScale") else ""
            rest = 0 if isinstance(residual, Post | DeepNorm) else self._claim(residual)
            self._add(f"add to the stream{gated}", "elementwise", x, x, rest)
            if isinstance(residual, Post | DeepNorm):
                self._add("normalise the stream", "elementwise, reduction", x, x, self._claim(residual))
            elif not isinstance(residual, Pre | Sandwich | LayerScale | AdaLN | ResPost) and isinstance(
                residual, Residual
            ):
                raise ConfigError(
                    f"a walk does not know the residual {type(residual).__name__}; count shows it", "model"
                )
        for number in range(start, len(self.steps)):
            self.steps[number] = _in_layers(self.steps[number], layers)

    def _feed_forward(self, place: str, ffn: nn.Module, x: str, told: str, norm: int) -> None:
        products = [p for p in self.meter.products if p.place.startswith(f"{place}.") or p.place == place]
        inside = max((p.output[-1] for p in products), default=0)
        through = f" through {inside:,}" if inside else ""
        title = f"{told}, feed-forward{through}" if told else f"feed-forward{through}"
        self._add(title, "matmul", x, x, norm + self._claim(ffn), self._flops(place))

    def _mixer(self, place: str, mixer: Any, tokens: int) -> None:
        if isinstance(mixer, Attention | LatentAttention):
            self._attention(place, mixer, tokens)
            return
        groups = list(_by_place([p for p in self.meter.products if p.place.startswith(f"{place}.")]).items())
        core = next((c for c in self.meter.cores if c.place == place), None)
        x = _shape(tokens, self.dim)
        for number, (at, products) in enumerate(groups):
            if number == len(groups) - 1 and core is not None:
                self._add(_core_title(mixer), "scan", x, x, self._loose(mixer, groups), core.flops)
            kind = "matmul"
            given, made = (_shape(tokens, shape[-1]) for shape in (products[0].inputs, products[0].output))
            module = self.model.get_submodule(at)
            self._add(
                f"project: {at[len(place) + 1 :]}",
                kind,
                given,
                made,
                self._claim(module),
                sum(p.flops for p in products),
            )
        left = self._claim(mixer)
        if left and self.steps:
            last = self.steps[-1]
            self.steps[-1] = Step(
                last.operation, last.kind, last.given, last.made, last.params + left, last.flops, part=last.part
            )

    def _loose(self, mixer: nn.Module, groups: list[tuple[str, Any]]) -> int:
        """Parameters of a mixer that are in no product: taps, decays, norms."""
        own = {id(p) for at, _ in groups for p in self.model.get_submodule(at).parameters()}
        return self._claim(*[p for p in mixer.parameters() if id(p) not in own])

    def _attention(self, place: str, mixer: Any, tokens: int) -> None:
        core = next(c for c in self.meter.cores if c.place == place)
        keys = core.memory if mixer.cross else tokens
        heads, x = mixer.heads, _shape(tokens, self.dim)
        groups = getattr(mixer, "kv_heads", heads)
        q = _shape(heads, tokens, mixer.key_dim)
        k, v = _shape(groups, keys, mixer.key_dim), _shape(groups, keys, mixer.value_dim)
        inputs = [n for n in ("qkv", "q", "kv", "kv_down", "kv_up") if hasattr(mixer, n)]
        latent = " through a latent" if isinstance(mixer, LatentAttention) else ""
        norms = [getattr(mixer, n, None) for n in ("kv_norm",)]
        claimed = self._claim(*(getattr(mixer, n) for n in inputs), *norms)
        given = f"{x} and {_shape(keys, self.dim)}" if mixer.cross else x
        products = sum(self._flops(f"{place}.{n}") for n in inputs)
        self._add(f"project Q, K, V{latent}", "matmul", given, f"{q}, {k}, {v}", claimed, products)
        normed = [m for m in (getattr(mixer, "q_norm", None), getattr(mixer, "k_norm", None)) if m is not None]
        told = [*(["norm"] if normed else []), *(["rotate"] if mixer.rotary is not None else [])]
        title = f"{' and '.join(told)} Q, K" if told else "rotate Q, K: none here"
        self._add(
            title, "elementwise" if told else "none", f"{q}, {k}", f"{q}, {k}", self._claim(*normed, mixer.rotary)
        )
        scores = _shape(heads, tokens, keys)
        share = core.flops * mixer.key_dim // (mixer.key_dim + mixer.value_dim)
        self._add("scores QK', scaled", "matmul", f"{q}, {k}", scores, 0, share)
        masks = [
            *(["causal mask"] if mixer.causal and not mixer.cross else []),
            *(["bias"] if mixer.bias is not None else []),
        ]
        if getattr(mixer.config, "window", None) is not None:
            masks.append(f"window of {mixer.config.window}")
        title = f"add {', '.join(masks)}" if masks else "add mask: none here"
        self._add(title, "elementwise" if masks else "none", scores, scores, self._claim(mixer.bias))
        summed = _shape(heads, tokens, mixer.value_dim)
        sinks = self._claim(getattr(mixer, "sink_logit", None))
        self._add("softmax, times V", "softmax, matmul", f"{scores}, {v}", summed, sinks, core.flops - share)
        gate = mixer.gate
        after = self._flops(f"{place}.out") + self._flops(f"{place}.gate")
        told = "join heads, gate, project" if gate is not None else "join heads, project"
        self._add(told, "matmul", summed, x, self._claim(mixer.out, gate), after)

    def _head(self, last: int, tokens: int) -> None:
        model = self.model
        after = self.meter.products[last + 1 :]
        for place, products in _by_place(after).items():
            module = model.get_submodule(place)
            unembeds = isinstance(module, LanguageModelHead)
            given, made = _shape(*products[0].inputs[-2:]), _shape(*products[0].output[-2:])
            title = "unembed" if unembeds else _title(place)
            self._add(title, "matmul", given, made, self._claim(module), sum(p.flops for p in products))
        left = self._claim(model)
        if left:
            self._add("parameters that this pass leaves aside", "none", "-", "-", left)
        if isinstance(model, GPT | EncoderDecoder):
            vocabulary = model.config.vocab_size
            logits = _shape(tokens, vocabulary)
            self._add("softmax with temperature", "softmax", logits, logits)
            self._add("choose a token, of the last row", "none", _shape(1, vocabulary), "1 id")


def _by_place(products: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for product in products:
        found.setdefault(product.place, []).append(product)
    return found


def _shape(*sizes: int) -> str:
    return "x".join(str(size) for size in sizes)


def _title(place: str) -> str:
    return place.replace("_", " ").replace(".", " ") or "the model's own"


def _core_title(mixer: Sublayer) -> str:
    config = getattr(mixer, "config", None)
    return f"recurrence of {getattr(config, 'registered_name', '') or type(mixer).__name__}"


def _in_layers(step: Step, layers: tuple[int, ...]) -> Step:
    return Step(step.operation, step.kind, step.given, step.made, step.params, step.flops, layers, step.part)
