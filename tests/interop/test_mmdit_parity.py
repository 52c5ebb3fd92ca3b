"""Our MM-DiT with diffusers' weights gives diffusers' outputs and gradients, block by block and whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers.models.attention import JointTransformerBlock
from diffusers.models.transformers.transformer_sd3 import SD3Transformer2DModel
from torch import Tensor, nn

import zoo
from zoo.interop.diffusers_mmdit import from_diffusers

DIM, HEADS, DEPTH = 24, 3, 3


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def randomised(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed) * 0.2)
    return model.eval()


def ours(**choices: Any) -> nn.Module:
    sizes = {"dim": DIM, "depth": DEPTH, "heads": HEADS, "image_size": 16, "position_grid": 12, "channels": 4}
    return zoo.create_model("mmdit", **sizes, text_dim=10, pooled_dim=6, **choices).eval()


def theirs(qk_norm: str | None) -> nn.Module:
    return randomised(
        SD3Transformer2DModel(
            sample_size=16, in_channels=4, out_channels=4, num_layers=DEPTH, attention_head_dim=DIM // HEADS,
            num_attention_heads=HEADS, joint_attention_dim=10, caption_projection_dim=DIM, pooled_projection_dim=6,
            pos_embed_max_size=12, qk_norm=qk_norm,
        )
    )  # fmt: skip


def close(actual: Tensor, expected: Tensor, name: str = "") -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5, msg=lambda text: f"{name}: {text}")


@pytest.mark.parametrize("qk_norm", [None, "rms_norm"])
@pytest.mark.parametrize("size", [(16, 16), (8, 20)])
def test_outputs_and_gradients_equal_diffusers(qk_norm: str | None, size: tuple[int, int]) -> None:
    peer, model = theirs(qk_norm), ours(qk_norm=None if qk_norm is None else "rmsnorm")
    model.load_state_dict(from_diffusers(peer.state_dict(), model.config))
    x, text, pooled, t = normal(2, 4, *size), normal(2, 5, 10, seed=1), normal(2, 6, seed=2), torch.tensor([3.0, 871.5])
    expected = peer(x, text, pooled, t).sample
    actual = model(x, t, text, pooled)
    assert expected.std() > 0.1
    close(actual, expected)
    expected.square().mean().backward()
    actual.square().mean().backward()
    grads = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in peer.named_parameters()}
    if qk_norm:  # the last block reads no query of the text
        unused = f"blocks.{DEPTH - 1}.attention.context_q_norm.weight"
        assert model.get_parameter(unused).grad is None
    for name, grad in from_diffusers(grads, model.config).items():
        if not name.startswith(f"blocks.{DEPTH - 1}.attention.context_q_norm"):
            close(model.get_parameter(name).grad, grad, name)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("qk_norm", [None, "rms_norm"])
def test_a_block_equals_diffusers(qk_norm: str | None, last: bool) -> None:
    whole, model = theirs(qk_norm), ours(qk_norm=None if qk_norm is None else "rmsnorm")
    model.load_state_dict(from_diffusers(whole.state_dict(), model.config))
    index = DEPTH - 1 if last else 0
    peer = JointTransformerBlock(DIM, HEADS, DIM // HEADS, context_pre_only=last, qk_norm=qk_norm).eval()
    peer.load_state_dict(whole.transformer_blocks[index].state_dict())
    x, c, told = normal(2, 7, DIM), normal(2, 5, DIM, seed=1), normal(2, DIM, seed=2)
    expected_c, expected_x = peer(x, c, told)
    actual_x, actual_c = model.blocks[index](x, c, model.modulation(told))
    close(actual_x, expected_x)
    assert (actual_c is None) == (expected_c is None) == last
    if not last:
        close(actual_c, expected_c)


def test_sd3_medium_has_its_published_size() -> None:
    with torch.device("meta"):
        model = zoo.create_model("sd3_medium")
    assert sum(p.numel() for p in model.parameters()) == 2_028_328_000


def test_masked_text_is_never_read() -> None:
    model = randomised(ours())
    x, text, pooled, t = (
        normal(2, 4, 16, 16),
        normal(2, 5, 10, seed=1),
        normal(2, 6, seed=2),
        torch.tensor([3.0, 871.5]),
    )
    mask = torch.tensor([[True, True, False, True, False]] * 2)
    short = model(x, t, text[:, [0, 1, 3]], pooled)
    close(model(x, t, text.masked_fill(~mask[..., None], 9.0), pooled, mask), short)


def test_a_new_model_answers_zero_and_a_grid_beyond_the_table_is_refused() -> None:
    model = ours()
    inputs = torch.tensor([3.0]), normal(1, 5, 10), normal(1, 6)
    assert torch.equal(model(normal(1, 4, 16, 16), *inputs), torch.zeros(1, 4, 16, 16))
    with pytest.raises(zoo.ConfigError, match="position_grid"):
        model(normal(1, 4, 16, 26), *inputs)
