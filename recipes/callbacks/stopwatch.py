"""Seconds spent on training itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Counts wall seconds while it runs; stands still while validation, checkpoints and counts are made."""

    def __init__(self) -> None:
        self._total, self._since = 0.0, None

    _since: float | None

    @property
    def seconds(self) -> float:
        return self._total + (time.perf_counter() - self._since if self._since is not None else 0.0)

    def start(self, total: float = 0.0) -> None:
        self._total, self._since = total, time.perf_counter()

    def stop(self) -> None:
        self._total, self._since = self.seconds, None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Not counting within the block."""
        running = self._since is not None
        self.stop()
        try:
            yield
        finally:
            if running:
                self.start(self._total)
