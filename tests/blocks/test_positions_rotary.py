"""Rotary positions: rotation identities, scalings, precision, sharing within a pass (known faults 5, 16, 17)."""

from __future__ import annotations

import copy
from itertools import pairwise, permutations
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from zoo.blocks.api import Context, Slot
from zoo.blocks.positions import (
    Rope,
    Rope2d,
    Rope2dConfig,
    RopeConfig,
    RopeScalingConfig,
    inverse_frequencies,
    naive_rope,
    token_positions,
)
from zoo.blocks.stack import Stack, TransformerConfig
from zoo.registry import ConfigError, decode, encode

SLOT = Slot(dim=32, heads=4, where="test")  # K = 8
LAYOUTS = ("half", "interleaved")
SCALINGS = ("none", "linear", "ntk", "dynamic_ntk", "yarn", "llama3")


def rope(slot: Slot = SLOT, **choices: Any) -> Rope:
    return decode("position", {"name": "rope", **choices}).build(slot)


def slot_for(head_dim: int, heads: int = 1) -> Slot:
    return Slot(dim=head_dim * heads, heads=heads, where="test")


def turn(module: Rope | Rope2d, x: Tensor, positions: Tensor, context: Context | None = None) -> Tensor:
    """x (..., T, K) rotated alone."""
    x = x.reshape(1, -1, *x.shape[-2:])
    return module(x, x, positions, context or Context())[0]


