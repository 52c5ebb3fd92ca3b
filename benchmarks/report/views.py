"""The tables of the report, from comparisons."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.report import numbers
from benchmarks.report.comparisons import Comparison, Entry
from benchmarks.report.tables import Cell, Column, Table
from benchmarks.statistics import holm, paired, sensitivity, summary, wilson
from benchmarks.suites.api import Row

__all__ = ["costs", "matrix", "measured", "metrics", "normalised", "pairs", "plain", "runs", "shared", "troubles"]

ARM = Column(name="arm")
EMPTY = Cell("–")


def measured(comparison: Comparison) -> Table:
    """The primary metric of every arm, refused and failed ones among them."""
    task, entries = comparison.task, comparison.ranked()
    better = "higher" if task.higher_is_better else "lower"
    tuned, judged = any(entry.curve for entry in entries), task.solved is not None
    columns = [
        ARM,
        Column(name=task.primary, unit="mean [95 %]", numeric=True, help=f"{better} is better"),
        Column(name="median", unit="[quartiles]", numeric=True),
        Column(name="seeds", numeric=True, help="reported seeds with a finite value, of those that ran"),
    ]
    if judged:
        columns.append(
            Column(name="success", unit="share [95 %]", numeric=True, help=f"seeds that reach {task.solved:g}; Wilson")
        )
    if tuned:
        columns += [
            Column(name="rate", numeric=True, help="learning rate, chosen on other seeds"),
            Column(
                name="sensitivity",
                numeric=True,
                help="how much a wrong rate costs: mean over the grid of the distance from the best",
            ),
        ]
    columns += [Column(name="state", unit="a row", numeric=True), Column(name="status")]
    rows = [_measured(entry, judged, tuned) for entry in entries]
    return Table(title=comparison.heading, columns=columns, rows=rows, notes=_notes(comparison), key=comparison.key)


def _measured(entry: Entry, judged: bool, tuned: bool) -> list[Cell]:
    values = entry.values(entry.task.primary)
    cells = [Cell(entry.label, entry.label, note=_described(entry))]
    if values:
        found = summary(list(values.values()), limits=numbers.limits(entry.task.primary))
        told = ", ".join(f"seed {seed}: {numbers.figure(value)}" for seed, value in values.items())
        cells += [
            Cell(numbers.interval(found.mean, found.interval), found.mean, note=told),
            Cell(numbers.interval(found.median, found.quartiles), found.median),
            Cell(
                f"{len(values)}" + (f" of {len(entry.reported)}" if entry.lost(entry.task.primary) else ""), len(values)
            ),
        ]
    else:
        cells += [EMPTY, EMPTY, Cell("0", 0)]
    if judged:
        cells.append(_success(entry))
    if tuned:
        edge = " (edge)" if entry.at_edge else ""
        cells.append(Cell(numbers.rate(entry.lr) + edge, entry.lr, tone="bad" if edge else "") if entry.lr else EMPTY)
        cells.append(_sensitivity(entry))
    outcome = entry.outcome
    cells.append(Cell(numbers.data(outcome.state_bytes), outcome.state_bytes) if outcome else EMPTY)
    cells.append(_status(entry))
    return cells


def _success(entry: Entry) -> Cell:
    solved, ran = entry.task.solved, len(entry.reported)
    if solved is None or not ran:
        return EMPTY
    values = entry.values(entry.task.primary).values()
    reached = sum(value >= solved if entry.task.higher_is_better else value <= solved for value in values)
    return Cell(numbers.interval(reached / ran, wilson(reached, ran)), reached / ran, note=f"{reached} of {ran}")


def _sensitivity(entry: Entry) -> Cell:
    """Wortsman's, with the metric's sign turned where higher is better; a lost run counts as the trivial answer."""
    if len(entry.curve) < 2:
        return EMPTY
    sign = -1 if entry.task.higher_is_better else 1
    losses = {point.lr: sign * point.mean for point in entry.curve}
    finite = [loss for loss in losses.values() if math.isfinite(loss)]
    if not finite:
        return EMPTY
    found = sensitivity(losses, max(finite) if entry.task.trivial is None else sign * entry.task.trivial)
    return Cell(numbers.figure(found), found)


def _status(entry: Entry) -> Cell:
    counts: dict[str, int] = dict.fromkeys(("refused", "crashed", "timed out"), 0)
    for row in entry.troubled:
        counts[row.status] += 1
    told = [f"{count} {status}" for status, count in counts.items() if count]
    if counts["refused"] == len(entry.rows):
        told = ["refused"]
    if entry.lost(entry.task.primary):
        told.append(f"{entry.lost(entry.task.primary)} diverged")
    messages = "; ".join(dict.fromkeys(row.message for row in entry.troubled))
    return Cell(", ".join(told) or "ok", ", ".join(told) or "ok", tone="bad" if told else "quiet", note=messages)


def _notes(comparison: Comparison) -> list[str]:
    notes = []
    if not comparison.known:
        notes.append(f"The suite {comparison.suite} is not installed here: its primary metric is guessed.")
    for entry in comparison.entries:
        if entry.superseded:
            notes.append(f"{entry.label}: {entry.superseded} rows at an earlier learning rate are left out.")
        notes += [f"{entry.label}: {text}" for text in dict.fromkeys(o.text for _, o in entry.reported) if text]
    return notes


def metrics(comparison: Comparison) -> Table | None:
    """The other metrics, as means with intervals; None where the primary one is the only one."""
    names = list(
        dict.fromkeys(name for e in comparison.entries for _, outcome in e.reported for name in outcome.metrics)
    )
    names = [name for name in names if name != comparison.task.primary]
    if not names:
        return None
    rows = []
    for entry in comparison.ranked():
        cells = [Cell(entry.label, entry.label)]
        for name in names:
            values = list(entry.values(name).values())
            found = summary(values, limits=numbers.limits(name)) if values else None
            cells.append(Cell(numbers.interval(found.mean, found.interval), found.mean) if found else EMPTY)
        rows.append(cells)
    columns = [ARM, *(Column(name=name, unit="mean [95 %]", numeric=True) for name in names)]
    return Table(title="Other metrics", columns=columns, rows=rows, key=f"{comparison.key} metrics")


def pairs(comparison: Comparison) -> Table | None:
    """Every arm against the reference, on equal seeds; None where there is nothing to pair."""
    reference, primary = comparison.reference, comparison.task.primary
    if reference is None:
        return None
    base = reference.values(primary)
    found = []
    for entry in comparison.ranked():
        values = entry.values(primary)
        if entry is not reference and len(values.keys() & base.keys()) > 1:
            found.append((entry, paired(values, base)))
    if not found:
        return None
    adjusted = holm([test.p for _, test in found])
    rows = []
    for (entry, test), p in zip(found, adjusted, strict=True):
        clear = math.isfinite(p) and p < 0.05
        gain = (test.difference > 0) == comparison.task.higher_is_better
        verdict = ("better" if gain else "worse") if clear else "no difference shown"
        rows.append(
            [
                Cell(entry.label, entry.label),
                Cell(numbers.interval(test.difference, test.interval), test.difference),
                Cell(numbers.probability(test.p), test.p if math.isfinite(test.p) else None),
                Cell(numbers.probability(p), p if math.isfinite(p) else None),
                Cell(str(test.count), test.count),
                Cell(verdict, verdict, tone=("good" if gain else "bad") if clear else "quiet"),
            ]
        )
    columns = [
        ARM,
        Column(name=f"{primary} − {reference.label}", unit="mean [95 %]", numeric=True),
        Column(name="p", numeric=True, help="paired, two-sided"),
        Column(name="p, Holm", numeric=True, help=f"corrected over {len(found)} arms"),
        Column(name="pairs", numeric=True, help="seeds that both ran"),
        Column(name="at 0.05"),
    ]
    return Table(title=f"Against {reference.label}", columns=columns, rows=rows, key=f"{comparison.key} pairs")


def costs(comparison: Comparison) -> Table:
    """What each arm is made of and what was made equal: parameters, FLOPs, state, and the suite's words on matching."""
    keys = list(dict.fromkeys(key for e in comparison.entries if e.outcome for key in e.outcome.matched))
    columns = [
        ARM,
        Column(name="parameters", numeric=True),
        Column(name="without embeddings", numeric=True),
        Column(name="forward", unit="FLOPs a token", numeric=True),
        Column(name="state", unit="a row", numeric=True),
        Column(name="peak memory", numeric=True, help="largest of the arm's processes"),
        Column(name="CPU time", unit="mean of a reported run", numeric=True, help="of the whole process"),
        *(Column(name=key) for key in keys),
    ]
    rows = []
    for entry in comparison.entries:
        outcome = entry.outcome
        if outcome is None:
            rows.append([Cell(entry.label, entry.label), *[EMPTY] * (len(columns) - 1)])
            continue
        done = [row for row in entry.rows if row.status == "ok"]
        runs = [row.cpu_seconds for row in done if row.job.role == "reported"] or [row.cpu_seconds for row in done]
        peak, cpu = max(row.peak_bytes for row in done), sum(runs) / len(runs)
        rows.append(
            [
                Cell(entry.label, entry.label),
                Cell(f"{outcome.params:,}", outcome.params),
                Cell(f"{outcome.params_non_embedding:,}", outcome.params_non_embedding),
                Cell(numbers.count(outcome.flops_per_token), outcome.flops_per_token),
                Cell(numbers.data(outcome.state_bytes), outcome.state_bytes, note=f"{outcome.state_bytes:,} bytes"),
                Cell(numbers.data(peak), peak),
                Cell(numbers.duration(cpu), cpu),
                *(Cell(text, text) for text in (plain(outcome.matched.get(key)) for key in keys)),
            ]
        )
    return Table(title="What is matched, and what is not", columns=columns, rows=rows, key=f"{comparison.key} costs")


