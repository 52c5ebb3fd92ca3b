"""The runner: words, cells, the loop, and real processes that crash, hang, and are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.processes import find_suite
from benchmarks.protocol import Cell
from benchmarks.rows import RowFile, read_rows
from benchmarks.run import cells, main, parse, run
from benchmarks.suites.api import Arm, Job, Row, Task
from benchmarks.words import WordsError
from tests.benchmarks.test_rows import made
from zoo.registry import ConfigError

ROOT = Path(__file__).resolve().parents[2]
BROKEN = '''
import os, time
from zoo.blocks.api import Capability, MixerConfig
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.registry import register


def attention(slot):
    return AttentionConfig().build(slot)


@register("mixer", "mine")
class Mine(MixerConfig):
    """Attention by another name."""
    capabilities = ~Capability(0)
    def build(self, slot):
        return attention(slot)


@register("mixer", "exits")
class Exits(MixerConfig):
    """Ends its process."""
    capabilities = ~Capability(0)
    def build(self, slot):
        os.abort()


@register("mixer", "sleeps")
class Sleeps(MixerConfig):
    """Never comes back."""
    capabilities = ~Capability(0)
    def build(self, slot):
        time.sleep(10_000)


@register("mixer", "raises")
class Raises(MixerConfig):
    """Has a fault."""
    capabilities = ~Capability(0)
    def build(self, slot):
        return 1 / 0
'''


class Fake:
    """An executor without processes: two jobs at a time, done in the order they came."""

    def __init__(self, stop_after: int | None = None, refuse: str = "") -> None:
        self.started: list[Job] = []
        self.running: list[Job] = []
        self.stop_after, self.refuse, self.closed = stop_after, refuse, False

    @property
    def free(self) -> int:
        return 2 - len(self.running)

    def start(self, job: Job) -> None:
        self.started.append(job)
        self.running.append(job)

    def finished(self) -> list[Row]:
        if self.stop_after is not None and len(self.started) > self.stop_after:
            raise KeyboardInterrupt
        job = self.running.pop(0)
        row = replace(made(0), key=job.key, job=job)
        return [replace(row, status="refused", outcome=None) if job.arm.name == self.refuse else row]

    def close(self) -> None:
        self.closed = True


def two_arms() -> list[Cell]:
    task = Task(name="t", primary="accuracy")
    shared: dict[str, Any] = {"suite": "s", "version": 1, "task": task, "size": "small", "settings": {}}
    return [Cell(arm=Arm(name=name, mixer=name), rates=(1e-3, 3e-3, 1e-2), seeds=2, **shared) for name in ("a", "b")]


def test_every_job_of_every_arm_runs_once(tmp_path: Path) -> None:
    with RowFile(tmp_path / "s.jsonl") as file:
        first, again = Fake(), Fake()
        run(two_arms(), file, first)
        assert len(first.started) == len({job.key for job in first.started}) == 2 * (3 + 2)
        run(two_arms(), file, again)
    assert again.started == [] and first.closed and again.closed


def test_an_interrupt_keeps_the_rows_there_are_and_the_next_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    stopped, rest = Fake(stop_after=4), Fake()
    with RowFile(path) as file, pytest.raises(KeyboardInterrupt):
        run(two_arms(), file, stopped)
    kept = read_rows(path)
    assert stopped.closed and len(kept) == len(stopped.started) - 2  # two were running
    with RowFile(path) as file:
        run(two_arms(), file, rest)
    assert not {job.key for job in rest.started} & kept.keys()
    assert len(read_rows(path)) == 2 * (3 + 2)


def test_a_refusal_spares_the_arm_s_other_jobs(tmp_path: Path) -> None:
    with RowFile(tmp_path / "s.jsonl") as file:
        executor = Fake(refuse="a")
        run(two_arms(), file, executor)
    assert sum(job.arm.name == "a" for job in executor.started) <= 2
    assert sum(job.arm.name == "b" for job in executor.started) == 5


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "suite: is required; choices:"),
        (["suite=recall", "size=tiny"], "size: should be smoke or small or paper"),
        (["suite=recall", "mixers=a"], "unknown key 'mixers', did you mean 'mixer'?"),
        (["suite=recall", "mixer=a,{b"], "mixer: should be names or"),
        (["suite=recall", "mixer=3"], "mixer: should be names or"),
        (["suite=recall", "--with"], "with: has no value"),
        (["suite=recall", "--with", "nowhere.py"], "with: no file 'nowhere.py'"),
        (["suite=recall", "launcher.partition=gpu"], "needs launcher=NAME"),
        (["suite=recall", "seeds=0"], "seeds: should be a whole number from 1"),
    ],
)
def test_a_wrong_word_is_named(words: list[str], told: str) -> None:
    with pytest.raises(WordsError) as error:
        parse(words)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_mixers_are_names_or_dicts() -> None:
    options = parse(["suite=recall", "mixer=attention,{name: delta, conv: 0}"])
    assert options.mixers == ("attention", {"name": "delta", "conv": 0})


def test_wrong_names_end_with_code_2_and_the_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recall = find_suite("recall")
    with pytest.raises(ConfigError, match="did you mean 'mamba2'"):
        cells(parse(["suite=recall", "mixer=mamba22"]), recall, {})
    with pytest.raises(ConfigError, match="unknown task 'mqr'"):
        cells(parse(["suite=recall", "task=mqr"]), recall, {})
    with pytest.raises(ConfigError, match="unknown suite 'recal', did you mean 'recall'"):
        find_suite("recal")
    assert main(["--help"]) == 0 and "suite=NAME" in capsys.readouterr().out


def test_the_source_of_a_user_s_mixer_is_part_of_its_arm_alone() -> None:
    options = parse(["suite=recall", "mixer=attention,delta", "task=plain"])
    plain = cells(options, find_suite("recall"), {})
    marked = cells(options, find_suite("recall"), {"delta": "0123"})
    keys = [[cell.job("reported", 0, 1e-3).key for cell in found] for found in (plain, marked)]
    assert keys[0][0] == keys[1][0] and keys[0][1] != keys[1][1]


def command(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.run", *words],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


@pytest.mark.slow
def test_a_crash_and_a_timeout_mark_their_own_rows_and_two_runs_are_bit_identical(tmp_path: Path) -> None:
    (tmp_path / "my_mixer.py").write_text(BROKEN)
    words = ["suite=recall", "size=smoke", "task=plain", "mixer=exits,mine,sleeps,raises", "timeout=60"]
    found = []
    for name in ("one", "two"):
        process = command(*words, f"out={tmp_path / name}", "jobs=2", "--with", str(tmp_path / "my_mixer.py"))
        said, _ = process.communicate()
        assert process.returncode == 1, said
        rows = read_rows(tmp_path / name / "smoke" / "recall.jsonl").values()
        assert {row.job.arm.name: row.status for row in rows} == {
            "exits": "crashed", "mine": "ok", "sleeps": "timed out", "raises": "crashed"
        }  # fmt: skip
        messages = {row.job.arm.name: row.message for row in rows}
        assert "SIGABRT" in messages["exits"] and "ZeroDivisionError" in messages["raises"]
        found.append({row.key: row.outcome for row in rows})
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "suite", ["recall", "copy", "tracking", "mad", "families", "position", "stability", "efficiency"]
)
def test_the_mixer_of_the_contributor_s_guide_takes_part_in_every_suite(suite: str, tmp_path: Path) -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (tmp_path / "mean.py").write_text(guide.split("```python\n")[1].split("```")[0])
    words = [f"suite={suite}", "size=smoke", "mixer=mean", f"out={tmp_path}", "--with", str(tmp_path / "mean.py")]
    said, _ = (process := command(*words)).communicate()
    rows = read_rows(tmp_path / "smoke" / f"{suite}.jsonl").values()
    assert process.returncode == 0 and {row.status for row in rows} <= {"ok", "refused"}, said
    assert any(row.status == "ok" for row in rows), said


@pytest.mark.slow
def test_kill_9_loses_no_finished_row_and_leaves_no_process(tmp_path: Path) -> None:
    words = ["suite=tracking", "size=smoke", f"out={tmp_path}", "mixer=attention,delta,lstm", "task=parity,s3,count"]
    path = tmp_path / "smoke" / "tracking.jsonl"
    process = command(*words)
    while process.poll() is None and len(read_rows(path)) < 2:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = read_rows(path)
    assert 2 <= len(kept) < 9
    deadline = time.monotonic() + 60
    while _group(process.pid) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not _group(process.pid)
    again = command(*words)
    said, _ = again.communicate()
    assert again.returncode == 0, said
    after = read_rows(path)
    assert len(after) == 9 and {key: after[key] for key in kept} == kept
    assert len(path.read_text().splitlines()) == 9


def _group(session: int) -> list[int]:
    """Processes that still belong to a command: those of its session, and jobs, whose parent the command knows."""
    listed = subprocess.run(["ps", "-eo", "pid,sid,args"], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines()[1:] if int(line.split()[1]) == session]


@pytest.mark.slow
def test_two_processes_of_joblib_find_what_one_process_here_finds(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    words = ["suite=recall", "size=smoke", "task=plain", "mixer=attention,delta,lstm"]
    for name, more in (("here", []), ("there", ["launcher=joblib", "jobs=2"])):
        process = command(*words, f"out={tmp_path / name}", *more)
        said, _ = process.communicate()
        assert process.returncode == 0, said
    here, there = (
        {key: row.outcome for key, row in read_rows(tmp_path / name / "smoke" / "recall.jsonl").items()}
        for name in ("here", "there")
    )
    assert here == there and len(here) == 3
    assert json.dumps(sorted(os.listdir(tmp_path / "there"))) == '["smoke"]'
