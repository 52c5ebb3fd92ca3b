"""Whisper: speech to text by an encoder-decoder. Radford et al. 2022, arXiv:2212.04356.

    features (B, M, F) -> two convolutions -> sines -> two-sided stack -> memory (B, S, D)          S = F / 2
    target (B, T) -> embedding -> learned positions -> causal stack that reads the memory -> logits (B, T, V)

Features are zoo.ops.log_mel's. The target opens with tokens that say what is asked: start of transcript, language,
transcribe or translate, timestamps or none. Pre-norm with LayerNorm, GELU, a tied head, no biases on keys.

The paper's encoder reads 30 s, padded with silence. Here it reads any length, with a mask where clips are padded:
sines have no end. `source_mask` None is the fixed form. A pretrained model knows padded clips of 30 s only.
"""

from __future__ import annotations

from math import ceil
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from zoo.blocks.api import Context, MixerConfig, NormConfig, PositionConfig, Recorder
from zoo.blocks.audio_stem import AudioStem
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.blocks.norms import LayerNormConfig
from zoo.blocks.positions import LearnedPositionConfig, SinusoidalConfig
from zoo.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from zoo.registry import ConfigError, part, register, register_preset

__all__ = ["Whisper", "WhisperConfig"]

Stride = Annotated[int, Field(ge=1)]


@register("model", "whisper", paper="Radford et al. 2022, arXiv:2212.04356")
class WhisperConfig(EncoderDecoderConfig):
    """Whisper: an encoder over log-mel frames and a decoder that writes text."""

    dim: Annotated[int, Field(ge=1)] = 384
    depth: Annotated[int, Field(ge=0)] = 4
    heads: Annotated[int, Field(ge=1)] = 6
    mixer: Annotated[MixerConfig, part("mixer")] = AttentionConfig(key_bias=False)
    norm: Annotated[NormConfig, part("norm")] = LayerNormConfig(eps=1e-5)
    position: Annotated[PositionConfig, part("position")] = LearnedPositionConfig()
    """Of the decoder, and of the encoder unless `encoder_position` or the next sentence says otherwise."""
    encoder_position: Annotated[PositionConfig | None, part("position")] = None
    """None: Whisper's sines where `position` is learned, else `position`."""
    vocab_size: Annotated[int, Field(ge=1)] = 51865
    max_len: Annotated[int, Field(ge=1)] = 448
    """Longest target."""
    start_id: Annotated[int, Field(ge=0)] = 50258
    mels: Annotated[int, Field(ge=1)] = 80
    """Features M of a frame."""
    max_frames: Annotated[int, Field(ge=1)] = 3000
    """Frames that learned encoder positions are made for; sines take any number."""
    strides: tuple[Stride, Stride] = (1, 2)
    """Of the two convolutions; (2, 2) halves the memory."""
    scale_branches: bool = False

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.source_vocab_size is not None:
            raise ConfigError(f"source_vocab_size {self.source_vocab_size} has no meaning for audio; leave it unset")
        return self

    @property
    def max_source_len(self) -> int:
        return ceil(ceil(self.max_frames / self.strides[0]) / self.strides[1])

    @property
    def encoder_stack(self) -> EncoderDecoderConfig:
        position = self.encoder_position
        if position is None:
            learned = isinstance(self.position, LearnedPositionConfig)
            position = SinusoidalConfig(convention="whisper") if learned else self.position
        return super().encoder_stack.model_copy(update={"position": position})

    def build(self) -> Whisper:
        return Whisper(self)


class Whisper(EncoderDecoder):
    """features (B, M, F), target (B, T) -> logits (B, T, V).

    `speech` holds the tokenizer and the decoding rules of a checkpoint that `zoo.from_hf` read (zoo/speech/tokens.py).
    """

    reads: Literal["ids", "features"] = "features"

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__(config)
        self.stem = AudioStem(config.mels, config.dim, config.strides)
        self.speech: Any = None

    def encode(self, source: Tensor, token_mask: Tensor | None = None, record: Recorder | None = None) -> Tensor:
        """Features (B, M, F) of frames with a mask (B, F) -> memory (B, S, D). Padding stands on the right."""
        x, mask = self.stem(source, token_mask)  # (B, S, D), (B, S)
        return self.encoder(x, Context(token_mask=mask, record=record))

    def memory_mask(self, source_mask: Tensor | None) -> Tensor | None:
        """The mask (B, S) of the memory, from that (B, F) of the frames."""
        return self.stem.mask(source_mask)

    def empty_source(self, batch: int, length: int, device: torch.device | str | None = None) -> Tensor:
        return torch.zeros(batch, self.stem.first.in_channels, length, device=device)


_PAPER = "Radford et al. 2022, arXiv:2212.04356"
_SIZES = {
    "tiny": (384, 4, 6),
    "base": (512, 6, 8),
    "small": (768, 12, 12),
    "medium": (1024, 24, 16),
    "large": (1280, 32, 20),
}
_ENGLISH: dict[str, Any] = {"vocab_size": 51864, "start_id": 50257}
_V3: dict[str, Any] = {"vocab_size": 51866, "mels": 128}


def _preset(name: str, size: str, summary: str, **choices: Any) -> None:
    dim, depth, heads = _SIZES[size]
    sizes = {"dim": dim, "depth": depth, "heads": heads}
    register_preset(WhisperConfig, f"whisper_{name}", summary, _PAPER, sizes | choices)


for _size in _SIZES:
    _preset(_size, _size, f"Whisper {_size}, 99 languages.")
    if _size != "large":
        _preset(f"{_size}_en", _size, f"Whisper {_size}, English only.", **_ENGLISH)
_preset("large_v2", "large", "Whisper large v2: large's shape, trained for longer.")
_preset("large_v3", "large", "Whisper large v3: 128 mels, 100 languages.", **_V3)
_preset("large_v3_turbo", "large", "Whisper large v3 turbo: a decoder of 4 layers.", depth=4, encoder_depth=32, **_V3)
