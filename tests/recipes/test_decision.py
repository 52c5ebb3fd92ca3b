"""The recipe that acts: recorded episodes, windows, rollouts, and a whole small run from settings to answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch

import zoo
from recipes.control.arms import clone_of, windowed
from recipes.control.evaluation import achieved
from recipes.control.key_to_door import ID, KeyToDoor
from recipes.control.policy import Cached, Chance, Recomputed
from recipes.control.rollout import chosen, rollout
from recipes.data.control.episodes import ControlData, Environment, Episodes, Scaling, WindowExamples, control_data
from recipes.data.control.minari_set import MinariSet
from recipes.data.control.scripted import ScriptedConfig
from recipes.data.control.spaces import environment_of, flat_observations
from recipes.data.control.store import write_dataset
from recipes.data.loader import EpochLoader
from recipes.launch import launch, predict
from recipes.recipe import find_recipe
from zoo.blocks.api import Capability
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.registry import ConfigError, decode, encode
from zoo.run import compose


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("minari")))
        yield


def scripted(name: str, **choices: Any) -> ScriptedConfig:
    return decode("data", {"name": name, "episodes": 12, "validation": 0.2, **choices}, "data")


@pytest.fixture(scope="module")
def cartpole() -> ControlData:
    return scripted("cartpole", skills=[0.0, 0.3]).load()


def settings(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": "decision",
        "seed": 0,
        "mode": "train",
        "checkpoint": None,
        "resume": None,
        "model": {"family": "decision", "dim": 8, "depth": 1, "heads": 2},
        "data": {"name": "cartpole", "episodes": 12, "validation": 0.2, "skills": [0.0, 0.3], "targets": [40, 20]},
        "optim": {"name": "adamw", "lr": 1e-2, "ema": 0.9, "schedule": {"name": "cosine", "warmup": 2}},
        "trainer": {"max_steps": 4, "log_every_n_steps": 2},
        "logger": {"name": "csv"},
        "task": {"batch_size": 8, "context": 5, "episodes": 3},
    }
    for key, value in changes.items():
        made[key] = {**made[key], **value} if isinstance(value, dict) else value
    return made


# Episodes and windows


def toy(lengths: tuple[int, ...] = (3, 7, 5)) -> Episodes:
    total = sum(lengths)
    return Episodes(
        states=torch.arange(total).float()[:, None],
        actions=torch.arange(total) % 2,
        rewards=torch.arange(total).float(),
        lengths=torch.tensor(lengths),
    )


PLAIN = Scaling(mean=(0.0,), std=(1.0,), return_scale=1.0, least_return=0.0, most_return=100.0)


def test_returns_to_go_are_the_rewards_from_each_step_to_its_episodes_end() -> None:
    episodes = toy()
    expected = [3, 3, 2, *(sum(range(n, 10)) for n in range(3, 10)), *(sum(range(n, 15)) for n in range(10, 15))]
    assert episodes.returns_to_go.tolist() == [float(value) for value in expected]
    assert episodes.returns.tolist() == [3.0, 42.0, 60.0]


def test_the_best_share_is_counted_in_steps_from_the_best_episode_down() -> None:
    assert toy().best(0.1).lengths.tolist() == [5]
    assert toy().best(0.5).lengths.tolist() == [5, 7]
    assert toy().best(1.0).lengths.tolist() == [5, 7, 3]


def test_windows_are_steps_of_one_episode_in_order_with_padding_behind() -> None:
    examples = WindowExamples(toy(), 4, PLAIN, training=True)
    assert len(examples) == 15
    for epoch in range(5):
        batch = examples.batch(range(15), (0, epoch))
        assert batch["step_mask"].sum() == examples.targets(batch) == examples.count_targets(range(15), (0, epoch))
        rows = zip(batch["states"][..., 0], batch["timesteps"], batch["step_mask"], strict=True)
        for number, (state, time, real) in enumerate(rows):
            episode = int(examples.episodes.numbers[number])
            steps = int(real.sum())
            assert steps == min(4, int(examples.episodes.lengths[episode]))
            assert real[:steps].all() and not real[steps:].any()
            assert torch.equal(state[:steps], examples.episodes.starts[episode] + time[:steps])
            assert torch.equal(time[:steps].diff(), torch.ones(steps - 1, dtype=torch.long))
            assert number in state[:steps].tolist()  # the window holds the step it stands for


def test_evaluation_scores_every_step_once() -> None:
    examples = WindowExamples(toy(), 4, PLAIN, training=False)
    batch = examples.batch(range(len(examples)), None)
    seen = batch["states"][..., 0][batch["step_mask"]]
    assert sorted(seen.tolist()) == list(range(15))
    assert examples.count_targets(range(len(examples)), None) == 15


def test_the_loss_is_the_mean_over_real_steps_whatever_the_padding_holds() -> None:
    """Known fault 13: a trajectory of 4 steps in a context of 8; the loss averages the 4 real steps alone."""
    recipe: Any = find_recipe("decision")(settings())
    model = zoo.create_model("decision", state_dim=1, action_dim=2, discrete=True, dim=8, depth=1, max_timestep=9)
    batch = WindowExamples(toy((4,)), 8, PLAIN, training=True).batch([0, 3], (0, 0))
    assert batch["step_mask"].sum(1).tolist() == [4, 4]
    loss, logs = recipe.loss(model, batch)
    noisy = {**batch, "states": batch["states"].masked_fill(~batch["step_mask"][..., None], 1e3)}
    assert torch.equal(recipe.loss(model, noisy)[0], loss)
    alone = {name: value[:, :4] for name, value in batch.items()}
    torch.testing.assert_close(recipe.loss(model, alone)[0], loss)
    assert 0 <= int(logs["accuracy"]) <= 8


def test_splits_are_by_episode_and_scales_are_those_of_training(cartpole: ControlData) -> None:
    assert {name: len(part) for name, part in cartpole.episodes.items()} == {"val": 2, "test": 2, "train": 8}
    firsts = [tuple(part.states[start].tolist()) for part in cartpole.episodes.values() for start in part.starts]
    assert len(set(firsts)) == 12
    assert cartpole.train.states.mean(0).abs().max() < 1e-4
    torch.testing.assert_close(cartpole.train.states.std(0, unbiased=False), torch.ones(4), rtol=0, atol=1e-3)
    assert cartpole.scaling.least_return == 1.0
    assert cartpole.scaling.return_scale in (10.0, 100.0)


def test_a_recorded_set_is_made_once_and_is_the_same_from_anew(
    cartpole: ControlData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ScriptedConfig, "record", None)  # found again, not made again
        assert scripted("cartpole", skills=[0.0, 0.3]).load().content_hash == cartpole.content_hash
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert scripted("cartpole", skills=[0.0, 0.3]).load().content_hash == cartpole.content_hash
    assert scripted("cartpole", skills=[0.0]).load().content_hash != cartpole.content_hash


def test_better_skills_have_better_returns() -> None:
    config = scripted("mountain_car", skills=[0.5, 1.0], episodes=6)
    found = [config.record(gymnasium.make("MountainCar-v0"), number)["rewards"].sum() for number in range(6)]
    assert max(found[::2]) < min(found[1::2])


def test_actions_of_a_box_are_known_as_minus_one_to_one_and_given_back_as_they_were() -> None:
    data = scripted("pendulum", episodes=4, validation=0.25).load()
    world = data.environment
    assert (world.discrete, world.action_dim, world.low, world.high) == (False, 1, (-2.0,), (2.0,))
    assert all(part.actions.abs().max() <= 1 for part in data.episodes.values())

    class Fixed:
        def act(self, states: Any, returns: Any, step: int, previous: Any) -> torch.Tensor:
            return torch.full((len(states), 1), 0.5)

        def keep(self, rows: Any) -> None: ...

    found = rollout(lambda rows: Fixed(), world, data.scaling, [0.0], [3])
    env = gymnasium.make("Pendulum-v1")
    env.reset(seed=3)
    expected = sum(float(env.step(np.array([1.0], dtype=np.float32))[1]) for _ in range(200))
    torch.testing.assert_close(found.returns.item(), expected)


def test_any_local_minari_set_is_read_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = gymnasium.make("CartPole-v1")
    recorded = [scripted("cartpole").record(env, number) for number in range(4)]
    write_dataset("mine/some-v3", recorded, env, tmp_path, {})
    data = MinariSet(id="mine/some-v3", validation=0.25).load()
    assert data.environment.id == "CartPole-v1" and data.environment.max_steps == 500
    assert sum(len(part) for part in data.episodes.values()) == 4
    best = float(data.episodes["train"].returns.max())
    assert data.targets == (best, best / 2)
    with pytest.raises(ConfigError, match=r"data.id: no data set 'mine/sum-v3' in .*choices: mine/some-v3"):
        MinariSet(id="mine/sum-v3").load()
    with pytest.raises(ConfigError, match="needs the id of a data set"):
        MinariSet().load()


def test_observations_of_dicts_and_numbers_become_vectors() -> None:
    from gymnasium import spaces

    space = spaces.Dict({"place": spaces.Box(0, 1, (2,)), "mode": spaces.Discrete(3)})
    values = {"place": np.ones((2, 2)), "mode": np.array([0, 2])}
    flat = flat_observations(space, values, 2)
    assert flat.shape == (2, environment_of(space, spaces.Discrete(2), None, 9).state_dim)
    assert flat[1].tolist() in ([0, 0, 1, 1, 1], [1, 1, 0, 0, 1])
    with pytest.raises(ConfigError, match=r"actions .* are not supported"):
        environment_of(space, spaces.MultiBinary(2), None)


def test_too_few_episodes_are_told(cartpole: ControlData) -> None:
    with pytest.raises(ConfigError, match="2 episodes are too few to hold out 50% twice"):
        control_data(MinariSet(validation=0.5), toy((3, 4)), cartpole.environment, "toy")


def test_the_stream_of_windows_goes_on_where_it_stopped(cartpole: ControlData) -> None:
    def loader() -> EpochLoader:
        return EpochLoader(cartpole.train, 16, shuffle=True, seed=3)

    whole, first, second = iter(loader()), loader(), loader()
    before = iter(first)
    for _ in range(3):
        next(whole), next(before)
    second.load_state_dict(first.state_dict())
    expected, found = next(whole), next(iter(second))
    assert all(torch.equal(expected[name], found[name]) for name in expected)


# Key-to-Door


def walked(env: KeyToDoor, with_key: bool) -> list[float]:
    rewards, over = [], False
    while not over:
        move = env.towards_object()
        if env.room == 0 and not with_key:
            # one step away from the key and back: it is never reached
            away = {0: 1, 1: 0, 2: 3, 3: 2}
            move = None if move is None else away[move]
            if move is not None:
                row, column = ((-1, 0), (1, 0), (0, -1), (0, 1))[move]
                place = (min(max(env.agent[0] + row, 0), 2), min(max(env.agent[1] + column, 0), 2))
                assert place != env.target
        _, reward, ended, cut, _ = env.step(0 if move is None else move)
        rewards.append(reward)
        over = ended or cut
    return rewards


@pytest.mark.parametrize("seed", range(5))
def test_only_the_door_rewards_and_only_with_the_key(seed: int) -> None:
    env = KeyToDoor()
    env.reset(seed=seed)
    assert walked(env, with_key=True)[-1] == 1.0 and env.key
    env.reset(seed=seed)
    assert sum(walked(env, with_key=False)) == 0.0 and not env.key


def test_the_key_leaves_no_trace_in_later_rooms() -> None:
    env = KeyToDoor()
    observation, _ = env.reset(seed=0)
    assert observation[0] == 1 and observation[3] == 1
    while env.room == 0:
        observation, *_ = env.step(env.towards_object() or 0)
    assert env.key and observation.tolist() == [0, 1, 0, 0, 0, 0]


def test_key_to_door_follows_gymnasiums_rules_and_draws_itself() -> None:
    from gymnasium.utils.env_checker import check_env

    env = gymnasium.make(ID, render_mode="rgb_array")
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=0)
    assert env.render().shape == (48, 144, 3)  # type: ignore[union-attr]


# Rollouts


def acting(world: Environment, **choices: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"state_dim": world.state_dim, "action_dim": world.action_dim, "discrete": world.discrete}
    sizes |= {"dim": 16, "depth": 2, "heads": 2, "init_std": 0.3, "max_timestep": world.max_steps}
    return zoo.create_model("decision", **sizes, **choices).double().eval()


@pytest.mark.parametrize(
    "choices",
    [{}, {"mixer": {"window": 12}}, {"return_to_go": False}, {"mixer": "mamba2"}, {"mixer": "gated_delta"}],
    ids=str,
)
def test_a_rollout_with_a_state_equals_one_without_step_for_step(cartpole: ControlData, choices: dict) -> None:
    world = cartpole.environment
    model = acting(world, **choices)
    said: dict[str, list[torch.Tensor]] = {"cached": [], "recomputed": []}

    class Told:
        def __init__(self, inner: Any, name: str) -> None:
            self.inner, self.said, self.keep = inner, said[name], inner.keep

        def act(self, *given: Any) -> torch.Tensor:
            self.said.append(self.inner.act(*given))
            return self.said[-1]

    def outcome(make: Any, name: str) -> Any:
        targets, seeds = [30.0, 30.0, 10.0, 10.0], [1, 2, 3, 4]
        options: dict[str, Any] = {"dtype": torch.float64, "seed": 7}
        return rollout(lambda rows: Told(make(rows), name), world, cartpole.scaling, targets, seeds, **options)

    cached = outcome(lambda rows: Cached(model, rows, world.max_steps), "cached")
    plain = outcome(lambda rows: Recomputed(model), "recomputed")
    assert torch.equal(cached.returns, plain.returns) and torch.equal(cached.lengths, plain.lengths)
    assert len(said["cached"]) == len(said["recomputed"]) == int(cached.lengths.max()) > 12
    for mine, theirs in zip(*said.values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


def test_the_papers_window_reads_the_last_steps_alone(cartpole: ControlData) -> None:
    model = acting(cartpole.environment)
    states, returns = torch.randn(6, 1, 4, dtype=torch.float64), torch.rand(6, 1, dtype=torch.float64)
    policy, late = Recomputed(model, 3), None
    for step in range(6):
        late = policy.act(states[step], returns[step], step, None if step == 0 else torch.tensor([step % 2]))
    actions = torch.tensor([[0, 1, 0]])  # of steps 3, 4 (which come as `previous` of 4 and 5), and 5, unseen
    expected = model(states[3:, 0][None], actions, returns[3:, 0][None], torch.arange(3, 6))[:, -1]
    torch.testing.assert_close(late, expected)


def test_an_episode_is_the_same_whatever_runs_beside_it(cartpole: ControlData) -> None:
    model, world = acting(cartpole.environment), cartpole.environment
    options: dict[str, Any] = {"dtype": torch.float64}

    def returns(rows: list[int]) -> list[float]:
        seeds = [50 + row for row in rows]
        make = lambda count: Cached(model, count, world.max_steps)  # noqa: E731
        flags = torch.ones(len(rows), dtype=torch.bool)
        return rollout(
            make, world, cartpole.scaling, [20.0] * len(rows), seeds, greedy=flags, **options
        ).returns.tolist()

    assert returns([0, 1, 2, 3])[:2] == returns([0, 1])


def test_what_was_gained_is_taken_from_what_is_asked_for(cartpole: ControlData) -> None:
    seen: list[float] = []

    class Asked(Chance):
        def act(self, states: Any, returns: Any, step: int, previous: Any) -> torch.Tensor:
            seen.append(float(returns[0]) * cartpole.scaling.return_scale)
            return super().act(states, returns, step, previous)

    rollout(lambda rows: Asked(2, discrete=True), cartpole.environment, cartpole.scaling, [5.0], [0])
    assert [round(value, 4) for value in seen[:5]] == [5.0, 4.0, 3.0, 2.0, 1.0]
    assert {round(value, 4) for value in seen[5:]} == {1.0}  # never below what the data holds


def test_drawn_actions_follow_the_softmax_and_greedy_ones_the_largest() -> None:
    logits = torch.log(torch.tensor([[0.7, 0.2, 0.1]])).expand(20_000, -1)
    noise = torch.rand(20_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = chosen(logits, noise, torch.zeros(20_000, dtype=torch.bool)).bincount() / 20_000
    torch.testing.assert_close(drawn, torch.tensor([0.7, 0.2, 0.1]), rtol=0, atol=0.015)  # 4 standard errors
    assert not chosen(logits, noise, torch.ones(20_000, dtype=torch.bool)).any()


def test_targets_are_rolled_out_in_the_same_environments(cartpole: ControlData) -> None:
    model = acting(cartpole.environment, return_to_go=False)  # which knows no target
    drawn, greedy = achieved(
        model, cartpole.environment, cartpole.scaling, [40.0, 10.0], episodes=3, greedy=[40.0, 10.0]
    )
    assert torch.equal(greedy[40.0], greedy[10.0]) and len(drawn[40.0]) == 3


# Arms and the run


def test_a_clone_is_the_same_network_without_returns_and_a_window_of_the_same_steps() -> None:
    config: Any = decode("model", {"family": "decision", "context": 7, "dim": 8, "heads": 2}, "model")
    held: Any = windowed(config)
    assert held.mixer.window == 21
    assert windowed(held) == held
    clone: Any = clone_of(held)
    assert (clone.return_to_go, clone.mixer.window, clone.depth) == (False, 14, held.depth)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run folder."""
    out = tmp_path_factory.mktemp("decision") / "run"
    launch(settings(), out)
    return out


