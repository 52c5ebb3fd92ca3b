"""What every job imports, imported once: processes of jobs are forked from one that has it (benchmarks/processes.py).

Nothing here may start a thread or run an operator: a fork keeps only the thread that forks.
"""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the runner's, also while this is imported

import torch  # noqa: E402
import torch._dynamo  # noqa: E402  an optimizer imports it: seconds
import torch.utils.flop_counter  # noqa: E402

import zoo  # noqa: E402
from zoo.ops import kernels  # noqa: E402

torch.set_num_threads(1)
zoo.list_mixers()
zoo.list_models()
kernels.explain()  # imports numba where it is installed
