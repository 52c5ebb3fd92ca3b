"""The original Transformer. Vaswani et al. 2017, arXiv:1706.03762.

Post-norm, sinusoidal positions, embeddings times sqrt(D), one table for source, target and head, ReLU, no final norm.
Tables start at D^-0.5 and every matrix at 1 / sqrt(inputs). The paper's projections of queries, keys and values are
read as without biases elsewhere; here they have them, as in fairseq and tensor2tensor's successors.
BART (Lewis et al. 2019, arXiv:1910.13461) and Marian (Junczys-Dowmunt et al. 2018, arXiv:1804.00344) are presets.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from zoo.blocks.api import FFNConfig, NormConfig, PositionConfig, ResidualConfig
from zoo.blocks.ffn.mlp import MLPConfig
from zoo.blocks.norms import LayerNormConfig
from zoo.blocks.positions import SinusoidalConfig
from zoo.blocks.residual import PostConfig
from zoo.models.encoder_decoder import EncoderDecoderConfig
from zoo.registry import part, register

__all__ = ["OriginalTransformerConfig"]


@register("model", "transformer", paper="Vaswani et al. 2017, arXiv:1706.03762")
class OriginalTransformerConfig(EncoderDecoderConfig):
    """The Transformer of 2017: an encoder-decoder for translation."""

    dim: Annotated[int, Field(ge=1)] = 512
    heads: Annotated[int, Field(ge=1)] = 8
    ffn: Annotated[FFNConfig, part("ffn")] = MLPConfig(activation="relu")
    norm: Annotated[NormConfig, part("norm")] = LayerNormConfig(eps=1e-5)
    residual: Annotated[ResidualConfig, part("residual")] = PostConfig()
    position: Annotated[PositionConfig, part("position")] = SinusoidalConfig()
    vocab_size: Annotated[int, Field(ge=1)] = 37000
    """37,000 shared byte pairs for English and German."""
    init_std: Annotated[float, Field(gt=0)] | Literal["fan_in"] = "fan_in"
    scale_branches: bool = False
    scale_embeddings: bool = True


_PAPER = "Vaswani et al. 2017, arXiv:1706.03762"
_BART, _MARIAN = "Lewis et al. 2019, arXiv:1910.13461", "Junczys-Dowmunt et al. 2018, arXiv:1804.00344"


@register("model", "transformer_base", paper=_PAPER)
def transformer_base() -> OriginalTransformerConfig:
    """Transformer (base): 6 + 6 layers of width 512."""
    return OriginalTransformerConfig(depth=6, dropout=0.1)


@register("model", "transformer_big", paper=_PAPER)
def transformer_big() -> OriginalTransformerConfig:
    """Transformer (big): 6 + 6 layers of width 1,024."""
    return OriginalTransformerConfig(dim=1024, depth=6, heads=16, dropout=0.3)


def _bart(dim: int, depth: int, heads: int) -> OriginalTransformerConfig:
    choices: dict[str, Any] = {
        "ffn": {"activation": "gelu"},
        "position": {"name": "learned", "offset": 2},
        "vocab_size": 50265,
        "max_len": 1024,
        "input_norm": True,
        "scale_embeddings": False,
        "init_std": 0.02,
        "start_id": 2,
        "dropout": 0.1,
    }
    return OriginalTransformerConfig(dim=dim, depth=depth, heads=heads, **choices)


@register("model", "bart_base", paper=_BART)
def bart_base() -> OriginalTransformerConfig:
    """BART base, 139 M: learned positions, GELU, a norm on the embeddings."""
    return _bart(768, 6, 12)


@register("model", "bart_large", paper=_BART)
def bart_large() -> OriginalTransformerConfig:
    """BART large, 406 M."""
    return _bart(1024, 12, 16)


@register("model", "marian_base", paper=_MARIAN)
def marian_base() -> OriginalTransformerConfig:
    """Marian as OPUS-MT trains it (English to German): sines then cosines, SiLU, a bias on the logits."""
    choices: dict[str, Any] = {"ffn": {"activation": "silu"}, "position": {"convention": "halves"}}
    return OriginalTransformerConfig(depth=6, vocab_size=58101, start_id=58100, head_bias=True, dropout=0.1, **choices)
