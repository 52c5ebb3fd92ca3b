"""Whisper: published sizes, clips that are the same alone and in a batch, decoding, and swapped parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import zoo
from zoo.blocks.api import Context
from zoo.interop.hub import FAMILIES
from zoo.models.whisper import WhisperConfig

COUNTS = {
    "tiny": 37_760_640,
    "tiny_en": 37_760_256,
    "base": 72_593_920,
    "base_en": 72_593_408,
    "small": 241_734_912,
    "small_en": 241_734_144,
    "medium": 763_857_920,
    "medium_en": 763_856_896,
    "large": 1_543_304_960,
    "large_v2": 1_543_304_960,
    "large_v3": 1_543_490_560,
    "large_v3_turbo": 808_878_080,
}
"""With the encoder's sines, a stored table of 1500 x D that is no parameter here."""
SIZES: dict[str, Any] = {"dim": 16, "depth": 2, "heads": 2, "vocab_size": 20, "start_id": 0, "mels": 6, "max_len": 12}


def model(seed: int = 0, **choices: Any) -> Any:
    torch.manual_seed(seed)
    return zoo.create_model("whisper", **{**SIZES, "init_std": 0.3, **choices}).double().eval()


def clips(frames: list[int], seed: int = 1) -> tuple[Tensor, Tensor]:
    """Features (B, M, F) of clips with these frames, padded with noise, and their mask (B, F)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(frames), SIZES["mels"], max(frames), generator=generator, dtype=torch.float64)
    return x, torch.arange(max(frames)) < torch.tensor(frames)[:, None]


@pytest.mark.parametrize("name", COUNTS)
def test_presets_have_the_published_sizes(name: str) -> None:
    with torch.device("meta"):
        ours = zoo.create_model(f"whisper_{name}")
    config: Any = ours.config
    sines = config.max_source_len * config.dim
    assert sum(p.numel() for p in ours.parameters()) + sines == COUNTS[name]
    plain = FAMILIES["whisper"].config_to(config)
    with torch.device("meta"):
        peer = hf.WhisperForConditionalGeneration(hf.WhisperConfig(**plain))
    assert sum(p.numel() for p in peer.parameters()) == COUNTS[name]


@pytest.mark.parametrize("strides", [(1, 2), (2, 2), (1, 1), (3, 2)])
def test_a_clip_gives_the_same_memory_and_logits_alone_and_in_a_batch(strides: tuple[int, int]) -> None:
    ours, frames = model(strides=strides), [23, 1, 14, 9]
    x, mask = clips(frames)
    target = torch.arange(20).view(4, 5)
    together, kept = ours.encode(x, mask), ours.memory_mask(mask)
    logits = ours(x, target, source_mask=mask)
    for n, length in enumerate(frames):
        alone = ours.encode(x[n : n + 1, :, :length])
        assert alone.shape[1] == kept[n].sum()
        torch.testing.assert_close(together[n, kept[n]], alone[0], rtol=0, atol=1e-10)
        found = ours(x[n : n + 1, :, :length], target[n : n + 1])
        torch.testing.assert_close(logits[n : n + 1], found, rtol=0, atol=1e-10)


def test_padding_has_no_gradient() -> None:
    ours = model()
    x, mask = clips([11, 6])
    x.requires_grad_()
    ours(x, torch.ones(2, 3, dtype=torch.int64), source_mask=mask).square().sum().backward()
    assert x.grad is not None
    assert bool((x.grad.masked_select(~mask[:, None].expand_as(x)) == 0).all())
    assert bool((x.grad.masked_select(mask[:, None].expand_as(x)) != 0).all())


@pytest.mark.parametrize("mixer", ["attention", "gated_delta"])
def test_greedy_tokens_from_a_state_equal_those_of_whole_passes(mixer: str) -> None:
    ours = model(mixer=mixer)
    x, mask = clips([15, 8, 4])
    fast = zoo.generate(ours, source=x, source_mask=mask, max_new_tokens=8)
    slow = zoo.generate(ours, source=x, source_mask=mask, max_new_tokens=8, use_state=False)
    assert [row.tolist() for row in fast.new] == [row.tolist() for row in slow.new]
    alone = zoo.generate(ours, source=x[1, :, :8], max_new_tokens=8)
    assert alone.new[0].tolist() == fast.new[1].tolist()


def test_beams_of_a_padded_batch_equal_those_of_clips_alone() -> None:
    ours = model()
    x, mask = clips([15, 8])
    found = zoo.generate(ours, source=x, source_mask=mask, max_new_tokens=6, beams=3, eos_id=2)
    alone = zoo.generate(ours, source=x[1:, :, :8], max_new_tokens=6, beams=3, eos_id=2)
    assert found.new[1].tolist() == alone.new[0].tolist()


@pytest.mark.parametrize("beams", [1, 3])
def test_a_rule_excludes_tokens_at_the_steps_it_names(beams: int) -> None:
    ours = model()
    x, _ = clips([15, 8])
    free = zoo.generate(ours, source=x, max_new_tokens=4, beams=beams)
    first = free.new[0][0].item()

    def rule(new: Tensor, logits: Tensor) -> Tensor:
        assert new.shape[0] == logits.shape[0]
        return logits.index_fill(1, torch.tensor([first]), -torch.inf) if new.shape[1] == 0 else logits

    bound = zoo.generate(ours, source=x, max_new_tokens=4, beams=beams, rule=rule)
    assert bound.new[0][0].item() != first


def test_the_state_of_a_clip_has_the_bytes_that_were_foretold() -> None:
    ours = model()
    x, _ = clips([14, 14])
    state = ours.init_state(2, 5)
    ours.features(torch.zeros(2, 1, dtype=torch.int64), Context(memory=ours.encode(x)), state)
    assert zoo.state_bytes(ours, 2, 5, source_len=14) == state.nbytes()


def test_keys_have_no_bias_and_others_do() -> None:
    ours = model()
    block = ours.decoder.blocks[0]
    assert (
        block.mixer.qkv.bias.shape == (32,) and block.cross.kv.bias.shape == (16,) and block.cross.q.bias.shape == (16,)
    )
    with_bias = model(mixer={"name": "attention", "key_bias": True})
    assert with_bias.decoder.blocks[0].mixer.qkv.bias.shape == (48,)


@pytest.mark.parametrize("position", ["rope", "sinusoidal", "none", "learned"])
def test_the_encoder_follows_the_position_unless_it_is_learned(position: str) -> None:
    config = WhisperConfig(position={"name": position})  # type: ignore[arg-type]
    assert config.encoder_stack.position.registered_name == ("sinusoidal" if position == "learned" else position)
    own = WhisperConfig(position={"name": position}, encoder_position={"name": "learned"})  # type: ignore[arg-type]
    assert own.encoder_stack.position.registered_name == "learned" and own.max_source_len == 1500


def test_a_model_is_the_same_after_saving(tmp_path: Any) -> None:
    ours = model(encoder_depth=1, strides=(2, 2))
    x, _ = clips([9])
    back = zoo.load_pretrained(zoo.save_pretrained(ours, tmp_path))
    target = torch.zeros(1, 3, dtype=torch.int64)
    torch.testing.assert_close(back(x, target), ours(x, target), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("source", "mask", "words"),
    [
        (torch.zeros(1, 7, 9), None, "features should be floating point (B, 6, F)"),
        (torch.zeros(1, 6, 9), torch.ones(1, 9), "torch.bool of (1, 9)"),
    ],
)
def test_features_of_another_form_are_refused(source: Tensor, mask: Tensor | None, words: str) -> None:
    with pytest.raises(ValueError) as error:
        model().float().encode(source, mask)
    assert words in str(error.value)


@pytest.mark.parametrize("source", [torch.zeros(2, 9, dtype=torch.int64), [[1, 2]], torch.zeros(9)])
def test_generate_refuses_a_source_that_is_no_features(source: Any) -> None:
    with pytest.raises(zoo.ConfigError, match="source should be floating point features"):
        zoo.generate(model(), source=source)


def test_a_source_vocabulary_is_refused() -> None:
    with pytest.raises(zoo.ConfigError, match="source_vocab_size 9 has no meaning for audio"):
        zoo.create_model("whisper", source_vocab_size=9)
