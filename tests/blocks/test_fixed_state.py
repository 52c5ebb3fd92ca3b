"""Tensors of constant size by name, rows that count their own tokens, and what a recurrence cannot do: go back."""

from __future__ import annotations

import pytest
import torch

from zoo.blocks.fixed_state import FixedState


def state(batch: int = 3) -> FixedState:
    made = FixedState(matrix=torch.arange(batch * 4.0).view(batch, 2, 2), tail=torch.zeros(batch, 3, 2).bfloat16())
    made.advance_rows(4, torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()[:batch])
    made.document = torch.tensor([7, 8, 9])[:batch]
    return made


def test_a_written_tensor_keeps_the_dtype_of_the_state() -> None:
    held = state()
    held["matrix"], held["tail"] = torch.ones(3, 2, 2).bfloat16(), torch.ones(3, 3, 2)
    assert held["matrix"].dtype == torch.float32 and held["tail"].dtype == torch.bfloat16


def test_bytes_are_those_of_the_tensors() -> None:
    assert state().nbytes() == 3 * 4 * 4 + 3 * 6 * 2


def test_each_row_counts_its_own_tokens() -> None:
    held = state()
    assert held.length.tolist() == [4, 2, 0]
    held.advance_rows(3, None)
    assert held.length.tolist() == [7, 5, 3]


@pytest.mark.parametrize("rows", [[2, 0, 0], [1], [0, 1, 2]])
def test_reordered_rows_bring_their_tensors_counts_and_documents(rows: list[int]) -> None:
    held, before = state(), state()
    held.reorder(torch.tensor(rows))
    assert torch.equal(held["matrix"], before["matrix"][rows]) and held["tail"].shape[0] == len(rows)
    assert held.length.tolist() == [[4, 2, 0][row] for row in rows]
    assert held.document is not None and held.document.tolist() == [[7, 8, 9][row] for row in rows]


def test_a_clone_goes_its_own_way() -> None:
    held = state()
    twin = held.clone()
    twin["matrix"] = twin["matrix"] + 1
    twin.tensors["tail"].add_(1)
    twin.advance_rows(1, None)
    twin.reorder(torch.tensor([1, 0, 2]))
    fresh = state()
    assert torch.equal(held["matrix"], fresh["matrix"]) and torch.equal(held["tail"], fresh["tail"])
    assert held.length.tolist() == [4, 2, 0]
    assert held.document is not None and held.document.tolist() == [7, 8, 9]


def test_a_recurrence_goes_back_nowhere_but_to_where_it_is() -> None:
    held = state()
    held.truncate(4)
    assert held.length.tolist() == [4, 2, 0]
    assert not held.can_truncate(3)
    with pytest.raises(ValueError, match="cannot go back to 3 tokens"):
        held.truncate(3)


def test_what_inference_mode_left_can_be_read_where_gradients_are_recorded() -> None:
    with torch.inference_mode():
        held = state()
        held["matrix"] = held["matrix"] * 2
    weight = torch.ones(2, 2, requires_grad=True)
    (weight * held["matrix"]).sum().backward()
    assert weight.grad is not None and torch.equal(weight.grad, 2 * state()["matrix"].sum(0))
