"""Known shapes hold, do not hold, or were not run; thresholds are worked out by hand."""

from __future__ import annotations

import pytest

from benchmarks.report.claim import Claim, Factor, Gap, Limit, Order, Rises, Shape, judge
from benchmarks.report.claims import CLAIMS
from benchmarks.report.comparisons import compare
from benchmarks.suites.api import Row
from tests.benchmarks.report.made import SUITES, row


def asked(shape: Shape, rows: list[Row], suite: str = "made") -> tuple[str, float | None]:
    (finding,) = judge([Claim(text="", paper="", suite=suite, task="*", shape=shape)], compare(rows, SUITES))
    return finding.answer, finding.margin


def seeds(arm: str, *values: float, size: str = "small", state: int = 4096) -> list[Row]:
    return [row(arm, n, metrics={"accuracy": value}, size=size, state=state) for n, value in enumerate(values)]


def test_a_gap_is_between_medians() -> None:
    rows = [*seeds("attention", 0.9, 0.9, 0.0), *seeds("linear", 0.5, 0.5, 1.0)]
    gap = Gap(better=("attention",), worse=("linear",), margin=0.4)
    answer, margin = asked(gap, rows)
    assert answer == "holds" and margin == pytest.approx(0.4)
    assert asked(Gap(better=("attention",), worse=("linear",), margin=0.41), rows)[0] == "does not hold"


def test_every_arm_of_a_pattern_has_to_be_better() -> None:
    rows = [*seeds("hybrid_3to1", 0.9), *seeds("hybrid_7to1", 0.6), *seeds("linear", 0.5)]
    answer, margin = asked(Gap(better=("hybrid*",), worse=("linear",), margin=0.3), rows)
    assert answer == "does not hold" and margin == pytest.approx(0.1)


def test_lower_is_better_turns_the_sign() -> None:
    family = {"suite": "made_families", "task": "gpt"}
    rows = [row(arm, metrics={"test/bits_per_character": b}, **family) for arm, b in (("alibi", 2.0), ("sine", 3.0))]
    answer, margin = asked(Gap(better=("alibi",), worse=("sine",), margin=0.5), rows, "made_families")
    assert answer == "holds" and margin == pytest.approx(1.0)


def test_a_gap_at_a_rate_reads_the_tuning_runs() -> None:
    rows = [row("pre", 9, lr, role="tuning", metrics={"accuracy": a}) for lr, a in ((1e-3, 0.1), (1e-2, 0.9))]
    rows += [row("post", 9, lr, role="tuning", metrics={"accuracy": a}) for lr, a in ((1e-3, 0.5), (1e-2, 0.2))]
    assert asked(Gap(better=("pre",), worse=("post",), margin=0.3, lr=1e-2), rows)[0] == "holds"
    assert asked(Gap(better=("pre",), worse=("post",), margin=0.3, lr=1e-3), rows)[0] == "does not hold"
    assert asked(Gap(better=("pre",), worse=("post",), margin=0.3, lr=1.0), rows)[0] == "not run"


def test_limits_are_on_every_arm() -> None:
    rows = [*seeds("alibi", 0.97), *seeds("t5", 0.4)]
    assert asked(Limit(arms=("alibi",), least=0.95), rows) == ("holds", pytest.approx(0.02))
    assert asked(Limit(arms=("alibi", "t5"), least=0.95), rows)[0] == "does not hold"
    assert asked(Limit(arms=("t5",), most=0.5), rows) == ("holds", pytest.approx(0.1))


def test_a_factor_is_of_the_metric_itself() -> None:
    rows = [*seeds("norm", 0.29), *seeds("plain", 0.5)]
    assert asked(Factor(lower="norm", higher="plain", most=0.6), rows) == ("holds", pytest.approx(0.01))
    assert asked(Factor(lower="norm", higher="plain", most=0.5), rows)[0] == "does not hold"
    assert asked(Factor(lower="norm", higher="cap", most=0.5), rows)[0] == "not run"


def test_an_order_is_of_neighbours() -> None:
    rows = [*seeds("a", 0.9), *seeds("b", 0.7), *seeds("c", 0.65)]
    assert asked(Order(arms=("a", "b", "c")), rows) == ("holds", pytest.approx(0.05))
    assert asked(Order(arms=("b", "a", "c")), rows) == ("does not hold", pytest.approx(-0.2))
    assert asked(Order(arms=("a", "b", "d")), rows)[0] == "not run"


def test_rank_correlation_with_state() -> None:
    rising = [one for n in range(5) for one in seeds(f"arm{n}", 0.1 * n, state=1024 * 2**n)]
    assert asked(Rises(), rising) == ("holds", pytest.approx(0.2))
    falling = [one for n in range(5) for one in seeds(f"arm{n}", 0.1 * n, state=1024 * 2 ** (5 - n))]
    assert asked(Rises(), falling) == ("does not hold", pytest.approx(-1.8))
    assert asked(Rises(), rising[:2])[0] == "not run"


def test_smoke_rows_are_never_asked_and_the_largest_size_is() -> None:
    gap = Gap(better=("attention",), worse=("linear",), margin=0.3)
    smoke = [*seeds("attention", 0.9, size="smoke"), *seeds("linear", 0.1, size="smoke")]
    assert asked(gap, smoke)[0] == "not run"
    small = [*seeds("attention", 0.5), *seeds("linear", 0.4)]
    paper = [*seeds("attention", 1.0, size="paper"), *seeds("linear", 0.1, size="paper")]
    assert asked(gap, [*smoke, *small])[0] == "does not hold"
    assert asked(gap, [*smoke, *small, *paper])[0] == "holds"


def test_a_claim_without_its_arms_was_not_run() -> None:
    assert (
        asked(Gap(better=("attention", "hybrid*"), worse=("linear",), margin=0.3), seeds("attention", 0.9))[0]
        == "not run"
    )


def test_every_claim_tells_what_it_asks_and_where_it_is_known_from() -> None:
    assert len({claim.text for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert claim.shape.asked and claim.paper and judge([claim], [])[0].answer == "not run"
