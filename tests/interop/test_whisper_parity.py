"""Whisper gives transformers' memory, logits, gradients and tokens, and its folders go both ways. fp32: 1e-5, 1e-4."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import zoo
from tests.interop.peers import gradients, ours
from tests.interop.test_encoder_parity import compare, weighted
from tests.interop.whispers import BEGIN_SUPPRESS, END, LANGUAGES, SUPPRESS, tokenizer, whisper
from zoo.blocks.api import Context
from zoo.interop.weights import stored
from zoo.speech import SpeechConventions
from zoo.speech.rules import SpeechRule

FRAMES = 60


def inputs(batch: int = 2, frames: int = FRAMES, length: int = 9) -> tuple[Tensor, Tensor]:
    """Features (B, M, F) and target ids (B, T)."""
    generator = torch.Generator().manual_seed(4)
    return torch.randn(batch, 80, frames, generator=generator), torch.randint(
        0, 256, (batch, length), generator=generator
    )


def short(**choices: Any) -> Any:
    """A model of windows of 60 frames, so that tests are quick."""
    return whisper(max_source_positions=FRAMES // 2, **choices)


def test_memory_logits_and_gradients_equal_transformers() -> None:
    peer = short()
    peer.model.encoder.embed_positions.requires_grad_(False)
    model, family = ours(peer)
    features, target = inputs()
    memory = peer.model.encoder(features).last_hidden_state
    torch.testing.assert_close(model.encode(features), memory, rtol=0, atol=1e-5)
    expected = peer(features, decoder_input_ids=target, use_cache=False).logits
    found = model(features, target)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    weighted([expected]).backward()
    weighted([found]).backward()
    compare(model, family.from_huggingface(gradients(peer), model.config), floor=1e-4)


def test_the_form_of_30_s_equals_transformers() -> None:
    peer = whisper()
    model, _ = ours(peer)
    features, target = inputs(frames=3000)
    expected = peer(features, decoder_input_ids=target, use_cache=False)
    torch.testing.assert_close(model.encode(features), expected.encoder_last_hidden_state, rtol=0, atol=1e-5)
    torch.testing.assert_close(model(features, target), expected.logits, rtol=0, atol=1e-5)


def test_cached_decoding_equals_transformers_cache() -> None:
    peer = short()
    model, _ = ours(peer)
    features, target = inputs()
    with torch.no_grad():
        cache, state = None, model.init_state(2, 9)
        encoded = peer.model.encoder(features)
        context = Context(memory=model.encode(features))
        for t in range(target.shape[1]):
            token = target[:, t : t + 1]
            answer = peer(encoder_outputs=encoded, decoder_input_ids=token, past_key_values=cache, use_cache=True)
            cache = answer.past_key_values
            logits = model.head(model.features(token, context, state))
            torch.testing.assert_close(logits, answer.logits, rtol=0, atol=1e-5)
            context = Context()


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("multilingual", [True, False])
def test_tokens_equal_those_of_transformers_generate_under_its_rules(
    multilingual: bool, beams: int, tmp_path: Path
) -> None:
    peer = short(folder=tmp_path, multilingual=multilingual, stamps=False)
    model: Any = zoo.from_hf(tmp_path)
    features, _ = inputs()
    asked: dict[str, Any] = {"language": "de", "task": "translate"} if multilingual else {}
    speech = model.speech
    prompt = speech.prompt(speech.language_id("de"), "translate") if multilingual else speech.prompt()
    expected = peer.generate(features, num_beams=beams, do_sample=False, max_new_tokens=12, **asked)
    rule = SpeechRule(speech, model.config.vocab_size, torch.device("cpu"))
    options: dict[str, Any] = {"max_new_tokens": 12, "beams": beams, "eos_id": speech.end_id, "rule": rule}
    found = zoo.generate(model, [prompt] * 2, source=features, **options)
    for row, theirs in zip(found.sequences, expected.tolist(), strict=True):
        theirs = theirs[len(prompt) :] if theirs[: len(prompt)] == prompt else theirs  # version 5 leaves it out
        assert len(row) > len(prompt)
        assert [i for i in row.tolist()[len(prompt) :] if i != END] == [i for i in theirs if i != END]
    assert not set(torch.cat(found.new).tolist()) & set(SUPPRESS)


def test_timestamps_equal_those_of_transformers_generate(tmp_path: Path) -> None:
    peer = short(folder=tmp_path)
    model: Any = zoo.from_hf(tmp_path)
    features, _ = inputs()
    speech = model.speech
    theirs = peer.generate(
        features, num_beams=1, do_sample=False, max_new_tokens=12, language="en", task="transcribe",
        return_timestamps=True, return_dict_in_generate=False,
    )  # fmt: skip
    prompt = speech.prompt(speech.language_id("en"), timestamps=True)
    rule = SpeechRule(speech, model.config.vocab_size, torch.device("cpu"), timestamps=True)
    found = zoo.generate(model, [prompt] * 2, source=features, max_new_tokens=12, eos_id=END, rule=rule)
    for new, expected in zip(found.new, theirs.tolist(), strict=True):
        expected = expected[len(prompt) :] if expected[: len(prompt)] == prompt else expected
        expected = expected[: expected.index(END)] if END in expected else expected  # an open segment is left out there
        assert len(expected) > 4 and new.tolist()[: len(expected)] == expected


@pytest.mark.parametrize("multilingual", [True, False])
def test_a_folder_tells_tokens_and_rules(multilingual: bool, tmp_path: Path) -> None:
    whisper(tmp_path, multilingual=multilingual, max_source_positions=30)
    model: Any = zoo.from_hf(tmp_path)
    speech, at = model.speech, tokenizer(multilingual).get_vocab(with_added_tokens=True)
    assert (speech.start_id, speech.end_id, speech.suppress) == (257, END, tuple(SUPPRESS))
    assert speech.begin_suppress == tuple(BEGIN_SUPPRESS)
    assert speech.no_speech_id == at["<|nospeech|>"] and speech.no_timestamps_id == at["<|notimestamps|>"]
    if multilingual:
        assert speech.languages == {name: at[f"<|{name}|>"] for name in sorted(LANGUAGES)}
        english = [257, at["<|en|>"], at["<|transcribe|>"], at["<|notimestamps|>"]]
        assert speech.prompt(speech.language_id("en")) == english
        assert speech.prompt(speech.language_id("en"), timestamps=True) == english[:3]
        with pytest.raises(zoo.ConfigError, match="language 'fr' is unknown; choices: de, en, yue"):
            speech.language_id("fr")
        with pytest.raises(zoo.ConfigError, match="task 'translat' is unknown, did you mean 'translate'"):
            speech.prompt(speech.language_id("en"), "translat")
    else:
        assert speech.languages == {} and speech.prompt() == [257, at["<|notimestamps|>"]]
        with pytest.raises(zoo.ConfigError, match="task 'translate' is unknown to this model"):
            speech.prompt(task="translate")


def test_a_folder_with_the_prompt_of_older_versions_in_its_config_is_read(tmp_path: Path) -> None:
    """The published folders say in config.json what generation_config.json says now, and some have only that."""
    whisper(tmp_path, multilingual=False, max_source_positions=30)
    (tmp_path / "generation_config.json").unlink()
    plain = json.loads((tmp_path / "config.json").read_text())
    plain |= {"suppress_tokens": SUPPRESS, "forced_decoder_ids": [[1, 263]], "begin_suppress_tokens": BEGIN_SUPPRESS}
    plain |= {"max_length": 448, "num_hidden_layers": 2, "apply_spec_augment": False, "mask_time_prob": 0.05}
    (tmp_path / "config.json").write_text(json.dumps(plain))
    speech = zoo.from_hf(tmp_path).speech
    assert isinstance(speech, SpeechConventions)
    assert speech.suppress == tuple(SUPPRESS) and speech.languages == {} and speech.end_id == END
    assert speech.prompt() == [257, 263] and speech.language is None


def test_a_folder_that_forces_a_language_writes_it(tmp_path: Path) -> None:
    whisper(tmp_path, max_source_positions=30)
    (tmp_path / "generation_config.json").unlink()
    plain = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(plain | {"forced_decoder_ids": [[1, 259], [2, 262], [3, 266]]}))
    model: Any = zoo.from_hf(tmp_path)
    assert model.speech.language == "de" and set(model.speech.languages) == set(LANGUAGES)
    model.speech = replace(model.speech, window=0.6)
    assert zoo.transcribe(model, 0.1 * torch.randn(4000), max_new_tokens=2).language == "de"


def test_a_folder_written_here_loads_there_with_equal_logits_and_rules(tmp_path: Path) -> None:
    peer = short(folder=tmp_path / "theirs")
    model: Any = zoo.from_hf(tmp_path / "theirs")
    zoo.to_hf(model, tmp_path / "ours")
    back: Any = hf.WhisperForConditionalGeneration.from_pretrained(tmp_path / "ours")
    features, target = inputs()
    expected = peer(features, decoder_input_ids=target, use_cache=False).logits
    torch.testing.assert_close(back(features, decoder_input_ids=target, use_cache=False).logits, expected)
    assert back.generation_config.suppress_tokens == SUPPRESS
    again: Any = zoo.from_hf(tmp_path / "ours")
    assert again.config == model.config and again.speech.prompt(259) == model.speech.prompt(259)
    for name, tensor in stored(model).items():
        assert torch.equal(stored(again)[name], tensor), name


def test_a_changed_position_table_of_the_encoder_is_kept(tmp_path: Path) -> None:
    peer = short()
    with torch.no_grad():
        peer.model.encoder.embed_positions.weight.add_(0.1 * torch.randn(30, 32))
    peer.save_pretrained(tmp_path)
    model: Any = zoo.from_hf(tmp_path)
    features, target = inputs()
    assert model.config.encoder_stack.position.registered_name == "learned" and model.speech is None
    expected = peer(features, decoder_input_ids=target, use_cache=False).logits
    torch.testing.assert_close(model(features, target), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"mixer": "gated_delta"}, "mixer 'gated_delta' has no counterpart"),
        ({"strides": (2, 2)}, "strides"),
        ({"position": "rope"}, "position"),
    ],
)
def test_what_transformers_cannot_hold_is_refused(choices: dict[str, Any], words: str, tmp_path: Path) -> None:
    sizes = {"dim": 16, "depth": 1, "heads": 2, "vocab_size": 20, "start_id": 0}
    with pytest.raises(zoo.ConfigError, match=words):
        zoo.to_hf(zoo.create_model("whisper", **sizes, **choices), tmp_path)
    assert not (tmp_path / "config.json").exists()
