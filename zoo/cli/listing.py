"""`python -m zoo list [kind]`: every part that is registered, and every config that can be chosen."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from zoo import paths
from zoo.cli.errors import guarded, refuse

__all__ = ["main"]

USAGE = """\
List the parts that can be named, with one line and the paper of each.

  python -m zoo list             everything
  python -m zoo list mixer       one kind
  python -m zoo list kernels     what operators run by on this machine, and why
"""
CONFIGS = ("recipe", "data", "budget", "optim", "trainer", "logger")
Row = tuple[str, str, str]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name; default: this process's) and return its exit code."""
    return guarded(lambda: _main(sys.argv[1:] if argv is None else argv))


def _main(words: Sequence[str]) -> int:
    if "-h" in words or "--help" in words:
        print(USAGE, end="")
        return 0
    tables = _tables(parts=not words or any(word not in CONFIGS for word in words))
    from zoo.registry import nearest

    for word in words:
        if word not in tables:
            raise refuse(f"unknown kind '{word}'{nearest(word, tables)}; choices: {', '.join(tables)}", "list")
    chosen = {kind: tables[kind] for kind in words} if words else tables
    if sys.stdout.isatty():
        _print_rich(chosen)
    else:
        _print_plain(chosen)
    return 0


def _tables(parts: bool) -> dict[str, list[Row]]:
    """Rows (name, summary, paper) by kind. `parts` adds all that is registered, which imports torch."""
    tables: dict[str, list[Row]] = {
        kind: [(name, text, "") for name, text in paths.catalogue(kind).items()] for kind in CONFIGS
    }
    if parts:
        paths.use()
        import recipes.optim  # noqa: F401
        import zoo.library  # noqa: F401
        from zoo import registry

        for kind in registry.kinds():
            if kind not in tables:
                entries = [registry.describe(kind, name) for name in registry.names(kind)]
                tables[kind] = [(entry.name, entry.summary, entry.paper) for entry in entries]
        tables["kernels"] = _kernels()
    return tables


def _kernels() -> list[Row]:
    from zoo.ops.kernels import explain

    return [(f"{operator} on {device}", f"{path}: {why}", "") for operator, device, path, why in explain()]


def _print_plain(tables: dict[str, list[Row]]) -> None:
    """Aligned columns of full text, one part a line: for pipes and files."""
    for place, (kind, rows) in enumerate(tables.items()):
        print("\n" * bool(place) + f"{kind} ({len(rows)})")
        wide = max((len(name) for name, _, _ in rows), default=0)
        long = max((len(text) for _, text, _ in rows), default=0)
        for name, text, paper in rows:
            print(f"  {name:<{wide}}  {text:<{long}}  {paper}".rstrip())


def _print_rich(tables: dict[str, list[Row]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for kind, rows in tables.items():
        table = Table(title=f"{kind} ({len(rows)})", title_justify="left", box=None, pad_edge=False)
        table.add_column("name", style="bold", no_wrap=True)
        table.add_column("what it is")
        if any(paper for _, _, paper in rows):
            table.add_column("paper", style="dim")
        for name, text, paper in rows:
            table.add_row(escape(name), escape(text), escape(paper))
        console.print(table, "")
