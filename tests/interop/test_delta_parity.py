"""Layers of transformers and flash-linear-attention give their outputs and gradients to ours with the same weights."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, KimiLinearConfig, Qwen3NextConfig

from zoo.blocks import Context, Slot, Sublayer
from zoo.blocks.mixers.gated_delta import GatedDeltaConfig
from zoo.blocks.mixers.kda import KDAConfig
from zoo.blocks.mixers.rwkv7 import RWKV7, RWKV7Config

DIM, T = 32, 70  # more than one chunk of 64
fp32 = {"rtol": 0.0, "atol": 1e-5}


def peer_module(name: str) -> Any:
    """transformers' modeling file with its own PyTorch operators: fla's kernels, where installed, need a GPU."""
    with pytest.MonkeyPatch.context() as hidden:
        for kernels in ("fla", "causal_conv1d"):
            hidden.setitem(sys.modules, kernels, None)
        return import_module(f"transformers.models.{name}.modeling_{name}")


def random_weights(peer: nn.Module) -> nn.Module:
    """Normal weights of every parameter: matrices that keep the size of what they map, and 0.5 for the others."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            parameter.normal_(std=parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 0.5)
            if "norm.weight" in name:
                parameter.add_(1.0)
    return peer.eval()


def qwen3_next() -> tuple[Any, nn.Module, Sublayer]:
    """Qwen3-Next: value heads in pairs on one key head; its projections lie key head by key head."""
    sizes = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_conv_kernel_dim": 4}
    config = Qwen3NextConfig(
        hidden_size=DIM,
        num_hidden_layers=4,
        num_attention_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=12,
        **sizes,
    )
    peer = random_weights(peer_module("qwen3_next").Qwen3NextGatedDeltaNet(config, 0))
    choices = {"heads": 2, "value_heads": 4, "head_dim": 8, "expand_v": 1.5, "norm_eps": config.rms_norm_eps}
    ours = GatedDeltaConfig(**choices).build(Slot(dim=DIM, causal=True)).eval()
    theirs = peer.state_dict()
    q, k, v, z = theirs["in_proj_qkvz.weight"].view(2, -1, DIM).split([8, 8, 24, 24], dim=1)
    beta, alpha = theirs["in_proj_ba.weight"].view(2, -1, DIM).split([2, 2], dim=1)
    weights = {
        "qkv.weight": torch.cat([part.flatten(0, 1) for part in (q, k, v)]),
        "conv.weight": theirs["conv1d.weight"][:, 0],
        "beta.weight": beta.flatten(0, 1),
        "decay.alpha.weight": alpha.flatten(0, 1),
        "decay.A_log": theirs["A_log"],
        "decay.dt_bias": theirs["dt_bias"],
        "gate.weight": z.flatten(0, 1),
        "norm.norm.weight": theirs["norm.weight"],
        "out.weight": theirs["out_proj.weight"],
    }
    ours.load_state_dict(weights)
    return config, peer, ours


def kimi_linear() -> tuple[Any, nn.Module, Sublayer]:
    config = KimiLinearConfig(
        hidden_size=DIM,
        num_hidden_layers=2,
        num_attention_heads=2,
        layer_types=["linear_attention", "full_attention"],
        linear_attn_config={"head_dim": 8, "num_heads": 3, "short_conv_kernel_size": 4},
    )
    peer = random_weights(peer_module("kimi_linear").KimiLinearDeltaAttention(config, 0))
    ours = KDAConfig(heads=3, head_dim=8, norm_eps=config.rms_norm_eps).build(Slot(dim=DIM, causal=True)).eval()
    theirs = peer.state_dict()
    weights = {
        "qkv.weight": torch.cat([theirs[f"{part}_proj.weight"] for part in "qkv"]),
        "conv.weight": theirs["conv1d.weight"][:, 0],
        "beta.weight": theirs["b_proj.weight"],
        "decay.alpha.down.weight": theirs["forget_gate.f_a_proj.weight"],
        "decay.alpha.up.weight": theirs["forget_gate.f_b_proj.weight"],
        "decay.A_log": theirs["forget_gate.A_log"].flatten(),
        "decay.dt_bias": theirs["forget_gate.dt_bias"],
        "gate.down.weight": theirs["g_a_proj.weight"],
        "gate.up.weight": theirs["g_b_proj.weight"],
        "norm.norm.weight": theirs["o_norm.weight"],
        "out.weight": theirs["o_proj.weight"],
    }
    ours.load_state_dict(weights)
    return config, peer, ours


PAIRS = {"qwen3_next": qwen3_next, "kimi_linear": kimi_linear}
pairs = pytest.mark.parametrize("build", PAIRS.values(), ids=PAIRS)


def rows(seed: int = 1) -> Tensor:
    return torch.randn(2, T, DIM, generator=torch.Generator().manual_seed(seed))


@pairs
def test_outputs_and_gradients_equal_transformers(build: Callable[[], Any]) -> None:
    _, peer, ours = build()
    x, y = rows().requires_grad_(), rows().requires_grad_()
    expected, found = peer(x), ours(y, Context())
    assert expected.abs().mean() > 0.1
    torch.testing.assert_close(found, expected, **fp32)
    expected.square().mean().backward()
    found.square().mean().backward()
    torch.testing.assert_close(y.grad, x.grad, **fp32)


