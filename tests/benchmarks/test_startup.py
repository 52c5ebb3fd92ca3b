"""The import log is summed by package, and trainer and plain loop take the same steps."""

from __future__ import annotations

import pytest

from benchmarks.startup import import_seconds

LOG = """import time: self [us] | cumulative | imported package
import time:      1000 |       1000 |   torch.nn
import time:      2500 |       3500 | torch
import time:       500 |        500 | zoo.registry
some other line
import time: nonsense
"""


def test_import_time_by_package() -> None:
    assert import_seconds(LOG) == pytest.approx({"torch": 0.0035, "zoo": 0.0005})
    assert list(import_seconds(LOG)) == ["torch", "zoo"]
    assert import_seconds("") == {}
