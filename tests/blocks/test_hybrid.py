"""Patterns of mixers over the layers: how they are written, laid out, changed layer by layer, and read by families."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import zoo
import zoo.run as run
from tests.blocks.test_stack import fp64, rows, stack
from zoo import registry
from zoo.blocks import Capability, Context
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.blocks.mixers.hybrid import HybridConfig

zoo.list_mixers()  # registers everything


def hybrid(pattern: Any, **choices: Any) -> HybridConfig:
    return registry.decode("mixer", {"name": "hybrid", "pattern": pattern, **choices}, "mixer")


def laid_out(config: HybridConfig, depth: int) -> str:
    """First letters of the mixers of all layers."""
    return "".join(config.at(layer, depth).registered_name[0] for layer in range(depth))


@pytest.mark.parametrize(
    ("pattern", "letters"),
    [
        (["gated_delta", "gated_delta", "attention"], "gga"),
        ("2*gated_delta+attention", "gga"),
        ("2*gated_delta,1*attention", "gga"),
        (" 2 * gated_delta , attention ", "gga"),
        ("attention", "a"),
        (["2*gated_delta", "attention"], "gga"),
        (["2*gated_delta+attention", "lstm"], "ggal"),
        ([{"name": "gated_delta", "repeat": 2, "expand_v": 1.0}, "attention"], "gga"),
        ("hybrid_3to1+lstm", "hl"),
    ],
    ids=str,
)
def test_a_pattern_is_a_list_or_a_text(pattern: Any, letters: str) -> None:
    assert "".join(mixer.registered_name[0] for mixer in hybrid(pattern).pattern) == letters


@pytest.mark.parametrize(
    ("choices", "letters"),
    [
        ({}, "ggaggag"),
        ({"offset": 1}, "gaggagg"),
        ({"from_end": True}, "aggagga"),
        ({"from_end": True, "offset": 1}, "gaggagg"),
        ({"layers": {0: "attention", -1: "lstm"}}, "agaggal"),
        ({"layers": {0: "attention", "6": "lstm"}}, "agaggal"),
    ],
    ids=str,
)
def test_the_layers_follow_the_pattern(choices: dict[str, Any], letters: str) -> None:
    assert laid_out(hybrid("2*gated_delta+attention", **choices), 7) == letters


def test_a_whole_pattern_names_every_layer() -> None:
    config = hybrid("2*gated_delta+attention", tile=False)
    assert laid_out(config, 3) == "gga"
    with pytest.raises(zoo.ConfigError, match=r"mixer.pattern: names 3 mixers and the stack has 4 layers; name 4, or"):
        config.at(0, 4)


def test_a_layer_changes_choices_of_what_the_pattern_has_there() -> None:
    config = hybrid(["lstm", {"name": "attention", "window": 4}], layers={1: {"kv_heads": 1}, 3: {"window": None}})
    assert config.at(1, 6) == AttentionConfig(window=4, kv_heads=1)
    assert config.at(3, 6) == AttentionConfig()
    assert config.at(5, 6) == AttentionConfig(window=4)
    from_end = hybrid(["lstm", {"name": "attention", "window": 4}], from_end=True, layers={-3: {"kv_heads": 1}})
    assert from_end.at(3, 6) == AttentionConfig(window=4, kv_heads=1)


def test_a_hybrid_in_a_hybrid_keeps_its_own_pattern() -> None:
    inner = {"name": "hybrid", "pattern": "lstm+gru"}
    assert laid_out(hybrid(["attention", inner]), 6) == "agagag"
    assert laid_out(hybrid([inner, "attention"]), 4) == "lala"


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"pattern": "3*gla+atention"},
            r"mixer.pattern.0: unknown mixer 'atention', did you mean 'attention'",
        ),
        (
            {"pattern": "gla*3"},
            r"mixer.pattern.0: should be a mixer's name or a count and .* got 'gla\*3'; choices:",
        ),
        ({"pattern": "0*gla"}, r"mixer.pattern.0: should be a mixer's name or a count"),
        ({"pattern": ["lstm", "gru+"]}, r"mixer.pattern.1: should be a mixer's name .* got ''; choices:"),
        ({"pattern": [{"name": "lstm", "repeat": 0}]}, r"mixer.pattern.0.repeat: should be a whole number .* got 0"),
        ({"pattern": [{"name": "lstm", "width": 2}]}, r"mixer.pattern.0.width: unknown key.*; choices: "),
        ({"pattern": []}, r"mixer.pattern: .*at least 1"),
        ({"pattern": 3}, r"mixer.pattern: "),
        ({"pattern": "lstm", "layers": {"last": "gru"}}, r"mixer.layers.last: should be the number of a layer"),
        ({"pattern": "lstm", "layers": {1: "gruu"}}, r"mixer.layers.1: unknown mixer 'gruu', did you mean 'gru'"),
        ({"pattern": "lstm", "layers": {-1: {"hidden": 3}}}, r"mixer.layers.-1: needs 'name': .*; choices: "),
        ({"pattern": "lstm", "layers": {1: {"window": 3}}}, r"mixer.layers.1.window: unknown key"),
    ],
    ids=str,
)
def test_mistakes_are_told_at_their_place(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(zoo.ConfigError, match=message) as error:
        registry.decode("mixer", {"name": "hybrid", **choices}, "mixer")
    assert "\n" not in str(error.value)


def test_layers_outside_of_the_stack_are_refused() -> None:
    for layer in (4, -5):
        with pytest.raises(zoo.ConfigError, match=rf"mixer.layers.{layer}: the stack has 4 layers; choices: -4 to 3"):
            hybrid("lstm", layers={layer: "gru"}).at(0, 4)


def test_plain_values_bring_the_same_hybrid_back() -> None:
    config = hybrid("2*gated_delta+attention", offset=1, layers={-1: "lstm", 2: {"window": 4, "name": "attention"}})
    plain = registry.encode(config)
    assert set(plain["layers"]) == {"-1", "2"}
    assert registry.decode("mixer", plain) == config


def test_a_hybrid_can_do_what_all_its_mixers_can() -> None:
    assert Capability.CROSS in hybrid("2*attention").capabilities
    assert Capability.CROSS not in hybrid("attention", layers={1: "lstm"}).capabilities
    assert Capability.STEP in hybrid("attention+lstm").capabilities


def test_layers_without_a_reader_get_the_first_reader_of_the_pattern() -> None:
    window = {"name": "attention", "window": 4, "kv_heads": 1}
    reader = hybrid(["gated_delta", window, "attention"], layers={4: "lstm"}).for_memory()
    assert isinstance(reader, HybridConfig)
    one, many = AttentionConfig(kv_heads=1), AttentionConfig()
    assert [reader.at(layer, 6) for layer in range(6)] == [one, one, many, one, one, many]
    assert hybrid("gated_delta+lstm").for_memory() is None


@pytest.mark.parametrize(("name", "every"), [("hybrid_3to1", 4), ("hybrid_7to1", 8)])
def test_the_last_layer_of_a_preset_is_attention_at_any_depth(name: str, every: int) -> None:
    for depth in (1, 2, every, every + 1, 3 * every):
        letters = laid_out(registry.decode("mixer", name), depth)
        assert [place for place in range(depth) if letters[place] == "a"] == list(
            range((depth - 1) % every, depth, every)
        )


NOPE = {"name": "attention", "position": "none"}


@pytest.mark.parametrize("position", ["rope", "alibi", "t5_bias"])
def test_layers_without_positions_stand_beside_layers_with_them(position: str) -> None:
    """One family, two kinds of attention: without positions tokens can change places, with them they cannot."""
    mixed = stack(position=position, mixer={"name": "hybrid", "pattern": ["attention", NOPE]})
    attentions = [block.mixer for block in mixed.blocks]
    assert [m.rotary is not None or m.bias is not None for m in attentions] == [True, False, True]
    x = rows()
    full = mixed(x, Context())
    state = mixed.init_state(2, 4, dtype=torch.float64)
    pieces = [mixed(piece, Context(), state) for piece in x.split([5, 1, 6], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), full, **fp64)
    order = torch.tensor([2, 0, 1, *range(3, 12)])
    free = stack(position=position, mixer={"name": "hybrid", "pattern": [NOPE]}, causal=False)
    torch.testing.assert_close(free(x[:, order], Context()), free(x, Context())[:, order], **fp64)
    placed = stack(position=position, mixer={"name": "hybrid", "pattern": ["attention"]}, causal=False)
    assert (placed(x[:, order], Context()) - placed(x, Context())[:, order]).abs().max() > 1e-4


@pytest.mark.parametrize("position", ["none", "rope"])
def test_states_of_all_kinds_step_side_by_side(position: str) -> None:
    """Attention, a window and two recurrences through left-padded prompts, tokens one by one, and the short cut."""
    pattern = ["gated_delta", {"name": "attention", "window": 3}, "lstm"]
    model, x = stack(position=position, mixer={"name": "hybrid", "pattern": pattern}), rows()
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[0, :4] = False
    state = model.init_state(2, 12, dtype=torch.float64)
    outputs = [model(x[:, :7], Context(token_mask=mask), state)]
    outputs += [model(x[:, t : t + 1], Context(), state) for t in range(7, 12)]
    for row, start in ((0, 4), (1, 0)):
        alone = model(x[row : row + 1, start:], Context())
        torch.testing.assert_close(torch.cat(outputs, 1)[row, start:], alone[0], **fp64)
    short = model.init_state(2, 12, dtype=torch.float64)
    with torch.no_grad():
        model(x[:, :7], Context(), short)
        step = model.step(short)
        assert step is not None
        stepped = torch.stack([step(x[:, t]) for t in range(7, 12)], 1)
    torch.testing.assert_close(stepped, model(x, Context())[:, 7:], **fp64)


SIZES = {"dim": 16, "depth": 5, "heads": 2}
TEXT = {"vocab_size": 12, "max_len": 16, **SIZES}
IMAGE = {"image_size": 8, "patch_size": 2, "channels": 1, "num_classes": 4, **SIZES}


@pytest.mark.parametrize("mixer", ["hybrid_3to1", "hybrid_7to1"])
@pytest.mark.parametrize("family", ["gpt", "bert", "electra", "vit", "t5", "transformer"])
def test_presets_fit_every_family(family: str, mixer: str) -> None:
    model = zoo.create_model(family, mixer=mixer, **(IMAGE if family == "vit" else TEXT))
    ids = torch.randint(12, (2, 9))
    inputs = {"vit": [torch.randn(2, 1, 8, 8)], "t5": [ids, ids], "transformer": [ids, ids]}.get(family, [ids])
    assert model(*inputs).isfinite().all()


def test_a_decoder_reads_its_memory_by_attention_where_the_mixer_cannot() -> None:
    """And by the pattern's own attention where it has one, in all layers."""
    one = {"name": "attention", "kv_heads": 1}
    for mixer, reader in (("gated_delta", AttentionConfig()), ({"name": "hybrid", "pattern": ["lstm", one]}, one)):
        model = zoo.create_model("t5", mixer=mixer, **TEXT)
        for block in model.decoder.blocks:
            assert block.cross.config == registry.decode("mixer", reader)
        assert type(model.decoder.blocks[0].mixer) is not type(model.decoder.blocks[0].cross)
    assert type(model.encoder.blocks[0].mixer).__name__ == "TwoWay"


