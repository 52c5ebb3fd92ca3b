"""DeltaNet: a matrix memory that overwrites what it holds under a key. Yang et al. 2024, arXiv:2406.06484.

    S_t = (1 - beta_t k_t k_t') S_{t-1} + beta_t k_t v_t'      S (K, V) per head, keys of length 1
    o_t = S_t' q_t / sqrt(K)

The module is Gated DeltaNet's without the forgetting factor and, as in the paper, without an output gate. The rule is
Schlag et al.'s (2021, arXiv:2102.11174). With `negative_eigenvalues` one layer computes parity (Grazzi et al. 2024,
arXiv:2411.12537).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from zoo.blocks.mixers.gated_delta import GatedDeltaConfig
from zoo.blocks.output_gate import GateName
from zoo.registry import register

__all__ = ["DeltaConfig"]


@register("mixer", "delta", paper="Yang et al. 2024, arXiv:2406.06484")
class DeltaConfig(GatedDeltaConfig):
    """The delta rule: what a key held is replaced, and nothing is forgotten."""

    expand_v: Annotated[float, Field(gt=0)] = 1.0
    """Value width V over K."""
    gate: GateName = "none"
    """Gate of x on the heads' outputs."""
    decay: bool = False
    """Forgetting factor; with it this is `gated_delta`."""
