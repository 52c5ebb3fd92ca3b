"""The shared blocks. Read api.py first; then each file holds one idea.

from zoo.blocks import Attention, AttentionConfig, Context, Slot
"""

from __future__ import annotations

from zoo.blocks.api import (
    Capability,
    Context,
    FFNConfig,
    MixerConfig,
    ModelConfig,
    NormConfig,
    PositionConfig,
    Recorder,
    ResidualConfig,
    Slot,
    State,
    Sublayer,
)
from zoo.blocks.embeddings import PatchEmbedding, PrefixTokens, TokenEmbedding, resample_grid
from zoo.blocks.ffn.glu import GLU, GEGLUConfig, SwiGLUConfig
from zoo.blocks.ffn.mlp import MLP, MLPConfig
from zoo.blocks.heads import ClassificationHead, LanguageModelHead
from zoo.blocks.init import init_linear, materialise
from zoo.blocks.mixers.attention import Attention, AttentionConfig
from zoo.blocks.norms import LayerNormConfig, RMSNorm, RMSNormConfig
from zoo.blocks.stack import Block, Stack, TransformerConfig
from zoo.blocks.state import CrossState, KVState, StackState, WindowState

__all__ = [
    "GLU",
    "MLP",
    "Attention",
    "AttentionConfig",
    "Block",
    "Capability",
    "ClassificationHead",
    "Context",
    "CrossState",
    "FFNConfig",
    "GEGLUConfig",
    "KVState",
    "LanguageModelHead",
    "LayerNormConfig",
    "MLPConfig",
    "MixerConfig",
    "ModelConfig",
    "NormConfig",
    "PatchEmbedding",
    "PositionConfig",
    "PrefixTokens",
    "RMSNorm",
    "RMSNormConfig",
    "Recorder",
    "ResidualConfig",
    "Slot",
    "Stack",
    "StackState",
    "State",
    "Sublayer",
    "SwiGLUConfig",
    "TokenEmbedding",
    "TransformerConfig",
    "WindowState",
    "init_linear",
    "materialise",
    "resample_grid",
]
