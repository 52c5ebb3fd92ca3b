"""The page in headless Chromium: it loads without a complaint, sorts, filters, and works by keyboard and when narrow.

Chromium is taken from ZOO_CHROMIUM or the PATH (Debian: apt-get install chromium) and driven by playwright.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report.build import build
from benchmarks.report.claim import Claim, Gap
from tests.benchmarks.report.made import ARMS, SUITES, many

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (the extra `dev` has it)")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CLAIMS = [
    Claim(
        text=f"{arm} above {other}",
        paper="nobody",
        suite=suite,
        task="*",
        shape=Gap(better=(arm,), worse=(other,), margin=0.3),
    )
    for suite, arm, other in (
        ("made", "attention", "linear_attention"),
        ("made", "linear_attention", "attention"),
        ("none", "attention", "linear_attention"),
    )
]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    build(many(), SUITES, CLAIMS, ["small/made.jsonl, line 9, is no row"]).write(folder)
    return folder / "index.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = os.environ.get("ZOO_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium: set ZOO_CHROMIUM or put chromium on the PATH")
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found, args=["--no-sandbox"] if root else [])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, page_file: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    width = getattr(request, "param", 1400)
    context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
    opened, told = context.new_page(), []
    opened.on("console", lambda message: told.append(message.text))
    opened.on("pageerror", lambda error: told.append(str(error)))
    opened.on("requestfailed", lambda wanted: told.append(wanted.url))
    opened.goto(page_file.as_uri())
    yield opened
    context.close()
    assert told == []


def column(page: Any, table: str, index: int) -> list[str]:
    """Texts of a column's visible cells."""
    cells = page.locator(f"#{table}-rows > tr:not([hidden]) > :nth-child({index + 1})")
    return cells.all_inner_texts()


RECALL = "made-recall-small"
FOCUS = """() => {
  const e = document.activeElement;
  return [`${e.tagName}.${e.className}`, getComputedStyle(e).outlineStyle];
}"""


def test_every_arm_and_every_failure_is_there(page: Any) -> None:
    assert set(column(page, RECALL, 0)) == {*ARMS, "rwkv7"}
    assert column(page, "inequalities", 1) == ["holds", "does not hold", "not run"]
    assert len(column(page, "refused-crashed-timed-out", 0)) == 4
    assert page.locator(".problem").inner_text() == "small/made.jsonl, line 9, is no row"
    assert page.title() == page.locator("h1").inner_text()


def test_headings_sort_up_and_down_and_say_so(page: Any) -> None:
    heading = page.locator(f"table[aria-labelledby={RECALL}] thead th").nth(1)
    button = heading.get_by_role("button")
    assert heading.get_attribute("aria-sort") == "none"
    button.click()
    assert heading.get_attribute("aria-sort") == "ascending"
    rising = [float(text.split()[0]) for text in column(page, RECALL, 1)[:-1]]
    assert rising == sorted(rising) and column(page, RECALL, 0)[-1] == "rwkv7"
    button.focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    falling = [float(text.split()[0]) for text in column(page, RECALL, 1)[:-1]]
    assert falling == rising[::-1] and column(page, RECALL, 0)[-1] == "rwkv7"  # without a value: last either way
    page.locator(f"table[aria-labelledby={RECALL}] thead th button").first.click()
    assert column(page, RECALL, 0) == sorted(column(page, RECALL, 0)) and heading.get_attribute("aria-sort") == "none"


def test_units_do_not_mislead_the_order(page: Any) -> None:
    heads = page.locator(f"table[aria-labelledby={RECALL}] thead th button span").all_inner_texts()
    index = heads.index("state")
    page.locator(f"table[aria-labelledby={RECALL}] thead th button").nth(index).click()
    wanted = sorted(ARMS, key=lambda arm: ARMS[arm][1])
    assert column(page, RECALL, 0)[:-1] == wanted


def test_a_filter_hides_rows_and_counts_them(page: Any) -> None:
    field = page.get_by_label("Filter: Associative recall (small)")
    field.fill("attention ok")
    assert sorted(column(page, RECALL, 0)) == ["attention", "linear_attention"]
    assert page.get_by_text("2 of 8 rows").is_visible()
    field.fill("")
    assert len(column(page, RECALL, 0)) == 8


