"""Optimizers as strict configs, and the parameter groups they work on.

Weight decay falls on matrices only. Norms, biases and every other vector, positions, class and register tokens, and
what a block names in its class attribute `undecayed` (a state matrix A, a skip D ...) are left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import nn
from torch.optim import Optimizer

from recipes.muon import Muon
from recipes.schedule import Cosine, ScheduleConfig
from zoo.blocks.ffn.experts import ExpertLinear
from zoo.blocks.stack import Stack
from zoo.registry import Config, ConfigError, nearest, part, register

Positive = Annotated[float, Field(gt=0.0)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]


class OptimConfig(Config):
    """Base of optimizers: the rate and its schedule, decay, clipping, and the moving average of the weights."""

    kind: ClassVar[str] = "optim"
    splits_matrices: ClassVar[bool] = False
    """Whether the matrices inside a stack are to be in groups of their own, marked `muon`."""

    lr: Positive = 1e-3
    """Peak learning rate."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.05
    schedule: Annotated[ScheduleConfig, part("schedule")] = Cosine(warmup=0.05)
    clip: Positive | None = 1.0
    """Largest norm of the whole gradient; null for no clipping."""
    ema: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Decay of the moving average of the weights; null for none. The average is what is evaluated and exported."""
    ema_warmup: bool = True
    """Let the average forget the first weights soon: decay at update n is min(ema, (1 + n) / (10 + n))."""
    lr_scale: dict[str, Positive] = Field(default_factory=dict)
    """Factor of the rate for the parameters whose name contains the key, e.g. {"position": 10.0}."""

    def build(self, groups: list[dict[str, Any]]) -> Optimizer:
        """The optimizer over `parameter_groups`."""
        raise NotImplementedError


@register("optim", "adamw", paper="Loshchilov and Hutter 2017, arXiv:1711.05101")
class AdamW(OptimConfig):
    """Adam with decoupled weight decay."""

    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Positive = 1e-8
    fused: bool | None = None
    """One kernel a step; null takes it wherever torch has it."""

    def build(self, groups: list[dict[str, Any]]) -> Optimizer:
        fused = fusable(groups) if self.fused is None else self.fused
        return torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, weight_decay=0.0, fused=fused)


@register("optim", "adam", paper="Kingma and Ba 2014, arXiv:1412.6980")
class Adam(OptimConfig):
    """Adam; weight decay, off by default, joins the gradient as an L2 penalty."""

    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Positive = 1e-8
    fused: bool | None = None

    def build(self, groups: list[dict[str, Any]]) -> Optimizer:
        fused = fusable(groups) if self.fused is None else self.fused
        return torch.optim.Adam(groups, lr=self.lr, betas=self.betas, eps=self.eps, weight_decay=0.0, fused=fused)


@register("optim", "sgd", paper="Sutskever et al. 2013, PMLR 28(3):1139")
class SGD(OptimConfig):
    """Stochastic gradient descent with Nesterov momentum; weight decay joins the gradient as an L2 penalty."""

    lr: Positive = 0.1
    weight_decay: Annotated[float, Field(ge=0.0)] = 1e-4
    momentum: Share = 0.9
    nesterov: bool = True
    fused: bool | None = None

    def build(self, groups: list[dict[str, Any]]) -> Optimizer:
        fused = fusable(groups) if self.fused is None else self.fused
        nesterov = self.nesterov and self.momentum > 0
        return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, nesterov=nesterov, fused=fused)


@register("optim", "muon", paper="Jordan et al. 2024, kellerjordan.github.io/posts/muon")
class MuonConfig(OptimConfig):
    """Orthogonal updates for the matrices inside the stack, AdamW at the same rate for all other parameters."""

    splits_matrices: ClassVar[bool] = True

    lr: Positive = 5e-3
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.1
    momentum: Share = 0.95
    betas: tuple[Share, Share] = (0.9, 0.95)
    """AdamW's."""
    eps: Positive = 1e-8
    fused: bool | None = None
    """AdamW's step in one kernel; null takes it wherever torch has it."""

    def build(self, groups: list[dict[str, Any]]) -> Optimizer:
        fused = fusable(groups) if self.fused is None else self.fused
        options = {"momentum": self.momentum, "betas": self.betas, "eps": self.eps}
        return Muon(groups, self.lr, fused=fused, **options)


