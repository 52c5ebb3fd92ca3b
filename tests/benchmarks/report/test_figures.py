"""Figures: every arm has its point, told in words; one drawing gives the same text twice."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from benchmarks.report.comparisons import Comparison, compare
from benchmarks.report.figures import Drawing, frontier, places, rates, scores
from benchmarks.report.style import DARK, LIGHT, looks
from tests.benchmarks.report.made import ARMS, SUITES, many, row


def made() -> Comparison:
    return compare(many(), SUITES)[0]


def points(drawing: Drawing) -> dict[str, list[str]]:
    """Labels of the points by arm."""
    found: dict[str, list[str]] = {}
    for element in ElementTree.fromstring(drawing.inline).iter():
        if element.get("class") == "point":
            found.setdefault(element.attrib["data-arm"], []).append(element.attrib["aria-label"])
    return found


def test_the_frontier_has_a_told_point_for_each_arm() -> None:
    comparison = made()
    drawing = frontier(comparison, looks(ARMS))
    assert drawing is not None
    found = points(drawing)
    assert {arm: len(labels) for arm, labels in found.items()} == dict.fromkeys(ARMS, 1)
    assert re.fullmatch(r"attention: accuracy 0\.\d{3} \[.*\], 32 KiB of state, 5 seeds", found["attention"][0])
    assert "7 arms" in drawing.alt and "attention" in drawing.alt


def test_rates_mark_the_chosen_one_and_the_edge() -> None:
    drawing = rates(made(), looks(ARMS))
    assert drawing is not None
    found = points(drawing)
    assert [label.endswith("chosen") for label in found["attention"]] == [False, True, False]
    assert found["mamba2"][2].endswith("chosen, at the edge of the grid")
    assert drawing.alt.endswith("Best at the edge of the grid: mamba2.")


def test_metrics_at_several_places_become_a_figure() -> None:
    rows = [row("kda", n, metrics={"loss@1x": 2.0, "loss@4x": 3.0, "speed@2": 1.0, "exact": 0.5}) for n in range(2)]
    (drawing,) = places(compare(rows, SUITES)[0], looks(["kda"]))
    assert points(drawing)["kda"] == ["kda: loss 2.000 at 1x", "kda: loss 3.000 at 4x"]


def test_places_may_be_rates() -> None:
    rows = [row("pre", metrics={"loss@1e-03": 2.0, "loss@0.01": 3.0, "other": 1.0})]
    (drawing,) = places(compare(rows, SUITES)[0], looks(["pre"]))
    assert points(drawing)["pre"] == ["pre: loss 2.000 at 0.001", "pre: loss 3.000 at 0.01"]


def test_there_is_no_figure_of_nothing() -> None:
    comparison = compare([row("kda", lr=None), row("gla", lr=None, status="refused", message="no")], SUITES)[0]
    shown = looks(["kda", "gla"])
    assert frontier(comparison, shown) is None and rates(comparison, shown) is None and places(comparison, shown) == []
    assert scores([comparison]) is None


def test_states_of_nothing_are_drawn_beside_the_others() -> None:
    rows = [row("none", state=0), row("kda", state=4096)]
    drawing = frontier(compare(rows, SUITES)[0], looks(["none", "kda"]))
    assert drawing is not None and "0 B of state" in points(drawing)["none"][0]


def test_one_drawing_gives_one_text_and_no_identifier_twice() -> None:
    first, second = (frontier(made(), looks(ARMS)) for _ in range(2))
    other = rates(made(), looks(ARMS))
    assert first is not None and second is not None and other is not None
    assert first.svg == second.svg and first.inline == second.inline
    ids = re.findall(r' id="([^"]+)"', first.inline + other.inline)
    assert len(ids) == len(set(ids))


def test_the_page_takes_colours_from_its_theme_and_files_have_their_own() -> None:
    drawing = frontier(made(), looks(ARMS))
    assert drawing is not None
    assert "var(--c0)" in drawing.inline and LIGHT[0] not in drawing.inline and LIGHT[0] in drawing.svg
    assert drawing.png.startswith(b"\x89PNG")


def contrast(one: str, other: str) -> float:
    """WCAG 2: (L1 + 0.05) / (L2 + 0.05) of relative luminances."""

    def luminance(color: str) -> float:
        parts = [int(color[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_stand_out_on_both_pages_and_looks_do_not_repeat() -> None:
    assert all(contrast(color, "#ffffff") >= 3 for color in LIGHT)
    assert all(contrast(color, "#15181c") >= 3 for color in DARK)
    shown = looks(f"arm {n}" for n in range(63))
    assert len({(look.color, look.mark) for look in shown.values()}) == 63
