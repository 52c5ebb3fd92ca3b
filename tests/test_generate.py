"""Generation as a user calls it: the same tokens however they are computed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.generation.models import MIXERS, POSITIONS, START, VOCAB, decoder, encoder_decoder, padded, prompt
from zoo.blocks.api import Context
from zoo.generation import Generated, generate, prefill, state_bytes
from zoo.registry import ConfigError

fp64 = {"rtol": 0.0, "atol": 1e-10}  # sums of a few dozen terms of size 1
KINDS = {**{f"position-{name}": choices for name, choices in POSITIONS.items()}, **MIXERS}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_padding = pytest.mark.parametrize("where", ["left", "right", "interior"])
WAYS = {
    "greedy": {},
    "penalty": {"repetition_penalty": 1.3},
    "sampling": {"temperature": 0.8, "top_k": 9, "top_p": 0.95, "min_p": 0.01, "seed": 5},
    "beams": {"beams": 3, "num_sequences": 3, "length_penalty": 0.7},
}


def same(first: Generated, second: Generated) -> None:
    """Equal tokens, endings and log-probabilities."""
    assert [row.tolist() for row in first.new] == [row.tolist() for row in second.new]
    assert first.finished == second.finished
    torch.testing.assert_close(first.scores, second.scores, **fp64)
    for a, b in zip(first.log_probs, second.log_probs, strict=True):
        torch.testing.assert_close(a, b, **fp64)


@every_kind
@every_padding
def test_a_padded_batch_gives_each_prompt_its_own_answer(kind: str, where: str) -> None:
    """Known fault 3: rows of a padded batch equal batches of one, in the plain forward pass and in generation."""
    model = decoder(**KINDS[kind])
    ids, mask, rows = padded(where)
    logits = model(ids, token_mask=mask)
    together = generate(model, ids, token_mask=mask, max_new_tokens=5)
    listed = generate(model, rows, max_new_tokens=5)
    same(together, listed)
    for b, row in enumerate(rows):
        torch.testing.assert_close(logits[b, mask[b]], model(row[None])[0], **fp64)
        alone = generate(model, row, max_new_tokens=5)
        assert alone.new[0].tolist() == together.new[b].tolist()
        torch.testing.assert_close(alone.log_probs[0], together.log_probs[b], **fp64)
        assert together.sequences[b].tolist() == [*row.tolist(), *together.new[b].tolist()]


@every_kind
@pytest.mark.parametrize("way", WAYS)
def test_a_state_changes_no_token(kind: str, way: str) -> None:
    model = decoder(**KINDS[kind])
    ids, mask, _ = padded("left")
    choices = {"token_mask": mask, "max_new_tokens": 7, "eos_id": 4, **WAYS[way]}
    with_state = generate(model, ids, **choices)
    same(with_state, generate(model, ids, use_state=False, **choices))
    same(with_state, generate(model, ids, prefill_chunk=2, **choices))


@every_kind
def test_equal_rows_give_the_same_tokens_with_and_without_a_state(kind: str) -> None:
    """Rows of one length take the path without masks."""
    model = decoder(**KINDS[kind])
    ids = torch.stack([prompt(6, 1), prompt(6, 2)])
    for way in WAYS.values():
        choices = {"max_new_tokens": 9, **way}
        plain = generate(model, ids, use_state=False, **choices)
        same(generate(model, ids, **choices), plain)
        same(generate(model, ids, prefill_chunk=4, **choices), plain)
        same(generate(model, ids, token_mask=torch.ones_like(ids, dtype=torch.bool), **choices), plain)


@every_kind
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(splits=st.sets(st.integers(1, 23), max_size=5), where=st.sampled_from(["none", "left", "right", "interior"]))
def test_any_split_of_a_row_equals_one_pass(kind: str, splits: set[int], where: str) -> None:
    """Logits of chunked and of token by token runs, under any padding."""
    model = decoder(**KINDS[kind])
    ids = torch.stack([prompt(24, 1), prompt(24, 2)])
    mask = None
    if where != "none":
        mask = torch.ones(2, 24, dtype=torch.bool)
        hidden = {"left": slice(0, 9), "right": slice(17, 24), "interior": slice(5, 14, 2)}[where]
        mask[0, hidden] = False
    keep = mask if mask is not None else torch.ones(2, 24, dtype=torch.bool)
    full = model(ids, token_mask=mask)
    for cuts in (sorted(splits), list(range(1, 24))):
        state, pieces, start = model.init_state(2, 24), [], 0
        with torch.no_grad():
            for stop in [*cuts, 24]:
                piece = None if mask is None else mask[:, start:stop]
                pieces.append(model(ids[:, start:stop], token_mask=piece, state=state))
                start = stop
        torch.testing.assert_close(torch.cat(pieces, 1)[keep], full[keep], **fp64)
        assert state.length.tolist() == keep.sum(-1).tolist()


@pytest.mark.parametrize("sinks", [0, 2])
@pytest.mark.parametrize(("first", "chunks"), [(6, [1] * 6), (13, [1] * 4), (6, [3, 1, 3]), (7, [3]), (1, [1] * 12)])
def test_a_window_forgets_what_leaves_it(sinks: int, first: int, chunks: list[int]) -> None:
    """Known fault 4: a window of 8 crossed by steps, by the prompt, and by a chunk, against the dense band."""
    model = decoder(position="rope", mixer={"window": 8, "sinks": sinks})
    ids = prompt(first + sum(chunks))[None]
    full = model(ids)
    with torch.no_grad():
        state = model.init_state(1, 32)
        pieces, start = [model(ids[:, :first], state=state)], first
        for size in chunks:
            pieces.append(model(ids[:, start : start + size], state=state))
            start += size
    torch.testing.assert_close(torch.cat(pieces, 1), full, **fp64)
    assert state.nbytes() == 2 * (2 * 2 * (8 + sinks) * 8 * 8)  # layers x keys and values, heads, slots, width, fp64


@pytest.mark.parametrize("kind", ["t5_bias", "alibi"])
def test_biases_reach_beyond_128_positions(kind: str) -> None:
    """Distances past T5's last bucket, and ALiBi's six heads, token by token."""
    model = decoder(**POSITIONS[kind])
    row = prompt(150)
    same(
        generate(model, row, max_new_tokens=12, prefill_chunk=37),
        generate(model, row, max_new_tokens=12, use_state=False),
    )
    with torch.no_grad():
        state = model.init_state(1, 150)
        steps = [model(row[None, t : t + 1], state=state) for t in range(150)]
    torch.testing.assert_close(torch.cat(steps, 1), model(row[None]), **fp64)


@pytest.mark.parametrize("kind", ["position-rope", "position-t5_bias", "window"])
def test_a_chunk_sees_the_keys_before_it(kind: str) -> None:
    """Known fault 2: after 5 tokens, a chunk of 3 may see 6, 7 and 8 keys."""
    model = decoder(**KINDS[kind])
    ids = prompt(8)[None]
    with torch.no_grad():
        state = model.init_state(1, 8)
        model(ids[:, :5], state=state)
        chunk = model(ids[:, 5:], state=state)
        for changed in range(8):  # a change of any key changes exactly the queries from it on
            other = ids.clone()
            other[0, changed] = (ids[0, changed] + 1) % VOCAB
            state = model.init_state(1, 8)
            model(other[:, :5], state=state)
            moved = (model(other[:, 5:], state=state) - chunk).abs().amax(-1)[0] > 1e-6
            assert moved.tolist() == [max(changed, 5) <= 5 + i for i in range(3)]


SEQ2SEQ = {
    "t5": ("t5", {}),
    "transformer": ("transformer", {}),
    "rope": ("transformer", {"position": "rope", "residual": "pre"}),
    "learned": ("transformer", {"position": "learned"}),
    "window": ("t5", {"mixer": {"window": 3}}),
    "alibi": ("t5", {"position": "alibi", "dim": 24, "heads": 6}),
}


@pytest.mark.parametrize("kind", SEQ2SEQ)
@pytest.mark.parametrize("way", WAYS)
def test_an_encoder_decoder_answers_each_source_alone_and_with_or_without_a_state(kind: str, way: str) -> None:
    family, choices = SEQ2SEQ[kind]
    model = encoder_decoder(family, **choices)
    source, mask, rows = padded("right")
    options = {"max_new_tokens": 6, "eos_id": 4, **WAYS[way]}
    together = generate(model, source=source, source_mask=mask, **options)
    same(together, generate(model, source=rows, use_state=False, **options))
    assert together.sequences[0][0] == START
    if way != "sampling":  # rows of one batch share the generator's draws
        n = options.get("num_sequences", 1)
        for b, row in enumerate(rows):
            alone = generate(model, source=row, **options)
            assert [x.tolist() for x in alone.new] == [x.tolist() for x in together.new[b * n : b * n + n]]


def test_target_prompts_and_going_on_serve_encoder_decoders_too() -> None:
    model, source = encoder_decoder(), torch.stack([prompt(5, 1), prompt(5, 2)])
    whole = generate(model, source=source, max_new_tokens=6)
    start = [torch.cat([torch.tensor([START]), row[:2]]) for row in whole.new]
    rest = generate(model, start, source=source, max_new_tokens=4)
    assert [row.tolist() for row in rest.sequences] == [row.tolist() for row in whole.sequences]
    for first in (0, 1, 2):
        part = generate(model, source=source, max_new_tokens=first, keep_state=True)
        more = generate(model, part.pending, state=part.state, max_new_tokens=6 - first)
        assert [row.tolist() for row in more.new] == [row[first:].tolist() for row in whole.new]


@every_kind
@every_padding
def test_a_kept_state_goes_on_where_the_call_ended(kind: str, where: str) -> None:
    """Also for rows that ended early: their states have not moved on."""
    model = decoder(**KINDS[kind])
    ids, mask, rows = padded(where)
    eos = int(generate(model, rows[1], max_new_tokens=3).new[0][1])  # row 1 ends after its second token
    part = generate(model, ids, token_mask=mask, max_new_tokens=4, eos_id=eos, keep_state=True)
    assert part.state.length.tolist() == [len(row) - 1 for row in part.sequences]
    added = [torch.cat([last, prompt(2, 9)]) for last in part.pending]
    fork = part.state.clone()
    after = generate(model, added, state=part.state, max_new_tokens=4)
    again = generate(model, added, state=fork, max_new_tokens=4, prefill_chunk=1)
    same(after, again)
    for b, row in enumerate(part.sequences):
        alone = generate(model, torch.cat([row, prompt(2, 9)]), max_new_tokens=4, use_state=False)
        assert alone.new[0].tolist() == after.new[b].tolist()
        torch.testing.assert_close(alone.log_probs[0], after.log_probs[b], **fp64)


def test_a_state_of_a_generation_can_be_used_by_the_model_itself() -> None:
    """Without gradients and with them, also what a state keeps of a source."""
    seq2seq = encoder_decoder()
    held = generate(seq2seq, source=prompt(5), max_new_tokens=2, keep_state=True)
    seq2seq.head(seq2seq.features(held.pending, Context(), held.state)).sum().backward()
    model, row = decoder(), prompt(6)
    part = generate(model, row, max_new_tokens=3, keep_state=True)
    expected = model(part.sequences[0][None])[:, -1]
    other = part.state.clone()
    with torch.no_grad():
        torch.testing.assert_close(model(part.pending, state=part.state)[:, -1], expected, **fp64)
    logits = model(part.pending, state=other)
    torch.testing.assert_close(logits[:, -1], expected, **fp64)
    logits.sum().backward()


def test_log_probabilities_are_those_of_a_full_pass() -> None:
    model = decoder()
    ids, mask, _ = padded("interior")
    for way in ("greedy", "sampling", "beams"):
        result = generate(model, ids, token_mask=mask, max_new_tokens=6, eos_id=(4, 7), **WAYS[way])
        for whole, new, each, score in zip(result.sequences, result.new, result.log_probs, result.scores, strict=True):
            table = model(whole[None]).log_softmax(-1)[0, len(whole) - len(new) - 1 : -1]
            torch.testing.assert_close(each, table.gather(1, new[:, None])[:, 0], **fp64)
            n = len(new) ** (0.7 if way == "beams" else 0)
            torch.testing.assert_close(score, each.sum() / n, **fp64)


def test_rows_end_at_end_tokens_and_stop_sequences() -> None:
    model, row = decoder(), prompt(5)
    free = generate(model, row, max_new_tokens=8).new[0].tolist()
    result = generate(model, row, max_new_tokens=8, eos_id=free[3])
    assert result.new[0].tolist() == free[: free.index(free[3]) + 1] and result.finished == ("eos",)
    result = generate(model, row, max_new_tokens=8, stop=[[free[1], free[2]], [VOCAB - 1] * 3])
    assert result.new[0].tolist() == free[:3] and result.finished == ("stop",)
    result = generate(model, row, max_new_tokens=8, stop=[[int(row[-1]), free[0]]])  # only new tokens count
    assert result.finished == ("length",) and result.new[0].tolist() == free
    ids, lengths = generate(model, [row, prompt(3)], max_new_tokens=8, eos_id=free[0]).padded(-1)
    assert lengths[0] == 1 and ids[0, 1:].tolist() == [-1] * (ids.shape[1] - 1)


def test_new_tokens_are_streamed_and_ended_rows_are_silent() -> None:
    model = decoder()
    ids, mask, _ = padded("left")
    seen: list[list[int]] = []
    eos = int(generate(model, ids, token_mask=mask, max_new_tokens=4).new[0][2])
    result = generate(
        model, ids, token_mask=mask, max_new_tokens=6, eos_id=eos, stream=lambda tokens: seen.append(tokens.tolist())
    )
    told = [[step[b] for step in seen if step[b] >= 0] for b in range(3)]
    assert told == [row.tolist() for row in result.new]


def test_a_seed_fixes_the_draws_and_several_samples_stand_side_by_side() -> None:
    model = decoder()
    rows = [prompt(3), prompt(6)]
    choices = {"max_new_tokens": 6, "temperature": 1.5, "num_sequences": 4}
    first = generate(model, rows, seed=3, **choices)
    same(first, generate(model, rows, generator=torch.Generator().manual_seed(3), **choices))
    assert len(first.new) == 8 and all(first.sequences[i][:3].tolist() == rows[0].tolist() for i in range(4))
    assert len({tuple(row.tolist()) for row in first.new[:4]}) > 1
    assert [r.tolist() for r in first.new] != [r.tolist() for r in generate(model, rows, seed=4, **choices).new]
    torch.manual_seed(7)
    one = generate(model, rows, **choices)
    torch.manual_seed(7)
    same(one, generate(model, rows, **choices))


def test_no_new_tokens_one_token_prompts_and_empty_prompts() -> None:
    model = decoder()
    none = generate(model, prompt(4), max_new_tokens=0)
    assert none.new[0].numel() == 0 and none.sequences[0].tolist() == prompt(4).tolist() and none.state is None
    kept = generate(model, [prompt(4), prompt(1)], max_new_tokens=0, keep_state=True)
    assert kept.state.length.tolist() == [3, 0]
    after = generate(model, kept.pending, state=kept.state, max_new_tokens=3)
    same(after, generate(model, [prompt(4), prompt(1)], max_new_tokens=3))
    assert generate(model, torch.tensor([5]), max_new_tokens=2).new[0].shape == (2,)
    with pytest.raises(ConfigError, match="prompt 1 is empty; give a token, or bos_id"):
        generate(model, [[3, 4], []], max_new_tokens=2)
    begun = generate(model, [[3, 4], []], max_new_tokens=2, bos_id=1)
    assert begun.sequences[1].tolist() == [1, *generate(model, [1], max_new_tokens=2).new[0].tolist()]
    assert generate(model, torch.zeros(2, 0, dtype=torch.long), max_new_tokens=1, bos_id=1).sequences[1][0] == 1


def test_a_learned_table_refuses_what_it_has_no_row_for_before_any_work() -> None:
    model = decoder(position="learned", max_len=10)
    assert generate(model, prompt(7), max_new_tokens=4).new[0].shape == (4,)  # the fourth token is never read
    with pytest.raises(ConfigError, match=r"max_new_tokens 5 after 7 tokens needs 11 positions.*at most 4 new tokens"):
        generate(model, prompt(7), max_new_tokens=5)
    part = generate(model, prompt(7), max_new_tokens=3, keep_state=True)
    with pytest.raises(ConfigError, match="11 positions"):
        generate(model, part.pending, state=part.state, max_new_tokens=2)
    with pytest.raises(ConfigError, match="12 positions"):
        prefill(model, prompt(12))
    seq2seq = encoder_decoder("transformer", position="learned", max_len=10)
    with pytest.raises(ConfigError, match="needs 11 positions"):
        generate(seq2seq, source=prompt(4), max_new_tokens=11)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("way", WAYS)
def test_logits_that_are_no_numbers_are_told(wrong: float, way: str) -> None:
    model = decoder()
    model.head.forward = lambda x: torch.full((x.shape[0], VOCAB), wrong, dtype=x.dtype)
    with pytest.raises(ValueError, match=r"the logits of row 0 are (all -inf|not all numbers).* at new token 0"):
        generate(model, prompt(3), max_new_tokens=2, **WAYS[way])


def test_dropout_is_off_and_every_module_is_left_as_it_was() -> None:
    model = decoder(dropout=0.5)
    expected = generate(model, prompt(4), max_new_tokens=6)
    model.train()
    model.stack.blocks[0].eval()
    same(generate(model, prompt(4), max_new_tokens=6), expected)
    assert model.training and not model.stack.blocks[0].training and model.stack.blocks[1].training


def test_bytes_of_a_state_are_exact() -> None:
    for kind in MIXERS:
        model = decoder(**MIXERS[kind])
        assert state_bytes(model, 3, 20) == model.init_state(3, 20).nbytes() > 0
        kept = generate(model, prompt(6), max_new_tokens=15, keep_state=True)
        assert kept.state.nbytes() == state_bytes(model, 1, 20)
    for family, choices in SEQ2SEQ.values():
        model = encoder_decoder(family, **choices)
        kept = generate(model, source=torch.stack([prompt(7), prompt(7)]), max_new_tokens=5, keep_state=True)
        assert kept.state.nbytes() == state_bytes(model, 2, 5, source_len=7) > state_bytes(model, 2, 5)
    assert state_bytes(decoder(), 1, 8, dtype=torch.bfloat16) * 4 == state_bytes(decoder(), 1, 8)


def test_the_head_sees_one_token_of_each_row() -> None:
    """Prompts of any length cost one row of logits."""
    model, sizes = decoder(), []
    model.head.register_forward_hook(lambda module, inputs, output: sizes.append(tuple(inputs[0].shape)))
    generate(model, [prompt(9), prompt(4)], max_new_tokens=3, prefill_chunk=4)
    assert sizes == [(2, 16)] * 3


def test_half_precision_models_generate_and_state_fits_them() -> None:
    model = decoder().bfloat16()
    result = generate(model, [prompt(5), prompt(3)], max_new_tokens=4, top_p=0.9, seed=0, keep_state=True)
    assert result.log_probs[0].dtype == torch.float32 and result.state.nbytes() == state_bytes(model, 2, 8)


REFUSED = [
    ({"source": [1]}, "source has no meaning for a decoder-only model"),
    ({"ids": [[1, 2], [VOCAB]]}, f"ids holds {VOCAB}, outside the vocabulary of {VOCAB}"),
    ({"ids": torch.zeros(2, 2)}, r"integers of \(T,\) or \(B, T\).*torch.float32"),
    (
        {"ids": torch.ones(1, 2, dtype=torch.long), "token_mask": torch.ones(1, 3)},
        r"should be torch.bool of \(1, 2\), got torch.float32 of \(1, 3\)",
    ),
    ({"ids": None}, "ids is required"),
    ({"ids": []}, "empty"),
    ({"use_state": False, "keep_state": True}, "keep_state needs a state"),
    ({"seed": 1, "generator": torch.Generator()}, "give one of seed and generator"),
    ({"stream": print, "beams": 2}, "stream has no meaning with beams 2"),
    ({"max_new_token": 3}, "max_new_token: unknown key, did you mean 'max_new_tokens'"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[text for _, text in REFUSED])
def test_what_cannot_be_right_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        generate(decoder(), **{"ids": [[1, 2]], **change})


def test_states_and_sources_that_do_not_fit_are_refused() -> None:
    model = decoder()
    kept = generate(model, [[1, 2], [3, 4]], max_new_tokens=2, keep_state=True)
    with pytest.raises(ConfigError, match="the state has 2 rows and ids 1"):
        generate(model, [[1]], state=kept.state)
    with pytest.raises(ConfigError, match="give one of state and use_state"):
        generate(model, kept.pending, state=kept.state, use_state=False)
    with pytest.raises(ConfigError, match="give history"):
        generate(model, kept.pending, state=kept.state, repetition_penalty=1.2)
    seq2seq = encoder_decoder()
    with pytest.raises(ConfigError, match="source is required"):
        generate(seq2seq, [[1]])
    with pytest.raises(ConfigError, match="source has 2 rows and ids 1"):
        generate(seq2seq, [[1]], source=[[1], [2]])
    with pytest.raises(ConfigError, match="encoder-decoder"):
        prefill(seq2seq, [[1]])


def test_history_gives_the_repetition_penalty_what_the_state_has_seen() -> None:
    model, row = decoder(), prompt(8)
    state = prefill(model, row[:6])
    result = generate(model, row[6:], state=state, history=row[:6], repetition_penalty=1.5, max_new_tokens=8)
    same(result, generate(model, row, repetition_penalty=1.5, max_new_tokens=8))


def test_prefill_in_chunks_leaves_the_state_of_one_call() -> None:
    for kind in ("full", "window", "window_sinks", "hybrid"):
        model = decoder(**MIXERS[kind])
        ids, mask, _ = padded("interior")
        states = [prefill(model, ids, token_mask=mask, chunk=chunk) for chunk in (None, 1, 4)]
        probe = torch.stack([prompt(3, s) for s in (5, 6, 7)])
        with torch.no_grad():
            first, *others = [model.features(probe, Context(), state) for state in states]
        for other in others:
            torch.testing.assert_close(other, first, **fp64)


def test_generation_loads_no_tokenizer_and_no_training_stack() -> None:
    code = "import sys, zoo.generation; print(' '.join({name.split('.')[0] for name in sys.modules}))"
    root = Path(__file__).resolve().parent.parent
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert not set(run.stdout.split()) & {"tokenizers", "transformers", "lightning", "datasets", "hydra", "recipes"}
