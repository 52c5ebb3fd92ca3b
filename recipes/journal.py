"""What a run says: on the screen, and with the time in log.txt. Warnings and Lightning's remarks go to log.txt only."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recipes.run_folder import rank


class _Quiet(logging.FileHandler):
    """A full disk must not turn each remark into a traceback; what matters is written elsewhere, and checked there."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        return


_ELSEWHERE = ("py.warnings", "lightning", "lightning.pytorch", "lightning.fabric")


class Journal:
    """`say` prints a line and keeps it; `note` only keeps it. Nothing is kept before a file is opened."""

    def __init__(self) -> None:
        self._handler: logging.Handler = logging.NullHandler()
        self._elsewhere: dict[str, tuple[list[logging.Handler], bool]] = {}

    def open(self, path: Path) -> None:
        """Keep what follows in `path`, after what is there. Raises OSError."""
        self._handler = _Quiet(path, encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        self._redirect()

    def say(self, line: str) -> None:
        if rank() == 0:
            print(line, flush=True)
            self.note(line)

    def note(self, line: str) -> None:
        self._handler.handle(logging.LogRecord("zoo", logging.INFO, "", 0, line, None, None))

    def _redirect(self) -> None:
        for name in _ELSEWHERE:
            logger = logging.getLogger(name)
            self._elsewhere.setdefault(name, (logger.handlers, logger.propagate))
            logger.handlers, logger.propagate = [self._handler], False

    def _restore(self) -> None:
        for name, (handlers, propagate) in self._elsewhere.items():
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = handlers, propagate
        self._handler.close()


@contextmanager
def journal() -> Iterator[Journal]:
    """A journal for one run. Warnings and Lightning's remarks are kept by it instead of printed."""
    kept = Journal()
    logging.captureWarnings(True)
    kept._redirect()
    try:
        yield kept
    finally:
        logging.captureWarnings(False)
        kept._restore()
