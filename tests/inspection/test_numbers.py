"""Numbers on counts and shapes that a chapter on attention and an article on the Transformer work out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import zoo
from zoo.inspection.count import shadow
from zoo.inspection.examples import example
from zoo.inspection.states import state_bytes
from zoo.inspection.walk import walk

D, L = 4096, 32
BARE: dict[str, Any] = {
    "family": "gpt",
    "mixer": {"bias": False, "out_bias": False},
    "ffn": {"bias": False},
    "norm": "none",
    "position": "none",
}
CHAPTER: dict[str, Any] = {**BARE, "dim": D, "depth": L, "heads": 32, "vocab_size": 128_000}
"""The chapter's model: only matrices are counted there."""


def test_the_chapters_7b_model_is_counted_as_by_hand() -> None:
    found = walk(CHAPTER, 1000)
    layer = [step for step in found.steps if step.layers]
    attention = sum(step.params for step in layer if "feed-forward" not in step.operation)
    feed_forward = sum(step.params for step in layer if "feed-forward" in step.operation)
    assert (attention, feed_forward) == (4 * D * D, 8 * D * D) == (67_108_864, 134_217_728)
    assert attention + feed_forward == 201_326_592 and (attention + feed_forward) * L == 6_442_450_944
    assert found.params == 6_966_738_944 and 128_000 * D == 524_288_000 == found.params - 6_442_450_944
    assert zoo.count({**CHAPTER, "tie_embeddings": False}, length=1).params == 7_491_026_944
    assert feed_forward / (attention + feed_forward) == pytest.approx(0.667, abs=5e-4)
    assert feed_forward * L / found.params == pytest.approx(0.616, abs=5e-4)
    products = sum(step.flops for step in layer if step.params)
    scores = sum(step.flops for step in layer if not step.params)
    assert products == 24 * 1000 * D * D and products / 1e9 == pytest.approx(402.7, abs=0.05)
    assert scores == 4 * 1000**2 * D and scores / 1e9 == pytest.approx(16.4, abs=0.05)
    assert (
        sum(
            step.params
            for step in walk({**CHAPTER, "heads": 8}, 8).steps
            if step.layers and "feed" not in step.operation
        )
        == 4 * D * D
    )


def test_shapes_of_the_chapters_walk() -> None:
    made = [step.made for step in walk({**CHAPTER, "depth": 1}, 1000).steps]
    for shape in ("1000x4096", "32x1000x128, 32x1000x128, 32x1000x128", "32x1000x1000", "32x1000x128", "1000x128000"):
        assert shape in made


@pytest.mark.parametrize(
    ("model", "full", "visible"),
    [
        ({**CHAPTER, "depth": 2, "vocab_size": 8}, 24_576, 49_152),  # 6 d, and 12 d where the hidden half is skipped
        ("llama3_8b", 26_624, 53_248),  # 6.5 d
    ],
)
def test_attention_overtakes_the_rest_where_the_chapter_says(model: Any, full: int, visible: int) -> None:
    """Visible pairs are n (n + 1) / 2, the diagonal whole, so the point comes one token early."""
    found = zoo.count(model, length=8)
    assert (found.crossover, found.crossover_visible) == (full, visible - 1)


