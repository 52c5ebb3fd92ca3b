"""Random states in the checkpoint, so that a resumed run draws what the unbroken run would have drawn."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch

from recipes.lightning_import import Callback, LightningModule, Trainer


def random_states() -> dict[str, Any]:
    """The states of torch, CUDA, numpy and Python, as tensors, lists and numbers (loads with weights_only)."""
    version, words, gauss = random.getstate()
    state: Any = numpy.random.get_state(legacy=True)
    name, keys, position, has_gauss, cached = state
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, list(words), gauss],
        "numpy": [str(name), torch.from_numpy(keys.astype("int64")), int(position), int(has_gauss), float(cached)],
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Put back what `random_states` gave."""
    torch.set_rng_state(states["torch"].cpu())
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    numpy.random.set_state((name, keys.cpu().numpy().astype("uint32"), position, has_gauss, cached))
    cuda = states.get("cuda") or []
    if cuda and torch.cuda.is_available() and len(cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([state.cpu() for state in cuda])


class RandomState(Callback):
    """Saves the random states and puts them back when training starts, after everything that draws at set-up.

    With several ranks every rank goes on from the states of rank 0.
    """

    def __init__(self) -> None:
        self.loaded: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        return random_states()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loaded = state_dict

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.loaded is not None:
            set_random_states(self.loaded)
            self.loaded = None