def test_a_run_reports_returns_at_each_target_beside_clones_and_chance(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "ok" and result["steps"] == 4
    wanted = {f"test/{name}@{target}" for name in ("return", "spread", "score", "greedy_return") for target in (40, 20)}
    assert wanted | {"val/loss", "val/accuracy", "test/loss", "test/accuracy"} <= set(result["metrics"])
    clones = ("behaviour cloning", "behaviour cloning, best 10%")
    assert set(result["baselines"]) == {"chance", "mean of the data", "best of the data", *clones}
    for name in clones:
        assert result["baselines"][name]["test/return@40"] == result["baselines"][name]["test/return@20"]
    assert result["flops_per_token"] > 0
    assert {path.name for path in (run / "figures").iterdir()} >= {"learning_curves.png", "target_curve.png"}


def test_the_rollout_is_a_moving_picture(run: Path) -> None:
    from PIL import Image

    with Image.open(run / "figures" / "rollout.gif") as picture:
        assert picture.n_frames > 3  # type: ignore[attr-defined]
        assert picture.width <= 300


def test_evaluating_the_exported_model_gives_the_same_figures(run: Path, tmp_path: Path) -> None:
    launch({**settings(), "mode": "eval", "checkpoint": str(run)}, tmp_path)
    again = json.loads((tmp_path / "eval.json").read_text())["metrics"]
    assert again == json.loads((run / "result.json").read_text())["metrics"]


def test_predict_acts_at_the_return_that_is_asked_for(run: Path, capsys: Any, tmp_path: Path) -> None:
    assert predict(run, ["--target", "30", "--episodes", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[0].startswith("episode 1: return ") and lines[0].endswith("(asked for 30)")
    assert predict(run, ["--episodes", "1", "--json", "--greedy", "--gif", str(tmp_path / "a.gif")]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[0])
    assert told["target"] == 40 and told["return"] == told["steps"]
    assert (tmp_path / "a.gif").stat().st_size > 0
    with pytest.raises(ConfigError, match="--episodes should be at least 1, got 0"):
        predict(run, ["--episodes", "0"])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"family": "gpt"}, "model: 'gpt' does not act"),
        ({"state_dim": 3}, "model.state_dim: should be the data's 4, got 3"),
        ({"max_timestep": 100}, "model.max_timestep: should be the 500 steps of an episode or more"),
        ({"context": 9}, "model.context: should be the data's 5, got 9"),
    ],
    ids=str,
)
def test_a_model_that_does_not_fit_is_told_in_one_line(model: dict, message: str, tmp_path: Path) -> None:
    changed = settings()
    changed["model"] = {**({} if "family" in model else changed["model"]), **model}
    with pytest.raises(ConfigError, match=message):
        launch(changed, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_another_kind_of_data_is_told(tmp_path: Path) -> None:
    changed = settings()
    changed["data"] = {"name": "digits"}
    with pytest.raises(ConfigError, match="'digits' holds no episodes"):
        launch(changed, tmp_path / "run")


def test_a_mixer_that_keeps_no_state_is_refused_for_cached_rollouts_before_training() -> None:
    class Stateless(AttentionConfig):
        capabilities: ClassVar[Capability] = AttentionConfig.capabilities & ~Capability.STEP

    settings = compose(["recipe=decision", "data.episodes=20"])
    recipe = find_recipe("decision")(settings)
    data = recipe.load()
    config = recipe.model_config(data)
    for mode in ("cached", "recomputed"):
        again = find_recipe("decision")({**settings, "task": {**settings["task"], "rollout": mode}})
        again.settings["model"] = {**encode(config), "mixer": Stateless()}
        if mode == "cached":
            with pytest.raises(ConfigError, match=r"model.mixer: .*token by token.*task.rollout=recomputed"):
                again.model_config(data)
        else:
            assert again.model_config(data).mixer == Stateless()
