"""Sparse upcycling: a trained dense model becomes a mixture of experts. Komatsuzaki et al. 2022, arXiv:2212.05055.

Each expert starts as a copy of the dense feed-forward. The weights of a token's experts sum to 1, so the new model
computes what the old one did until training parts the experts:  sum_e w_e f(x) = f(x).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zoo.blocks.ffn.hybrid import FFNHybridConfig
from zoo.blocks.ffn.moe import MoE, MoEConfig
from zoo.blocks.stack import TransformerConfig
from zoo.registry import ConfigError

__all__ = ["upcycle"]


@torch.no_grad()
def upcycle(model: nn.Module, *, every: int = 1, **choices: Any) -> nn.Module:
    """A new model with the weights of `model`, whose feed-forwards are mixtures of copies; same device, dtype and mode.

        sparse = upcycle(dense, experts=8, top_k=2)

    every: 1 for all layers, 2 for every second one, the others staying dense, from the second on. choices: fields of
    MoEConfig but `expert`, which is the model's own feed-forward. Raises ConfigError for choices whose outputs would
    not be the old ones, and for models whose feed-forward is no mlp, swiglu or geglu.
    """
    config: Any = getattr(model, "config", None)
    if not isinstance(config, TransformerConfig):
        raise ConfigError(f"{type(model).__name__} has no stack of blocks to upcycle")
    if every < 1:
        raise ConfigError(f"should be at least 1, got {every}", "every")
    moe = MoEConfig(**choices, expert=config.ffn)
    _check_exact(moe)
    pattern = (*[config.ffn] * (every - 1), moe)
    ffn = moe if every == 1 else FFNHybridConfig(pattern=pattern)
    made = config.model_copy(update={"ffn": ffn}).build()
    first = next(model.parameters())
    made.to(first.device, first.dtype).train(model.training)
    held = model.state_dict()
    for place, part in made.named_modules():
        if isinstance(part, MoE):
            for name, stacked in part.experts.named_parameters(prefix=place):
                stacked.copy_(held.pop(name).expand_as(stacked))
    missing, unexpected = made.load_state_dict(held, strict=False)
    assert not unexpected and all(".router." in name or ".experts." in name for name in missing)
    return made


def _check_exact(config: MoEConfig) -> None:
    """Raises ConfigError where the experts' copies would not add up to the dense feed-forward."""
    exact: dict[str, tuple[bool, str, str]] = {
        "router": (
            config.router == "tokens",
            "where experts choose, some tokens are served by several and some by none",
            "choose 'tokens'",
        ),
        "top_k": (
            config.top_k > 1,
            "a single expert is weighed by the router's score, which need not be 1",
            "choose 2 or more",
        ),
        "normalise": (config.renormalises, "the scores of the chosen experts do not add up to 1", "choose True"),
        "scale": (config.scale == 1.0, f"the weights of a token add up to {config.scale}, not to 1", "choose 1.0"),
        "weigh": (
            config.weigh == "output",
            "with an activation between, f(w x) is not w f(x)",
            "choose 'output'",
        ),
        "shared": (
            config.shared is None,
            "its output would come on top of the copies, which give the whole old output already",
            "choose None",
        ),
        "capacity": (config.capacity is None, "in training a full expert drops tokens", "choose None"),
        "eval_capacity": (config.eval_capacity is None, "in evaluation a full expert drops tokens", "choose None"),
    }
    for name, (same, reason, fix) in exact.items():
        if not same:
            value = getattr(config, name)
            told = getattr(value, "registered_name", value)  # of a feed-forward its name alone
            raise ConfigError(f"{told!r} changes what the model computes: {reason}; {fix}", name)
