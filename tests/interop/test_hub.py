"""Folders of transformers in and out: `zoo.from_hf`, `zoo.to_hf`. No network is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import zoo
from tests.interop.peers import EVERY, build, ours, rows
from tests.interop.test_encoder_parity import electra_pair
from zoo.interop.hub import FAMILIES, from_hf, to_hf
from zoo.registry import ConfigError


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    """Whether two models have the same weights under the same names, bit for bit."""
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("name", EVERY)
def test_their_folder_to_ours_and_back_changes_no_weight_and_no_choice(name: str, tmp_path: Path) -> None:
    peer = build(name)
    peer.save_pretrained(tmp_path / "theirs")
    model: Any = from_hf(tmp_path / "theirs")
    assert not model.training
    again, _ = ours(peer)
    assert same(model, again)
    to_hf(model, tmp_path / "ours")
    loaded, info = type(peer).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert same(loaded, peer)
    back: Any = from_hf(tmp_path / "ours")
    assert same(back, model) and back.config == model.config
    to_hf(back, tmp_path / "again")
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "ours" / file).read_bytes()


AUTO = {
    "AutoModelForCausalLM": ["gpt2", "llama yarn", "mistral window 5", "qwen3", "gemma2 window 5", "olmo2"],
    "AutoModelForMaskedLM": ["roberta", "distilbert", "electra generator", "modernbert with biases"],
    "AutoModelForPreTraining": ["bert"],
    "AutoModel": ["bert relu trunk"],
    "AutoModelForSeq2SeqLM": ["t5", "t5 1.1", "bart", "marian"],
}


@pytest.mark.parametrize(("auto", "name"), [(auto, name) for auto, names in AUTO.items() for name in names])
def test_the_auto_classes_load_what_is_written_and_give_the_same_logits(auto: str, name: str, tmp_path: Path) -> None:
    peer = build(name)
    model, _ = ours(peer)
    to_hf(model, tmp_path)
    loaded = getattr(hf, auto).from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert type(loaded) is type(peer)
    ids, _ = rows("none")
    inputs = (ids, ids) if auto == "AutoModelForSeq2SeqLM" else (ids,)
    keywords = {"input_ids": ids} | ({"decoder_input_ids": ids} if len(inputs) == 2 else {})
    answer = loaded(**keywords)
    expected = answer.last_hidden_state if auto == "AutoModel" else answer[0]
    torch.testing.assert_close(model(*inputs), expected, rtol=0, atol=1e-5)


def test_an_electra_is_written_as_two_models_and_read_from_them(tmp_path: Path) -> None:
    large, small = electra_pair()
    large.save_pretrained(tmp_path / "large")
    small.save_pretrained(tmp_path / "small")
    model: Any = from_hf(tmp_path / "large", generator=tmp_path / "small")
    to_hf(model, tmp_path / "both")
    for peer, part in ((large, "discriminator"), (small, "generator")):
        loaded, info = type(peer).from_pretrained(tmp_path / "both" / part, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"] and same(loaded, peer)
    back = from_hf(tmp_path / "both")
    assert same(back, model) and back.config == model.config
    assert model.generator.embed is model.discriminator.embed
    with pytest.raises(ConfigError, match=r"give both: from_hf\(DISCRIMINATOR, generator=GENERATOR\)"):
        from_hf(tmp_path / "large")


def test_a_vit_goes_through_a_folder_too(tmp_path: Path) -> None:
    config = hf.ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, image_size=16, patch_size=4,
        num_labels=5,
    )  # fmt: skip
    peer = hf.ViTForImageClassification(config).eval()
    peer.save_pretrained(tmp_path / "theirs")
    model: Any = from_hf(tmp_path / "theirs")
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(images), peer(images).logits, rtol=0, atol=1e-5)
    to_hf(model, tmp_path / "ours")
    loaded = hf.AutoModelForImageClassification.from_pretrained(tmp_path / "ours")
    assert same(loaded, peer)
    assert same(from_hf(tmp_path / "ours"), model)


@pytest.mark.parametrize("name", ["llama", "t5 1.1"])
def test_a_checkpoint_in_shards_equals_the_whole_one(name: str, tmp_path: Path) -> None:
    peer = build(name)
    peer.save_pretrained(tmp_path / "whole")
    peer.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    shards = sorted((tmp_path / "shards").glob("model-*.safetensors"))
    assert len(shards) > 2
    assert same(from_hf(tmp_path / "shards"), from_hf(tmp_path / "whole"))
    shards[1].unlink()
    with pytest.raises(ConfigError, match=rf"lacks {shards[1].name}, one of the {len(shards)} files"):
        from_hf(tmp_path / "shards")


def rewritten(folder: Path, change: Any) -> None:
    """Change the names of a folder's weights."""
    state = load_file(folder / "model.safetensors")
    save_file(change({name: tensor.clone() for name, tensor in state.items()}), folder / "model.safetensors")


