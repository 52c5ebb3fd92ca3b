"""States of attention: eviction order, sinks, growth, per-row lengths, and what they report."""

from __future__ import annotations

import pytest
import torch

from zoo.blocks.state import CrossState, KVState, StackState, WindowState


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


STATES = [
    lambda b: KVState(b, 1, 4, 1, 1, dtype=torch.float64),
    lambda b: WindowState(b, 1, 6, 1, 1, dtype=torch.float64),
]


@pytest.mark.parametrize("make", STATES)
def test_a_masked_step_leaves_its_row_as_it_is(make) -> None:
    """One new token for row 0 only, again and again: row 1 keeps what it held, and goes on as if alone."""
    state, alone = make(2), make(1)
    state.update(tagged(0, 6, 2), tagged(0, 6, 2))
    alone.update(tagged(0, 6), tagged(0, 6))
    for step in range(6, 9):
        state.update(tagged(step, 1, 2), tagged(step, 1, 2), torch.tensor([[True], [False]]))
    held, single = state.update(tagged(50, 1, 2), tagged(50, 1, 2)), alone.update(tagged(50, 1), tagged(50, 1))
    assert state.length.tolist() == [10, 7]
    assert held.mask is not None and held.past and single.everything
    ours = held.keys[1, 0, :, 0][held.mask[1]].sort().values
    assert ours.tolist() == single.keys[0, 0, :, 0].sort().values.tolist()


@pytest.mark.parametrize("make", STATES)
@pytest.mark.parametrize("rows", [[1, 0], [0, 1], [1, 1], [0, 0, 1, 1], [1]])
@pytest.mark.parametrize("grad", [False, True])
def test_reordered_rows_hold_what_they_held(make, rows: list[int], grad: bool) -> None:
    state = make(2)
    keys = torch.stack([tagged(0, 3)[0], tagged(10, 3)[0]])
    state.update(keys, keys, documents=torch.tensor([[1, 1, 1], [2, 2, 2]]))
    with torch.set_grad_enabled(grad):
        state.reorder(torch.tensor(rows))
        new = tagged(99, 1, len(rows))
        held = state.update(new, new, documents=torch.full((len(rows), 1), 7))
    for i, row in enumerate(rows):
        assert held.keys[i, 0, :4, 0].tolist() == [*keys[row, 0, :, 0].tolist(), 99]
        assert held.tags["documents"][i, :4].tolist() == [row + 1] * 3 + [7]
    assert state.length.tolist() == [4] * len(rows)


def test_truncated_states_go_on_from_the_tokens_they_kept() -> None:
    state = KVState(2, 1, 8, 1, 1, dtype=torch.float64)
    state.update(tagged(0, 6, 2), tagged(0, 6, 2))
    state.truncate(2)
    held = state.update(tagged(40, 1, 2), tagged(40, 1, 2))
    assert held.keys[0, 0, :, 0].tolist() == [0, 1, 40] and state.length.tolist() == [3, 3]
    ragged = KVState(2, 1, 8, 1, 1, dtype=torch.float64)
    mask = torch.tensor([[True, False, False, False], [True, True, True, True]])
    ragged.update(tagged(0, 4, 2), tagged(0, 4, 2), mask)
    ragged.truncate(3)
    assert ragged.length.tolist() == [1, 3]
    window = WindowState(1, 1, 4, 1, 1, dtype=torch.float64)
    window.update(tagged(0, 3), tagged(0, 3))
    assert window.can_truncate(1)
    window.truncate(1)
    assert window_content(window) == [0]
    window.update(tagged(1, 6), tagged(1, 6))
    assert not window.can_truncate(5) and window.can_truncate(7)
    stack = StackState([{"mixer": window, "ffn": None}])
    with pytest.raises(ValueError, match="cannot go back to 5 tokens"):
        stack.truncate(5)


def test_beams_of_one_source_move_no_keys() -> None:
    state = CrossState(2)
    state.fill(torch.arange(2.0).view(2, 1, 1, 1), torch.arange(2.0).view(2, 1, 1, 1), None)
    state.reorder(torch.tensor([0, 0, 1, 1]))
    held = state.keys
    state.reorder(torch.tensor([1, 1, 3, 2]))
    assert state.keys is held
    state.reorder(torch.tensor([2, 2, 0, 0]))
    assert state.keys is not None and state.keys.flatten().tolist() == [1, 1, 0, 0]


def test_the_first_call_and_single_steps_say_what_they_are() -> None:
    """Attention may then use the causal flag, or no mask at all."""
    for state in (KVState(1, 1, 9, 1, 1, dtype=torch.float64), WindowState(1, 1, 4, 1, 1, dtype=torch.float64)):
        first = state.update(tagged(0, 6), tagged(0, 6))
        assert first.contiguous and first.keys.flatten().tolist() == list(range(6)) and not first.past
        step = state.update(tagged(6, 1), tagged(6, 1))
        assert step.everything and step.past and not step.contiguous
        assert step.index.tolist() == step.keys.flatten().tolist()  # tags tell which token each slot holds
        assert not state.update(tagged(7, 2), tagged(7, 2)).contiguous


def test_tensors_of_inference_mode_are_copied_before_another_mode_writes_them() -> None:
    for make in STATES:
        with torch.inference_mode():
            state = make(2)
            state.update(tagged(0, 3, 2), tagged(0, 3, 2), documents=torch.ones(2, 3, dtype=torch.long))
        with torch.no_grad():
            state.update(tagged(3, 1, 2), tagged(3, 1, 2), documents=torch.ones(2, 1, dtype=torch.long))
            state.reorder(torch.tensor([1, 0]))
        assert state.length.tolist() == [4, 4]