def scores(module: Rope, q: Tensor, k: Tensor, m: int, n: int) -> Tensor:
    """Score of the vectors q (K,) at m and k (K,) at n."""
    both = torch.stack((q, k))[None, None]  # (1, 1, 2, K)
    rotated = module(both, both, torch.tensor([m, n]), Context())[0]
    return rotated[0, 0, 0] @ rotated[0, 0, 1]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_equals_the_papers_loop(layout: str, base: float) -> None:
    q, k = torch.randn(2, 4, 6, 8, dtype=torch.float64), torch.randn(2, 2, 6, 8, dtype=torch.float64)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5], [7, 0, 31, 2, 2, 100]])
    got_q, got_k = rope(layout=layout, base=base)(q, k, positions, Context())
    for b in range(2):
        for x, got in ((q, got_q), (k, got_k)):
            for h in range(x.shape[1]):
                want = naive_rope(x[b, h], positions[b], base, cast(Any, layout))
                torch.testing.assert_close(got[b, h], want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_keeps_pair_norms_and_composes(layout: str, fraction: float) -> None:
    x = torch.randn(1, 1, 5, 8, dtype=torch.float64)
    module = rope(layout=layout, fraction=fraction)
    p, q = torch.tensor([0, 3, 9, 50, 1]), torch.tensor([4, 4, 0, 7, 1000])
    width = int(8 * fraction)
    once = turn(module, x, p)
    pairs = (
        (lambda t: t[..., :width].unflatten(-1, (2, -1)).transpose(-1, -2))
        if layout == "half"
        else (lambda t: t[..., :width].unflatten(-1, (-1, 2)))
    )
    torch.testing.assert_close(pairs(once).norm(dim=-1), pairs(x).norm(dim=-1), rtol=0, atol=1e-10)
    torch.testing.assert_close(turn(module, once, q), turn(module, x, p + q), rtol=0, atol=1e-10)
    assert torch.equal(once[..., width:], x[..., width:])  # partial rotation leaves the rest as it is


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_layouts_agree_after_the_channel_permutation(fraction: float) -> None:
    x = torch.randn(1, 2, 7, 8, dtype=torch.float64)
    width = int(8 * fraction)
    order = torch.arange(8)
    order[:width] = order[:width].view(2, -1).t().flatten()  # interleaved channel j holds the half layout's order[j]
    positions = torch.arange(7) * 3
    half, interleaved = rope(layout="half", fraction=fraction), rope(layout="interleaved", fraction=fraction)
    got = turn(interleaved, x[..., order], positions)
    torch.testing.assert_close(got, turn(half, x, positions)[..., order], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("head_dim", "fraction"), [(7, 1.0), (8, 0.375), (8, 0.3), (1, 1.0), (2, 0.25)])
def test_refuses_a_width_without_pairs(head_dim: int, fraction: float) -> None:
    with pytest.raises(ConfigError, match="rotary width") as caught:
        rope(slot_for(head_dim), fraction=fraction)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="multiple of 4"):
        Rope2dConfig().build(slot_for(6))


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_scores_depend_on_the_distance_only_at_long_positions(scaling: str, layout: str) -> None:
    """Fault 5. fp32 angles near 8191 are rounded by up to 2.4e-4, on few pairs: 1e-4 on unit vectors leaves room."""
    module = rope(
        slot_for(64),
        layout=layout,
        scaling={"name": scaling, "original_max_len": 16384} if scaling == "dynamic_ntk" else scaling,
    )  # dynamic NTK changes with the row's length, so it stays inside L here
    q, k = nn.functional.normalize(torch.randn(2, 64, generator=torch.Generator().manual_seed(0)), dim=-1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near, far, farther = (scores(module, q, k, n + 5, n) for n in (5, 4090, 8186))
    assert abs(near - far) < 1e-4
    assert abs(near - farther) < 1e-4


@pytest.mark.parametrize("way", ["cast", "autocast"])
def test_angles_stay_fp32_in_half_precision(way: str) -> None:
    """Fault 5: the tables of a bf16 model, read off by rotating unit vectors, against fp64."""
    module = rope(slot_for(64))
    positions = torch.tensor([0, 257, 1000, 4095, 8191])
    context = Context()
    x = torch.zeros(1, 1, 5, 64)
    x[..., :32] = 1.0  # the half layout turns (1, 0) into (cos, sin)
    if way == "cast":
        got = nn.Sequential(module).to(torch.bfloat16)[0](x.bfloat16(), x.bfloat16(), positions, context)[0].float()
    else:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = module(x.bfloat16(), x.bfloat16(), positions, context)[0].float()
    angles = positions[:, None].double() * 10000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    want = torch.cat((angles.cos(), angles.sin()), dim=-1)
    assert (got[0, 0] - want).abs().max() < 0.004  # one rounding of the output to bf16 is 2^-9
    cos, sin = next(value for key, value in context.memo.items() if key[0] == "rope")
    assert cos.dtype == sin.dtype == torch.float32
    assert (cos[..., :32] - angles.cos()).abs().max() < 1e-3
    assert (sin[..., 32:] - angles.sin()).abs().max() < 1e-3


def test_output_dtypes_follow_the_inputs() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        x = torch.randn(1, 2, 3, 8, dtype=dtype)
        assert all(y.dtype == dtype for y in rope()(x, x, torch.arange(3), Context()))


@pytest.mark.parametrize("scaling", ["none", "dynamic_ntk", "yarn"])
def test_call_order_never_matters(scaling: str) -> None:
    """Fault 16: offsets, lengths growing and shrinking, and dtypes, on one instance against a fresh one per call."""
    value = {"name": scaling, "original_max_len": 8} if scaling != "none" else scaling
    calls = [(0, 4, torch.float32), (5, 4, torch.float32), (0, 4, torch.float32), (0, 30, torch.float32),
             (0, 3, torch.float64), (2, 4, torch.bfloat16)]  # fmt: skip
    wanted = []
    for offset, length, dtype in calls:
        x = torch.linspace(-1, 1, length * 8, dtype=dtype).view(1, 1, length, 8)
        wanted.append(turn(rope(scaling=value), x, offset + torch.arange(length)))
    for order in list(permutations(range(len(calls))))[::40]:
        module = rope(scaling=value)
        for i in order:
            offset, length, dtype = calls[i]
            x = torch.linspace(-1, 1, length * 8, dtype=dtype).view(1, 1, length, 8)
            assert torch.equal(turn(module, x, offset + torch.arange(length)), wanted[i])


def test_offset_rows_equal_those_of_the_long_table() -> None:
    x = torch.ones(1, 1, 9, 8, dtype=torch.float64)
    module = rope()
    long = turn(module, x, torch.arange(9))
    assert torch.equal(turn(module, x[:, :, :4], 5 + torch.arange(4)), long[:, :, 5:])


def test_one_context_keeps_different_calls_apart() -> None:
    """Within one pass, tables are shared only between calls for which everything that matters is equal."""
    context = Context()
    positions, later = torch.arange(4), torch.arange(4) + 5
    x = torch.randn(1, 1, 4, 8, dtype=torch.float64)
    modules = [rope(), rope(base=99.0), rope(layout="interleaved"), rope(fraction=0.5), rope(scaling="yarn")]
    for module in [*modules, *modules]:
        for p in (positions, later):
            for dtype in (torch.float64, torch.float32):
                got = turn(module, x.to(dtype), p, context)
                assert torch.equal(got, turn(module, x.to(dtype), p))
    wide = torch.randn(1, 1, 4, 16)
    assert torch.equal(turn(modules[0], wide, positions, context), turn(modules[0], wide, positions))


def test_layers_of_one_pass_share_the_tables() -> None:
    context = Context(token_mask=torch.tensor([[False, True, True, True]]))
    x = torch.randn(1, 1, 4, 8)
    for _ in range(3):
        positions = token_positions(4, context)
        rope()(x, x, positions, context)
    assert sum(key[0] == "rope" for key in context.memo) == 1


def transformers_rope(kind: str, seq_len: int | None = None, **parameters: Any) -> tuple[Tensor, float]:
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, head_dim=64, max_position_embeddings=parameters.pop("limit", 2048)
    )
    config.rope_parameters = {"rope_type": kind, "rope_theta": parameters.pop("base"), **parameters}
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=seq_len)