def troubles(rows: Sequence[Row]) -> Table | None:
    """Every refused, crashed or timed-out job with its sentence; None where there is none."""
    found = [row for row in rows if row.status != "ok"]
    if not found:
        return None
    columns = [
        Column(name="status"),
        Column(name="suite"),
        Column(name="task"),
        Column(name="size"),
        ARM,
        Column(name="role"),
        Column(name="seed", numeric=True),
        Column(name="rate", numeric=True),
        Column(name="message"),
    ]
    cells = []
    for row in found:
        job = row.job
        words = (row.status, job.suite, job.task, job.size, job.arm.name, job.role)
        numbers_ = [Cell(str(job.seed), job.seed), Cell(numbers.rate(job.lr), job.lr)]
        cells.append([*(Cell(word, word) for word in words), *numbers_, Cell(row.message, row.message)])
    return Table(title="Refused, crashed, timed out", columns=columns, rows=cells)


def normalised(entry: Entry, comparison: Comparison) -> float | None:
    """The mean score with the trivial answer at 0 and at 1 what counts as solved, or else the named arm.

    None where one of them is missing.
    """
    task, reference = comparison.task, comparison.named
    values, base = entry.values(task.primary), reference.values(task.primary) if reference else {}
    full = task.solved if task.solved is not None else fmean(base.values()) if base else task.trivial
    if task.trivial is None or full is None or not values or full == task.trivial:
        return None
    return (fmean(values.values()) - task.trivial) / (full - task.trivial)


