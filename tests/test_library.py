"""`import zoo`: create, list, save and load; what is refused and how it is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import zoo
from zoo import registry
from zoo.blocks import Context

SMALL = {"image_size": 8, "patch_size": 4, "channels": 1, "num_classes": 3, "dim": 16, "depth": 2, "heads": 2}


def message(call, *arguments, **choices) -> str:
    with pytest.raises(zoo.ConfigError) as caught:
        call(*arguments, **choices)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_names_dicts_and_configs_make_the_same_model() -> None:
    by_name = zoo.create_model("vit", **SMALL).config
    assert zoo.create_model({"family": "vit", **SMALL}).config == by_name
    assert zoo.create_model(by_name).config == by_name
    assert zoo.create_model("vit_digits").config == zoo.create_model("vit_digits", depth=4).config


def test_choices_change_a_part_or_replace_it() -> None:
    changed = zoo.create_model("vit_digits", mixer={"window": 3}, ffn="swiglu").config
    assert changed.mixer.window == 3
    assert changed.ffn.registered_name == "swiglu"
    assert changed.dim == 64


def test_every_config_survives_encoding_to_json_and_back() -> None:
    for kind in ("mixer", "ffn", "norm", "position", "rope_scaling", "residual", "model"):
        for name in registry.names(kind):
            if name == "timm":
                continue  # has a required field
            config = registry.decode(kind, name)
            plain = json.loads(json.dumps(registry.encode(config)))
            assert registry.decode(kind, plain) == config, (kind, name)


def test_every_part_has_a_summary_and_every_named_idea_a_paper() -> None:
    for kind in ("mixer", "ffn", "norm", "position", "residual", "model"):
        for name in registry.names(kind):
            entry = registry.describe(kind, name)
            assert entry.summary.endswith("."), (kind, name)
            assert entry.paper or name == "none", (kind, name)


def test_wrong_choices_are_told_with_place_value_choices_and_nearest_match() -> None:
    told = message(zoo.create_model, "vit", dpeth=3)
    assert "dpeth: unknown key, did you mean 'depth'?; choices:" in told
    assert "unknown model 'vitt', did you mean 'vit'?" in message(zoo.create_model, "vitt")
    told = message(zoo.create_model, "vit", mixer="atention")
    assert "mixer: unknown mixer 'atention', did you mean 'attention'?; choices: attention" in told
    assert "depth: should be a valid integer, got 'three'" in message(zoo.create_model, "vit", depth="three")
    assert "depth: should be a valid integer, got True" in message(zoo.create_model, "vit", depth=True)
    assert "got 2.5" in message(zoo.create_model, "vit", depth=2.5)
    assert "greater than or equal to 1, got 0" in message(zoo.create_model, "vit", dim=0)
    told = message(zoo.create_model, "vit", position={"name": "rope", "layout": "haf"})
    assert "position.layout: should be 'half' or 'interleaved', got 'haf', did you mean 'half'?" in told
    told = message(zoo.create_model, "vit", mixer={"name": "attention", "wndow": 3, "heads": "x"})
    assert "mixer.wndow: unknown key, did you mean 'window'?" in told
    assert "mixer.heads: should be a valid integer" in told
    assert "should be a mixer" in message(zoo.create_mixer, registry.decode("norm", "rmsnorm"), dim=8)
    assert "needs 'name'" in message(registry.decode, "mixer", {"window": 3})
    assert "is not a multiple of heads" in message(zoo.create_mixer, "attention", dim=10, heads=4)
    assert "vit.0.mixer" in message(zoo.create_model, "vit", dim=10, heads=4)


def test_a_config_is_frozen_and_keyword_only() -> None:
    config = registry.decode("mixer", "attention")
    with pytest.raises(Exception, match="frozen"):
        config.window = 3
    with pytest.raises(TypeError):
        type(config)(4)


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="mixer 'attention' is registered already"):

        @zoo.register("mixer", "attention")
        class Other(registry.Config):
            """Another."""


def test_mixers_serve_code_outside_the_zoo() -> None:
    mixer = zoo.create_mixer("attention", dim=16, heads=4, causal=True, window=8)
    x = torch.randn(2, 5, 16)
    y = mixer(x, zoo.Context())
    state = mixer.init_state(2, 5)
    steps = [mixer(x[:, t : t + 1], zoo.Context(), state) for t in range(5)]
    torch.testing.assert_close(torch.cat(steps, 1), y, rtol=0, atol=1e-6)
    assert zoo.create_norm("rmsnorm", dim=16)(x).shape == x.shape
    assert zoo.create_ffn("swiglu", dim=16)(x, Context()).shape == x.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_saved_models_load_with_the_same_outputs_and_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    model = zoo.create_model("vit", **SMALL).to(dtype).eval()
    zoo.save_pretrained(model, tmp_path / "new" / "folder")
    again = zoo.load_pretrained(tmp_path / "new" / "folder")
    images = torch.randn(2, 1, 8, 8, dtype=dtype)
    assert torch.equal(again(images), model(images))
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == ["config.json", "model.safetensors"]


def test_a_folder_that_is_no_model_is_told_in_one_line(tmp_path: Path) -> None:
    assert "has no config.json" in message(zoo.load_pretrained, tmp_path)
    zoo.save_pretrained(zoo.create_model("vit", **SMALL), tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert "model.safetensors" in message(zoo.load_pretrained, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(weights)
    plain = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(plain | {"dim": 32}))
    assert "model.safetensors" in message(zoo.load_pretrained, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(plain | {"depth": 3}))
    assert "does not fit its config.json" in message(zoo.load_pretrained, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(plain | {"dpeth": 3}))
    assert "dpeth: unknown key" in message(zoo.load_pretrained, tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "is not JSON" in message(zoo.load_pretrained, tmp_path)


def test_a_failed_save_leaves_the_earlier_files_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.create_model("vit", **SMALL)
    zoo.save_pretrained(model, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        zoo.save_pretrained(zoo.create_model("vit", **SMALL), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_context_can_be_reused_for_the_next_call() -> None:
    """What layers share in one pass must not outlive it: a second call with other lengths and state is right."""
    from zoo.blocks import Capability, Slot, Stack, TransformerConfig

    torch.manual_seed(0)
    stack = Stack(
        TransformerConfig(dim=16, depth=2, heads=2, position={"name": "rope"}),  # type: ignore[arg-type]
        Slot(dim=16, heads=2, max_len=16, causal=True, needs=Capability.CAUSAL, where="test"),
    ).double()
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    context, state = Context(), stack.init_state(2, 9, dtype=torch.float64)
    pieces = [stack(x[:, :4], context, state), stack(x[:, 4:7], context, state), stack(x[:, 7:], context, state)]
    torch.testing.assert_close(torch.cat(pieces, 1), stack(x, Context()), rtol=0, atol=1e-10)
    assert stack.init_state(1, 4).nbytes() == 2 * (2 * 4 * 16 * 8)  # layers x (keys and values) x tokens x width x fp64


def test_a_part_that_is_no_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    told = message(zoo.save_pretrained, zoo.create_mixer("attention", dim=8), tmp_path / "new")
    assert "is no registered model" in told
    assert not (tmp_path / "new").exists()


def test_files_get_the_users_own_permissions(tmp_path: Path) -> None:
    zoo.save_pretrained(zoo.create_model("vit", **SMALL), tmp_path)
    (tmp_path / "other").write_text("")
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_shared_tables_are_saved_once_and_stay_shared(tmp_path: Path) -> None:
    model = zoo.create_model("vit", **SMALL, position="t5_bias").eval()
    zoo.save_pretrained(model, tmp_path)
    again = zoo.load_pretrained(tmp_path)
    assert len({block.mixer.bias.weight.data_ptr() for block in again.stack.blocks}) == 1
    images = torch.randn(2, 1, 8, 8)
    assert torch.equal(again(images), model(images))


def test_facts_of_the_place_are_checked() -> None:
    assert message(zoo.create_mixer, "attention", dim=0) == "dim: should be a whole number of at least 1, got 0"
    assert "got '64'" in message(zoo.create_mixer, "attention", dim="64")
    assert "causal: should be True or False" in message(zoo.create_mixer, "attention", dim=8, causal="yes")
    assert "position.layout" in message(zoo.create_mixer, "attention", dim=8, position={"name": "rope", "layout": "x"})
    assert "is added at the input" in message(zoo.create_mixer, "attention", dim=8, position="learned", max_len=4)
    assert "image_size" in message(zoo.create_model, "vit", image_size=0)
    assert "patch_size" in message(zoo.create_model, "vit", patch_size=-4)
    assert "greater than 0" in message(zoo.create_norm, "rmsnorm", dim=8, eps=-1.0)


def test_a_model_with_a_required_choice_is_built_by_name() -> None:
    model = zoo.create_model("timm", name="resnet10t", num_classes=3).eval()
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 3)
    told = message(zoo.create_model, "timm", name="resnet10t", options={"foo": 1})
    assert "resnet10t refuses" in told


def test_wrong_masks_and_forgotten_documents_are_told() -> None:
    mixer, x = zoo.create_mixer("attention", dim=8, heads=2, causal=True), torch.randn(2, 4, 8)
    for mask in (torch.ones(2, 4), torch.ones(2, 4).long(), torch.ones(2, 5).bool(), torch.ones(4).bool()):
        with pytest.raises(ValueError, match=r"token_mask should be torch.bool of \(2, 4\)"):
            mixer(x, Context(token_mask=mask))
    state = mixer.init_state(2, 8)
    mixer(x, Context(documents=torch.tensor([[0, 0, 1, 1]] * 2)), state)
    with pytest.raises(ValueError, match="the state holds packed documents"):
        mixer(x[:, :1], Context(), state)


@pytest.mark.parametrize(("batch", "length"), [(0, 4), (2, 0)])
def test_empty_batches_and_empty_rows_pass_through(batch: int, length: int) -> None:
    x = torch.randn(batch, length, 8)
    for choices in ({}, {"position": "rope"}, {"softcap": 2.0}, {"window": 2}, {"kv_heads": 1}, {"gate": "head"}):
        mixer = zoo.create_mixer("attention", dim=8, heads=2, causal=True, **choices)
        assert mixer(x, Context()).shape == x.shape
    if batch == 0:
        assert zoo.create_model("vit", **SMALL)(torch.randn(0, 1, 8, 8)).shape == (0, 3)
