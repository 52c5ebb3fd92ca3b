"""What a recurrent mixer is spared: padding anywhere, packed documents, states between calls."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from zoo.blocks import Context, Slot
from zoo.blocks.fixed_state import FixedState
from zoo.blocks.recurrent_mixer import RecurrentMixer, Tokens, heads_of
from zoo.registry import ConfigError

D = 2


class Halving(RecurrentMixer):
    """h <- h / 2 + x, and it remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.where = "test.mixer"
        self.weight = nn.Parameter(torch.ones(D, dtype=torch.float64))
        self.calls: list[tuple[Tensor, Tokens]] = []

    def mix(self, x: Tensor, tokens: Tokens, state: FixedState | None) -> Tensor:
        self.calls.append((x, tokens))
        h = x.new_zeros(x.shape[0], D) if state is None else state["sum"]
        outputs = []
        for t in range(x.shape[1]):
            if tokens.starts is not None:
                h = h.masked_fill(tokens.starts[:, t, None], 0.0)
            new = 0.5 * h + x[:, t] * self.weight
            h = new if tokens.mask is None else torch.where(tokens.mask[:, t, None], new, h)
            outputs.append(h)
        if state is not None:
            state["sum"] = h
        return torch.stack(outputs, 1)

    def empty(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        return {"sum": torch.zeros(batch, D, device=device, dtype=dtype)}


def rows(length: int = 6, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


MASKS = {
    "left": [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]],
    "right": [[1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0]],
    "interior": [[1, 0, 1, 0, 0, 1], [0, 1, 1, 0, 1, 0]],
    "empty_row": [[0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]],
}


@pytest.mark.parametrize("where", MASKS)
def test_real_tokens_come_first_in_their_order_and_outputs_return_to_their_places(where: str) -> None:
    mixer, x, mask = Halving(), rows(), torch.tensor(MASKS[where]).bool()
    y = mixer(x, Context(token_mask=mask, positions=torch.arange(6)))
    given, tokens = mixer.calls[0]
    assert tokens.lengths is not None and tokens.lengths.tolist() == mask.sum(1).tolist()
    for row in range(2):
        n = int(mask[row].sum())
        assert torch.equal(given[row, :n], x[row, mask[row]])
        assert tokens.mask is not None and tokens.mask[row].tolist() == [True] * n + [False] * (6 - n)
        assert tokens.positions is not None
        assert tokens.positions[row, :n].tolist() == mask[row].nonzero().flatten().tolist()
        alone = mixer(x[row : row + 1, mask[row]], Context()) if n else x[row : row + 1, :0]
        torch.testing.assert_close(y[row, mask[row]], alone[0], rtol=0, atol=0)


def test_a_row_without_padding_is_passed_as_it_is() -> None:
    mixer, x = Halving(), rows()
    mixer(x, Context())
    given, tokens = mixer.calls[0]
    assert given is x and tokens.mask is None and tokens.lengths is None and tokens.starts is None


def test_layers_of_one_pass_sort_once() -> None:
    mixer, context = Halving(), Context(token_mask=torch.tensor(MASKS["left"]).bool())
    mixer(rows(), context)
    mixer(rows(), context)
    assert mixer.calls[0][1].mask is mixer.calls[1][1].mask


def test_documents_start_where_the_id_of_a_real_token_changes() -> None:
    """A masked token starts none, and a document goes on behind it."""
    mixer = Halving()
    documents = torch.tensor([[3, 9, 3, 5, 5, 1], [1, 1, 1, 2, 2, 2]])
    mask = torch.tensor([[1, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]).bool()
    mixer(rows(), Context(documents=documents, token_mask=mask))
    starts = mixer.calls[0][1].starts
    assert starts is not None
    assert starts.nonzero().tolist() == [[0, 2], [0, 4]]  # real tokens 3 3 5 5 1 and 1 1 1


DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1, 2], [4, 4, 4, 4, 3, 3]])


@pytest.mark.parametrize("splits", [[1] * 6, [2, 4], [3, 3], [4, 1, 1]], ids=str)
@pytest.mark.parametrize("where", [None, *MASKS])
def test_documents_may_be_split_between_calls(splits: list[int], where: str | None) -> None:
    """Known fault 18: a call that begins a document must not see the state of another, one that continues it must."""
    mixer, x = Halving(), rows()
    mask = torch.ones(2, 6, dtype=torch.bool) if where is None else torch.tensor(MASKS[where]).bool()
    full = mixer(x, Context(documents=DOCUMENTS, token_mask=mask))
    state, pieces = mixer.init_state(2, 6), []
    for piece, m, d in zip(x.split(splits, 1), mask.split(splits, 1), DOCUMENTS.split(splits, 1), strict=True):
        pieces.append(mixer(piece, Context(documents=d, token_mask=None if where is None else m), state))
    torch.testing.assert_close(torch.cat(pieces, 1)[mask], full[mask], rtol=0, atol=0)
    assert state.length.tolist() == mask.sum(1).tolist()


def test_a_state_of_documents_demands_documents() -> None:
    mixer, state = Halving(), None
    state = mixer.init_state(2, 6)
    mixer(rows(), Context(documents=DOCUMENTS), state)
    with pytest.raises(ValueError, match=r"test.mixer: the state holds packed documents; give context.documents"):
        mixer(rows(), Context(), state)


def test_documents_that_join_a_state_without_them_continue_it() -> None:
    mixer, x = Halving(), rows()
    state = mixer.init_state(2, 6)
    mixer(x[:, :2], Context(), state)
    y = mixer(x[:, 2:], Context(documents=torch.zeros(2, 4, dtype=torch.long)), state)
    assert torch.equal(y, mixer(x, Context())[:, 2:])


def test_a_state_takes_device_and_dtype_of_the_weights() -> None:
    mixer = Halving()
    assert mixer.init_state(3, 6)["sum"].dtype == torch.float64
    assert mixer.init_state(3, 6, device="meta", dtype=torch.float32)["sum"].device.type == "meta"


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    slot = Slot(dim=10, heads=4, where="gpt.0.mixer")
    assert heads_of(slot, 5, None) == (5, 2) and heads_of(slot, None, 3) == (4, 3)
    with pytest.raises(ConfigError, match=r"gpt.0.mixer: dim 10 is not a multiple of heads 4; change one, or set head"):
        heads_of(slot, None, None)
