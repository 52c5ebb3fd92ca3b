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
from zoo.blocks.ffn.glu import GLU, GEGLUConfig, GLUConfig, SwiGLUConfig
from zoo.blocks.ffn.hybrid import FFNHybridConfig
from zoo.blocks.ffn.mlp import MLP, MLPConfig
from zoo.blocks.ffn.moe import MoE, MoEConfig
from zoo.blocks.heads import ClassificationHead, LanguageModelHead
from zoo.blocks.init import init_linear, materialise
from zoo.blocks.mixers.attention import Attention, AttentionConfig
from zoo.blocks.mixers.conv import Conv, ConvConfig
from zoo.blocks.mixers.delta import DeltaConfig, DeltaRule
from zoo.blocks.mixers.gated_delta import GatedDeltaConfig
from zoo.blocks.mixers.gla import GLA, GLAConfig
from zoo.blocks.mixers.gru import GRU, GRUConfig
from zoo.blocks.mixers.hybrid import HybridConfig
from zoo.blocks.mixers.kda import KDAConfig
from zoo.blocks.mixers.lightning import Lightning, LightningConfig
from zoo.blocks.mixers.linear_attention import CrossLinearAttention, LinearAttention, LinearAttentionConfig
from zoo.blocks.mixers.lstm import LSTM, LSTMConfig
from zoo.blocks.mixers.mamba import Mamba, MambaConfig
from zoo.blocks.mixers.mamba2 import Mamba2, Mamba2Config
from zoo.blocks.mixers.mla import LatentAttention, MLAConfig
from zoo.blocks.mixers.retention import Retention, RetentionConfig
from zoo.blocks.mixers.rwkv7 import RWKV7, RWKV7Config
from zoo.blocks.norms import LayerNormConfig, RMSNorm, RMSNormConfig
from zoo.blocks.stack import Block, Stack, TransformerConfig
from zoo.blocks.state import CrossState, KVState, StackState, WindowState

__all__ = [
    "GLA",
    "GLU",
    "GRU",
    "LSTM",
    "MLP",
    "RWKV7",
    "Attention",
    "AttentionConfig",
    "Block",
    "Capability",
    "ClassificationHead",
    "Context",
    "Conv",
    "ConvConfig",
    "CrossLinearAttention",
    "CrossState",
    "DeltaConfig",
    "DeltaRule",
    "FFNConfig",
    "FFNHybridConfig",
    "GEGLUConfig",
    "GLAConfig",
    "GLUConfig",
    "GRUConfig",
    "GatedDeltaConfig",
    "HybridConfig",
    "KDAConfig",
    "KVState",
    "LSTMConfig",
    "LanguageModelHead",
    "LatentAttention",
    "LayerNormConfig",
    "Lightning",
    "LightningConfig",
    "LinearAttention",
    "LinearAttentionConfig",
    "MLAConfig",
    "MLPConfig",
    "Mamba",
    "Mamba2",
    "Mamba2Config",
    "MambaConfig",
    "MixerConfig",
    "MoE",
    "MoEConfig",
    "ModelConfig",
    "NormConfig",
    "PatchEmbedding",
    "PositionConfig",
    "PrefixTokens",
    "RMSNorm",
    "RMSNormConfig",
    "RWKV7Config",
    "Recorder",
    "ResidualConfig",
    "Retention",
    "RetentionConfig",
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
