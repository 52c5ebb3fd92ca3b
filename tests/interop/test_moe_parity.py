"""Mixtures of experts against the layers of transformers, with random weights copied over; fp32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Config, DeepseekV3MoE
from transformers.models.llama4.modeling_llama4 import Llama4TextConfig, Llama4TextMoe
from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralSparseMoeBlock
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeConfig, Qwen2MoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeConfig, Qwen3MoeSparseMoeBlock
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersConfig,
    SwitchTransformersSparseMLP,
)

import zoo
from zoo.blocks.api import Context

DIM, HIDDEN, EXPERTS = 16, 24, 8


def swiglu(width: int) -> dict[str, Any]:
    return {"name": "swiglu", "hidden": width}


def random_weights(layer: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
        for buffer in layer.buffers():  # DeepSeek's bias
            buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
    return layer.eval()


def ours(**choices: Any) -> Any:
    return zoo.create_ffn("moe", dim=DIM, **{"experts": EXPERTS, "expert": swiglu(HIDDEN), **choices}).eval()


def copy_stacked(moe: Any, theirs: Any) -> None:
    """transformers stacks gate and up in one tensor of (E, 2 F, D)."""
    gate, up = theirs.gate_up_proj.chunk(2, 1)
    for target, source in ((moe.gate, gate), (moe.up, up), (moe.down, theirs.down_proj)):
        target.weight.copy_(source)


def copy_glu(glu: Any, theirs: Any) -> None:
    for target, source in ((glu.gate, theirs.gate_proj), (glu.up, theirs.up_proj), (glu.down, theirs.down_proj)):
        target.weight.copy_(source.weight)


def mixtral() -> tuple[Any, Any]:
    config = MixtralConfig(hidden_size=DIM, intermediate_size=HIDDEN, num_local_experts=EXPERTS, num_experts_per_tok=2)
    theirs: Any = random_weights(MixtralSparseMoeBlock(config))
    moe = ours(top_k=2)
    copy_stacked(moe.experts, theirs.experts)
    moe.router.weight.copy_(theirs.gate.weight)
    return moe, theirs


def qwen3(normalise: bool) -> tuple[Any, Any]:
    config = Qwen3MoeConfig(
        hidden_size=DIM,
        moe_intermediate_size=HIDDEN,
        num_experts=EXPERTS,
        num_experts_per_tok=3,
        norm_topk_prob=normalise,
    )
    theirs: Any = random_weights(Qwen3MoeSparseMoeBlock(config))
    moe = ours(top_k=3, normalise=normalise)
    copy_stacked(moe.experts, theirs.experts)
    moe.router.weight.copy_(theirs.gate.weight)
    return moe, theirs


def qwen2() -> tuple[Any, Any]:
    config = Qwen2MoeConfig(
        hidden_size=DIM,
        moe_intermediate_size=HIDDEN,
        shared_expert_intermediate_size=40,
        num_experts=EXPERTS,
        num_experts_per_tok=2,
        norm_topk_prob=False,
    )
    theirs: Any = random_weights(Qwen2MoeSparseMoeBlock(config))
    moe = ours(top_k=2, normalise=False, shared=swiglu(40), shared_gate=True)
    copy_stacked(moe.experts, theirs.experts)
    copy_glu(moe.shared, theirs.shared_expert)
    moe.router.weight.copy_(theirs.gate.weight)
    moe.shared_gate.weight.copy_(theirs.shared_expert_gate.weight)
    return moe, theirs


def deepseek_v3() -> tuple[Any, Any]:
    config = DeepseekV3Config(
        hidden_size=DIM,
        moe_intermediate_size=HIDDEN,
        n_routed_experts=EXPERTS,
        n_shared_experts=2,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
    )
    theirs: Any = random_weights(DeepseekV3MoE(config))
    choices = {"top_k": 3, "scores": "sigmoid", "groups": 4, "top_groups": 2, "scale": 2.5, "bias_rate": 1e-3}
    moe = ours(shared=swiglu(2 * HIDDEN), **choices)
    copy_stacked(moe.experts, theirs.experts)
    copy_glu(moe.shared, theirs.shared_experts)
    moe.router.weight.copy_(theirs.gate.weight)
    moe.router.bias.copy_(theirs.gate.e_score_correction_bias)
    return moe, theirs


def llama4() -> tuple[Any, Any]:
    config = Llama4TextConfig(
        hidden_size=DIM, intermediate_size=HIDDEN, num_local_experts=EXPERTS, num_experts_per_tok=1
    )
    theirs: Any = random_weights(Llama4TextMoe(config))
    moe = ours(top_k=1, scores="sigmoid", weigh="input", shared=swiglu(HIDDEN))
    gate, up = theirs.experts.gate_up_proj.mT.chunk(2, 1)
    for target, source in ((moe.experts.gate, gate), (moe.experts.up, up)):
        target.weight.copy_(source)
    moe.experts.down.weight.copy_(theirs.experts.down_proj.mT)
    copy_glu(moe.shared, theirs.shared_expert)
    moe.router.weight.copy_(theirs.router.weight)
    return moe, theirs


def switch(capacity: int) -> tuple[Any, Any]:
    config = SwitchTransformersConfig(
        d_model=DIM, d_ff=HIDDEN, num_experts=EXPERTS, expert_capacity=capacity, dropout_rate=0.0
    )
    theirs: Any = random_weights(SwitchTransformersSparseMLP(config))
    expert = {"name": "mlp", "hidden": HIDDEN, "activation": "relu", "bias": False}
    moe = ours(top_k=1, expert=expert, eval_capacity=capacity * EXPERTS / 10)  # rows of 10 tokens
    for e in range(EXPERTS):
        dense = theirs.experts[f"expert_{e}"]
        moe.experts.up.weight[e].copy_(dense.wi.weight)
        moe.experts.down.weight[e].copy_(dense.wo.weight)
    moe.router.weight.copy_(theirs.router.classifier.weight)
    return moe, theirs


PEERS = {
    "mixtral": mixtral,
    "qwen3_moe": lambda: qwen3(True),
    "qwen3_moe-unnormalised": lambda: qwen3(False),
    "qwen2_moe": qwen2,
    "deepseek_v3": deepseek_v3,
    "llama4": llama4,
    "switch-ample": lambda: switch(10),
    "switch-full": lambda: switch(2),
}


@pytest.mark.parametrize("name", PEERS)
def test_a_layer_equals_that_of_transformers_in_value_and_gradient(name: str) -> None:
    with torch.no_grad():
        moe, theirs = PEERS[name]()
    x = torch.randn(3, 10, DIM, generator=torch.Generator().manual_seed(1))
    weight = torch.linspace(-1, 1, x.numel()).view_as(x)
    grads = []
    outputs: list[Tensor] = []
    for layer in (lambda h: moe(h, Context()), theirs):
        h = x.clone().requires_grad_()
        y = layer(h)
        y = (y[0] if isinstance(y, tuple) else y).view_as(x)
        outputs.append(y.detach())
        grads.append(torch.autograd.grad((y * weight).sum(), h)[0])
    assert outputs[0].abs().max() > 0.1
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-5, atol=1e-5)


def test_transformers_balancing_loss_is_ours_times_k() -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    from zoo.blocks.ffn.balance import balance_loss, loads

    logits = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(2))
    real = torch.ones(2, 7, dtype=torch.bool)
    real[1, 4:] = False
    theirs = load_balancing_loss_func((logits.flatten(0, 1),), 4, 2, real.long())
    shares = logits.softmax(-1)
    wanted = shares.topk(2, -1).indices.masked_fill(~real[..., None], 4)
    torch.testing.assert_close(2 * balance_loss(shares, loads(wanted, 4), real), theirs)
