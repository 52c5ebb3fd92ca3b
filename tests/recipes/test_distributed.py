"""Two processes on one machine give the losses of one at the same global batch, by ddp and by fsdp (gloo).

Tolerance: the sum over a batch is taken in two parts, so that gradients differ in the last bits of fp32, by about 1e-7
of their size; a few steps at a high rate carry that to some 1e-6 of the loss. A wrong factor, a batch that is split
wrongly, or a weight that is left out of the sum moves these losses by 1e-3 and more.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as processes
from torch import nn

from recipes.callbacks.checkpoints import StopRequest
from recipes.journal import journal
from recipes.metrics_file import read_rows
from recipes.sharding import part_like, unshard, whole
from recipes.training_run import prepare
from tests.recipes.tiny import run_settings

TOLERANCE: dict[str, Any] = {"rel": 1e-5, "abs": 1e-6}
WORDS = [
    "recipe=gpt",
    "data=text_files",
    "model.dim=16",
    "model.depth=2",
    "model.heads=2",
    "optim.ema=0.9",
    "trainer.max_steps=4",
    "trainer.log_every_n_steps=1",
    "trainer.val_check_interval=2",
    "trainer.limit_val_batches=1",
    "trainer.accelerator=cpu",
    "trainer.save_every=2",
    "task.context=16",
    "task.tokenizer.vocab_size=280",
    "task.ngrams=0",
    "task.samples=0",
]


def losses_of_run(root: Path, out: Path, *words: str) -> tuple[list[float], dict[str, Any]]:
    """Training and validation losses of `python -m zoo.run`, and the result."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root), "MASTER_PORT": str(free_port())}
    for name in ("LOCAL_RANK", "NODE_RANK", "RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "zoo.run", *WORDS, f"data.path={out.parent / 'texts'}", *words, f"out={out}"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = read_rows(out / "metrics.csv")
    told = [row[name] for row in rows for name in ("train/loss", "val/loss") if name in row]
    return told, json.loads((out / "result.json").read_text())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow  # three runs of the command line: some 40 s of CPU
def test_two_processes_give_the_losses_of_one(root: Path, tmp_path: Path) -> None:
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "then", "sleeps"]
    lines = [" ".join(words[n % 7 : n % 7 + 5] + words[n % 5 :]) for n in range(120)]
    (tmp_path / "texts").mkdir()  # of their own: a run folder holds a txt file too
    (tmp_path / "texts" / "fox.txt").write_text("\n\n".join(lines))
    alone, result = losses_of_run(root, tmp_path / "one", "task.batch_size=8")
    assert len(alone) == 6
    for strategy in ("ddp", "fsdp"):
        words = ("task.batch_size=4", f"trainer.strategy={strategy}", "trainer.devices=2")
        both, theirs = losses_of_run(root, tmp_path / strategy, *words)
        assert both == pytest.approx(alone, **TOLERANCE), strategy
        assert theirs["examples"] == result["examples"] and theirs["params"] == result["params"]
        for name, value in result["metrics"].items():
            assert theirs["metrics"][name] == pytest.approx(value, **TOLERANCE), (strategy, name)
        assert len(list((tmp_path / strategy / "checkpoints").glob("step=*.ckpt"))) == 2


def train_as_rank(rank: int, ranks: int, port: int, strategy: str, out: Path) -> None:
    """One rank of a small run without its report; rank 0 leaves the weights and their average in out/weights.pt."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": str(ranks)}
    trainer = {"strategy": strategy, "devices": ranks, "accelerator": "cpu"}
    with StopRequest() as stop, journal() as said:
        run = prepare(run_settings(trainer=trainer, task={"batch_size": 32 // ranks}), out, stop, said)
        run.trainer.fit(run.task)
        unshard(run.task)
    if rank == 0:
        torch.save(run.task.state_dict(), out / "weights.pt")


def trained(ranks: int, strategy: str, out: Path) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and final weights of a run in `ranks` forked processes."""
    out.mkdir()
    port = free_port()
    forked = processes.get_context("fork")
    started = [
        forked.Process(target=train_as_rank, args=(rank, ranks, port, strategy, out), daemon=True)
        for rank in range(ranks)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
    assert [process.exitcode for process in started] == [0] * ranks
    rows = read_rows(out / "metrics.csv")
    told = [row[name] for row in rows for name in ("train/loss", "val/loss") if name in row]
    return told, torch.load(out / "weights.pt", weights_only=True)


def test_two_ranks_give_the_losses_and_weights_of_one(tmp_path: Path) -> None:
    alone, weights = trained(1, "auto", tmp_path / "one")
    assert len(alone) == 5
    for strategy in ("ddp", "fsdp"):
        both, theirs = trained(2, strategy, tmp_path / strategy)
        assert both == pytest.approx(alone, **TOLERANCE), strategy
        assert theirs.keys() == weights.keys()
        for name, value in weights.items():
            torch.testing.assert_close(theirs[name], value, rtol=1e-4, atol=1e-5, msg=f"{strategy} {name}")


def test_a_part_of_a_whole_tensor_is_itself_without_ranks() -> None:
    value = torch.arange(6.0).view(2, 3)
    assert whole(value) is value
    assert part_like(value, nn.Parameter(torch.zeros(2, 3))) is value