def shared(comparisons: Sequence[Comparison]) -> tuple[list[Comparison], list[str]]:
    """Comparisons whose scores can be normalised and that have arms in common, and all their arms."""
    able = [c for c in comparisons if c.task.trivial is not None and (c.task.solved is not None or c.named)]
    counts = Counter(entry.label for c in able for entry in c.entries)
    kept = [c for c in able if any(counts[entry.label] > 1 for entry in c.entries)]
    return kept, list(dict.fromkeys(entry.label for c in kept for entry in c.entries))


def matrix(comparisons: Sequence[Comparison]) -> Table | None:
    """Arms down, tasks across, normalised scores in the cells; None where no two tasks share an arm."""
    scored, labels = shared(comparisons)
    if len(scored) < 2 or len(labels) < 2:
        return None
    sentences: list[str] = []
    rows = [[Cell(label, label), *(_scored(c, label, sentences) for c in scored)] for label in labels]
    ends = [_end(comparison) for comparison in scored]
    notes = [
        f"0 is the trivial answer of the task, 1 is {' or '.join(dict.fromkeys(ends))}; (n) was refused or failed.",
        *(f"({number}) {sentence}" for number, sentence in enumerate(sentences, 1)),
    ]
    first = scored[0]
    columns = [ARM, *(Column(name=c.task.title or c.task.name, unit=c.told, numeric=True) for c in scored)]
    title = f"All tasks, normalised scores ({first.size})"
    return Table(title=title, columns=columns, rows=rows, notes=notes, key=f"{first.suite} {first.size} matrix")