@pytest.mark.parametrize("base", [10000.0, 500000.0])
@pytest.mark.parametrize(
    ("name", "kind", "choices", "theirs"),
    [
        ("linear", "linear", {"factor": 3.0}, {"factor": 3.0}),
        ("yarn", "yarn", {"factor": 4.0, "original_max_len": 4096}, {"original_max_position_embeddings": 4096}),
        ("yarn", "yarn", {"factor": 16.0, "original_max_len": 128}, {"original_max_position_embeddings": 128}),
        (
            "yarn", "yarn",
            {"factor": 4.0, "original_max_len": 4096, "beta_fast": 20.0, "beta_slow": 2.0, "attention_factor": 1.3,
             "truncate": False},
            {"original_max_position_embeddings": 4096, "beta_fast": 20.0, "beta_slow": 2.0, "attention_factor": 1.3,
             "truncate": False},
        ),
        (
            "llama3", "llama3",
            {"factor": 8.0, "original_max_len": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            {"original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        ),
    ],
)  # fmt: skip
def test_scaled_frequencies_equal_transformers(
    name: str, kind: str, choices: dict[str, Any], theirs: dict[str, Any], base: float
) -> None:
    scaling: RopeScalingConfig = decode("rope_scaling", {"name": name, **choices})
    plain = inverse_frequencies(64, base, dtype=torch.float64)
    got = scaling.frequencies(plain, base)
    want, factor = transformers_rope(kind, base=base, **{"factor": choices["factor"], **theirs})
    torch.testing.assert_close(got.float(), want, rtol=3e-6, atol=0)  # theirs is made in fp32, ours here in fp64
    assert scaling.scale == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("length", [1, 2048, 2049, 9000])
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_dynamic_ntk_equals_transformers(length: int, factor: float) -> None:
    scaling: RopeScalingConfig = decode("rope_scaling", {"name": "dynamic_ntk", "factor": factor})
    got = scaling.frequencies(inverse_frequencies(64, 1e4, dtype=torch.float64), 1e4, torch.tensor([length]))
    want, _ = transformers_rope("dynamic", seq_len=length, base=1e4, factor=factor)
    torch.testing.assert_close(got.float(), want, rtol=3e-6, atol=0)


def test_ntk_keeps_the_highest_and_interpolates_the_lowest_frequency() -> None:
    plain = inverse_frequencies(64, 1e4, dtype=torch.float64)
    got = decode("rope_scaling", {"name": "ntk", "factor": 8.0}).frequencies(plain, 1e4)
    assert got[0] == 1.0
    torch.testing.assert_close(got[-1], plain[-1] / 8, rtol=1e-12, atol=0)
    want, _ = transformers_rope("dynamic", seq_len=4096, base=1e4, factor=7.0)  # 7 * 4096 / 2048 - 6 = 8
    torch.testing.assert_close(got.float(), want, rtol=3e-6, atol=0)


def test_yarn_keeps_high_frequencies_and_scales_the_tables() -> None:
    """The ramp's direction and the factor on cos and sin, which the logits see squared."""
    scaling: RopeScalingConfig = decode("rope_scaling", {"name": "yarn", "factor": 8.0})
    plain = inverse_frequencies(128, 1e4, dtype=torch.float64)
    ratio = plain / scaling.frequencies(plain, 1e4)
    assert ratio[0] == 1.0
    assert ratio[-1] == pytest.approx(8.0)
    assert all(a <= b + 1e-12 for a, b in pairwise(ratio.tolist()))
    q = torch.randn(1, 1, 1, 8, dtype=torch.float64)
    module = rope(scaling={"name": "yarn", "factor": 8.0})
    factor = 0.1 * torch.log(torch.tensor(8.0, dtype=torch.float64)) + 1
    torch.testing.assert_close(turn(module, q, torch.zeros(1, dtype=torch.long)), q * factor, rtol=1e-12, atol=0)


def test_dynamic_ntk_takes_each_rows_and_each_documents_own_length() -> None:
    """A long neighbour, in the batch or in the packed row, changes nothing."""
    module = rope(scaling={"name": "dynamic_ntk", "original_max_len": 4})
    x = torch.randn(2, 1, 9, 8, dtype=torch.float64)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, :4] = False  # a row of 5, left-padded
    context = Context(token_mask=mask)
    got, _ = module(x, x, token_positions(9, context), context)
    torch.testing.assert_close(got[1:, :, 4:], turn(module, x[1:, :, 4:], torch.arange(5)), rtol=0, atol=1e-12)

    context = Context(documents=torch.tensor([[7, 7, 7, 7, 7, 7, 2, 2, 2]]))
    got, _ = module(x[:1], x[:1], token_positions(9, context), context)
    torch.testing.assert_close(got[:, :, :6], turn(module, x[:1, :, :6], torch.arange(6)), rtol=0, atol=1e-12)
    torch.testing.assert_close(got[:, :, 6:], turn(module, x[:1, :, 6:], torch.arange(3)), rtol=0, atol=1e-12)


def test_scaling_choices_are_decoded_strictly() -> None:
    config = decode("position", {"name": "rope", "scaling": {"name": "yarn", "factor": 8}})
    assert decode("position", encode(config)) == config
    for value, told in (
        ({"name": "rope", "scaling": "yarm"}, "scaling: unknown rope_scaling 'yarm', did you mean 'yarn'"),
        ({"name": "rope", "scaling": {"name": "yarn", "beta": 3}}, "scaling.beta: unknown key"),
        ({"name": "rope", "scaling": {"name": "linear", "factor": 0.5}}, "scaling.factor"),
        ({"name": "rope", "scaling": {"name": "yarn", "beta_fast": 1.0}}, "should exceed beta_slow"),
        ({"name": "rope", "layout": "halves"}, "layout"),
    ):
        with pytest.raises(ConfigError) as caught:
            decode("position", value)
        assert told in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="NTK scaling needs a rotary width of 4"):
        turn(rope(slot_for(2), scaling="ntk"), torch.ones(1, 1, 3, 2), torch.arange(3))


def test_a_causal_stack_over_a_grid_decodes_token_by_token() -> None:
    """Behind the prefix of one token, row by row: each step finds its place on the slot's grid by its position."""
    torch.manual_seed(0)
    config = TransformerConfig(dim=16, depth=2, heads=2, position="rope2d", init_std=0.3)  # type: ignore[arg-type]
    model = Stack(config, Slot(dim=16, heads=2, causal=True, grid=(3, 4), prefix=1, where="test")).double().eval()
    x = torch.randn(2, 13, 16, dtype=torch.float64)
    with torch.no_grad():
        full, state = model(x, Context()), model.init_state(2, 13)
        got = [model(x[:, :5], Context(), state)]
        step = model.step(state)
        assert step is not None
        got += [step(x[:, t])[:, None] for t in range(5, 13)]
    torch.testing.assert_close(torch.cat(got, 1), full, rtol=0, atol=1e-10)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rope2d_turns_halves_by_row_and_column_and_leaves_the_prefix(layout: str) -> None:
    grid, prefix = (3, 5), 2
    module = Rope2dConfig(layout=cast(Any, layout)).build(SLOT.at(grid=grid, prefix=prefix))
    x = torch.randn(2, 4, 17, 8, dtype=torch.float64)
    got = module(x, x[:, :1], torch.arange(17), Context(grid=grid, prefix=prefix))[0]
    assert torch.equal(got[:, :, :2], x[:, :, :2])
    order = torch.arange(8) if layout == "half" else torch.arange(8).view(-1, 2).t().flatten()
    halves = x[..., order]  # as in the half layout: channels (i, i + 4) are pair i; pairs 0, 1 rows, 2, 3 columns
    for t in range(15):
        row, column = divmod(t, 5)
        for axis, pairs in ((row, [0, 1, 4, 5]), (column, [2, 3, 6, 7])):
            want = naive_rope(halves[0, 0, 2 + t : 3 + t][:, pairs], torch.tensor([axis]), 100.0, "half")
            torch.testing.assert_close(got[..., order][0, 0, 2 + t, pairs], want[0], rtol=0, atol=1e-10)


def test_rope2d_scores_depend_on_the_offset_on_the_grid_only() -> None:
    module = Rope2dConfig().build(SLOT)
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)
    grid = (6, 7)
    qs, ks = module(q.expand(-1, -1, 42, -1), k.expand(-1, -1, 42, -1), torch.arange(42), Context(grid=grid))
    table = (qs[0, 0] @ ks[0, 0].T).view(6, 7, 6, 7)
    torch.testing.assert_close(table[1:, 1:, 1:, 1:], table[:-1, :-1, :-1, :-1], rtol=0, atol=1e-10)


