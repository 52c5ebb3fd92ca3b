"""Latent attention: the paper's loop, two ways that agree, the bytes it keeps, and where each choice acts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from zoo import ConfigError, Recorder
from zoo.blocks import Capability, Context, Slot, Stack
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.blocks.mixers.mla import LatentAttention, MLAConfig, naive_mla
from zoo.blocks.positions import RopeConfig, rotary_tables, rotate, token_positions
from zoo.blocks.positions.rotary_scaling import YarnScalingConfig
from zoo.blocks.stack import TransformerConfig

DIM, HEADS, T = 16, 4, 11
fp64 = {"rtol": 0.0, "atol": 1e-10}
YARN = YarnScalingConfig(factor=8.0, original_max_len=64)
CHOICES: list[dict[str, Any]] = [
    {},
    {"q_rank": 6},
    {"rope_dim": 0},
    {"position": RopeConfig()},
    {"position": RopeConfig(layout="interleaved", base=50.0), "q_rank": 6},
    {"position": RopeConfig(), "nope_dim": 3, "rope_dim": 6, "value_dim": 5, "kv_rank": 7},
]
every_choice = pytest.mark.parametrize("choices", CHOICES, ids=lambda c: ",".join(c) or "default")


def build(dtype: torch.dtype = torch.float64, *, slot: dict[str, Any] | None = None, **choices: Any) -> LatentAttention:
    torch.manual_seed(0)
    facts = {"dim": DIM, "heads": HEADS, "causal": True, "init_std": 0.3, **(slot or {})}
    return MLAConfig(**choices).build(Slot(**facts)).to(dtype).eval()


def rows(batch: int = 2, length: int = T, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(batch, length, DIM, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def values_and_gradients(mixer: torch.nn.Module, y: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    """The output, and the gradients of a fixed sum of it for the input and every parameter."""
    weight = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(3))
    return [y, *torch.autograd.grad((y * weight).sum(), [x, *mixer.parameters()])]


@every_choice
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-5)], ids=["fp64", "fp32"])
def test_equals_the_papers_loop(choices: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    mixer, x = build(dtype, **choices), rows(1, dtype=dtype).requires_grad_()
    found = values_and_gradients(mixer, mixer(x, Context()), x)
    expected = values_and_gradients(mixer, naive_mla(mixer, x[0])[None], x)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def both_ways(
    monkeypatch: pytest.MonkeyPatch, mixer: LatentAttention, x: torch.Tensor, before: int, **fields: torch.Tensor
) -> list[list[torch.Tensor]]:
    """x in two calls through one state, materialised and absorbed: outputs and gradients."""
    found = []
    for absorbed in (False, True):
        monkeypatch.setattr(LatentAttention, "_absorbs", lambda *_, way=absorbed: way)
        state = mixer.init_state(len(x), 4, dtype=x.dtype)
        pieces = [slice(0, before), slice(before, None)]
        y = [mixer(x[:, s], Context(**{name: f[:, s] for name, f in fields.items()}), state) for s in pieces]
        found.append(values_and_gradients(mixer, torch.cat(y, 1), x))
    return found


@pytest.mark.parametrize("choices", [*CHOICES, {"position": {"name": "alibi"}}, {"gate": "head"}], ids=str)
@pytest.mark.parametrize("kind", ["plain", "padded", "packed"])
def test_the_absorbed_way_equals_the_materialised_one(
    monkeypatch: pytest.MonkeyPatch, choices: dict[str, Any], kind: str
) -> None:
    mixer, x = build(**choices), rows().requires_grad_()
    fields: dict[str, torch.Tensor] = {}
    if kind == "padded":
        fields["token_mask"] = torch.rand(2, T, generator=torch.Generator().manual_seed(2)) > 0.4
    if kind == "packed":
        fields["documents"] = torch.tensor([[0] * 3 + [1] * 8, [0] * 9 + [1] * 2])
        fields["positions"] = token_positions(T, Context(documents=fields["documents"]))
    materialised, absorbed = both_ways(monkeypatch, mixer, x, 5, **fields)
    for a, b in zip(absorbed, materialised, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(absorbed[0], mixer(x, Context(**fields)), **fp64)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    nope=st.integers(1, 5), rope=st.sampled_from([0, 2, 4]), value=st.integers(1, 5), rank=st.integers(1, 9),
    heads=st.integers(1, 3), splits=st.lists(st.integers(1, 4), min_size=1, max_size=5),
)  # fmt: skip
def test_any_widths_and_any_split_equal_one_pass(
    nope: int, rope: int, value: int, rank: int, heads: int, splits: list[int]
) -> None:
    widths = {"nope_dim": nope, "rope_dim": rope, "value_dim": value, "kv_rank": rank, "heads": heads}
    mixer, x = build(**widths, slot={"position": RopeConfig()}), rows(length=sum(splits))
    state = mixer.init_state(2, 4, dtype=x.dtype)
    y = torch.cat([mixer(piece, Context(), state) for piece in x.split(splits, 1)], 1)
    torch.testing.assert_close(y, mixer(x, Context()), **fp64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rank", "rope"), [(16, 4), (7, 2), (12, 0)])
def test_a_state_holds_c_plus_r_numbers_a_token_and_nothing_else(rank: int, rope: int, dtype: torch.dtype) -> None:
    batch, tokens = 3, 10
    mixer = build(dtype, kv_rank=rank, rope_dim=rope)
    state = mixer.init_state(batch, tokens)
    mixer(rows(batch, tokens, dtype=dtype), Context(), state)
    assert state is not None and state.nbytes() == batch * tokens * (rank + rope) * dtype.itemsize
    full = AttentionConfig().build(Slot(dim=DIM, heads=HEADS, causal=True)).to(dtype)
    assert full.init_state(batch, tokens).nbytes() == batch * tokens * 2 * DIM * dtype.itemsize


def test_a_state_holds_the_normed_latent_and_the_rotated_shared_key() -> None:
    mixer, x = build(position=RopeConfig(layout="interleaved")), rows()
    state: Any = mixer.init_state(2, T, dtype=x.dtype)
    mixer(x[:, :6], Context(), state)
    mixer(x[:, 6:], Context(), state)
    latent, shared = mixer.kv_down(x).split((16, 4), -1)
    angles = torch.arange(T, dtype=x.dtype)[:, None] * 10000.0 ** torch.tensor([0.0, -0.5], dtype=x.dtype)
    expected = torch.cat(
        (mixer.kv_norm(latent), rotate(shared, *rotary_tables(angles, "interleaved"), "interleaved")), -1
    )
    torch.testing.assert_close(state.keys[:, 0], expected, **fp64)


def test_the_way_with_fewer_multiply_adds_is_taken() -> None:
    """Counted by torch on the meta device, at half of DeepSeek-V3's widths and 16 heads, 1000 tokens cached in all."""
    widths = {"nope_dim": 64, "rope_dim": 32, "value_dim": 64, "kv_rank": 256}
    taken = []
    for tokens in (1, 30, 60, 90, 500):
        flops = []
        with torch.device("meta"):
            for absorbed in (False, True):
                mixer = MLAConfig(**widths).build(Slot(dim=DIM, heads=16, causal=True))
                choice = mixer._absorbs(tokens, 1000)
                mixer._absorbs = lambda *_, way=absorbed: way  # type: ignore[method-assign]
                state: Any = mixer.init_state(1, 1000, dtype=torch.float32)
                state.uniform = state.bound = 1000 - tokens
                with FlopCounterMode(display=False) as counter, torch.no_grad():
                    mixer(torch.empty(1, tokens, DIM), Context(), state)
                flops.append(counter.get_total_flops())
        assert choice == (flops[1] < flops[0]), (tokens, flops)
        taken.append(choice)
    assert taken == [True, True, True, False, False]


