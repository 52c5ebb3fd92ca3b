"""The law of every registered mixer: one function, whatever way it is called.

full = any split into prefill and steps = padded left, right or inside = packed; outputs, states and gradients.
"""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from tests.law import Layout, compared, layouts, run_in_pieces, tensors
from tests.parts import DIM, HEADS, MAX_LEN, MixerCase, mixer_cases, rows
from zoo.blocks.api import Capability, Context, Slot
from zoo.blocks.init import materialise

C = Capability
T = 11
fp64 = {"rtol": 0.0, "atol": 1e-10}  # sums of a few dozen terms of size 1


def facts(form: str) -> dict:
    return {"causal": {"causal": True}, "bidirectional": {}, "cross": {"memory_dim": DIM}}[form]


def context(form: str, batch: int = 2, **fields) -> Context:
    memory = rows(batch, 7, seed=5) if form == "cross" else None
    return Context(memory=memory, **fields)


FORMS = [(case, "causal") for case in mixer_cases(C.CAUSAL)]
FORMS += [(case, "bidirectional") for case in mixer_cases(C.BIDIRECTIONAL)]
FORMS += [(case, "cross") for case in mixer_cases(C.CROSS)]
every_form = pytest.mark.parametrize(
    ("case", "form"), [pytest.param(case.values[0], form, id=f"{case.id}-{form}") for case, form in FORMS]
)
causal_steps = pytest.mark.parametrize("case", mixer_cases(C.CAUSAL | C.STEP))
padded = pytest.mark.parametrize(
    ("case", "form"),
    [
        pytest.param(case.values[0], form, id=f"{case.id}-{form}")
        for case, form in FORMS
        if C.PADDING in case.values[0].capabilities and form != "cross"
    ],
)


# other switches change values, not what is refused
padded_defaults = pytest.mark.parametrize(
    ("case", "form"),
    [
        pytest.param(case.values[0], form, id=f"{case.id}-{form}")
        for case, form in FORMS
        if C.PADDING in case.values[0].capabilities and form != "cross" and not case.values[0].choices
    ],
)


@padded_defaults
def test_no_row_and_no_token_give_nothing(case: MixerCase, form: str) -> None:
    mixer = case.build(**facts(form))
    for batch, length in ((0, 5), (2, 0)):
        x, flags = rows(batch, length), torch.ones(batch, length, dtype=torch.bool)
        for ctx in (Context(), Context(token_mask=flags), Context(documents=flags.long())):
            assert mixer(x, ctx).shape == x.shape


@padded_defaults
def test_what_does_not_fit_is_refused_in_one_line(case: MixerCase, form: str) -> None:
    mixer, x = case.build(**facts(form)), rows()
    wrong = {
        r"x should be \(B, T, D\), got \(11, 16\)": (x[0], Context()),
        r"token_mask should be torch.bool of \(2, 11\)": (x, Context(token_mask=torch.ones(2, T))),
        r"documents should be integers of \(2, 11\)": (x, Context(documents=torch.ones(2, T - 1, dtype=torch.long))),
    }
    for told, (rows_given, ctx) in wrong.items():
        with pytest.raises(ValueError, match=rf"^[^\n]*{told}[^\n]*$"):
            mixer(rows_given, ctx)
    state = mixer.init_state(3, MAX_LEN)
    if state is not None:
        with pytest.raises(ValueError, match=r"the state holds 3 rows, and x has 2$"):
            mixer(x, Context(), state)


@every_form
def test_half_precision_keeps_shape_and_dtype(case: MixerCase, form: str) -> None:
    mixer, ctx = case.build(dtype=torch.bfloat16, **facts(form)), context(form)
    ctx.memory = None if ctx.memory is None else ctx.memory.bfloat16()
    y = mixer(rows(dtype=torch.bfloat16), ctx)
    assert y.shape == (2, T, DIM) and y.dtype == torch.bfloat16 and y.isfinite().all()


