"""Text, or any ids, from a model: greedy, sampling and beam search over the one State protocol (`generate`)."""

from __future__ import annotations

from zoo.generation.config import GenerationConfig
from zoo.generation.entry import generate, prefill, state_bytes
from zoo.generation.prompt_cache import PromptCache
from zoo.generation.result import Generated

__all__ = ["Generated", "GenerationConfig", "PromptCache", "generate", "prefill", "state_bytes"]
