"""Trainer and plain loop alternate in one process, block by block. No time is asserted."""

from __future__ import annotations

from benchmarks.trainer_overhead import PLAIN, TRAINER, measure


def test_blocks_of_both_are_read_in_turn() -> None:
    timings = measure(2, 2, ["model.depth=1", "model.dim=16", "task.batch_size=8", "data.limit=64"])
    assert set(timings.clocks) == {TRAINER, PLAIN}
    for clock in timings.clocks.values():
        assert len(clock.cpu) == len(clock.wall) == 2
        assert all(seconds > 0 for seconds in clock.wall)