@every_form
def test_gradients_reach_every_parameter_and_the_input(case: MixerCase, form: str) -> None:
    mixer, x = case.build(**facts(form)), rows().requires_grad_()
    mixer(x, context(form)).square().sum().backward()
    assert x.grad is not None and x.grad.abs().max() > 0
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("case", mixer_cases(C.CAUSAL))
def test_the_future_changes_nothing(case: MixerCase) -> None:
    mixer, x = case.build(causal=True), rows()
    for t in (1, 5, T - 1):
        other = x.clone()
        other[:, t:] += 10.0
        torch.testing.assert_close(mixer(other, Context())[:, :t], mixer(x, Context())[:, :t], rtol=0, atol=0)
        assert (mixer(other, Context())[:, t:] - mixer(x, Context())[:, t:]).abs().max() > 1e-3


@pytest.mark.parametrize("case", mixer_cases(C.BIDIRECTIONAL))
def test_a_bidirectional_mixer_sees_both_sides(case: MixerCase) -> None:
    mixer, x = case.build(), rows()
    other = x.clone()
    other[:, 5] += 10.0
    changed = (mixer(other, Context()) - mixer(x, Context())).abs().amax((0, 2)) > 1e-6
    assert changed[4] and changed[6]


MASK = torch.tensor(
    [
        [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1],  # left
        [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],  # right
        [1, 1, 0, 0, 1, 0, 1, 1, 1, 1, 1],  # interior
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ],
    dtype=torch.bool,
)


@padded
def test_masked_tokens_never_count(case: MixerCase, form: str) -> None:
    """Known faults 1 and 6. Equal to each row alone without them, in a batch and in a batch of one; new content there
    changes no bit; a row without a token stays finite."""
    mixer, x = case.build(**facts(form)), rows(4)
    y = mixer(x, Context(token_mask=MASK))
    assert y.isfinite().all()
    noisy = torch.where(MASK[..., None], x, 100 * torch.randn_like(x))
    assert torch.equal(mixer(noisy, Context(token_mask=MASK))[MASK], y[MASK])
    for row in range(3):
        alone = mixer(x[row : row + 1, MASK[row]], Context())
        torch.testing.assert_close(y[row, MASK[row]], alone[0], **fp64)
        single = mixer(x[row : row + 1], Context(token_mask=MASK[row : row + 1]))
        torch.testing.assert_close(single[0, MASK[row]], alone[0], **fp64)


@padded
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(layout=layouts())
def test_the_law(case: MixerCase, form: str, layout: Layout) -> None:
    """Known faults 2, 6, 7 and 18. Cut into calls, padded and packed: outputs, last states and gradients of each
    document alone."""
    packed = Capability.DOCUMENTS in case.capabilities
    compared(case.build(**facts(form)), layout if packed else layout.unpacked(), 1e-10)


@padded
def test_the_law_holds_in_single_precision(case: MixerCase, form: str) -> None:
    tolerance = 2e-5  # a parameter's gradient is a sum over all tokens and channels
    compared(case.build(dtype=torch.float32, **facts(form)), Layout((4, 5, 9), MASK[[0, 2]]), tolerance)


@causal_steps
def test_token_by_token_equals_one_pass_and_leaves_the_same_state(case: MixerCase) -> None:
    mixer, x = case.build(causal=True), rows(length=20)
    steps, by_steps = run_in_pieces(mixer, x, list(range(1, 20)))
    torch.testing.assert_close(steps, mixer(x, Context()), **fp64)
    _, by_prefill = run_in_pieces(mixer, x, [])
    for name, value in tensors(by_prefill).items():
        torch.testing.assert_close(tensors(by_steps)[name], value, **fp64, msg=name)
    probe = rows(length=3, seed=9)
    torch.testing.assert_close(mixer(probe, Context(), by_steps), mixer(probe, Context(), by_prefill), **fp64)