@register("optim", "timm", paper="Wightman 2019, github.com/huggingface/pytorch-image-models")
class Timm(OptimConfig):
    """Any optimizer of timm by its name there (lamb, lion, adopt, muon ...), with its own options."""

    optimizer: str = "lamb"
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of that optimizer, e.g. {"betas": [0.9, 0.98]}."""

    def build(self, groups: list[dict[str, Any]]) -> Optimizer:
        import timm.optim

        choices = [str(name) for name in timm.optim.list_optimizers()]
        if self.optimizer not in choices:
            text = f"unknown timm optimizer '{self.optimizer}'{nearest(self.optimizer, choices)}"
            raise ConfigError(f"{text}; choices: {', '.join(choices)}", "optim.optimizer")
        try:
            create: Any = timm.optim.create_optimizer_v2
            return create(groups, opt=self.optimizer, lr=self.lr, weight_decay=0.0, **self.options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"timm's {self.optimizer} refuses {self.options}: {error}", "optim.options") from None


def parameter_groups(model: nn.Module, config: OptimConfig, optional: Collection[str] = ()) -> list[dict[str, Any]]:
    """Groups for a torch optimizer: each trainable parameter once, with its own `weight_decay` and `lr`.

    The order follows `named_parameters`, so that an optimizer's state finds its parameters again on resume.
    optional: keys of `lr_scale` that may fit no parameter. Raises ConfigError for another that fits none.
    """
    kept = undecayed_names(model)
    matrices = hidden_matrices(model) if config.splits_matrices else set()
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    used: set[str] = set()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        scales = [fragment for fragment in config.lr_scale if fragment in name]
        used.update(scales)
        rate = config.lr
        for fragment in scales:
            rate *= config.lr_scale[fragment]
        decay = 0.0 if name in kept else config.weight_decay
        groups.setdefault((decay, rate, id(parameter) in matrices), []).append(parameter)
    if unused := sorted(set(config.lr_scale) - used - set(optional)):
        raise ConfigError(f"no parameter's name contains '{unused[0]}'", "optim.lr_scale")
    made: list[dict[str, Any]] = []
    for (decay, rate, matrix), found in groups.items():
        made.append({"params": found, "weight_decay": decay, "lr": rate} | ({"muon": True} if matrix else {}))
    return made


def hidden_matrices(model: nn.Module) -> set[int]:
    """Ids of the weights of linear maps inside the zoo's stacks, of experts' stacked maps too.

    Routers are left out, as heads are: they are classifiers, and an update with equal singular values would move the
    scores of all experts equally far, however few tokens one of them had.
    In a model without a stack: of all linear and recurrent layers but those called a head or classifier.
    """
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    if stacks:
        maps = (nn.Linear, ExpertLinear)
        return {id(layer.weight) for stack in stacks for layer in stack.modules() if isinstance(layer, maps)}
    found: set[int] = set()
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.RNNBase)) and not any(word in name for word in ("head", "classifier")):
            found |= {id(weight) for weight in module.parameters(recurse=False) if weight.ndim == 2}
    return found


def undecayed_names(model: nn.Module) -> set[str]:
    """Names (as `named_parameters` gives them) of the parameters that weight decay leaves alone."""
    first: dict[int, str] = {id(parameter): name for name, parameter in model.named_parameters()}
    return {first[id(parameter)] for parameter in _undecayed(model) if id(parameter) in first}


def _undecayed(model: nn.Module) -> Iterator[nn.Parameter]:
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False))
        norm = type(module).__name__.lower().endswith("norm")
        yield from (parameter for parameter in own.values() if norm or parameter.ndim < 2)
        names: list[str] = [*getattr(module, "undecayed", ())]
        listed: Any = getattr(module, "no_weight_decay", None)  # timm's models say it by a method
        if callable(listed):
            names += list(listed())  # type: ignore[call-overload]
        for name in names:
            owner: Any = module
            for step in name.split("."):
                owner = getattr(owner, step, None)
            if isinstance(owner, nn.Parameter):  # a build without the part declares it all the same
                yield owner


def fusable(groups: list[dict[str, Any]]) -> bool:
    """Whether torch's fused step takes all these parameters: plain floats on a CPU or a CUDA device."""
    parameters = [parameter for group in groups for parameter in group["params"]]
    return all(
        type(parameter) is nn.Parameter and parameter.is_floating_point() and parameter.device.type in ("cpu", "cuda")
        for parameter in parameters
    )
