"""The Decision Transformer: its tokens, its masks, its timesteps, its state, and both kinds of actions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import zoo
from zoo.blocks.init import materialise
from zoo.inspection import count

SMALL: dict[str, Any] = {"state_dim": 5, "action_dim": 3, "dim": 16, "depth": 2, "heads": 2, "max_timestep": 40}
STEPS = 12


def small(**choices: Any) -> Any:
    torch.manual_seed(0)
    return zoo.create_model("decision", **{**SMALL, "init_std": 0.2, **choices}).double().eval()


def rows(model: Any, batch: int = 2, steps: int = STEPS) -> tuple[Tensor, ...]:
    """states, actions, returns and timesteps of random episodes; the returns are left out where none are taken."""
    draw = torch.Generator().manual_seed(1)
    config = model.config
    states = torch.randn(batch, steps, config.state_dim, generator=draw, dtype=torch.float64)
    actions = (
        torch.randint(config.action_dim, (batch, steps), generator=draw)
        if config.discrete
        else torch.rand(batch, steps, config.action_dim, generator=draw, dtype=torch.float64)
    )
    returns = torch.rand(batch, steps, generator=draw, dtype=torch.float64) if config.return_to_go else None
    return states, actions, returns, torch.arange(steps).expand(batch, -1)  # type: ignore[return-value]


KINDS = [
    {},
    {"discrete": True},
    {"discrete": True, "return_to_go": False},
    {"mixer": {"window": 9}},
    {"mixer": "mamba2", "discrete": True},
    {"mixer": "gated_delta"},
    {"mixer": {"name": "hybrid", "pattern": ["gru", "attention"]}},
]


def test_the_papers_size_for_hopper_and_what_transformers_adds_to_it() -> None:
    with torch.device("meta"):
        model = zoo.create_model("decision_hopper")
        whole = zoo.create_model("decision_hopper", predict_next=True)
    block = 4 * 128 + (3 * 128 * 128 + 3 * 128) + (128 * 128 + 128) + (128 * 512 + 512) + (512 * 128 + 128)
    embedded = 1000 * 128 + 2 * 128 + 12 * 128 + 4 * 128  # timesteps, return, state, action
    norms, head = 2 * 2 * 128, 128 * 3 + 3
    assert sum(p.numel() for p in model.parameters()) == 3 * block + embedded + norms + head == 726_019
    unread = (1024 + 1) * 128  # the tables wpe and wte, which no token reads here
    assert sum(p.numel() for p in whole.parameters()) == 726_019 + (128 * 11 + 11) + (128 + 1)
    assert sum(p.numel() for p in whole.parameters()) + unread == 858_767


def test_the_preset_of_the_recipe_is_its_parts_added_up() -> None:
    block = 4 * 64 + (3 * 64 * 64 + 3 * 64) + (64 * 64 + 64) + (64 * 256 + 256) + (256 * 64 + 64)
    expected = 500 * 64 + 2 * 64 + (4 * 64 + 64) + 2 * 64 + 2 * block + 2 * 2 * 64 + (64 * 2 + 2)
    assert sum(p.numel() for p in zoo.create_model("decision_cartpole").parameters()) == expected


@pytest.mark.parametrize("choices", KINDS, ids=str)
def test_an_action_sees_its_return_and_state_and_the_steps_before_alone(choices: dict) -> None:
    model = small(**choices)
    states, actions, returns, timesteps = rows(model)
    states.requires_grad_()
    out = model(states, actions, returns, timesteps)
    assert out.shape == (2, STEPS, 3)
    out[:, 4].sum().backward()
    reached = states.grad.abs().sum((0, 2)) > 0  # type: ignore[union-attr]
    assert reached[4] and reached[3] and not reached[5:].any()
    changed = actions.clone()
    changed[:, 4] = (actions[:, 4] + 1) % 3 if model.config.discrete else actions[:, 4] + 1
    again = model(states, changed, returns, timesteps)
    assert torch.equal(again[:, :5], out[:, :5])  # a_4 is not seen before step 5
    assert not torch.allclose(again[:, 5], out[:, 5])
    if returns is not None:
        wanted = returns.clone()
        wanted[:, 4] += 1
        again = model(states, actions, wanted, timesteps)
        assert torch.equal(again[:, :4], out[:, :4]) and not torch.allclose(again[:, 4], out[:, 4])


def test_the_three_tokens_of_a_step_share_one_timestep_embedding() -> None:
    model = small(depth=0, input_norm=False, final_norm=False)
    states, actions, returns, _ = rows(model)
    x = model.features(states, actions, returns, torch.full((STEPS,), 7))  # (B, T, 3, D)
    time = model.embed_timestep.weight[7]
    expected = [model.embed_return(returns[..., None]), model.embed_state(states), model.embed_action(actions)]
    for token, part in enumerate(expected):
        torch.testing.assert_close(x[:, :, token], part + time)


def test_timesteps_count_from_zero_where_none_are_given() -> None:
    model = small()
    states, actions, returns, timesteps = rows(model)
    assert torch.equal(model(states, actions, returns), model(states, actions, returns, timesteps))
    assert not torch.allclose(model(states, actions, returns), model(states, actions, returns, timesteps + 1))


def test_a_timestep_beyond_the_table_is_told() -> None:
    model = small()
    states, actions, returns, timesteps = rows(model)
    with pytest.raises(ValueError, match=r"timestep 40 is outside the table of max_timestep=40"):
        model(states, actions, returns, timesteps + 29)
    with pytest.raises(ValueError, match=r"timestep -1 is outside"):
        model(states, actions, returns, timesteps - 1)
    with pytest.raises(ValueError, match=r"timestep 40 is outside"):
        model.step(model.init_state(2, 4), states[:, 0], returns[:, 0], 40)


def test_returns_that_are_missing_or_not_wanted_are_told() -> None:
    model, clone = small(), small(return_to_go=False)
    states, actions, returns, _ = rows(model)
    with pytest.raises(ValueError, match="needs returns-to-go"):
        model(states, actions)
    with pytest.raises(ValueError, match="takes no returns-to-go"):
        clone(states, actions, returns)
    with pytest.raises(zoo.ConfigError, match=r"decision.predict_next: needs return_to_go"):
        small(return_to_go=False, predict_next=True)


@pytest.mark.parametrize("choices", KINDS, ids=str)
@pytest.mark.parametrize("side", ["left", "right", "inside"])
def test_padding_anywhere_changes_no_real_step(choices: dict, side: str) -> None:
    """Known fault 13: four steps in a context of eight; the mask has four ones, twelve over the kinds of token."""
    model = small(**choices)
    states, actions, returns, timesteps = rows(model, steps=4)
    places = {"left": [4, 5, 6, 7], "right": [0, 1, 2, 3], "inside": [0, 2, 3, 7]}[side]
    mask = torch.zeros(2, 8, dtype=torch.bool)
    mask[:, places] = True
    assert mask[0].sum() == 4

    def padded(value: Tensor | None, noise: float) -> Tensor | None:
        if value is None:
            return None
        made = torch.full((2, 8, *value.shape[2:]), noise, dtype=value.dtype)
        made[:, places] = value
        return made

    expected = model(states, actions, returns, timesteps)
    found = []
    for noise in (0.0, 1e4):
        given = (padded(states, noise), padded(actions, noise), padded(returns, noise), padded(timesteps, noise))
        found.append(model(*given, step_mask=mask)[:, places])
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-10)


def test_a_mask_reaches_the_stack_once_for_each_kind_of_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = small(), []
    forward = model.stack.forward
    monkeypatch.setattr(
        model.stack, "forward", lambda x, context, state: (seen.append(context), forward(x, context))[1]
    )
    states, actions, returns, timesteps = rows(model, batch=1, steps=8)
    model(states, actions, returns, timesteps, step_mask=torch.arange(8)[None] < 4)
    assert seen[0].token_mask.tolist() == [[True] * 12 + [False] * 12]


@pytest.mark.parametrize("choices", KINDS, ids=str)
@pytest.mark.parametrize("prefill", [0, 1, 7])
def test_steps_with_a_state_equal_one_pass(choices: dict, prefill: int) -> None:
    model = small(**choices)
    states, actions, returns, timesteps = rows(model)
    expected = model(states, actions, returns, timesteps)
    state = model.init_state(2, STEPS)
    with torch.no_grad():
        if prefill:
            past = None if returns is None else returns[:, :prefill]
            given = (states[:, :prefill], actions[:, :prefill], past, timesteps[:, :prefill])
            torch.testing.assert_close(model(*given, state=state), expected[:, :prefill], rtol=0, atol=1e-10)
        for step in range(prefill, STEPS):
            previous = None if step == prefill else actions[:, step - 1]
            wanted = None if returns is None else returns[:, step]
            found = model.step(state, states[:, step], wanted, step, previous=previous)
            torch.testing.assert_close(found, expected[:, step], rtol=0, atol=1e-10)


def test_a_recurrent_mixer_keeps_the_same_state_over_an_episode() -> None:
    model = small(mixer="mamba2")
    assert model.init_state(2, 4).nbytes() == model.init_state(2, 40).nbytes()
    assert small().init_state(2, 40).nbytes() == 10 * small().init_state(2, 4).nbytes()


def test_continuous_actions_stay_within_one() -> None:
    model = small(init_std=3.0)
    states, actions, returns, timesteps = rows(model)
    found = model(100 * states, actions, returns, timesteps)
    assert found.abs().max() <= 1
    open_ended = small(init_std=3.0, action_tanh=False)
    torch.testing.assert_close(open_ended(100 * states, actions, returns, timesteps).tanh(), found)


def test_gradients_reach_every_parameter() -> None:
    for choices in ({}, {"discrete": True, "return_to_go": False}, {"predict_next": True}):
        model = small(**choices)
        states, actions, returns, timesteps = rows(model)
        loss = model(states, actions, returns, timesteps).square().sum()
        if model.config.predict_next:
            x = model.features(states, actions, returns, timesteps)
            loss = loss + sum(part.square().sum() for part in model.predict_next(x))
        loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def test_it_saves_loads_counts_and_materialises(tmp_path: Any) -> None:
    model = small(discrete=True)
    states, actions, returns, timesteps = rows(model)
    zoo.save_pretrained(model, tmp_path)
    again: Any = zoo.load_pretrained(tmp_path)
    assert torch.equal(again(states, actions, returns, timesteps), model(states, actions, returns, timesteps))
    assert count(model, states, actions, returns, timesteps).flops_forward > 0
    with torch.device("meta"):
        empty = zoo.create_model("decision", **SMALL)
    made: Any = materialise(empty)
    assert made(states.float(), torch.rand(2, STEPS, 3), returns.float(), timesteps).isfinite().all()
