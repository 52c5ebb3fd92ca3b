"""The one table at the end of a run: its result beside its baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_WORDS = {"params": "parameters", "seconds": "training seconds"}


def table_text(result: Mapping[str, Any], headline: Sequence[str], title: str = "", *, colour: bool = False) -> str:
    """A rich table as text: a row for the model, one for each baseline, a column for each headline metric."""
    from io import StringIO

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    metrics, baselines = result.get("metrics") or {}, result.get("baselines") or {}
    columns = [name for name in headline if name in metrics or any(name in found for found in baselines.values())]
    table = Table(title=title or None, box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("")
    for name in (*columns, *_WORDS.values()):
        table.add_column(name, justify="right")
    mixer = f", {result['mixer']}" if result.get("mixer") else ""
    own = [_figure(metrics.get(name)) for name in columns]
    costs = (_figure(result.get("params")), _figure(result.get("seconds"), 1))
    table.add_row(f"{result.get('model')}{mixer}", *own, *costs, style="bold")
    for name, found in baselines.items():
        table.add_row(name, *(_figure(found.get(column)) for column in columns), "", "")
    text = StringIO()
    Console(file=text, force_terminal=colour, width=160 if not colour else None, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def title(settings: Mapping[str, Any], data: Any) -> str:
    """What was trained on what."""
    source = settings["data"].get("name", "") if isinstance(settings["data"], Mapping) else settings["data"]
    return f"{settings['name']} on {source}: {len(data.train):,} training and {len(data.test):,} test examples"


def _figure(value: Any, digits: int = 4) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"
