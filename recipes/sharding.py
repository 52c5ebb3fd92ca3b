"""Weights in parts: each rank holds a part of every weight, and has the whole of a layer only while it computes it.

Zhao et al. 2023, arXiv:2304.11277, in torch's present form (`fully_shard`), which also runs on CPUs by gloo. Gradients
come back in parts, and the optimizer moves its rank's parts. Every block of the zoo's stacks is gathered by itself, all
other weights together. Chosen by `trainer.strategy=fsdp`.

A moving average stays whole on every rank, and Muon, which works on whole matrices, gathers its updates. Checkpoints
are single files, as of any other run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from recipes.lightning_import import absent
from zoo.blocks.stack import Block

with absent():
    from lightning.pytorch.strategies import ModelParallelStrategy

__all__ = ["Sharded", "gathered", "part_like", "shard", "unshard", "whole"]


class Sharded(ModelParallelStrategy):
    """Lightning's strategy for modules that split themselves, with all ranks in one group."""

    def __init__(self) -> None:
        super().__init__(save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        self._data_parallel_size, self._tensor_parallel_size = self.num_processes * self.num_nodes, 1
        super().setup_environment()


def shard(task: Any) -> None:
    """Split a task's weights, once, where its trainer's strategy is `Sharded`."""
    trainer = task._trainer  # None where a checkpoint is loaded without one
    if trainer is None or not isinstance(trainer.strategy, Sharded) or _is_sharded(task):
        return
    mesh = task.device_mesh["data_parallel"]
    for module in task.model.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    fully_shard(task, mesh=mesh, ignored_params=set(task.ema.parameters()) if task.ema is not None else None)
    register_fsdp_forward_method(task, "training_step")


@contextmanager
def gathered(task: Any) -> Iterator[None]:
    """Within the block, the weights outside of the blocks are whole on every rank; blocks see to theirs."""
    if not _is_sharded(task):
        yield
        return
    task.unshard()
    try:
        yield
    finally:
        task.reshard()


def unshard(task: Any) -> None:
    """Give a task that has been trained a plain model with the whole weights. All ranks call it together."""
    if not _is_sharded(task):
        return
    held = {name: whole(value) for name, value in task.model.state_dict().items()}
    model = task.model.config.build()
    model.load_state_dict(held)
    task.model = model


def _is_sharded(task: Any) -> bool:
    return isinstance(task, FSDPModule)


def whole(value: Tensor) -> Tensor:
    """The tensor of which `value` may be this rank's part."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def part_like(value: Tensor, like: Tensor) -> Tensor:
    """Of a tensor that all ranks hold alike, the part that this rank holds of `like`."""
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
