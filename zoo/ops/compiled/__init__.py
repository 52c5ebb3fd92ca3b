"""Operators as loops that numba compiles: exact, and on a CPU several times as fast as what is made of torch's calls.

One operator a file. A file here imports numba, so it is imported only where zoo/ops/kernels.py has chosen it. The
pattern: inner loops over contiguous vectors are small functions under `inner`; the loops around them do the units of
work first, first + 1, ... last - 1, such as rows and heads, over NumPy arrays that may have any strides; `compiled`
makes machine code of those, one version a dtype; `spread` gives each thread some of the units.

The threads are Python's, which run side by side because the machine code lets go of the interpreter's lock. numba's
own parallel loops would take three times as long to compile, and may not be entered after a fork or from two threads.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch
from numba import float32, float64, intp, njit, types, void
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

__all__ = ["compiled", "inner", "row", "spread"]

# Sums may be reordered and products fused; NaN and infinity keep their meaning.
OPTIONS = {"nogil": True, "fastmath": {"reassoc", "contract", "arcp", "nsz", "afn"}, "error_model": "numpy"}
FLOATS = {torch.float32: float32, torch.float64: float64}
GRAIN = 1 << 20  # multiply-adds that are worth a thread

inner = njit(**OPTIONS)


@functools.cache
def compiled(function: Callable[..., None], dtype: torch.dtype, *axes: int) -> Callable[..., None]:
    """Machine code of `function(first, last, *arrays)` for arrays of `dtype` with so many axes and any strides.

    It is kept on disk for later processes, beside the source or in the user's cache folder.
    """
    signature = void(intp, intp, *(types.Array(FLOATS[dtype], n, "A") for n in axes))
    try:
        return njit(signature, cache=True, **OPTIONS)(function)
    except RuntimeError:  # neither of the folders can be written
        return njit(signature, **OPTIONS)(function)


def _row(typing, x, place):
    """x[place] for all axes but the last, along which numbers lie side by side. Unlike NumPy's index it is only an
    address: nothing looks at bounds or strides, and nothing counts references, which for short vectors costs as much
    as the work on them."""
    vector = types.Array(x.dtype, 1, "C")

    def address(context, builder, signature, arguments):
        array = context.make_array(x)(context, builder, arguments[0])
        strides, indices = (cgutils.unpack_tuple(builder, packed) for packed in (array.strides, arguments[1]))
        steps = [builder.mul(stride, index) for stride, index in zip(strides, indices, strict=False)]
        start = builder.gep(builder.bitcast(array.data, cgutils.voidptr_t), [functools.reduce(builder.add, steps)])
        view = context.make_array(vector)(context, builder)
        size = cgutils.unpack_tuple(builder, array.shape)[-1]
        data = builder.bitcast(start, array.data.type)
        populate_array(view, data, [size], [array.itemsize], array.itemsize, meminfo=None)
        return view._getvalue()

    return vector(x, place), address


row: Any = intrinsic(_row)


def spread(kernel: Callable[..., None], units: int, work: int, *tensors: torch.Tensor) -> None:
    """`kernel(first, last, *arrays)` on all units, shared by up to torch.get_num_threads() threads.

    work: multiply-adds of all units together; little work is not worth more threads.
    """
    arrays = [x.detach().numpy() for x in tensors]
    parts = max(1, min(torch.get_num_threads(), units, work // GRAIN))
    (*others, mine) = pairwise(units * part // parts for part in range(parts + 1))
    tasks = [_threads(os.getpid()).submit(kernel, *part, *arrays) for part in others]
    kernel(*mine, *arrays)
    for task in tasks:
        task.result()


@functools.cache
def _threads(process: int) -> ThreadPoolExecutor:
    """The threads of a process: a fork has none of its parent's."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="zoo")
