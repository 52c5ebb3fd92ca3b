"""The words behind `python -m zoo.predict RUN_DIR`, with mistakes told in one line."""

from __future__ import annotations

import argparse
from typing import Any

from zoo.registry import ConfigError

__all__ = ["Parser"]


class Parser(argparse.ArgumentParser):
    """argparse that raises ConfigError with `usage` where it would print and exit."""

    def __init__(self, usage: str) -> None:
        super().__init__(usage=usage, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> Any:
        raise ConfigError(f"{message}; {self.usage}", "predict")
