"""What is compared with what: equal settings only, one rate an arm, and nothing that went wrong is lost."""

from __future__ import annotations

import math

from benchmarks.report.comparisons import compare, suites_of
from tests.benchmarks.report.made import SUITES, row


def test_other_settings_versions_and_sizes_stand_apart_and_say_why() -> None:
    rows = [
        row("attention"),
        row("attention", settings={"dim": 128, "steps": 1000}),
        row("attention", size="smoke"),
        row("kda", version=2, settings={"dim": 128, "steps": 1000}),
    ]
    found = {(c.size, c.told) for c in compare(rows, SUITES)}
    assert found == {
        ("small", "version 1, dim 64"),
        ("small", "version 1, dim 128"),
        ("small", "version 2, dim 128"),
        ("smoke", ""),
    }


def test_the_largest_size_comes_first() -> None:
    rows = [row("attention", size=size) for size in ("smoke", "paper", "small")]
    assert [c.size for c in compare(rows, SUITES)] == ["paper", "small", "smoke"]


def test_of_two_reported_rates_the_later_one_counts() -> None:
    early, late = "2026-11-30T10:00:00+00:00", "2026-11-30T11:00:00+00:00"
    rows = [row("kda", seed, 1e-3, metrics={"accuracy": 0.2}, taken=early) for seed in range(3)]
    rows += [row("kda", seed, 3e-4, metrics={"accuracy": 0.6}, taken=late) for seed in range(2)]
    (entry,) = compare(rows, SUITES)[0].entries
    assert entry.lr == 3e-4 and entry.superseded == 3
    assert entry.values("accuracy") == {0: 0.6, 1: 0.6}


def test_a_diverged_seed_is_counted_not_averaged() -> None:
    rows = [row("kda", 0), row("kda", 1, metrics={"accuracy": math.nan}), row("kda", 2, status="crashed", message="x")]
    (entry,) = compare(rows, SUITES)[0].entries
    assert entry.values("accuracy") == {0: 0.5} and entry.lost("accuracy") == 1
    assert [one.status for one in entry.troubled] == ["crashed"]


def test_the_curve_holds_every_rate_and_knows_its_edges() -> None:
    rows = [
        row("kda", 9, lr, role="tuning", metrics={"accuracy": value})
        for lr, value in ((1e-2, 0.3), (1e-3, 0.9), (3e-3, math.nan))
    ]
    rows += [row("kda", 8, 1e-3, role="tuning", metrics={"accuracy": 0.7}), row("kda", 0, 1e-3)]
    (entry,) = compare(rows, SUITES)[0].entries
    assert [(point.lr, point.values, point.lost) for point in entry.curve] == [
        (1e-3, (0.9, 0.7), 0),
        (3e-3, (), 1),
        (1e-2, (0.3,), 0),
    ]
    assert entry.at_edge


def test_one_name_for_two_architectures_is_told_apart() -> None:
    rows = [row("kda", options={"conv": 3}), row("kda", options={"conv": 0}), row("gla")]
    labels = [entry.label for entry in compare(rows, SUITES)[0].entries]
    assert len(set(labels)) == 3 and labels[2] == "gla" and '"conv": 3' in labels[0]


def test_the_best_stands_first_and_those_without_a_figure_last() -> None:
    rows = [row("none", status="crashed", message="x"), row("low", metrics={"accuracy": 0.1}), row("high")]
    assert [entry.label for entry in compare(rows, SUITES)[0].ranked()] == ["high", "low", "none"]
    losses = [
        row(a, suite="made_families", task="gpt", metrics={"test/bits_per_character": b})
        for a, b in (("x", 3.0), ("y", 2.0))
    ]
    assert [entry.label for entry in compare(losses, SUITES)[0].ranked()] == ["y", "x"]


def test_the_reference_is_the_one_named_then_attention_then_the_first() -> None:
    first = compare([row("kda"), row("gla")], SUITES)[0].reference
    attention = compare([row("kda"), row("attention")], SUITES)[0].reference
    named = compare([row(a, settings={"to": "gla"}) for a in ("attention", "gla")], SUITES)[0].reference
    assert [entry.label for entry in (first, attention, named) if entry] == ["kda", "attention", "gla"]


def test_rows_of_a_suite_that_is_not_installed_are_shown_with_a_guess() -> None:
    rows = [row("kda", suite="no_such_suite", metrics={"speed": 3.0, "other": 1.0})]
    assert suites_of(rows) == {}
    (comparison,) = compare(rows, {})
    assert comparison.task.primary == "speed" and not comparison.known