@causal_steps
def test_the_short_cut_of_decoding_equals_the_forward_pass(case: MixerCase) -> None:
    """A mixer has none (attention with a gate), or it does the same, to outputs and states."""
    mixer, x = case.build(causal=True), rows()
    with torch.no_grad():
        _, state = run_in_pieces(mixer, x[:, :4], [])
        step = mixer.step(state)
        if step is None:
            return
        y = [step(x[:, t], Context(positions=torch.tensor([t]))) for t in range(4, T)]
        expected, after = run_in_pieces(mixer, x, [4])
    torch.testing.assert_close(torch.stack(y, 1), expected[:, 4:], **fp64)
    assert state.length.tolist() == after.length.tolist()
    for name, value in tensors(after).items():
        torch.testing.assert_close(tensors(state)[name], value, **fp64, msg=name)


@causal_steps
def test_recurrent_states_are_never_rounded(case: MixerCase) -> None:
    """What is kept in fp32 although the rest is bf16 has no bf16 on its way, under autocast."""
    mixer, x = case.build(dtype=torch.float32, causal=True), rows(dtype=torch.float32)
    half = tensors(mixer.init_state(2, T, dtype=torch.bfloat16))
    wide = {name for name, value in half.items() if value.dtype == torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        _, state = run_in_pieces(mixer, x, [6, 7, 8])
    for name in wide:
        held = tensors(state)[name]
        assert held.dtype == torch.float32 and not torch.equal(held, held.bfloat16().float()), name
    y, low = run_in_pieces(mixer.bfloat16(), x.bfloat16(), [6, 7, 8])  # as it is decoded with weights in bf16
    assert y.dtype == torch.bfloat16 and y.isfinite().all()
    assert {name for name, value in tensors(low).items() if value.dtype == torch.float32} == wide


@causal_steps
def test_rows_of_one_state_can_be_forked_and_reordered(case: MixerCase) -> None:
    mixer, x, probe = case.build(causal=True), rows(), rows(length=2, seed=7)
    _, state = run_in_pieces(mixer, x, [])
    before = mixer(probe, Context(), state.clone())
    fork = state.clone()
    mixer(rows(length=3, seed=8), Context(), fork)
    torch.testing.assert_close(mixer(probe, Context(), state.clone()), before, rtol=0, atol=0)
    state.reorder(torch.tensor([1, 1, 0]))
    y = mixer(torch.cat([probe[1:], probe[1:], probe[:1]]), Context(), state)
    torch.testing.assert_close(y, torch.cat([before[1:], before[1:], before[:1]]), **fp64)


@causal_steps
def test_a_state_reports_the_bytes_it_holds_and_costs_nothing_on_meta(case: MixerCase) -> None:
    mixer = case.build(causal=True)
    real = mixer.init_state(3, 10, dtype=torch.float32).nbytes()
    assert real == mixer.init_state(3, 10, dtype=torch.float32, device="meta").nbytes() > 0
    assert mixer.init_state(6, 10, dtype=torch.float32).nbytes() == 2 * real


@pytest.mark.parametrize("case", mixer_cases(C.CAUSAL | C.DOCUMENTS))
def test_packed_documents_never_see_each_other(case: MixerCase) -> None:
    """Known fault 18: the first document's last token is the first thing that would leak."""
    mixer, x = case.build(causal=True), rows()
    documents = torch.tensor([[0] * 5 + [1] * 6, [0] * 8 + [1] * 3])
    y = mixer(x, Context(documents=documents))
    leak = x.clone()
    leak[0, 4] += 10.0
    leak[1, 7] += 10.0
    z = mixer(leak, Context(documents=documents))
    for row, edge in ((0, 5), (1, 8)):
        assert torch.equal(z[row, edge:], y[row, edge:])
        torch.testing.assert_close(y[row, edge:], mixer(x[row : row + 1, edge:], Context())[0], **fp64)
    masked = mixer(x, Context(documents=documents, token_mask=torch.ones(2, T, dtype=torch.bool)))
    torch.testing.assert_close(masked, y, **fp64)


@pytest.mark.parametrize("case", mixer_cases(C.CROSS))
def test_cross_reading_ignores_masked_memory_and_stores_it_once(case: MixerCase) -> None:
    mixer, x, memory = case.build(memory_dim=DIM), rows(), rows(length=7, seed=5)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [0, 1, 1, 0, 1, 1, 1]], dtype=torch.bool)
    y = mixer(x, Context(memory=memory, memory_mask=mask))
    noisy = torch.where(mask[..., None], memory, 50 * torch.randn_like(memory))
    assert torch.equal(mixer(x, Context(memory=noisy, memory_mask=mask)), y)
    for row in range(2):
        alone = mixer(x[row : row + 1], Context(memory=memory[row : row + 1, mask[row]]))
        torch.testing.assert_close(y[row : row + 1], alone, **fp64)
    state = mixer.init_state(2, MAX_LEN, dtype=x.dtype)
    first = mixer(x[:, :4], Context(memory=memory, memory_mask=mask), state)
    later = mixer(x[:, 4:], Context(), state)  # the memory is not needed again
    torch.testing.assert_close(torch.cat([first, later], 1), y, **fp64)