def test_rope2d_takes_grids_masks_and_subsets() -> None:
    module = Rope2dConfig().build(SLOT.at(grid=(3, 5), prefix=1))
    x = torch.randn(1, 1, 16, 8, dtype=torch.float64)
    full = turn(module, x, torch.arange(16))
    mask = torch.ones(1, 16, dtype=torch.bool)
    mask[0, 4:8] = False  # a masked patch keeps the places of the others
    context = Context(token_mask=mask, grid=(3, 5), prefix=1)
    assert torch.equal(module(x, x, token_positions(16, context), context)[0], full)
    kept = torch.tensor([0, 3, 9, 15])
    context = Context(positions=kept, grid=(3, 5), prefix=1)
    assert torch.equal(module(x[:, :, kept], x[:, :, kept], kept, context)[0], full[:, :, kept])
    assert not torch.equal(turn(module, x, torch.arange(16), Context(grid=(5, 3), prefix=1)), full)
    for context in (Context(grid=(2, 5), prefix=1), Context(grid=(15,), prefix=1)):
        with pytest.raises(ConfigError, match="grid"):
            module(x, x, torch.arange(16), context)


@pytest.mark.parametrize("name", ["rope", "rope2d"])
def test_exports_compiles_copies_and_builds_on_meta(name: str) -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            slot = SLOT.at(grid=(2, 4) if name == "rope2d" else None)
            config = decode("position", {"name": name, "fraction": 0.5})
            self.layers = nn.ModuleList(config.build(slot) for _ in range(2))

        def forward(self, q: Tensor) -> Tensor:
            context, k = Context(), q
            for layer in self.layers:
                q, k = layer(q, k, token_positions(q.shape[-2], context, device=q.device), context)
            return q + k

    model, x = Layers(), torch.randn(2, 4, 8, 8)
    want = model(x)
    assert torch.equal(torch.export.export(model, (x,)).module()(x), want)
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(x), want)
    assert torch.equal(copy.deepcopy(model)(x), want)
    assert not list(model.state_dict())
    with torch.device("meta"):
        built = Layers()
    assert torch.equal(built.to_empty(device="cpu")(x), want)
    assert model(x.to("meta")).shape == want.shape


def test_exports_with_a_free_length() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rope = RopeConfig().build(SLOT)

        def forward(self, q: Tensor) -> Tensor:
            context = Context()
            return self.rope(q, q, token_positions(q.shape[-2], context), context)[0]

    program = torch.export.export(Layer(), (torch.randn(1, 2, 8, 8),), dynamic_shapes=({2: torch.export.Dim("t")},))
    x = torch.randn(1, 2, 13, 8)
    torch.testing.assert_close(program.module()(x), Layer()(x), rtol=0, atol=1e-6)


def test_gradients_pass_through_the_rotation() -> None:
    for layout in LAYOUTS:
        module = rope(layout=layout, fraction=0.5)
        x = torch.randn(1, 1, 3, 8, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x, module=module: turn(module, x, torch.arange(3)), (x,))


def test_slot_without_where_still_tells_the_width() -> None:
    with pytest.raises(ConfigError, match="head width 5"):
        RopeConfig().build(cast(Slot, SimpleNamespace(dim=5, heads=1, where="")))
