"""Text of audio: windows, silence, languages, files, rules of timestamps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import zoo
from tests.interop.whispers import END, tokenizer, whisper
from zoo.ops.log_mel import log_mel
from zoo.speech import SpeechConventions, load_audio
from zoo.speech.audio import mono, windows
from zoo.speech.rules import SpeechRule, naive_timestamps

RATE = 16000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A random checkpoint whose windows are 0.6 s long."""
    folder = tmp_path_factory.mktemp("whisper")
    whisper(folder, max_source_positions=30)
    made: Any = zoo.from_hf(folder)
    made.speech = replace(made.speech, window=0.6)
    return made


def noise(seconds: float, seed: int = 0) -> Tensor:
    return 0.1 * torch.randn(round(seconds * RATE), generator=torch.Generator().manual_seed(seed))


def test_text_is_what_generate_writes_for_the_window(model: Any) -> None:
    audio, speech = noise(0.6), model.speech
    features, _ = log_mel(audio, pad_to=9600)
    rule = SpeechRule(speech, model.config.vocab_size, torch.device("cpu"))
    prompt = speech.prompt(speech.language_id("en"))
    ids = zoo.generate(model, [prompt], source=features, max_new_tokens=8, eos_id=END, rule=rule).new[0].tolist()
    found = zoo.transcribe(model, audio, language="en", max_new_tokens=8, no_speech_threshold=None)
    assert ids and found.text == speech.text(ids) and found.language == "en"
    assert [(s.start, s.stop) for s in found.segments] == [(0.0, 0.6)]


def test_long_audio_is_read_by_windows_and_a_batch_changes_nothing(model: Any) -> None:
    options: dict[str, Any] = {"max_new_tokens": 6, "no_speech_threshold": None}
    audios = [noise(2.0, 1), noise(0.3, 2), noise(0.7, 3)]
    together = zoo.transcribe(model, audios, batch_size=3, **options)
    alone = [zoo.transcribe(model, audio, batch_size=1, **options) for audio in audios]
    for one, other, audio in zip(together, alone, audios, strict=True):
        assert one.text == other.text and one.language == other.language
        ends = [(s.start, s.stop) for s in one.segments]
        assert ends[0][0] == 0 and ends[-1][1] == len(audio) / RATE
        assert all(a[1] == b[0] for a, b in pairwise(ends))
        assert all(stop - start <= 0.6 for start, stop in ends)
    assert len(together[0].segments) >= 4 and len(together[1].segments) == 1


def test_a_model_without_a_fixed_window_reads_clips_with_masks(model: Any) -> None:
    free = replace(model.speech, fixed=False)
    options: dict[str, Any] = {"speech": free, "language": "de", "max_new_tokens": 6, "no_speech_threshold": None}
    audios = [noise(0.5, 1), noise(0.21, 2)]
    together = zoo.transcribe(model, audios, **options)
    assert [one.text for one in together] == [zoo.transcribe(model, audio, **options).text for audio in audios]


def test_a_prompt_of_the_first_token_alone_is_enough(model: Any) -> None:
    own = SpeechConventions(tokenizer=tokenizer(), start_id=257, end_id=END, window=0.6, fixed=False)
    found = zoo.transcribe(model, [noise(0.5), noise(0.3)], speech=own, max_new_tokens=4)
    assert [one.language for one in found] == [None, None] and all(one.segments[0].no_speech == 0 for one in found)


def test_silence_has_no_words(model: Any) -> None:
    audio = torch.zeros(RATE)
    heard = zoo.transcribe(model, audio, max_new_tokens=4, no_speech_threshold=None)
    assert heard.text
    level = max(segment.no_speech for segment in heard.segments)
    silent = zoo.transcribe(model, audio, max_new_tokens=4, no_speech_threshold=level / 2, log_prob_threshold=0.0)
    assert silent.text == "" and {s.text for s in silent.segments} == {""}
    sure = zoo.transcribe(model, audio, max_new_tokens=4, no_speech_threshold=level / 2, log_prob_threshold=-1e9)
    assert sure.text == heard.text


def test_the_language_is_the_likeliest_after_the_first_token(model: Any) -> None:
    audio = noise(0.6, 5)
    features, _ = log_mel(audio, pad_to=9600)
    with torch.no_grad():
        logits = model(features, torch.tensor([[257]]))[0, -1]
    known = model.speech.languages
    assert zoo.transcribe(model, audio, max_new_tokens=2).language == max(known, key=lambda code: logits[known[code]])


