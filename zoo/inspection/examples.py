"""Inputs of one forward pass of each family, as shapes on the meta device, and what one step of decoding is.

A family of your own joins with `@example.register(MyConfig)` on a function like those below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, nn

from zoo.blocks.api import Context
from zoo.models.bert import BERTConfig
from zoo.models.decision import DecisionConfig
from zoo.models.dit import DiTConfig
from zoo.models.electra import ELECTRAConfig
from zoo.models.encoder_decoder import EncoderDecoderConfig
from zoo.models.gpt import GPTConfig
from zoo.models.mmdit import MMDiTConfig
from zoo.models.rnn import RNNConfig
from zoo.models.timm import TimmConfig
from zoo.models.vit import ViTConfig
from zoo.models.whisper import WhisperConfig
from zoo.registry import ConfigError

__all__ = ["LENGTH", "Example", "example"]

LENGTH = 1000
"""Tokens of a row where nobody says other."""

RNN_LENGTH = 32
"""The same for the family whose every token is a step of Python: a sentence."""

Step = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Example:
    """Meta tensors for `model(*args)`, of `tokens` tokens a row."""

    args: tuple[Any, ...]
    tokens: int
    """Tokens of a row that the trunk, or the decoder, reads."""
    memory: int = 0
    """Tokens of the second sequence."""
    step: Step | None = None
    """(model, state) -> what one more token, or step, of every row takes; None for a family that does not decode."""
    unit: str = "tokens"
    """What `length` counts."""
    per_unit: int = 1
    """Tokens for each of them."""


@singledispatch
def example(config: Any, batch: int, length: int | None, memory_length: int | None) -> Example:
    """Inputs for `batch` rows of `length` tokens, and of `memory_length` tokens in a second sequence.

    None: 1,000 tokens, or what the config says; a second sequence is as long as the first. Raises ConfigError for a
    length where the config has it, and for a family that is not known here.
    """
    name = getattr(config, "registered_name", "") or "a model without a registered config"
    raise ConfigError(f"no inputs are known for {name}; give them: zoo.count(model, *inputs)", "model")


def _ids(batch: int, length: int) -> Tensor:
    return torch.zeros(batch, length, dtype=torch.int64, device="meta")


def _floats(*shape: int) -> Tensor:
    return torch.zeros(*shape, device="meta")


def _fixed(given: int | None, name: str, told: str) -> None:
    if given is not None:
        raise ConfigError(f"{told}; leave it out", name)


@example.register
def _(config: GPTConfig, batch: int, length: int | None, memory_length: int | None) -> Example:
    _fixed(memory_length, "memory_length", "this family reads no second sequence")
    length = length or min(LENGTH, config.max_len)
    return Example((_ids(batch, length),), length, step=lambda model, state: model(_ids(batch, 1), state=state))


@example.register(BERTConfig)
@example.register(ELECTRAConfig)
def _(config: Any, batch: int, length: int | None, memory_length: int | None) -> Example:
    _fixed(memory_length, "memory_length", "this family reads no second sequence")
    length = length or min(LENGTH, config.max_len)
    return Example((_ids(batch, length),), length)


@example.register(EncoderDecoderConfig)
@example.register(RNNConfig)
def _(config: Any, batch: int, length: int | None, memory_length: int | None) -> Example:
    tokens: int = length or min(LENGTH if isinstance(config, EncoderDecoderConfig) else RNN_LENGTH, config.max_len)
    source = memory_length or tokens
    args = (_ids(batch, source), _ids(batch, tokens))
    return Example(args, tokens, source, _decoder_step(batch, source, config.dim))


@example.register
def _(config: WhisperConfig, batch: int, length: int | None, memory_length: int | None) -> Example:
    _fixed(memory_length, "memory_length", f"the memory is that of max_frames={config.max_frames}")
    length, source = length or min(LENGTH, config.max_len), config.max_source_len
    args = (_floats(batch, config.mels, config.max_frames), _ids(batch, length))
    return Example(args, length, source, _decoder_step(batch, source, config.dim))


def _decoder_step(batch: int, source: int, dim: int) -> Step:
    def step(model: Any, state: Any) -> Tensor:
        context = Context(memory=_floats(batch, source, dim))
        return model.head(model.features(_ids(batch, 1), context, state))

    return step


@example.register
def _(config: DecisionConfig, batch: int, length: int | None, memory_length: int | None) -> Example:
    _fixed(memory_length, "memory_length", "this family reads no second sequence")
    steps: int = length or config.context

    def args(count: int) -> tuple[Any, ...]:
        actions = _ids(batch, count) if config.discrete else _floats(batch, count, config.action_dim)
        returns = _floats(batch, count) if config.return_to_go else None
        return _floats(batch, count, config.state_dim), actions, returns

    def step(model: nn.Module, state: Any) -> Any:
        return model(*args(1), timesteps=_ids(1, 1)[0], state=state)

    return Example(args(steps), config.tokens * steps, step=step, unit="steps", per_unit=config.tokens)


@example.register
def _(config: ViTConfig, batch: int, length: int | None, memory_length: int | None) -> Example:
    (height, width), (rows, columns) = config.image_size, config.patch_size
    prefix = (config.pool == "cls" or config.distilled) + config.distilled + config.registers
    tokens = prefix + (height // rows) * (width // columns)
    _fixed(length, "length", f"a row is an image of {height} x {width}, {tokens} tokens: choose image_size, patch_size")
    _fixed(memory_length, "memory_length", "this family reads no second sequence")
    return Example((_floats(batch, config.channels, height, width),), tokens)


@example.register
def _(config: TimmConfig, batch: int, length: int | None, memory_length: int | None) -> Example:
    height, width = config.image_size or (224, 224)
    _fixed(length, "length", f"a row is an image of {height} x {width}: choose image_size")
    _fixed(memory_length, "memory_length", "this family reads no second sequence")
    return Example((_floats(batch, config.channels, height, width),), 1)


@example.register
def _(config: DiTConfig, batch: int, length: int | None, memory_length: int | None) -> Example:
    (height, width), (rows, columns) = config.image_size, config.patch_size
    told = 1 if config.num_classes == 0 else 2
    tokens = (told if config.conditioning == "in_context" else 0) + (height // rows) * (width // columns)
    _fixed(length, "length", f"a row is an image of {height} x {width}, {tokens} tokens: choose image_size, patch_size")
    _fixed(memory_length, "memory_length", "the second sequence, if any, is the condition's")
    labels = _ids(1, batch)[0] if config.num_classes else None
    return Example((_floats(batch, config.channels, height, width), _floats(batch), labels), tokens)


TEXT = 154
"""Tokens of the text where nobody says other: Stable Diffusion 3's two encoders give 77 each."""


@example.register
def _(config: MMDiTConfig, batch: int, length: int | None, memory_length: int | None) -> Example:
    (height, width), (rows, columns) = config.image_size, config.patch_size
    tokens = (height // rows) * (width // columns)
    _fixed(length, "length", f"a row is an image of {height} x {width}, {tokens} tokens: choose image_size, patch_size")
    text = memory_length or TEXT
    image, pooled = _floats(batch, config.channels, height, width), _floats(batch, config.pooled_dim)
    return Example((image, _floats(batch), _floats(batch, text, config.text_dim), pooled), tokens, text)
