"""Muon: orthogonal updates for the matrices of a stack, AdamW for everything else."""

from __future__ import annotations

import copy

import pytest
import torch

import zoo
from recipes.muon import Muon, naive_orthogonal, orthogonal
from recipes.optim import MuonConfig, hidden_matrices, parameter_groups
from zoo.registry import decode


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_the_iteration_equals_the_polynomial_on_singular_values(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(orthogonal(matrix), naive_orthogonal(matrix), rtol=0, atol=1e-10)
    both = orthogonal(torch.stack([matrix, 5 * matrix]))  # the length of the momentum does not matter
    torch.testing.assert_close(both[1], both[0], rtol=0, atol=1e-6)


def test_singular_values_end_near_one() -> None:
    matrix = torch.randn(64, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonal(matrix))
    assert values.min() > 0.6 and values.max() < 1.3  # Jordan et al. 2024: about 0.7 to 1.2


def test_a_zero_gradient_moves_nothing_and_stays_finite() -> None:
    weight = torch.nn.Parameter(torch.ones(3, 4))
    weight.grad = torch.zeros(3, 4)
    Muon([{"params": [weight], "muon": True}], 0.1).step()
    assert torch.equal(weight, torch.ones(3, 4))


def test_only_linear_maps_inside_the_stack_are_made_orthogonal() -> None:
    model = zoo.create_model("gpt", vocab_size=11, max_len=8, dim=8, depth=2, heads=2)
    names = {name for name, parameter in model.named_parameters() if id(parameter) in hidden_matrices(model)}
    kinds = {name.split(".", 3)[-1] for name in names}
    assert kinds == {"mixer.qkv.weight", "mixer.out.weight", "ffn.up.weight", "ffn.down.weight"}
    assert len(names) == 8
    plain = torch.nn.ModuleDict({"lstm": torch.nn.LSTM(3, 4), "head": torch.nn.Linear(4, 2)})
    assert hidden_matrices(plain) == {id(plain.lstm.weight_ih_l0), id(plain.lstm.weight_hh_l0)}


@pytest.mark.parametrize("shape", [(3, 4, 6), (3, 6, 4), (1, 5, 5)])
def test_a_stack_moves_as_each_of_its_matrices_alone(shape: tuple[int, int, int]) -> None:
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(shape, dtype=torch.float64, generator=draw)
    stack, alone = torch.nn.Parameter(start.clone()), [torch.nn.Parameter(matrix.clone()) for matrix in start]
    options = {"weight_decay": 0.1, "muon": True}
    optimizers = [Muon([{"params": [stack], **options}], 0.1), Muon([{"params": alone, **options}], 0.1)]
    for _ in range(3):
        stack.grad = torch.randn(shape, dtype=torch.float64, generator=draw)
        stack.grad[0] *= 1e3  # no matrix feels how large another's gradient is
        for matrix, grad in zip(alone, stack.grad, strict=True):
            matrix.grad = grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert (stack - start).flatten(1).norm(dim=1).min() > 0.1
    torch.testing.assert_close(stack, torch.stack(alone), rtol=0, atol=1e-10)


def test_experts_are_made_orthogonal_and_their_router_is_not() -> None:
    ffn = {"name": "moe", "experts": 3, "expert": {"name": "swiglu", "hidden": 8, "bias": True}}
    model = zoo.create_model("gpt", vocab_size=11, max_len=8, dim=8, depth=1, heads=2, ffn=ffn)
    found = hidden_matrices(model)
    names = {name.split("ffn.")[1] for name, p in model.named_parameters() if id(p) in found and "ffn." in name}
    assert names == {"experts.gate.weight", "experts.up.weight", "experts.down.weight"}


@pytest.mark.parametrize("fused", [False, True])
def test_other_parameters_take_the_step_of_adamw(fused: bool) -> None:
    torch.manual_seed(0)
    model = zoo.create_model("gpt", vocab_size=11, max_len=8, dim=8, depth=1, heads=2)
    other = copy.deepcopy(model)
    config: MuonConfig = decode("optim", {"name": "muon", "lr": 1e-2, "fused": fused})
    optimizer = config.build(parameter_groups(model, config))
    plain = decode("optim", {"name": "adamw", "lr": 1e-2, "betas": [0.9, 0.95], "fused": fused, "weight_decay": 0.1})
    twin = plain.build(parameter_groups(other, plain))
    ids = torch.randint(11, (4, 8))
    for net, steps in ((model, optimizer), (other, twin)):
        torch.nn.functional.cross_entropy(net(ids).flatten(0, 1), ids.flatten()).backward()
        steps.step()
    theirs = dict(other.named_parameters())
    matrices = hidden_matrices(model)
    for name, parameter in model.named_parameters():
        same = torch.allclose(parameter, theirs[name], rtol=0, atol=1e-7)
        assert same == (id(parameter) not in matrices), name


def test_its_state_goes_through_a_checkpoint() -> None:
    torch.manual_seed(0)
    model = zoo.create_model("gpt", vocab_size=11, max_len=8, dim=8, depth=1, heads=2)
    config: MuonConfig = decode("optim", "muon")
    ids = torch.randint(11, (4, 8))

    def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(ids).flatten(0, 1), ids.flatten()).backward()
            optimizer.step()

    optimizer = config.build(parameter_groups(model, config))
    train(model, optimizer, 2)
    again = copy.deepcopy(model)
    resumed = config.build(parameter_groups(again, config))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, 2)
    train(again, resumed, 2)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