@every_form
def test_deepcopy_is_equal_and_independent(case: MixerCase, form: str) -> None:
    mixer, x = case.build(**facts(form)), rows()
    twin = copy.deepcopy(mixer)
    torch.testing.assert_close(twin(x, context(form)), mixer(x, context(form)), rtol=0, atol=0)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    assert not torch.equal(twin(x, context(form)), mixer(x, context(form)))


@padded
def test_long_silence_stays_finite(case: MixerCase, form: str) -> None:
    """Rows of zeros, longer than any chunk: no division by a norm, a decay or a sum that is 0, also in backward."""
    mixer = case.build(dtype=torch.float32, **facts(form))
    for x in (torch.zeros(1, 150, DIM), torch.cat([rows(1, 3, torch.float32), torch.zeros(1, 147, DIM)], 1)):
        x.requires_grad_()
        y = mixer(x, Context())
        assert y.isfinite().all()
        for grad in torch.autograd.grad(y.sum(), [x, *mixer.parameters()], allow_unused=True, materialize_grads=True):
            assert grad.isfinite().all()


@causal_steps
@pytest.mark.parametrize("size", [1e3, 1e-4])
def test_inputs_of_any_size_overflow_nowhere(case: MixerCase, size: float) -> None:
    """They drive decays to 0 and to 1, gates shut and open, write strengths to their ends: all stays finite."""
    mixer, x = case.build(dtype=torch.float32, causal=True), (size * rows(2, 70, torch.float32)).requires_grad_()
    state = mixer.init_state(2, 70)
    y = mixer(x, Context(), state)
    found = [y, *tensors(state).values()]
    total = torch.stack([value.sum() for value in found]).sum()
    leaves = [x, *mixer.parameters()]
    found += torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    assert all(value.isfinite().all() for value in found)


@causal_steps
@pytest.mark.parametrize("length", [600, pytest.param(100_000, marks=pytest.mark.slow)])
def test_steps_stay_near_one_pass_in_double_precision(case: MixerCase, length: int) -> None:
    """A state of constant size in fp32 gathers no more rounding than it forgets, or than a sum of so many terms has."""
    mixer, x = case.build(dtype=torch.float32, causal=True), rows(1, length, torch.float32, seed=4)
    with torch.inference_mode():
        state = mixer.init_state(1, MAX_LEN)
        step = mixer.step(state)
        if step is None or not tensors(state):
            return
        y = torch.cat([step(x[:, t], Context(positions=torch.tensor([t]))) for t in range(length)])
        exact = mixer.double()(x.double(), Context())[0]
    error = (y[-100:] - exact[-100:]).abs().max() / exact[-100:].abs().max()
    assert error < 1e-7 * length**0.5 * 100, error


