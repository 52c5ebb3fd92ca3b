"""States of attention: eviction order, sinks, growth, per-row lengths, and what they report."""

from __future__ import annotations

import pytest
import torch

from zoo.blocks.state import CrossState, KVState, WindowState


def tagged(start: int, tokens: int, batch: int = 1) -> torch.Tensor:
    """Keys (B, 1, T, 1) that carry their own position, so a stored row can be read off."""
    return torch.arange(start, start + tokens, dtype=torch.float64).view(1, 1, tokens, 1).expand(batch, 1, tokens, 1)


def window_content(state: WindowState, row: int = 0) -> list[int]:
    held = state.slot_index(state.counts)[row]
    order = held.argsort()
    keep = held[order] >= 0
    assert state.keys[row, 0, order, 0][keep].tolist() == held[order][keep].tolist()
    return held[order][keep].tolist()


@pytest.mark.parametrize("prompt", [1, 6, 8, 13])
@pytest.mark.parametrize("sinks", [0, 2])
def test_window_holds_the_last_tokens_and_the_sinks(prompt: int, sinks: int) -> None:
    """Known fault 4: eviction when the total reaches or passes the window."""
    window, total = 8, prompt
    state = WindowState(1, 1, window, 1, 1, sinks=sinks, dtype=torch.float64)
    state.update(tagged(0, prompt), tagged(0, prompt))
    for size in (1, 1, 3, 1, 1, 1, 1, 5, 1):
        expected = sorted(set(range(min(sinks, total))) | set(range(max(0, total - window), total)))
        if sinks:  # the ring holds the last 8 tokens that are not sinks
            expected = sorted(set(range(min(sinks, total))) | set(range(max(sinks, total - window), total)))
        assert window_content(state) == expected
        state.update(tagged(total, size), tagged(total, size))
        total += size
        assert state.length.tolist() == [total]


def test_window_rows_of_different_length_evict_each_their_own() -> None:
    state = WindowState(2, 1, 4, 1, 1, dtype=torch.float64)
    mask = torch.tensor([[False, False, False, True, True, True], [True, True, True, True, True, True]])
    keys = torch.stack([torch.tensor([9.0, 9, 9, 0, 1, 2]), torch.arange(6.0)]).view(2, 1, 6, 1).double()
    state.update(keys, keys, mask)
    assert window_content(state, 0) == [0, 1, 2]
    assert window_content(state, 1) == [2, 3, 4, 5]


def test_full_state_stores_only_real_tokens_side_by_side() -> None:
    state = KVState(2, 1, 8, 1, 1, dtype=torch.float64)
    mask = torch.tensor([[False, True, False, True], [True, True, True, True]])
    keys = torch.tensor([[9.0, 0, 9, 1], [0, 1, 2, 3]]).view(2, 1, 4, 1).double()
    held = state.update(keys, keys, mask)
    assert state.length.tolist() == [2, 4]
    assert held.mask is not None and held.mask.sum(-1).tolist() == [2, 4]
    assert held.keys[0, 0, :2, 0].tolist() == [0, 1]
    state.update(tagged(7, 1, 2), tagged(7, 1, 2))
    assert state.keys[0, 0, 2, 0] == 7 and state.keys[1, 0, 4, 0] == 7


def test_growth_keeps_what_was_stored() -> None:
    state = KVState(1, 2, 2, 4, 4)
    kept = torch.randn(1, 2, 9, 4)
    for t in range(9):
        state.update(kept[:, :, t : t + 1], kept[:, :, t : t + 1])
    assert state.capacity >= 9
    torch.testing.assert_close(state.keys[:, :, :9], kept, rtol=0, atol=0)


def test_bytes_count_grouped_heads_once() -> None:
    assert KVState(3, 2, 10, 8, 8, dtype=torch.float32).nbytes() == 2 * 3 * 2 * 10 * 8 * 4
    assert KVState(1, 8, 1, 128, 128, dtype=torch.bfloat16, device="meta").nbytes() * 32 == 131_072  # Llama 3 8B
    assert WindowState(1, 1, 8, 4, 2, sinks=2).nbytes() == (4 + 2) * 10 * 4
    cross = CrossState(1)
    assert cross.nbytes() == 0
    cross.fill(torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 4), None)
    assert cross.nbytes() == 2 * 2 * 5 * 4 * 4


@pytest.mark.parametrize("make", [lambda: KVState(2, 1, 8, 1, 1), lambda: WindowState(2, 1, 4, 1, 1)])
def test_a_clone_is_independent_and_reorder_moves_rows(make) -> None:
    state = make()
    keys = torch.stack([torch.zeros(1, 3, 1), torch.ones(1, 3, 1)])
    state.update(keys, keys)
    fork = state.clone()
    fork.update(keys[:, :, :1] + 5, keys[:, :, :1] + 5)
    assert state.length.tolist() == [3, 3] and fork.length.tolist() == [4, 4]
    assert state.keys.max() == 1
    state.reorder(torch.tensor([1, 1]))
    assert state.keys[:, 0, :3, 0].tolist() == [[1, 1, 1], [1, 1, 1]]
    state.reorder(torch.tensor([0]))
    assert state.length.tolist() == [3]