def test_at_the_widths_of_deepseek_v3_up_to_151_tokens_are_absorbed() -> None:
    with torch.device("meta"):
        config = MLAConfig(heads=128, nope_dim=128, rope_dim=64, value_dim=128, kv_rank=512, q_rank=1536)
        mixer = config.build(Slot(dim=7168, causal=True))
    assert mixer._absorbs(151, 4096) and not mixer._absorbs(152, 4096)
    assert not mixer._absorbs(4096, 4096) and not mixer._absorbs(1, 1)


def test_defaults_are_the_papers_proportions() -> None:
    mixer = build(slot={"dim": 512, "heads": 4})
    assert (mixer.nope_dim, mixer.rope_dim, mixer.value_dim, mixer.kv_rank) == (128, 64, 128, 512)


def test_without_a_rotary_part_order_is_told_by_the_mask_alone() -> None:
    """Kimi Linear's form: the last token sees its past as a set, also in a family with rope."""
    mixer, x = build(rope_dim=0, slot={"position": RopeConfig()}), rows()
    shuffled = torch.cat((x[:, torch.randperm(T - 1)], x[:, -1:]), 1)
    torch.testing.assert_close(mixer(shuffled, Context())[:, -1], mixer(x, Context())[:, -1], **fp64)
    turning = build(slot={"position": RopeConfig()})
    assert (turning(shuffled, Context()) - turning(x, Context()))[:, -1].abs().max() > 1e-3


