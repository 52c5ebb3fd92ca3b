"""What mixers declare of their scores, recurrences and scans: as many operations as the naive twins take.

Each mixer runs with the naive twin in the place of its fast operator, and what the twin multiplies and adds is counted
one by one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import zoo.blocks.matrix_mixer
import zoo.blocks.mixers.attention
import zoo.blocks.mixers.linear_attention
import zoo.blocks.mixers.mamba
import zoo.blocks.mixers.mla
import zoo.blocks.short_conv
import zoo.ops.linear_attention
from tests.parts import DIM, MixerCase, mixer_cases, rows
from zoo.blocks.api import Capability, Context
from zoo.inspection.meter import metered
from zoo.ops.conv import naive_causal_conv
from zoo.ops.recurrence import naive_recurrence
from zoo.ops.selective_scan import naive_selective_scan
from zoo.ops.visibility import Visibility, seen_pairs

T, S = 5, 3
FACTS: dict[str, dict[str, Any]] = {"causal": {"causal": True}, "bidirectional": {}, "cross": {"memory_dim": DIM}}
FORMS = [(case.values[0], "causal") for case in mixer_cases(Capability.CAUSAL)]
FORMS += [(case.values[0], "bidirectional") for case in mixer_cases(Capability.BIDIRECTIONAL)]
FORMS += [(case.values[0], "cross") for case in mixer_cases(Capability.CROSS)]


class Operations(TorchDispatchMode):
    """Multiplications and additions, one each; exponentials and the like are none."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._overloadpacket.__name__
        if name in ("mul", "add", "sub"):
            self.total += out.numel()
        elif name in ("mv", "dot"):
            self.total += 2 * args[0].numel()
        elif name == "mm":  # a row times a matrix
            self.total += 2 * args[0].numel() * args[1].shape[1]
        elif name in ("bmm", "addmm", "baddbmm", "addcmul", "einsum"):
            raise AssertionError(f"{name} is no operation of a naive twin")
        return out


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Puts the naive twins in place; the list receives what each call of one takes."""
    found: list[int] = []

    def naive(twin: Any) -> Any:
        def run(*args: Any, chunk: int = 0, **keywords: Any) -> Any:
            with torch.no_grad(), Operations() as operations:
                result = twin(*args, **keywords)
            found.append(operations.total)
            return result

        return run

    def seen(fast: Any) -> Any:
        def run(q: Any, k: Any, v: Any, visible: Visibility, **keywords: Any) -> Any:
            mask = visible.mask()
            allowed = torch.ones(1, 1, 1, 1, dtype=torch.bool) if mask is None else mask
            pairs = int(allowed.expand(*q.shape[:-1], k.shape[-2]).sum())
            found.append(2 * pairs * (q.shape[-1] + v.shape[-1]))
            return fast(q, k, v, visible, **keywords)

        return run

    def products(fast: Any) -> Any:
        def run(*args: Any, **keywords: Any) -> Any:
            with FlopCounterMode(display=False) as counter:
                result = fast(*args, **keywords)
            found.append(counter.get_total_flops())
            return result

        return run

    monkeypatch.setattr(zoo.blocks.matrix_mixer, "recurrence", naive(naive_recurrence))
    monkeypatch.setattr(zoo.blocks.short_conv, "causal_conv", naive(naive_causal_conv))
    monkeypatch.setattr(zoo.blocks.mixers.mamba, "selective_scan", naive(naive_selective_scan))
    for module in (zoo.blocks.mixers.attention, zoo.blocks.mixers.mla):
        monkeypatch.setattr(module, "attention", seen(module.attention))
    for name in ("key_value_sums", "read_sums"):
        counted = products(getattr(zoo.ops.linear_attention, name))
        monkeypatch.setattr(zoo.ops.linear_attention, name, counted)
        monkeypatch.setattr(zoo.blocks.mixers.linear_attention, name, counted)
    features = products(zoo.blocks.mixers.linear_attention.positive_random_features)
    monkeypatch.setattr(zoo.blocks.mixers.linear_attention, "positive_random_features", features)
    return found


@pytest.mark.parametrize(("case", "form"), [pytest.param(case, form, id=f"{case}-{form}") for case, form in FORMS])
def test_a_core_takes_what_its_naive_twin_takes(case: MixerCase, form: str, twins: list[int]) -> None:
    mixer, x = case.build(**FACTS[form]), rows(1, T)
    memory = rows(1, S, seed=5) if form == "cross" else None
    with torch.no_grad():
        mixer(x, Context(memory=memory))
    memory_length = S if form == "cross" else 0
    declared = mixer.core_flops(1, T, memory_length)
    assert declared - mixer.hidden_flops(1, T, memory_length) == sum(twins)
    assert mixer.core_flops(3, T, memory_length) == 3 * declared


@pytest.mark.parametrize("case", mixer_cases(Capability.CAUSAL | Capability.STEP))
def test_all_steps_take_what_one_pass_takes(case: MixerCase) -> None:
    """Of a causal row, token by token, as many as the pairs that its mask leaves. Latent attention decodes otherwise
    than it trains: on rows of c + R channels."""
    mixer = case.build(causal=True)
    steps = sum(mixer.step_flops(2, end) for end in range(1, T + 1))
    if case.name == "mla":
        pairs = T * (T + 1) // 2
        assert steps == 2 * pairs * mixer.heads * 2 * 2 * (mixer.kv_rank + mixer.rope_dim)
    else:
        assert steps == mixer.core_flops(2, T) - mixer.hidden_flops(2, T)


@pytest.mark.parametrize("case", mixer_cases(Capability.CAUSAL))
def test_products_with_weights_are_told_from_the_core(case: MixerCase) -> None:
    """Every matrix of a causal mixer meets every token once: 2 FLOPs a weight and token, whatever stands between."""
    mixer = case.build(causal=True).to("meta")
    with torch.no_grad(), metered(mixer) as meter:
        mixer(torch.empty(2, 70, DIM, dtype=torch.float64, device="meta"), Context())
    matrices = [m.weight.numel() for m in mixer.modules() if isinstance(m, torch.nn.Linear)]
    matrices += [
        weight.numel()
        for module in mixer.modules()
        if isinstance(module, torch.nn.LSTM | torch.nn.GRU)
        for weight in module.parameters()
        if weight.dim() == 2
    ]
    assert meter.product_flops == 2 * 2 * 70 * sum(matrices)
    assert meter.flops - meter.product_flops == mixer.core_flops(2, 70)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize("sinks", [0, 1, 4])
@pytest.mark.parametrize("chunk", [None, 1, 4, 50])
def test_seen_pairs_are_those_of_the_mask(causal: bool, window: int | None, sinks: int, chunk: int | None) -> None:
    if sinks and window is None:
        return
    for length in (1, 2, 9, 13):
        index = torch.arange(length)
        rule = Visibility(
            query_index=index, key_index=index, causal=causal, window=window, sinks=sinks, chunk=chunk, contiguous=True
        )
        mask = rule.mask()
        expected = length * length if mask is None else int(mask.sum())
        assert seen_pairs(length, causal=causal, window=window, sinks=sinks, chunk=chunk) == expected
