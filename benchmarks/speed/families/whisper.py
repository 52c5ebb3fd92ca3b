"""Whisper: the encoder trained, against Hugging Face's and openai-whisper's form; greedy decoding, against `generate`.

fp32 weights, dropout 0, exact GELU. The encoder's case is the paper's window of 30 s at the size of "tiny"; the loss is
the mean square of the memory. Decoding writes the same number of tokens on both sides after a prompt of two, no end
token and no suppression: "decode" of audio that is encoded already, "encode+decode" of features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.arms import BACKWARD, OURS, Arm, Family, Target, supervised

__all__ = ["DECODE", "FAMILY", "WhisperCase"]

DECODE, WHOLE = "decode", "encode+decode"


@dataclass(frozen=True, kw_only=True)
class WhisperCase:
    name: str
    batch: int = 1
    frames: int = 3000
    new: int = 0
    """Tokens to write; 0: the encoder alone."""
    dim: int = 384
    depth: int = 4
    heads: int = 6
    mels: int = 80
    vocab_size: int = 4096
    smoke: bool = False

    def features(self) -> Tensor:
        return torch.randn(self.batch, self.mels, self.frames)  # (B, M, F)


_SMALL: dict[str, Any] = {"frames": 20, "dim": 32, "depth": 1, "heads": 2, "mels": 8, "vocab_size": 64, "smoke": True}

FAMILY: Family[WhisperCase] = Family(
    "whisper",
    cases=(
        WhisperCase(name="encoder-30s-b1"),
        WhisperCase(name="encoder-10s-b4", batch=4, frames=1000),
        WhisperCase(name="decode-30s-b1", new=64),
        WhisperCase(name="decode-30s-b4", batch=4, new=64),
        WhisperCase(name="smoke", batch=2, **_SMALL),
        WhisperCase(name="smoke-decode", batch=2, new=3, **_SMALL),
    ),
    targets=(
        Target("time", 1.05, peer="transformers", mode=BACKWARD),
        Target("time", 1.05, peer="openai", mode=BACKWARD),
        Target("memory", 1.05, peer="transformers", mode=BACKWARD),
        Target("time", 0.77, peer="transformers", mode=DECODE),
    ),
)


def _encoder(module: nn.Module, case: WhisperCase, output: Callable[[Any], Tensor] = lambda memory: memory) -> Arm:
    arm = supervised(module, [case.features()], [], output=output, loss=lambda memory: memory.square().mean())
    return Arm(arm.calls, module)


class _Decoding(Arm):
    """In evaluation mode in each mode."""

    def ready(self, mode: str) -> Callable[[], object]:
        return self.calls[mode]


def _decoding(module: nn.Module, **answers: Callable[[], Any]) -> Arm:
    module.eval()
    calls = {DECODE: torch.inference_mode()(answers["encoded"]), WHOLE: torch.inference_mode()(answers["whole"])}
    return _Decoding(calls, module)


class _Encoder(nn.Module):
    """The encoder alone, as the shared arm calls it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.stem, self.encoder = model.stem, model.encoder
        self._encode = (model.encode,)  # a tuple: the decoder is no part of this

    def forward(self, features: Tensor) -> Tensor:
        return self._encode[0](features)


@FAMILY.peer(OURS)
def zoo(case: WhisperCase) -> Arm:
    from zoo import create_model, generate
    from zoo.blocks.api import Context

    sizes: dict[str, Any] = {"dim": case.dim, "depth": case.depth, "heads": case.heads, "mels": case.mels}
    model: Any = create_model("whisper", vocab_size=case.vocab_size, start_id=1, max_frames=case.frames, **sizes)
    if not case.new:
        return _encoder(_Encoder(model), case)
    features, prompt = case.features(), torch.tensor([[1, case.vocab_size - 1]]).expand(case.batch, -1)
    memory = model.eval().encode(features).detach()

    def encoded() -> Any:
        state = model.init_state(case.batch, case.new + 2)
        model.features(prompt[:, :1], Context(memory=memory), state)
        return generate(model, prompt[:, 1:], state=state, max_new_tokens=case.new)

    def whole() -> Any:
        return generate(model, prompt, source=features, max_new_tokens=case.new)

    return _decoding(model, encoded=encoded, whole=whole)


@FAMILY.peer("transformers")
def transformers(case: WhisperCase) -> Arm:
    from transformers import WhisperConfig, WhisperForConditionalGeneration
    from transformers.modeling_outputs import BaseModelOutput

    config = WhisperConfig(
        vocab_size=case.vocab_size,
        num_mel_bins=case.mels,
        d_model=case.dim,
        encoder_layers=case.depth,
        decoder_layers=case.depth,
        encoder_attention_heads=case.heads,
        decoder_attention_heads=case.heads,
        encoder_ffn_dim=4 * case.dim,
        decoder_ffn_dim=4 * case.dim,
        max_source_positions=case.frames // 2,
        decoder_start_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
        begin_suppress_tokens=None,
        suppress_tokens=None,
    )
    model: Any = WhisperForConditionalGeneration(config)
    model.model.encoder.embed_positions.requires_grad_(False)  # the sines, which are no weights
    if not case.new:
        return _encoder(model.model.encoder, case, lambda answer: answer.last_hidden_state)
    model.generation_config.no_timestamps_token_id = case.vocab_size - 1  # ends the prompt
    features = case.features()
    memory = BaseModelOutput(model.eval().model.encoder(features).last_hidden_state.detach())
    settings = {"max_new_tokens": case.new, "do_sample": False, "num_beams": 1, "return_timestamps": False}
    return _decoding(
        model,
        encoded=lambda: model.generate(encoder_outputs=memory, **settings),
        whole=lambda: model.generate(features, **settings),
    )


class _OpenAIBlock(nn.Module):
    """ResidualAttentionBlock of openai-whisper 20250625, whisper/model.py (MIT), self-attention alone."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)
        self.value, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.attn_ln, self.mlp_ln = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        h = self.attn_ln(x)  # (B, T, D)
        parts = (linear(h) for linear in (self.query, self.key, self.value))
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in parts)  # (B, H, T, K)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_ln(x))


class _OpenAIEncoder(nn.Module):
    """AudioEncoder of the same file."""

    positional_embedding: Tensor

    def __init__(self, case: WhisperCase) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(case.mels, case.dim, 3, padding=1)
        self.conv2 = nn.Conv1d(case.dim, case.dim, 3, stride=2, padding=1)
        self.register_buffer("positional_embedding", torch.randn(case.frames // 2, case.dim))
        self.blocks = nn.ModuleList(_OpenAIBlock(case.dim, case.heads) for _ in range(case.depth))
        self.ln_post = nn.LayerNorm(case.dim)

    def forward(self, features: Tensor) -> Tensor:
        x = F.gelu(self.conv2(F.gelu(self.conv1(features)))).permute(0, 2, 1)  # (B, T, D)
        x = x + self.positional_embedding
        for block in self.blocks:
            x = block(x)
        return self.ln_post(x)


@FAMILY.peer("openai")
def openai(case: WhisperCase) -> Arm | None:
    return None if case.new else _encoder(_OpenAIEncoder(case), case)
