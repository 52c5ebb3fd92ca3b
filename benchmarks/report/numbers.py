"""How figures are written: few digits, named units, intervals as `mean [low, high]`."""

from __future__ import annotations

import math

from benchmarks.statistics import UNLIMITED, Interval

__all__ = ["amount", "count", "data", "duration", "figure", "interval", "limits", "probability", "rate"]


def figure(value: float | None) -> str:
    """Three digits behind the point for everyday sizes, three figures elsewhere."""
    return "–" if value is None else _written(value, value)


def interval(mean: float, bounds: Interval) -> str:
    """`mean [low, high]` with the digits that the mean asks for; the mean alone where nothing bounds it."""
    low, high = bounds.low, bounds.high
    if not (math.isfinite(low) and math.isfinite(high)):
        return figure(mean)
    size = max(abs(mean), (high - low) / 2)
    return f"{_written(mean, size)} [{_written(low, size)}, {_written(high, size)}]"


def limits(metric: str) -> Interval:
    """What a metric can be by its name: shares lie between 0 and 1."""
    share = any(word in metric for word in ("accuracy", "exact", "macro", "rows", "success"))
    return Interval(0.0, 1.0) if share else UNLIMITED


def _written(value: float, size: float) -> str:
    """The value as one of this size is written, with a minus sign that is one."""
    if not math.isfinite(value):
        return "not finite"
    size = abs(size)
    if size == 0 or 5e-4 <= size < 100:
        text = f"{value:.3f}"
    elif 100 <= size < 1e5:
        text = f"{value:,.1f}" if size < 1e4 else f"{value:,.0f}"
    else:
        text = f"{value:.2e}"
    return text.replace("-", "−", 1) if value < 0 and float(text.replace(",", "")) else text.removeprefix("-")


def amount(number: int, thing: str) -> str:
    """1 arm, 2 arms."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def count(value: float | None) -> str:
    """12,345 or 1.23 M."""
    if value is None:
        return "–"
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:,.0f}"


def data(value: float | None) -> str:
    """Bytes in binary units."""
    if value is None:
        return "–"
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(value) >= 1024**power:
            return f"{value / 1024**power:.4g} {unit}"
    return f"{value:,.0f} B"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, whichever reads best."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.2f} h"


def rate(value: float | None) -> str:
    """A learning rate: 3e-3, 1e-2."""
    if value is None:
        return "–"
    text = f"{value:.2e}"
    mantissa, _, power = text.partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"


def probability(value: float | None) -> str:
    """A p value."""
    if value is None or not math.isfinite(value):
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
