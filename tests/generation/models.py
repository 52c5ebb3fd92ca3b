"""Small models of every kind that generation must serve, in fp64, with rows of prompts."""

from __future__ import annotations

from typing import Any

import torch

import zoo

VOCAB, START = 23, 3
POSITIONS: dict[str, dict[str, Any]] = {
    "none": {"position": "none"},
    "learned": {"position": "learned"},
    "sinusoidal": {"position": "sinusoidal"},
    "rope": {"position": "rope"},
    "yarn": {"position": {"name": "rope", "scaling": {"name": "yarn", "factor": 4.0, "original_max_len": 16}}},
    # within the trained length: beyond it a state keeps the angles of its own length, as the config says
    "dynamic_ntk": {"position": {"name": "rope", "scaling": {"name": "dynamic_ntk", "original_max_len": 64}}},
    "alibi": {"position": "alibi", "dim": 24, "heads": 6},
    "t5_bias": {"position": "t5_bias"},
}
MIXERS: dict[str, dict[str, Any]] = {
    "full": {"position": "rope"},
    "grouped": {"position": "rope", "heads": 4, "mixer": {"kv_heads": 2}},
    "window": {"position": "rope", "mixer": {"window": 8}},
    "window_alibi": {"position": "alibi", "dim": 24, "heads": 6, "mixer": {"window": 5}},
    "window_sinks": {"position": "rope", "mixer": {"window": 4, "sinks": 2}},
    "softcap_sink": {"position": "none", "mixer": {"softcap": 5.0, "sink_logit": True}},
    "parallel": {"position": "learned", "layout": "parallel"},
    "post": {"position": "sinusoidal", "residual": "post"},
    "hybrid": {
        "position": "rope",
        "mixer": {"name": "hybrid", "pattern": [{"name": "attention", "window": 4}, "attention"]},
    },
}


def decoder(seed: int = 0, **choices: Any) -> Any:
    """A GPT of two layers whose answers vary: weights of standard deviation 0.3."""
    torch.manual_seed(seed)
    base = {
        "vocab_size": VOCAB,
        "max_len": 64,
        "dim": 16,
        "depth": 2,
        "heads": 2,
        "init_std": 0.3,
        "tie_embeddings": False,
    }
    return zoo.create_model("gpt", **{**base, **choices}).double().eval()


def encoder_decoder(family: str = "t5", seed: int = 0, **choices: Any) -> Any:
    torch.manual_seed(seed)
    base = {"vocab_size": VOCAB, "max_len": 64, "dim": 16, "depth": 2, "heads": 2, "start_id": START}
    return zoo.create_model(family, **{**base, **choices}).double().eval()


def prompt(length: int, seed: int = 1) -> torch.Tensor:
    """Ids (length,)."""
    return torch.randint(1, VOCAB, (length,), generator=torch.Generator().manual_seed(seed))


def padded(where: str, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Three prompts of 7, 3 and 5 tokens as ids (3, 9) with a mask, and the prompts themselves."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCAB, (3, 9), generator=generator)
    mask = torch.zeros(3, 9, dtype=torch.bool)
    for row, length in enumerate((7, 3, 5)):
        if where == "left":
            mask[row, 9 - length :] = True
        elif where == "right":
            mask[row, :length] = True
        else:
            mask[row, torch.randperm(9, generator=generator)[:length]] = True
    return ids, mask, [row[keep] for row, keep in zip(ids, mask, strict=True)]
