"""Our Decision Transformer with the weights of transformers' gives its predictions and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DecisionTransformerConfig, DecisionTransformerModel

import zoo
from zoo.interop.hf_decision import DECISION

SIZES = {"state_dim": 11, "act_dim": 3, "max_ep_len": 1000, "hidden_size": 128, "n_layer": 3, "n_head": 1}


def peer_of(**choices: Any) -> Any:
    """Random weights everywhere, norms, biases and the tables of positions included."""
    torch.manual_seed(0)
    peer = DecisionTransformerModel(DecisionTransformerConfig(**{**SIZES, **choices}))
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return peer.eval()


def ours_of(peer: Any) -> Any:
    model = DECISION.config_from(peer.config.to_dict()).build()
    model.load_state_dict(DECISION.from_huggingface(peer.state_dict(), model.config))
    return model.eval()


def rows(steps: int = 8) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return {
        "states": torch.randn(2, steps, 11, generator=draw),
        "actions": torch.rand(2, steps, 3, generator=draw) * 2 - 1,
        "returns_to_go": torch.rand(2, steps, 1, generator=draw) * 4,
        "timesteps": torch.arange(steps).expand(2, -1) + torch.tensor([[0], [300]]),
    }


def predicted(model: Any, given: dict[str, Tensor], mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    inputs = (given["states"], given["actions"], given["returns_to_go"][..., 0], given["timesteps"])
    x = model.features(*inputs, step_mask=mask)
    states, returns = model.predict_next(x)
    return states, model(*inputs, step_mask=mask), returns[..., None]


def test_it_has_transformers_size() -> None:
    peer = DecisionTransformerModel(DecisionTransformerConfig(**SIZES))
    assert sum(p.numel() for p in peer.parameters()) == 858_767


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize(
    "choices", [{}, {"n_head": 4, "activation_function": "gelu_new", "action_tanh": False}], ids=str
)
def test_predictions_and_gradients_equal_transformers(choices: dict, padding: str) -> None:
    peer = peer_of(**choices)
    model, given = ours_of(peer), rows()
    real = torch.ones(2, 8, dtype=torch.bool)
    if padding != "none":
        real[0] = torch.arange(8) >= 4 if padding == "left" else torch.arange(8) < 4
    expected = peer(**given, attention_mask=real.long(), return_dict=False)
    found = predicted(model, given, None if padding == "none" else real)
    draw = torch.Generator().manual_seed(2)
    total = torch.zeros(()), torch.zeros(())
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine[real], theirs[real], rtol=0, atol=1e-5)
        weight = torch.randn(theirs.shape, generator=draw)[real] / 8
        total = total[0] + (mine[real] * weight).sum(), total[1] + (theirs[real] * weight).sum()
    for value in total:
        value.backward()
    grads = {name: parameter.grad for name, parameter in peer.named_parameters()}
    assert grads.pop("encoder.wte.weight") is None
    positions = grads.pop("encoder.wpe.weight")
    torch.testing.assert_close(positions[0], grads["embed_ln.bias"], rtol=0, atol=1e-5)  # one sum, told twice
    for name, grad in DECISION.from_huggingface(grads, model.config).items():
        mine = model.get_parameter(name).grad
        assert grad.abs().max() > 1e-4, f"{name} has no gradient to compare"
        torch.testing.assert_close(mine, grad, rtol=1e-4, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


def test_the_row_of_positions_that_every_token_gets_is_not_lost() -> None:
    """transformers#17946: GPT-2's positions stayed in the class; checkpoints carry a row that is not zero."""
    peer = peer_of()
    held = DECISION.from_huggingface(peer.state_dict(), DECISION.config_from(peer.config.to_dict()))
    expected = peer.embed_ln.bias + peer.encoder.wpe.weight[0]
    torch.testing.assert_close(held["stack.input_norm.bias"], expected)
    assert peer.encoder.wpe.weight[0].abs().max() > 0.01


def test_a_folder_of_transformers_goes_through_ours_and_back(tmp_path: Path) -> None:
    peer, given = peer_of(), rows()
    peer.save_pretrained(tmp_path / "theirs")
    model: Any = zoo.from_hf(tmp_path / "theirs")
    zoo.to_hf(model, tmp_path / "back")
    back = DecisionTransformerModel.from_pretrained(tmp_path / "back").eval()
    assert not back.encoder.wpe.weight.any() and not back.encoder.wte.weight.any()
    expected = peer(**given, return_dict=False)
    for mine, theirs, again in zip(
        predicted(model, given, None), expected, back(**given, return_dict=False), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)
        torch.testing.assert_close(again, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("choices", [{"discrete": True}, {"return_to_go": False}, {"mixer": {"window": 9}}], ids=str)
def test_what_transformers_class_lacks_is_refused(choices: dict, tmp_path: Path) -> None:
    model = zoo.create_model("decision", state_dim=4, action_dim=2, dim=16, depth=1, max_timestep=9, **choices)
    with pytest.raises(zoo.ConfigError):
        zoo.to_hf(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