def test_gpt2_as_first_published_without_prefix_and_with_mask_tables_is_read(tmp_path: Path) -> None:
    peer = build("gpt2")
    peer.save_pretrained(tmp_path)
    expected = from_hf(tmp_path)
    mask = {f"h.{i}.attn.bias": torch.ones(1, 1, 64, 64) for i in range(3)}
    rewritten(tmp_path, lambda state: {k.removeprefix("transformer."): v for k, v in state.items()} | mask)
    assert same(from_hf(tmp_path), expected)


def test_bert_from_tensorflow_names_of_its_norms_is_read(tmp_path: Path) -> None:
    build("bert").save_pretrained(tmp_path)
    expected = from_hf(tmp_path)
    renamed = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def change(state: dict[str, Any]) -> dict[str, Any]:
        for new, old in renamed.items():
            state = {name.replace(new, old): tensor for name, tensor in state.items()}
        return state | {"bert.embeddings.position_ids": torch.arange(32)[None]}

    rewritten(tmp_path, change)
    assert same(from_hf(tmp_path), expected)


def test_a_shared_table_is_found_under_whichever_name_the_file_kept(tmp_path: Path) -> None:
    for name, here, there in (
        ("bart", "model.shared.weight", "model.encoder.embed_tokens.weight"),
        ("llama tied, biases, wide heads", "model.embed_tokens.weight", "lm_head.weight"),
    ):
        build(name).save_pretrained(tmp_path)
        expected = from_hf(tmp_path)
        rewritten(tmp_path, lambda state, h=here, t=there: {t if k == h else k: v for k, v in state.items()})
        assert same(from_hf(tmp_path), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_dtype_is_the_files_unless_asked_for(dtype: torch.dtype, tmp_path: Path) -> None:
    build("llama").to(dtype).save_pretrained(tmp_path)
    assert {p.dtype for p in from_hf(tmp_path).parameters()} == {dtype}
    assert {p.dtype for p in from_hf(tmp_path, dtype=torch.float32).parameters()} == {torch.float32}
    to_hf(from_hf(tmp_path), tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")


def test_what_is_loaded_can_be_trained_and_saved_and_loaded_by_the_zoo(tmp_path: Path) -> None:
    build("gemma2 window 5").save_pretrained(tmp_path / "theirs")
    model: Any = from_hf(tmp_path / "theirs")
    model(rows("none")[0]).square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    zoo.save_pretrained(model, tmp_path / "zoo")
    assert same(zoo.load_pretrained(tmp_path / "zoo"), model)
    with pytest.raises(ConfigError, match=r"was written by zoo\.save_pretrained; read it with zoo\.load_pretrained"):
        from_hf(tmp_path / "zoo")


def test_no_initial_values_are_drawn_for_a_model_that_is_loaded(tmp_path: Path) -> None:
    """The model has no memory before its weights come: the random stream stays where it is, and nothing is copied."""
    build("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    before = torch.random.get_rng_state()
    from_hf(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_transformers_is_never_imported(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path / "theirs")
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "from zoo.interop.hub import from_hf, to_hf\n"
        "to_hf(from_hf(sys.argv[1]), sys.argv[2]); print('done')"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "theirs"), str(tmp_path / "ours")]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(zoo.__file__).parent.parent)
    assert run.stdout.strip() == "done"


def edited(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_every_wrong_folder_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no folder, and no hub id such as 'gpt2'"):
        from_hf(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"has no config\.json; give a folder that transformers"):
        from_hf(tmp_path)
    build("llama").save_pretrained(tmp_path)
    edited(tmp_path, model_type="lama")
    with pytest.raises(
        ConfigError, match=r"model_type 'lama' is unknown here, did you mean 'llama'\?; choices: gpt2, "
    ):
        from_hf(tmp_path)
    edited(tmp_path, model_type="llama", intermediate_size=41)
    with pytest.raises(ConfigError, match=r"weight 'stack.blocks.0.ffn.gate.weight' is \(40, 32\) .* says \(41, 32\)"):
        from_hf(tmp_path)
    edited(tmp_path, intermediate_size=40, num_hidden_layers=4)
    with pytest.raises(ConfigError, match=r"weight 'model.layers.3.* is missing"):
        from_hf(tmp_path)
    edited(tmp_path, num_hidden_layers=2)
    with pytest.raises(ConfigError, match=r"weight 'model.layers.2.* has no counterpart"):
        from_hf(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"has no model.safetensors; only safetensors are read"):
        from_hf(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not one")
    with pytest.raises(ConfigError, match=r"model.safetensors: "):
        from_hf(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"is not JSON"):
        from_hf(tmp_path)


def test_without_a_network_a_hub_id_is_found_in_the_cache_or_refused_in_one_line(tmp_path: Path) -> None:
    """The cache as huggingface_hub lays it out: files by commit, the branch's commit in refs."""
    commit = "0" * 40
    place = tmp_path / "hub" / "models--some--model"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(commit)
    build("llama").save_pretrained(place / "snapshots" / commit)
    code = (
        "from zoo.interop.hub import from_hf\nfrom zoo.registry import ConfigError\n"
        "print(type(from_hf('some/model')).__name__)\n"
        "try: from_hf('nobody/such-a-model')\nexcept ConfigError as error: print(error)"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    root = Path(zoo.__file__).parent.parent
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=root
    )
    found, refused = run.stdout.splitlines()
    assert found == "GPT"
    assert "'nobody/such-a-model' is no folder and is not in the hub's cache" in refused
    assert "HF_HUB_OFFLINE is set" in refused


def test_what_transformers_cannot_hold_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    small: dict[str, Any] = {"vocab_size": 20, "dim": 16, "depth": 2, "heads": 2, "max_len": 16}
    llama = {"position": "rope", "ffn": "swiglu", "norm": "rmsnorm"}
    cases: list[tuple[str, dict[str, Any], str]] = [
        (
            "gpt",
            {"residual": "post", "final_norm": True},
            "residual.*'post' has no counterpart in transformers' 'gpt2'",
        ),
        ("gpt", {"position": "alibi", "ffn": "swiglu"}, "position 'alibi' has no counterpart .* choices: rope"),
        ("gpt", {"mixer": {"gate": "head"}}, "layers.0.gate 'head' has no counterpart"),
        ("gpt", {**llama, "mixer": {"out_bias": False}}, "out_bias False has no counterpart .* choices: True"),
        ("gpt", {"layout": "parallel"}, "layout 'parallel' has no counterpart"),
        ("gpt", {"mixer": {"window": 4, "sinks": 1}}, "layers.0.sinks 1 has no counterpart"),
        ("bert", {"pool": "mean"}, "pool 'mean' has no counterpart"),
        ("t5", {"head_bias": True}, "head_bias True has no counterpart in transformers' 't5'"),
        ("t5", {"position": "none"}, "position"),
        (
            "transformer",
            {"head_bias": True},
            "position.convention 'vaswani' has no counterpart in transformers' 'marian'",
        ),
        ("vit", {"image_size": 8, "patch_size": 4, "registers": 2}, "differs|registers"),
    ]
    for family, choices, message in cases:
        fields = {k: v for k, v in small.items() if family != "vit" or k not in ("vocab_size", "max_len")}
        model = zoo.create_model(family, **fields, **choices)
        with pytest.raises(ConfigError, match=message):
            to_hf(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="'this model' has no counterpart in transformers"):
        to_hf(torch.nn.Linear(2, 2), tmp_path / "out")


def test_a_t5_whose_tied_head_is_not_scaled_goes_both_ways(tmp_path: Path) -> None:
    model: Any = zoo.create_model("t5", vocab_size=20, dim=16, depth=2, heads=2, scale_head=False).eval()
    to_hf(model, tmp_path)
    peer = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert peer.lm_head.weight is peer.shared.weight
    ids, _ = rows("none", high=20)
    torch.testing.assert_close(model(ids, ids), peer(ids, decoder_input_ids=ids).logits, rtol=0, atol=1e-5)
    back: Any = from_hf(tmp_path)
    assert same(back, model) and back.config.tie_embeddings and not back.config.scale_head


def test_every_family_is_covered_by_a_peer() -> None:
    covered = {build(name).config.model_type for name in EVERY} | {
        "electra",
        "vit",
        "decision_transformer",
        "whisper",
    }  # with files of their own
    assert covered == FAMILIES.keys()