def test_a_mixer_that_cannot_read_a_memory_is_refused_as_its_reader() -> None:
    with pytest.raises(zoo.ConfigError, match=r"t5.decoder.0.cross: 'lstm' cannot read a second .* Fits: attention"):
        zoo.create_model("t5", cross="lstm", **TEXT)
    with pytest.raises(zoo.ConfigError, match=r"mixer lstm: 'lstm' cannot read a second sequence .*Fits: attention"):
        zoo.create_mixer("lstm", dim=8, memory_dim=8)


@pytest.mark.parametrize(
    ("words", "letters"),
    [
        (["mixer=hybrid_3to1"], "aggga"),
        (["mixer=hybrid_3to1", "mixer.from_end=false"], "gggag"),
        (["mixer=hybrid", "mixer.pattern=2*gated_delta+attention"], "ggagg"),
        (["mixer=hybrid", "mixer.pattern='2*gated_delta,attention'"], "ggagg"),
        (["mixer=hybrid", "mixer.pattern=[lstm,{name: attention, window: 8, repeat: 2}]"], "laala"),
        (["mixer=hybrid", "mixer.pattern=lstm", "mixer.layers.3=attention", "mixer.layers={-1: gru}"], "lllag"),
        (["mixer=hybrid", "mixer.pattern=lstm", "mixer.layers.3.name=attention", "mixer.layers.3.window=8"], "lllal"),
    ],
    ids=" ".join,
)
def test_patterns_are_chosen_on_the_command_line(words: list[str], letters: str) -> None:
    made = run.compose(["recipe=gpt", "model.depth=5", "out=x", *words])["model"]
    assert laid_out(registry.decode("mixer", made["mixer"]), 5) == letters
