"""Linear maps of a few rows: the layer's own result, whatever the layer is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from zoo.ops.few_rows import WARM, few_rows


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_few_rows_give_what_the_layer_gives(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(12, 20, bias=bias).double(), torch.randn(rows, 12, dtype=torch.float64)
    with torch.inference_mode():
        before = None if linear.bias is None else linear.bias.clone()
        apply = few_rows(linear)
        for _ in range(WARM + 2):  # plain at first, by columns later
            torch.testing.assert_close(apply(x), linear(x), rtol=0, atol=1e-14)
        assert before is None or torch.equal(linear.bias, before)


def test_hooks_and_layers_of_other_kinds_are_called_as_they_are() -> None:
    class Adapter(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) + 1.0

    torch.manual_seed(0)
    x = torch.randn(1, 4)
    adapter, hooked = Adapter(4, 4), nn.Linear(4, 4)
    hooked.register_forward_hook(lambda module, given, out: out * 2)
    with torch.inference_mode():
        assert torch.equal(few_rows(adapter)(x), adapter(x))
        assert torch.equal(few_rows(hooked)(x), hooked(x))
