"""Positions, a file an idea: absolute tables at the input, rotations of queries and keys, biases of the scores, none.

A `PositionConfig` says by `place` who applies what it builds (zoo/blocks/api.py); `token_positions` counts.
"""

from __future__ import annotations

from zoo.blocks.positions.alibi import AlibiBias, AlibiConfig, alibi_slopes, naive_alibi
from zoo.blocks.positions.indices import document_index, naive_token_positions, token_positions
from zoo.blocks.positions.learned import LearnedPositionConfig, LearnedPositions
from zoo.blocks.positions.none import NoPositionConfig, NoPositions
from zoo.blocks.positions.rotary import Rope, RopeConfig, naive_rope, rotary_tables, rotary_width, rotate
from zoo.blocks.positions.rotary2d import Rope2d, Rope2dConfig
from zoo.blocks.positions.rotary_scaling import (
    DynamicNTKScalingConfig,
    LinearScalingConfig,
    Llama3ScalingConfig,
    NoScalingConfig,
    NTKScalingConfig,
    RopeScalingConfig,
    YarnScalingConfig,
    inverse_frequencies,
)
from zoo.blocks.positions.sincos2d import Sincos2dConfig, Sincos2dPositions, sincos2d_table
from zoo.blocks.positions.sinusoidal import SinusoidalConfig, SinusoidalPositions, sinusoid
from zoo.blocks.positions.t5_bias import T5Bias, T5BiasConfig, naive_t5_bucket, t5_bucket

__all__ = [
    "AlibiBias",
    "AlibiConfig",
    "DynamicNTKScalingConfig",
    "LearnedPositionConfig",
    "LearnedPositions",
    "LinearScalingConfig",
    "Llama3ScalingConfig",
    "NTKScalingConfig",
    "NoPositionConfig",
    "NoPositions",
    "NoScalingConfig",
    "Rope",
    "Rope2d",
    "Rope2dConfig",
    "RopeConfig",
    "RopeScalingConfig",
    "Sincos2dConfig",
    "Sincos2dPositions",
    "SinusoidalConfig",
    "SinusoidalPositions",
    "T5Bias",
    "T5BiasConfig",
    "YarnScalingConfig",
    "alibi_slopes",
    "document_index",
    "inverse_frequencies",
    "naive_alibi",
    "naive_rope",
    "naive_t5_bucket",
    "naive_token_positions",
    "rotary_tables",
    "rotary_width",
    "rotate",
    "sincos2d_table",
    "sinusoid",
    "t5_bucket",
    "token_positions",
]
