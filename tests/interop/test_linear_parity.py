"""Linear mixers against transformers' MiniMax and flash-linear-attention's plain operators, with random weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import zoo
from zoo.blocks.api import Context
from zoo.blocks.mixers.retention import retention_decay
from zoo.ops.recurrence import recurrence

B, T, D, H, DEPTH = 2, 21, 24, 3, 4


@pytest.mark.parametrize("layer", range(DEPTH))
@pytest.mark.parametrize("block_size", [5, 64])
def test_lightning_computes_what_minimax_in_transformers_does(layer: int, block_size: int) -> None:
    hf = pytest.importorskip("transformers.models.minimax.modeling_minimax")
    sizes = {"hidden_size": D, "num_attention_heads": H, "head_dim": 6, "num_hidden_layers": DEPTH}
    kinds = {"layer_types": ["linear_attention"] * DEPTH}
    torch.manual_seed(layer)
    peer = hf.MiniMaxLightningAttention(hf.MiniMaxConfig(block_size=block_size, **sizes, **kinds), layer)
    with torch.no_grad():
        peer.norm.weight.normal_()
    mine = zoo.create_mixer(
        "lightning", dim=D, heads=H, causal=True, layer=layer, depth=DEPTH, head_dim=6, slopes="transformers"
    )
    weight = (
        peer.qkv_proj.weight.unflatten(0, (H, 3, 6)).transpose(0, 1).flatten(0, 2)
    )  # q, k, v of a head are neighbours
    mine.load_state_dict(
        {
            "qkv.weight": weight,
            "gate.weight": peer.output_gate.weight,
            "norm.norm.weight": peer.norm.weight,
            "out.weight": peer.out_proj.weight,
        }
    )
    x = torch.randn(B, T, D)
    expected, _ = peer(x, position_embeddings=None, attention_mask=None)
    torch.testing.assert_close(mine(x, Context()), expected, rtol=0, atol=1e-5)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_retention_equals_flash_linear_attentions_plain_operator() -> None:
    naive = pytest.importorskip("fla.ops.retention.naive", reason="flash-linear-attention is not installed")
    q, k, v = (random(B, T, H, width, seed=seed) for seed, width in enumerate((8, 8, 12)))
    y, _ = recurrence(q * 8**-0.5, k, v, retention_decay(H), chunk=8)
    expected = naive.naive_retention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("per_channel", [False, True])
def test_gated_recurrences_equal_flash_linear_attentions_plain_operators(per_channel: bool) -> None:
    name = "gla" if per_channel else "simple_gla"
    naive = pytest.importorskip(f"fla.ops.{name}.naive", reason="flash-linear-attention is not installed")
    q, k, v = (random(B, T, H, 8, seed=seed) for seed in range(3))
    decay = torch.nn.functional.logsigmoid(random(B, T, H, *([8] if per_channel else []), seed=3)) / 16
    state = random(B, H, 8, 8, seed=4)
    y, final = recurrence(q * 8**-0.5, k, v, decay, state=state, chunk=8)
    expected, expected_final = getattr(naive, f"naive_recurrent_{name}")(
        q, k, v, decay, initial_state=state, output_final_state=True
    )
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(final, expected_final, rtol=0, atol=1e-5)
