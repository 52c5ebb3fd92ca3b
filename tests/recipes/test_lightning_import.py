"""Lightning is imported without what it only probes for, and whatever a program has loaded before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("before", ["scipy", "scipy, matplotlib, torchvision", "sklearn.svm"])
def test_packages_that_are_loaded_in_part_do_not_break_the_import(before: str, root: Path) -> None:
    """A loaded package is found by torchmetrics, which then imports more of it (`scipy.signal`)."""
    code = (
        f"import {before}; from recipes.lightning_import import Trainer; import scipy.signal; print(Trainer.__name__)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=root, capture_output=True, text=True)
    assert done.stdout.strip() == "Trainer", done.stderr