def _end(comparison: Comparison) -> str:
    """What a score of 1 is."""
    task = comparison.task
    if task.solved is None:
        return comparison.named.label if comparison.named else ""
    return f"{task.primary} {numbers.figure(task.solved)}"


def _scored(comparison: Comparison, label: str, sentences: list[str]) -> Cell:
    entry = next((entry for entry in comparison.entries if entry.label == label), None)
    if entry is None:
        return Cell("not run", tone="quiet")
    score = normalised(entry, comparison)
    if score is not None:
        values = list(entry.values(comparison.task.primary).values())
        told = f"{comparison.task.primary} {numbers.figure(sum(values) / len(values))}, {len(values)} seeds"
        return Cell(f"{score:.2f}", score, note=told, shade=min(1.0, max(0.0, score / 2)))
    if not entry.troubled:
        return EMPTY
    row = entry.troubled[0]
    sentence = row.message if row.status == "refused" else f"{row.status}: {row.message}"
    if sentence not in sentences:
        sentences.append(sentence)
    return Cell(f"({sentences.index(sentence) + 1})", tone="bad", note=sentence)


def runs(rows: Sequence[Row]) -> Table:
    """What was run: a line for each suite, size and command, with its hours."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.job.suite, row.job.size, row.command), []).append(row)
    columns = [
        Column(name="suite"),
        Column(name="size"),
        Column(name="jobs", numeric=True),
        Column(name="ok", numeric=True),
        Column(name="processes", unit="wall time together", numeric=True),
        Column(name="CPU time", numeric=True),
        Column(name="tuning seeds"),
        Column(name="reported seeds"),
        Column(name="machine"),
        Column(name="versions"),
        Column(name="taken", unit="UTC"),
        Column(name="command"),
    ]
    cells = []
    for (suite, size, command), members in groups.items():
        seeds = [sorted({r.job.seed for r in members if r.job.role == role}) for role in ("tuning", "reported")]
        wall, cpu = sum(r.seconds for r in members), sum(r.cpu_seconds for r in members)
        done, days = sum(r.status == "ok" for r in members), sorted({r.taken[:10] for r in members})
        days = days if len(days) < 3 else [days[0], days[-1]]
        cells.append(
            [
                Cell(suite, suite),
                Cell(size, size),
                Cell(str(len(members)), len(members)),
                Cell(str(done), done),
                Cell(numbers.duration(wall), wall),
                Cell(numbers.duration(cpu), cpu),
                *(Cell(", ".join(map(str, told)) or "–") for told in seeds),
                *(Cell(text, text) for text in (_machines(members), _versions(members), " to ".join(days), command)),
            ]
        )
    return Table(title="Commands, machines, versions and hours", columns=columns, rows=cells)


def _machines(rows: Sequence[Row]) -> str:
    def told(machine: Mapping[str, Any]) -> str:
        left_out = ("versions", "load")
        return plain({key: value for key, value in machine.items() if key not in left_out and value is not None})

    return "; ".join(dict.fromkeys(told(row.machine) for row in rows))


def _versions(rows: Sequence[Row]) -> str:
    found = (row.machine.get("versions", {}) for row in rows)
    told = (", ".join(f"{name} {version}" for name, version in versions.items() if version) for versions in found)
    return "; ".join(dict.fromkeys(text for text in told if text)) or "–"


def _described(entry: Entry) -> str:
    options = f", {plain(dict(entry.arm.options))}" if entry.arm.options else ""
    return f"mixer {plain(entry.arm.mixer)}{options}"


def plain(value: Any) -> str:
    """A plain value in words: no braces, no quotes."""
    if value is None:
        return "–"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items())
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value)) or "–"
    return f"{value:,.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