def test_the_field_above_filters_all_tables_of_arms_and_dims_figures(page: Any) -> None:
    page.get_by_label("Arms everywhere").fill("delta")
    assert column(page, RECALL, 0) == ["gated_delta"] and column(page, "made-families-vit-small", 0) == ["gated_delta"]
    assert len(column(page, "inequalities", 0)) == 3
    shown = page.locator(".point:not(.dim)").evaluate_all("points => [...new Set(points.map(p => p.dataset.arm))]")
    assert shown == ["gated_delta"]


def test_points_tell_their_arm_to_a_pointer_and_to_the_keyboard(page: Any) -> None:
    figure, tip = page.locator("figure").first, page.locator("#tip")
    assert figure.locator(".point").count() == len(ARMS)
    figure.locator('.point[data-arm="gated_delta"]').hover()
    assert tip.is_visible() and tip.inner_text().startswith("gated_delta: accuracy 0.9")
    page.mouse.move(0, 0)
    assert tip.is_hidden()
    figure.locator(".point[tabindex='0']").focus()
    first = tip.inner_text()
    page.keyboard.press("ArrowRight")
    assert tip.is_visible() and tip.inner_text() != first
    assert figure.locator(".point[tabindex='0']").count() == 1
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_figures_are_drawn_and_have_words(page: Any) -> None:
    for figure in page.locator("figure").all():
        box = figure.locator("svg").bounding_box()
        assert box["width"] > 300 and box["height"] > 200
        assert len(figure.locator("svg").get_attribute("aria-label")) > 40
    assert page.locator("figure").count() == 3


def test_a_name_with_markup_is_text(page: Any) -> None:
    assert page.locator(f"#{RECALL}-rows th", has_text="my_mixer <b>").count() == 1
    assert page.locator("tbody b").count() == 0


def test_identifiers_are_there_once_and_every_anchor_has_its_place(page: Any) -> None:
    ids = page.evaluate("() => [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    lost = "() => [...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.querySelector(a.hash)).length"
    assert page.evaluate(lost) == 0


@pytest.mark.parametrize("page", [390, 1400], indirect=True)
def test_the_page_never_scrolls_sideways_but_tables_do(page: Any) -> None:
    page.evaluate("() => document.querySelectorAll('details').forEach(part => { part.open = true })")
    width = page.evaluate("() => innerWidth")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    wide = page.evaluate(
        "() => [...document.querySelectorAll('.box')].filter(b => b.scrollWidth > b.clientWidth).length"
    )
    assert (wide > 0) or width == 1400
    assert page.evaluate("() => [...document.querySelectorAll('.box')].every(b => b.tabIndex === 0)")


@pytest.mark.parametrize("page", [390], indirect=True)
def test_text_stays_readable_on_a_narrow_screen(page: Any) -> None:
    small = """() => [...document.querySelectorAll('figure svg text')]
        .map(t => parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.getBoundingClientRect().width
             / t.ownerSVGElement.viewBox.baseVal.width)"""
    assert min(page.evaluate(small)) >= 7.5
    assert page.evaluate("() => parseFloat(getComputedStyle(document.querySelector('td')).fontSize)") >= 13


def test_everything_can_be_reached_by_keyboard_with_a_visible_focus(page: Any) -> None:
    reached, outlined = set(), set()
    for _ in range(40):
        page.keyboard.press("Tab")
        name, style = page.evaluate(FOCUS)
        reached.add(name)
        outlined.add(style)
    assert {"A.skip", "A.", "INPUT.", "BUTTON.", "DIV.box"} <= reached
    assert outlined == {"solid"}


def test_the_dark_page_is_dark_and_its_figures_too(browser: Any, page_file: Path) -> None:
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(page_file.as_uri())
    dark = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    text = page.evaluate("() => getComputedStyle(document.querySelector('figure svg text')).fill")
    context.close()
    assert dark == "rgb(21, 24, 28)" and text == "rgb(228, 231, 234)"