@pairs
def test_left_padded_rows_equal_transformers(build: Callable[[], Any]) -> None:
    _, peer, ours = build()
    mask = torch.ones(2, T, dtype=torch.bool)
    mask[0, :5] = False
    expected = peer(rows(), attention_mask=mask)
    torch.testing.assert_close(ours(rows(), Context(token_mask=mask))[mask], expected[mask], **fp32)


@pairs
def test_prefill_and_steps_equal_transformers_cache(build: Callable[[], Any]) -> None:
    config, peer, ours = build()
    x, cache, state = rows(), DynamicCache(config=config), ours.init_state(2, T)
    with torch.no_grad():
        for start, stop in [(0, 64), *((t, t + 1) for t in range(64, T))]:
            expected = peer(x[:, start:stop], cache=cache)
            torch.testing.assert_close(ours(x[:, start:stop], Context(), state), expected, **fp32)


def fla_layers() -> Any:
    """fla's RWKV-7 layer over the PyTorch references that it holds beside its kernels."""
    layers = pytest.importorskip("fla.layers.rwkv7", reason="flash-linear-attention is not installed")
    naive = import_module("fla.ops.generalized_delta_rule.dplr.naive").dplr_recurrence
    shift = import_module("fla.modules.token_shift").token_shift_ref

    def recurrence(r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        heads_first = (part.transpose(1, 2) for part in (r * r.shape[-1] ** 0.5, k, v, a, b, w))
        y, state = naive(*heads_first)
        return y.transpose(1, 2), state

    references = {
        "token_shift": lambda x, *_, **__: (shift(x), None),
        "fused_addcmul_rwkv7": import_module("fla.ops.rwkv7.fused_addcmul").torch_addcmul_rwkv7,
        "fused_k_rwkv7": import_module("fla.ops.rwkv7.fused_k_update").k_update_ref,
        "gate_output_correction": import_module("fla.ops.rwkv7.gate_output_correction").gate_output_correction_ref,
        "chunk_rwkv7": recurrence,
    }
    return layers, references


RWKV7_NAMES = {"receptance": "r_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj", "norm": "g_norm"}
RWKV7_NAMES |= {"decay": "w_lora", "rate": "a_lora", "share": "v_lora", "gate": "g_lora"}
RWKV7_NAMES |= {"removal_scale": "k_k", "rate_scale": "k_a", "bonus": "r_k"}


def rwkv7_weights(theirs: dict[str, Tensor], ours: RWKV7) -> dict[str, Tensor]:
    weights = {"mix_weights": torch.cat([theirs.pop(f"x_{part}")[0] for part in "rwkvag"])}
    for name in ours.state_dict():
        if name != "mix_weights":
            first, _, rest = name.partition(".")
            rest = rest.replace("down.", "lora.0.").replace("up.", "lora.2.")
            weights[name] = theirs.pop(".".join([RWKV7_NAMES[first], rest] if rest else [RWKV7_NAMES[first]]))
    assert not theirs
    return weights


@pytest.mark.filterwarnings("ignore:According to Bo")
def test_two_rwkv7_layers_equal_fla() -> None:
    """The second layer's values lean towards the first's."""
    layers, references = fla_layers()
    shared: dict = {}
    peers, ours = [], []
    for layer in range(2):
        peer = layers.RWKV7Attention(hidden_size=DIM, head_dim=8, layer_idx=layer, num_hidden_layers=2)
        peers.append(random_weights(peer))
        slot = Slot(dim=DIM, heads=4, causal=True, layer=layer, depth=2, shared=shared)
        ours.append(RWKV7Config().build(slot).eval())
        ours[-1].load_state_dict(rwkv7_weights(peers[-1].state_dict(), ours[-1]))
    x, y = rows().requires_grad_(), rows().requires_grad_()
    expected, found, values, context = x, y, None, Context()
    with patch.multiple(layers, **references):
        for peer, mixer in zip(peers, ours, strict=True):
            expected, _, _, values = peer(expected, v_first=values)
            found = mixer(found, context)
            torch.testing.assert_close(found, expected, **fp32)
        expected.square().mean().backward()
    found.square().mean().backward()
    torch.testing.assert_close(y.grad, x.grad, **fp32)


@pytest.mark.filterwarnings("ignore:According to Bo")
def test_rwkv7_starts_where_fla_starts() -> None:
    """All that is not a matrix: mixes, biases, scales, norms."""
    layers, _ = fla_layers()
    shared: dict = {}
    for layer in range(3):
        peer = layers.RWKV7Attention(hidden_size=DIM, head_dim=8, layer_idx=layer, num_hidden_layers=3)
        slot = Slot(dim=DIM, heads=4, causal=True, layer=layer, depth=3, shared=shared)
        ours = RWKV7Config().build(slot)
        expected = rwkv7_weights(peer.state_dict(), ours)
        for name, parameter in ours.named_parameters():
            assert parameter.shape == expected[name].shape
            if parameter.dim() == 1 or name in ("mix_weights", "bonus"):
                torch.testing.assert_close(parameter.detach(), expected[name], rtol=0, atol=1e-6, msg=name)
