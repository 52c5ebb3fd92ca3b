"""From a matplotlib figure to SVG that lives in a page: colours follow the page's theme, points can be reached.

matplotlib writes colours into style attributes and names groups by `gid`. Here the known colours become custom
properties (`var(--ink)`), groups named `point-N` get a label that a pointer and the keyboard reveal, and identifiers
that nothing refers to go, because a page may hold each only once.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.report.style import GRID, INK, LIGHT, MUTED

__all__ = ["SETTINGS", "inline", "png", "svg"]

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
SETTINGS: Any = {
    "font.family": "sans-serif",
    "font.size": 9.0,
    "svg.fonttype": "none",
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.5,
}
"""matplotlib's settings for every figure of the report; text stays text."""

THEME = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--line)", "#ffffff": "var(--paper)"} | {
    color: f"var(--c{n})" for n, color in enumerate(LIGHT)
}


def svg(drawn: Figure, salt: str) -> str:
    """A file's text. Equal figures give equal text: no date, and identifiers that come from `salt`."""
    with mpl.rc_context(SETTINGS | {"svg.hashsalt": salt}):
        file = io.StringIO()
        drawn.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def png(drawn: Figure) -> bytes:
    """A file's bytes, 200 dots an inch on white."""
    file = io.BytesIO()
    with mpl.rc_context(SETTINGS):
        drawn.savefig(file, format="png", dpi=200, facecolor="white", metadata={"Software": None})
    return file.getvalue()


def inline(text: str, labels: Mapping[str, str], arms: Mapping[str, str], alt: str) -> str:
    """The `<svg>` element. `labels` and `arms`: for each group `point-N`, what it tells and the arm it belongs to."""
    for name, place in (("", SVG), ("xlink", XLINK)):
        ElementTree.register_namespace(name, place)
    root = ElementTree.fromstring(text)
    for child in list(root):
        if child.tag.endswith("metadata"):
            root.remove(child)
    for attribute in ("width", "height"):
        root.attrib.pop(attribute, None)
    root.attrib |= {"role": "group", "aria-label": alt}
    referred = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text))
    first = True
    for element in root.iter():
        name = element.get("id", "")
        if name in labels:
            element.attrib |= {
                "class": "point",
                "role": "img",
                "tabindex": "0" if first else "-1",
                "aria-label": labels[name],
                "data-arm": arms[name],
            }
            first = False
        elif name in arms:
            element.attrib |= {"class": "series", "data-arm": arms[name]}
        if name and name not in referred:
            del element.attrib["id"]
        style = element.get("style")
        if style:
            element.set("style", _themed(style))
    return ElementTree.tostring(root, encoding="unicode")


def _themed(style: str) -> str:
    style = re.sub(r"#[0-9a-f]{6}", lambda found: THEME.get(found.group(), found.group()), style)
    return re.sub(r"font-family: [^;]*;? ?", "", style)  # the page has its own
