"""T5: text to text. Raffel et al. 2019, arXiv:1910.10683; version 1.1: Shazeer 2020, arXiv:2002.05202.

Pre-norm with RMSNorm, no biases, one relative bias per stack shared by its layers and none between the sequences, and
no 1 / sqrt(K): queries start smaller by that factor instead. Version 1.0 has ReLU and a tied head whose input is
scaled by 1 / sqrt(D); version 1.1 has gated GELU and a head of its own.

Initial values: tables 1, every matrix 1 / sqrt(inputs), queries (D K)^-0.5, relative bias D^-0.5. The untied head
starts at D^-0.5, not at T5's 1, which makes the first logits sqrt(D) too large. Dropout acts on the stacks' inputs and
on every branch, not on the stacks' outputs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from zoo.blocks.api import FFNConfig, MixerConfig, NormConfig, PositionConfig
from zoo.blocks.ffn.mlp import MLPConfig
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.blocks.norms import RMSNormConfig
from zoo.blocks.positions import T5BiasConfig
from zoo.models.encoder_decoder import EncoderDecoderConfig
from zoo.registry import part, register, register_preset

__all__ = ["T5Config"]


@register("model", "t5", paper="Raffel et al. 2019, arXiv:1910.10683")
class T5Config(EncoderDecoderConfig):
    """T5: an encoder-decoder with relative biases, trained by filling in spans."""

    dim: Annotated[int, Field(ge=1)] = 512
    heads: Annotated[int, Field(ge=1)] = 8
    mixer: Annotated[MixerConfig, part("mixer")] = AttentionConfig(bias=False, out_bias=False, scale=1.0)
    ffn: Annotated[FFNConfig, part("ffn")] = MLPConfig(activation="relu", bias=False)
    norm: Annotated[NormConfig, part("norm")] = RMSNormConfig()
    position: Annotated[PositionConfig, part("position")] = T5BiasConfig()
    init_std: Annotated[float, Field(gt=0)] | Literal["fan_in"] = "fan_in"
    scale_branches: bool = False
    scale_head: bool = True
    embedding_std: Annotated[float, Field(gt=0)] | None = 1.0


def _preset(name: str, summary: str, paper: str, choices: dict[str, Any]) -> None:
    register_preset(T5Config, name, summary, paper, choices)


def _form(dim: int, depth: int, heads: int, hidden: int, head_dim: int, gated: bool) -> dict[str, Any]:
    choices: dict[str, Any] = {
        "dim": dim,
        "depth": depth,
        "heads": heads,
        "mixer": {"head_dim": head_dim},
        "ffn": {"hidden": hidden},
        "position": {"init_std": dim**-0.5},
    }
    if gated:
        choices["ffn"] = {"name": "geglu", "hidden": hidden, "activation": "gelu_tanh"}
        choices |= {"tie_embeddings": False, "scale_head": False}
    return choices


_PAPER, _GATED = "Raffel et al. 2019, arXiv:1910.10683", "Shazeer 2020, arXiv:2002.05202"
for _name, _sizes in (
    ("small", (512, 6, 8, 2048, 64)),
    ("base", (768, 12, 12, 3072, 64)),
    ("large", (1024, 24, 16, 4096, 64)),
    ("3b", (1024, 24, 32, 16384, 128)),
    ("11b", (1024, 24, 128, 65536, 128)),
):
    _preset(f"t5_{_name}", f"T5 1.0 {_name}.", _PAPER, _form(*_sizes, gated=False))
for _name, _sizes in (
    ("small", (512, 8, 6, 1024, 64)),
    ("base", (768, 12, 12, 2048, 64)),
    ("large", (1024, 24, 16, 2816, 64)),
    ("xl", (2048, 24, 32, 5120, 64)),
    ("xxl", (4096, 24, 64, 10240, 64)),
):
    _preset(f"t5_v1_1_{_name}", f"T5 1.1 {_name}.", _GATED, _form(*_sizes, gated=True))
