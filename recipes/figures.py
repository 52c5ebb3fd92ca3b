"""Drawing: matplotlib without a screen, imported when the first picture is drawn; and the learning curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipes.metrics_file import read_rows
from zoo.files import write_whole


def new_figure(width: float, height: float) -> Any:
    """A matplotlib Figure of that many inches that belongs to no window system."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> Path:
    """Write a PNG, whole."""
    write_whole(path, lambda file: figure.savefig(file, format="png", dpi=120))
    return path


def learning_curves(metrics: Path, path: Path) -> Path | None:
    """Training and validation curves from metrics.csv, one panel a metric; None where there are no rows."""
    rows = read_rows(metrics)
    names = list(dict.fromkeys(name.partition("/")[2] for row in rows for name in row if "/" in name))
    if not names:
        return None
    figure = new_figure(5 * len(names), 3.5)
    for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for split, style in (("train", "-"), ("val", ".-")):
            points = [(row["step"], row[f"{split}/{name}"]) for row in rows if f"{split}/{name}" in row]
            if points:
                axis.plot(*zip(*points, strict=True), style, label=split)
        axis.set(xlabel="optimizer step", title=name)
        axis.grid(alpha=0.3)
        axis.legend()
    return save_figure(figure, path)