def test_yarns_factor_is_on_all_scores_or_on_the_rotary_part_alone() -> None:
    position = RopeConfig(scaling=YARN)
    on_scores, on_rotary = build(position=position), build(position=position, yarn_factor="rotary")
    plain = build(position=RopeConfig(scaling=YARN.model_copy(update={"attention_factor": 1.0})))
    assert on_scores.scale == pytest.approx(on_rotary.scale * YARN.scale**2) and YARN.scale > 1.2
    x = rows()

    def scores(mixer: LatentAttention) -> tuple[torch.Tensor, torch.Tensor]:
        q, row = mixer._project(x, torch.arange(T), Context())
        k, _ = mixer._materialise(row)
        parts = [(a @ b.mT) * mixer.scale for a, b in zip(q.split(4, -1), k.split(4, -1), strict=True)]
        return parts[0], parts[1]  # of the part without positions, of the rotary part

    for found, nope, rotary in ((on_scores, 2, 2), (on_rotary, 0, 2)):
        for part, reference, power in zip(scores(found), scores(plain), (nope, rotary), strict=True):
            torch.testing.assert_close(part, reference * YARN.scale**power, **fp64)


def test_cross_use_keeps_the_latents_of_the_memory_and_leaves_the_rotary_part_out() -> None:
    mixer = build(slot={"memory_dim": 6, "causal": False, "position": RopeConfig()})
    assert mixer.rotary is None and mixer.kv_down.out_features == 16 and mixer.q.out_features == DIM
    memory = torch.randn(2, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    state: Any = mixer.init_state(2, 0)
    x = rows()
    first = mixer(x[:, :10], Context(memory=memory), state)  # 10 new tokens over 5: materialised
    last = mixer(x[:, 10:], Context(), state)  # 1 new token: absorbed
    assert not mixer._absorbs(10, 5) and mixer._absorbs(1, 5)
    torch.testing.assert_close(torch.cat((first, last), 1), mixer(x, Context(memory=memory)), **fp64)
    assert state.nbytes() == 2 * 5 * 16 * 8
    with pytest.raises(ValueError, match=r"needs context.memory"):
        mixer(x, Context())


def test_maps_are_those_of_the_materialised_keys_in_both_ways() -> None:
    mixer, x = build(position=RopeConfig()), rows()
    full, step = Recorder(), Recorder()
    mixer(x, Context(record=full))
    state = mixer.init_state(2, T, dtype=x.dtype)
    mixer(x[:, : T - 1], Context(), state)
    assert mixer._absorbs(1, T)
    mixer(x[:, T - 1 :], Context(record=step), state)
    name = f"{mixer.where}.attention"
    assert full.taps[name].shape == (2, HEADS, T, T)
    torch.testing.assert_close(full.taps[name].sum(-1), torch.ones(2, HEADS, T, dtype=x.dtype), **fp64)
    torch.testing.assert_close(step.taps[name], full.taps[name][:, :, -1:], **fp64)


def test_a_hook_on_the_up_projection_is_never_passed_by() -> None:
    """Adapters act through hooks or classes of their own, which the absorbed way would not ask."""
    mixer, x = build(), rows()
    mixer.kv_up.register_forward_hook(lambda module, given, out: 2 * out)
    state = mixer.init_state(2, T, dtype=x.dtype)
    y = torch.cat([mixer(piece, Context(), state) for piece in x.split(1, 1)], 1)
    torch.testing.assert_close(y, mixer(x, Context()), **fp64)
    assert mixer.step(state) is None


def test_packed_documents_go_on_through_a_state_and_must_be_told_again() -> None:
    mixer, x = build(position=RopeConfig()), rows()
    documents = torch.tensor([[0] * 4 + [1] * 7, [0] * 6 + [1] * 5])
    positions = token_positions(T, Context(documents=documents))
    state = mixer.init_state(2, T, dtype=x.dtype)
    pieces = [slice(0, 5), slice(5, 6), slice(6, T)]
    y = [mixer(x[:, s], Context(documents=documents[:, s], positions=positions[:, s]), state) for s in pieces]
    torch.testing.assert_close(torch.cat(y, 1), mixer(x, Context(documents=documents)), **fp64)
    with pytest.raises(ValueError, match=r"give context\.documents"):
        mixer(x[:, :1], Context(), state)


STEPS: list[dict[str, Any]] = [
    {"position": "rope", "mixer": {"name": "mla"}},
    {"position": "rope", "mixer": {"name": "mla", "q_rank": 6, "bias": True, "out_bias": True}},
    {"position": "learned", "mixer": {"name": "mla", "rope_dim": 0, "value_dim": 5}},
    {"position": {"name": "rope", "layout": "interleaved"}, "mixer": {"name": "mla"}},
]


def stack(cross: bool, **choices: Any) -> Stack:
    torch.manual_seed(0)
    config = TransformerConfig(dim=DIM, depth=2, heads=HEADS, init_std=0.3, **choices)
    slot = Slot(dim=DIM, heads=HEADS, max_len=32, causal=True, memory_dim=DIM if cross else None, needs=Capability.STEP)
    return Stack(config, slot).double().eval()


@pytest.mark.parametrize("choices", STEPS, ids=str)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
def test_a_step_equals_the_forward_pass(choices: dict[str, Any], batch: int, cross: bool) -> None:
    model, x = stack(cross, **choices), rows(batch)
    memory = rows(batch, 5, seed=2) if cross else None
    ours, theirs = (model.init_state(batch, 4, dtype=x.dtype) for _ in range(2))
    with torch.inference_mode():
        for state in (ours, theirs):
            model(x[:, :4], Context(memory=memory), state)
        step = model.step(ours)
        assert step is not None
        for t in range(4, T):
            torch.testing.assert_close(step(x[:, t]), model(x[:, t : t + 1], Context(), theirs)[:, 0], **fp64)
    assert ours.length.tolist() == theirs.length.tolist() == [T] * batch


@pytest.mark.parametrize("mixer", [{"gate": "head"}, {"position": {"name": "alibi"}}], ids=str)
def test_what_has_no_short_cut_says_so(mixer: dict[str, Any]) -> None:
    model = stack(False, mixer={"name": "mla", **mixer})
    assert model.step(model.init_state(1, 4)) is None


@pytest.mark.parametrize(
    ("choices", "slot", "message"),
    [
        ({"rope_dim": 3}, {}, "rope_dim"),
        ({"q_rank": 0}, {}, "q_rank"),
        ({"heads": 3}, {}, "dim 16 is not a multiple of heads 3; change one, or set nope_dim"),
        ({"position": {"name": "learned"}}, {}, "'learned' is added at the input, not in a mixer; choices: rope"),
        ({"position": RopeConfig(), "rope_dim": 0}, {}, "'rope' has nothing to turn while rope_dim is 0"),
        ({"position": RopeConfig()}, {"memory_dim": DIM}, "'rope' has no meaning between two sequences"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_line(
    choices: dict[str, Any], slot: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        build(slot=slot, **choices)
    assert "\n" not in str(refusal.value)


def test_core_flops_are_scores_and_weighted_sum_of_materialised_heads() -> None:
    mixer = build(nope_dim=3, rope_dim=2, value_dim=5)
    assert mixer.core_flops(2, 7) == 2 * 2 * HEADS * 7 * 7 * (3 + 2 + 5)