@every_form
def test_weights_can_be_saved_pickled_and_moved(case: MixerCase, form: str) -> None:
    mixer, x = case.build(**facts(form)), rows()
    y = mixer(x, context(form))
    file = io.BytesIO()
    torch.save(mixer.state_dict(), file)
    file.seek(0)
    other = case.build(seed=1, **facts(form))
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x, context(form)), y)
    assert torch.equal(pickle.loads(pickle.dumps(mixer))(x, context(form)), y)
    ctx = context(form)
    ctx.memory = None if ctx.memory is None else ctx.memory.to("meta")
    assert mixer.to("meta")(x.to("meta"), ctx).device.type == "meta"  # nothing of it stays on the CPU


@every_form
def test_built_on_meta_then_materialised_starts_like_built_at_once(case: MixerCase, form: str) -> None:
    kwargs = facts(form)
    with torch.device("meta"):
        mixer = case.build(dtype=torch.float32, **kwargs)
    materialise(mixer)
    direct = case.build(dtype=torch.float32, **kwargs)
    assert mixer(rows(dtype=torch.float32), to32(context(form))).isfinite().all()
    for (name, mine), other in zip(mixer.named_parameters(), direct.parameters(), strict=True):
        assert mine.shape == other.shape and not mine.is_meta
        if other.numel() >= 64:  # 64 draws: the standard deviation is known to about 9 percent; 5 sigma
            torch.testing.assert_close(mine.std(), other.std(), rtol=0.45, atol=1e-6, msg=name)


@every_form
def test_initial_values_depend_on_the_slot_alone(case: MixerCase, form: str) -> None:
    """Same seed, same slot, same bits: nothing outside the block decides how it starts."""
    first, second = case.build(**facts(form)), case.build(**facts(form))
    deep = case.build(branches=16, **facts(form))
    for (name, a), b, c in zip(first.named_parameters(), second.parameters(), deep.parameters(), strict=True):
        assert torch.equal(a, b), name
        if name == "out.weight":
            torch.testing.assert_close(c * 4, a, rtol=0, atol=1e-12)  # 1 / sqrt(16)


@pytest.mark.parametrize(
    ("case", "form"),
    [
        pytest.param(case.values[0], form, id=f"{case.id}-{form}")
        for case, form in FORMS
        # other switches change values, not the program's shape
        if not case.values[0].choices or {"position", "window", "sink_logit"} & set(case.values[0].choices)
    ],
)
def test_forward_can_be_exported(case: MixerCase, form: str) -> None:
    class Exported(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mixer = case.build(dtype=torch.float32, **facts(form))

        def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
            return self.mixer(x, Context(memory=memory if form == "cross" else None))

    x, memory = rows(dtype=torch.float32), rows(length=7, dtype=torch.float32)
    module = Exported()
    with torch.no_grad():
        program = torch.export.export(module, (x, memory))
    torch.testing.assert_close(program.module()(x, memory), module(x, memory), rtol=0, atol=1e-5)


@every_form
def test_autocast_keeps_the_result_near_full_precision(case: MixerCase, form: str) -> None:
    mixer, x = case.build(dtype=torch.float32, **facts(form)), rows(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x, to32(context(form)))
    full = mixer(x, to32(context(form)))
    assert y.isfinite().all()
    # bf16 keeps 8 bits: outputs agree to a few percent of their size
    assert (y.float() - full).abs().mean() < 0.05 * full.abs().mean() + 1e-3


def to32(ctx: Context) -> Context:
    if ctx.memory is not None:
        ctx.memory = ctx.memory.float()
    return ctx


def test_every_mixer_has_a_width_refusal() -> None:
    from zoo.registry import ConfigError

    with pytest.raises(ConfigError, match="heads"):
        MixerCase("attention").build(heads=3)
    with pytest.raises(ConfigError, match="kv_heads"):
        MixerCase("attention", {"kv_heads": 3}).build()
    assert Slot(dim=DIM, heads=HEADS).output_std(DIM) == 0.02
