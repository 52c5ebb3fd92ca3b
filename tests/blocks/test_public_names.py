"""Every mixer and feed-forward is at hand in zoo.blocks, and what a user calls in zoo."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import zoo
import zoo.blocks
from zoo.blocks import FFNConfig, MixerConfig, Sublayer, ffn, mixers
from zoo.blocks.ffn.upcycle import upcycle
from zoo.inspection import count

MODULES = [f"{home.__name__}.{found.name}" for home in (mixers, ffn) for found in pkgutil.iter_modules(home.__path__)]


@pytest.mark.parametrize("module", MODULES)
def test_blocks_import_from_the_package(module: str) -> None:
    home = importlib.import_module(module)
    public = [getattr(home, name) for name in home.__all__]
    blocks = [
        value for value in public if inspect.isclass(value) and issubclass(value, (MixerConfig, FFNConfig, Sublayer))
    ]
    for block in blocks:
        assert block.__name__ in zoo.blocks.__all__
        assert getattr(zoo.blocks, block.__name__) is block


def test_counting_and_upcycling_are_in_the_library() -> None:
    assert zoo.upcycle is upcycle and zoo.count is count