def test_timestamps_make_segments_inside_the_window(model: Any) -> None:
    found = zoo.transcribe(model, noise(0.5), timestamps=True, max_new_tokens=12, no_speech_threshold=None)
    for segment in found.segments:
        assert 0 <= segment.start <= segment.stop <= 0.5


def test_words_between_timestamps_have_their_times(model: Any) -> None:
    from zoo.speech.transcribe import _spans

    speech = model.speech
    begin = speech.no_timestamps_id + 1
    hello, you = tokenizer().encode("hello").ids, tokenizer().encode(" you").ids
    ids = [begin, *hello, begin + 10, begin + 15, *you, begin + 20, END]
    assert _spans(speech, ids, 3.0, 3.6) == [(3.0, 3.2, "hello"), (3.3, 3.4, "you")]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    rows=st.integers(1, 3),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=6),
)
def test_the_rule_of_timestamps_equals_its_naive_twin(seed: int, rows: int, steps: list[tuple[bool, int]]) -> None:
    vocabulary = tokenizer().get_vocab(with_added_tokens=True)
    end, none = END, vocabulary["<|notimestamps|>"]
    speech = SpeechConventions(tokenizer=tokenizer(), start_id=257, end_id=end, no_timestamps_id=none)
    new = torch.tensor([none + 1 + value if stamp else value for stamp, value in steps], dtype=torch.int64)
    logits = 4 * torch.randn(rows, len(vocabulary), generator=torch.Generator().manual_seed(seed))
    rule = SpeechRule(speech, len(vocabulary), torch.device("cpu"), timestamps=True)
    before = logits.clone()
    found = rule(new.expand(rows, -1), logits)
    assert torch.equal(logits, before)
    for row in range(rows):
        assert torch.equal(found[row], naive_timestamps(speech, new.tolist(), logits[row]))


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 40_000), size=st.integers(700, 20_000), seed=st.integers(0, 99))
def test_windows_fill_the_audio_and_none_is_too_long(length: int, size: int, seed: int) -> None:
    found = windows(torch.randn(length, generator=torch.Generator().manual_seed(seed)), size)
    assert found[0][0] == 0 and found[-1][1] == length
    assert all(0 < stop - start <= size for start, stop in found)
    assert all(a[1] == b[0] for a, b in pairwise(found))


def test_a_window_ends_in_the_quietest_place() -> None:
    audio = noise(45.0)
    audio[27 * RATE : 27 * RATE + 3200] = 0
    (first, _) = windows(audio, 30 * RATE)
    assert 27 * RATE <= first[1] <= 27 * RATE + 3200


@pytest.mark.parametrize("kind", ["wav", "flac", "ogg", "mp3"])
def test_files_of_any_kind_rate_and_channels_are_read(kind: str, tmp_path: Path) -> None:
    import soundfile

    time = torch.arange(22_050) / 22_050
    tone = 0.5 * torch.sin(2 * torch.pi * 440 * time)
    soundfile.write(tmp_path / f"tone.{kind}", torch.stack((tone, tone), 1).numpy(), 22_050)
    found = load_audio(tmp_path / f"tone.{kind}")
    assert found.dtype == torch.float32 and abs(len(found) - RATE) < 0.1 * RATE
    spectrum = torch.fft.rfft(found[2000:14_000]).abs()
    assert abs(spectrum.argmax().item() * RATE / 12_000 - 440) < 3


def test_a_file_that_is_no_audio_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.wav").write_bytes(b"RIFF....")
    for path in (tmp_path / "broken.wav", tmp_path / "absent.wav"):
        with pytest.raises(zoo.ConfigError, match=f"{path.name} cannot be read as audio"):
            load_audio(path)


@pytest.mark.parametrize(
    ("audio", "words"),
    [
        (torch.zeros(3, dtype=torch.int16), "floating point"),
        (torch.zeros(0), "floating point samples"),
        (torch.tensor([0.0, float("nan")]), "not numbers"),
    ],
)
def test_samples_that_are_none_are_refused(audio: Tensor, words: str) -> None:
    with pytest.raises(zoo.ConfigError, match=words):
        mono(audio, RATE)


def test_what_the_model_does_not_know_is_refused(model: Any) -> None:
    with pytest.raises(zoo.ConfigError, match="language 'fr' is unknown"):
        zoo.transcribe(model, noise(0.1), language="fr")
    bare = zoo.create_model("whisper", dim=16, depth=1, heads=2, vocab_size=20, start_id=0)
    with pytest.raises(zoo.ConfigError, match="the model has no tokenizer"):
        zoo.transcribe(bare, noise(0.1))
