"""DeepNorm with factors of one's own choice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from zoo import registry
from zoo.blocks.api import Context, Slot
from zoo.blocks.norms import LayerNormConfig
from zoo.registry import ConfigError

DIM = 6


@pytest.mark.parametrize(("alpha", "branch"), [(None, 1.0), (2.5, 1.0), (None, 0.3), (1.0, 0.7)])
def test_deepnorm_scales_the_stream_and_the_branch(alpha: float | None, branch: float) -> None:
    config = registry.decode("residual", {"name": "deepnorm", "alpha": alpha, "branch": branch})
    slot = Slot(dim=DIM, heads=1, max_len=8, layer=0, depth=5, branch_weight=0.5)
    x = torch.randn(2, 3, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def f(h: Tensor) -> Tensor:
        return h * h + 1

    stream = 10**0.25 if alpha is None else alpha
    expected = torch.nn.functional.layer_norm(stream * x + branch * 0.5 * f(x), (DIM,), eps=1e-6)
    found = config.build(slot, LayerNormConfig()).double()(x, f, Context())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("field", ["alpha", "branch"])
def test_a_factor_of_zero_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        registry.decode("residual", {"name": "deepnorm", field: 0.0})