@pytest.mark.parametrize(
    ("dim", "depth", "vocab", "share"),
    [(768, 12, 50257, 0.312), (4096, 32, 128_000, 0.075), (12288, 96, 50257, 0.0035)],
)
def test_embeddings_take_less_of_a_larger_model(dim: int, depth: int, vocab: int, share: float) -> None:
    model = shadow({**BARE, "dim": dim, "depth": depth, "heads": dim // 64, "vocab_size": vocab})
    total = sum(parameter.numel() for parameter in model.parameters())
    assert vocab * dim / total == pytest.approx(share, abs=5e-4)


def test_twice_the_tokens_make_four_times_the_scores() -> None:
    mixer = zoo.create_mixer("attention", dim=64, heads=4, causal=True)
    assert mixer.core_flops(1, 2000) == 4 * mixer.core_flops(1, 1000)
    one = next(step.made for step in walk({**CHAPTER, "depth": 1}, 8192).steps if step.operation.startswith("scores"))
    heads, rows, columns = map(int, one.split("x"))
    assert (
        rows * columns == 67_108_864 and rows * columns * 4 == 256 * 2**20 and heads * rows * columns * 2 == 4 * 2**30
    )


def test_llama_3_8b_at_1000_tokens() -> None:
    """15.53 TFLOP: 2 for each parameter and token, without the gathered table, and 0.52 of scores."""
    found, steps = zoo.count("llama3_8b", length=1000), walk("llama3_8b", 1000).steps
    assert found.flops_forward / 1e12 == pytest.approx(15.53, abs=0.005)
    rule = 2 * 1000 * (found.params - 128_256 * 4096)
    scores = 32 * 4 * 1000**2 * 4096
    assert rule / 1e12 == pytest.approx(15.0, abs=0.05) and scores / 1e12 == pytest.approx(0.52, abs=0.005)
    norms = 2 * 1000 * (2 * 32 + 1) * 4096
    assert found.flops_forward == rule + scores - norms
    feed_forward = sum(step.params * step.times for step in steps if "feed-forward" in step.operation)
    assert feed_forward / found.params == pytest.approx(0.702, abs=5e-4)


def test_a_training_step_takes_6_n_d() -> None:
    """GPT-3: 3.14e23 FLOPs for 300e9 tokens by 6 N D; counted one by one, scores of 2,048 tokens come on top."""
    found = zoo.count({"family": "gpt3_175b", "depth": 1}, length=2048)
    layer = found.params_non_embedding
    scores = 3 * 4 * 2048**2 * 12288
    head = 6 * 2048 * 12288 * 50257
    assert found.flops_training - scores - head == pytest.approx(6 * layer * 2048, rel=1e-3)
    rule = 6 * zoo.count("gpt3_175b", torch.zeros(1, 1, dtype=torch.long)).params * 300e9
    assert rule == pytest.approx(3.143e23, rel=1e-3)


def per_token(model: Any, tokens: int = 8) -> int:
    """Bytes in bfloat16 that one more token adds to the state."""
    twin = shadow(model).to(torch.bfloat16).eval()
    shapes = example(twin.config, 1, tokens, None)
    return state_bytes(twin, shapes, 1, tokens + 1) - state_bytes(twin, shapes, 1, tokens)


@pytest.mark.parametrize(("groups", "expected"), [(8, 131_072), (32, 524_288), (1, 16_384)])
def test_bytes_of_a_token_in_llama_3_8bs_cache(groups: int, expected: int) -> None:
    grown = per_token({"family": "llama3_8b", "mixer": {"kv_heads": groups}})
    assert grown == expected
    if groups == 8:
        assert grown * 8192 == 2**30 and grown * 2**20 == 128 * 2**30


def test_bytes_of_a_token_in_deepseek_v3s_cache() -> None:
    assert per_token("deepseek_v3") == 61 * (512 + 64) * 2 == 70_272


@pytest.mark.parametrize(("mixer", "depth", "share"), [("hybrid_7to1", 8, 1 / 8), ("hybrid_3to1", 8, 1 / 4)])
def test_a_hybrid_keeps_keys_in_its_attention_layers_alone(mixer: str, depth: int, share: float) -> None:
    """12.5 percent of the cache at 7:1 (MiniMax-01), 25 percent at 3:1 (Kimi Linear)."""
    small = {"family": "gpt", "dim": 64, "depth": depth, "heads": 4, "vocab_size": 8, "position": "none"}
    assert per_token({**small, "mixer": mixer}) == share * per_token(small)


def test_active_parameters_by_both_conventions() -> None:
    """MiniMax-01's 45.9 B leave its two tables of the vocabulary out, as one token reads one row of the first and the
    head is counted with them; the other convention says 48.4 B."""
    model = shadow("minimax_01")
    idle = sum(m.idle_parameters() for m in model.modules() if hasattr(m, "idle_parameters"))
    total = sum(parameter.numel() for parameter in model.parameters())
    assert total - idle == 48_403_306_496
    tables = model.embed.weight.numel() + model.head.table.numel()  # type: ignore[union-attr, operator]
    assert total - idle - tables == 45_944_920_064


@pytest.mark.parametrize(("name", "body"), [("bert_base", 109_482_240), ("bert_large", 335_141_888)])
def test_berts_body_without_its_heads(name: str, body: int) -> None:
    model = shadow({"family": name, "masked_lm": False, "next_sentence": False})
    assert sum(parameter.numel() for parameter in model.parameters()) == body
