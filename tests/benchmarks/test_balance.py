"""The balance of experts: each arm trains, the claims are read off the figures, and the command writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import balance
from benchmarks.balance import Outcome

TEXT = torch.randint(256, (400,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", balance.ARMS)
def test_every_arm_trains_and_tells_its_loads(name: str) -> None:
    outcome = balance.train(balance.ARMS[name], TEXT, seed=0, steps=2)
    assert 0.0 <= outcome.violation <= balance.EXPERTS - 1
    assert 0 <= outcome.dead < balance.EXPERTS * balance.DEPTH
    assert (outcome.dropped > 0.0) == ("capacity" in name)  # at the start no row's loads are equal
    assert 0.0 < outcome.loss < 7.0


def test_the_seed_alone_decides() -> None:
    first, again, other = (balance.train(balance.ARMS["bias"], TEXT, seed, 2) for seed in (0, 0, 1))
    assert (first.loss, first.violation) == (again.loss, again.violation) != (other.loss, other.violation)


def runs(violation: float, dropped: float = 0.0) -> list[Outcome]:
    return [Outcome(violation + shift, 0, dropped, 2.0, 1.0) for shift in (-0.1, 0.1)]


def test_claims_are_made_of_the_means_and_only_of_arms_that_ran() -> None:
    found = {"none": runs(3.0), "switch": runs(0.5), "bias": runs(1.6)}
    assert list(balance.checks(found).values()) == [True, True, False]
    found = {f"switch capacity {factor}": runs(0.5, 0.3 - i / 10) for i, factor in enumerate(("1", "1.25", "2"))}
    assert list(balance.checks(found).values()) == [True]
    assert balance.checks({"switch": runs(0.5)}) == {}


def test_the_command_writes_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "balance.json"
    assert balance.main(["arm=none,bias", "steps=1", f"out={out}"]) == 0
    written = json.loads(out.read_text())
    assert list(written["arms"]) == ["none", "bias"] and len(written["checks"]) == 1
    assert "bias" in capsys.readouterr().out
    for words, told in ((["arm=mambo"], "mambo"), (["seeds=0"], "seeds"), (["speed=1"], "speed")):
        assert balance.main(words) == 2
        assert told in capsys.readouterr().err
