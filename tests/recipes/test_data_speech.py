"""Speech sets: synthesised digits, tables of the Hub, folders of recordings; their batches and their augmentation."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import datasets
import datasets.config
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import torch
from datasets import Audio, ClassLabel, Features, Value

from recipes.data.loader import EpochLoader
from recipes.data.speech import spoken_digits, voices
from recipes.data.speech.audio_folder import AudioFolder
from recipes.data.speech.augment import SpeechAugment, echoed, noisy, spec_augment, tilted, warped
from recipes.data.speech.cache import content_hash, read_audio, write_audio
from recipes.data.speech.clips import Clips, StoredAudio
from recipes.data.speech.examples import SpeechExamples, levelled
from recipes.data.speech.hub_speech import HubSpeech
from recipes.data.speech.silence import SILENCES, nobody_speaks
from recipes.data.text.bucketing import Bucketed
from recipes.data.text.draws import Draws
from recipes.data.text.tokenizer_kinds import Words
from tests.recipes.speech import tones, write_recordings
from zoo.ops.log_mel import SAMPLE_RATE
from zoo.registry import ConfigError, decode, encode

VOICES = ["Alex", "Alicia", "Andy", "f1", "f2", "klatt", "klatt4", "Mike", "mike2", "max", "zac", "Andrea", "boris"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setenv("ZOO_SPEECH_PATH", str(tmp_path_factory.mktemp("speech")))


def clips(sizes: list[int], texts: list[str] | None = None) -> Clips:
    """Noise clips of these sizes."""
    draw = np.random.default_rng(0)
    audio = StoredAudio.of([(3000 * draw.standard_normal(size)).astype(np.int16) for size in sizes])
    said = texts or ["one two three four"[: 3 + 5 * (n % 4)].rsplit(" ", 1)[0] or "one" for n in range(len(sizes))]
    return Clips(tuple(said), ("",) * len(sizes), audio.lengths, audio)


def examples(made: Clips, **augment: Any) -> SpeechExamples:
    return SpeechExamples(made, Words().train(list(made.texts)), SpeechAugment(**augment), mels=16)


# --- synthesised digits


def test_equal_plans_give_equal_clips_in_fresh_processes() -> None:
    """eSpeak NG draws its noise from a stream that goes on, so the same call twice gives different samples."""
    pytest.importorskip("espeakng_loader", reason="the extra 'speech' is not installed")
    plan = [vars(one) for one in spoken_digits.SpokenDigits(clips=6, held_clips=1, silent_clips=0).plan()[:6]]
    first, rate = spoken_digits.run_espeak(plan)
    again, _ = spoken_digits.run_espeak(plan)
    assert rate == 22050
    assert content_hash(first) == content_hash(again)
    assert all(length > 0.15 * rate for length in first.lengths)
    assert all(float(first(n).abs().max()) > 0.01 for n in range(6))


def test_digits_are_made_once_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("espeakng_loader", reason="the extra 'speech' is not installed")
    config = spoken_digits.SpokenDigits(clips=3, held_clips=1, silent_clips=2)
    made = config.load()
    monkeypatch.setattr(spoken_digits, "synthesised", lambda told: pytest.fail("made anew"))
    found = config.load(seed=7)
    assert made.content_hash == found.content_hash
    assert [len(split) for split in (found.train, found.val, found.test)] == [5, 3, 3]
    assert found.train.texts[3:] == ("", "")
    assert torch.equal(made.test.read(2), found.test.read(2))


def test_whole_families_are_held_out() -> None:
    split = voices.split_voices(VOICES)
    assert sorted(name for names in split.values() for name in names) == sorted(VOICES)
    families = {name: {voices.family(voice) for voice in found} for name, found in split.items()}
    assert not families["train"] & families["test"] and not families["train"] & families["val"]
    assert not families["val"] & families["test"]
    assert voices.family("klatt4") == voices.family("klatt") and voices.family("mike2") == voices.family("Mike")
    more = voices.split_voices([*VOICES, "klatt7", "newcomer"])
    assert all(set(found) <= set(more[name]) for name, found in split.items()), "a voice changed sides"


def test_voices_that_are_no_voices_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "espeak-ng-data" / "voices" / "!v"
    folder.mkdir(parents=True)
    for name in ("adam", "fast", "whisper", "whisperf", "Mr serious", "klatt6", "f1"):
        (folder / name).touch()
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})()
    monkeypatch.setattr(voices, "find_spec", lambda name: spec)
    assert voices.voices() == ["f1", "klatt6"]
    monkeypatch.setattr(voices, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"espeakng-loader; pip install 'architecture-zoo\[speech\]'"):
        voices.voices()


def test_seen_voices_are_tested_on_strings_that_training_never_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spoken_digits, "voices", lambda: VOICES)
    plan = spoken_digits.SpokenDigits(clips=300, held_clips=40, silent_clips=8).plan()
    split = voices.split_voices(VOICES)
    train = [one for one in plan if one.split == "train" and one.voice]
    assert {one.voice.removeprefix("en-us+") for one in train} == set(split["train"])
    trained = {one.text for one in train}
    for name in ("val", "test"):
        held = [one for one in plan if one.split == name and one.voice]
        own = [one for one in held if one.voice.removeprefix("en-us+") in split[name]]
        seen = [one for one in held if one.voice.removeprefix("en-us+") in split["train"]]
        assert len(own) == len(seen) == 40
        assert not {one.text for one in held if " " in one.text} & trained
    assert {len(one.text.split()) for one in train} == {1, 2, 3, 4}
    assert all(130 <= one.rate <= 220 and 25 <= one.pitch <= 75 for one in train)
    assert sum(not one.voice for one in plan) == 8 + 1 + 1
    again = spoken_digits.SpokenDigits(clips=300, held_clips=40, silent_clips=8, augment={"noise": 0.5}).plan()  # type: ignore[arg-type]
    assert again == plan, "augmentation must not change the content"


def test_a_damaged_cache_is_not_believed(tmp_path: Path) -> None:
    audio = StoredAudio.of([np.arange(9, dtype=np.int16), np.arange(4, dtype=np.int16)])
    told = write_audio(tmp_path / "a.npz", audio)
    held = read_audio(tmp_path / "a.npz")
    assert held is not None and held[1] == told and held[0].lengths.tolist() == [9, 4]
    wrong = audio.flat.copy()
    wrong[3] += 1
    np.savez(tmp_path / "a.npz", flat=wrong, offsets=audio.offsets, sha256=np.array(told))
    assert read_audio(tmp_path / "a.npz") is None
    (tmp_path / "a.npz").write_bytes(b"PK half a file")
    assert read_audio(tmp_path / "a.npz") is None
    assert read_audio(tmp_path / "b.npz") is None


@pytest.mark.parametrize("kind", SILENCES)
def test_clips_without_speech_are_sound(kind: str) -> None:
    made = nobody_speaks(kind, np.random.default_rng(3))
    assert 0.2 * SAMPLE_RATE <= len(made) <= 2.5 * SAMPLE_RATE and made.isfinite().all()
    assert 0 < float(made.abs().max()) < 1
    assert torch.equal(made, nobody_speaks(kind, np.random.default_rng(3)))


# --- batches


def test_padding_never_changes_a_clip() -> None:
    """ggml-org/whisper.cpp#579: the features of a clip are its own in every batch."""
    made = examples(clips([1, 150, 201, 1600, 4000, 4801]))
    together = made.batch(range(6), None)
    assert together["source"].shape[::2] == (6, 30)
    for row in range(6):
        alone = made.batch([row], None)
        frames = alone["source"].shape[2]
        assert frames == made.lengths[row, 0]
        assert "source_mask" not in alone
        assert together["source_mask"][row].tolist() == [True] * frames + [False] * (30 - frames)
        torch.testing.assert_close(together["source"][row, :, :frames], alone["source"][0], rtol=1e-5, atol=1e-5)
        words = int((together["labels"][row] != -100).sum())
        assert together["labels"][row, :words].tolist() == alone["labels"][0].tolist()


def test_targets_are_the_words_shifted_and_counted() -> None:
    made = examples(clips([900, 900, 900], ["one two", "", "two"]))
    batch = made.batch([0, 1, 2], None)
    assert batch["labels"].tolist() == [[3, 4, 2], [2, -100, -100], [4, 2, -100]]  # pad, bos, eos, one, two
    assert batch["target"].tolist() == [[1, 3, 4], [1, 2, 0], [1, 4, 2]]
    assert made.targets(batch) == made.count_targets([0, 1, 2], None) == 6


def test_loudness_is_not_heard() -> None:
    loud = clips([1600, 1600])
    assert isinstance(loud.read, StoredAudio)
    quiet = Clips(loud.texts, loud.speakers, loud.lengths, StoredAudio(loud.read.flat // 2 * 2, loud.read.offsets))
    halved = Clips(loud.texts, loud.speakers, loud.lengths, StoredAudio(loud.read.flat // 2, loud.read.offsets))
    one, other = (examples(made).batch([0, 1], None)["source"] for made in (quiet, halved))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert levelled(torch.zeros(5)).tolist() == [0.0] * 5
    assert float(levelled(torch.tensor([0.1, -0.2])).abs().max()) == 1.0


def test_batches_are_of_like_lengths_and_an_epoch_has_every_clip_once() -> None:
    draw = np.random.default_rng(0)
    made = Bucketed(examples(clips(draw.integers(400, 6000, size=60).tolist())), pool=5)
    loader = EpochLoader(made, 6, shuffle=True, seed=0)
    batches = list(loader)
    assert sorted(row for batch in batches for row in batch["index"].tolist()) == list(range(60))
    frames = made.lengths[:, 0]
    spread = [int(np.ptp(frames[batch["index"].numpy()])) for batch in batches]
    assert np.mean(spread) < np.ptp(frames) / 2
    assert all(float(batch["window_targets"]) == made.targets(batch) for batch in batches)


# --- augmentation


def test_masks_fall_on_each_clips_own_frames() -> None:
    """Padding is never what is masked, and no mask spills out of a clip."""
    config = SpeechAugment(frequency_masks=1, frequency_width=4, time_masks=1, time_share=0.5)
    frames = torch.tensor([30, 12, 1])
    hits = torch.zeros(3, 8, 30)
    for epoch in range(40):
        x = torch.randn(3, 8, 30, generator=torch.Generator().manual_seed(epoch))
        made = spec_augment(x, frames, config, Draws((0, epoch), [0, 1, 2]))
        changed = made != x
        hits += changed
        for row, size in enumerate(frames.tolist()):
            assert not changed[row, :, size:].any()
            whole = changed[row, :, :size].all(0)  # stretches
            assert int(whole.sum()) <= size // 2 + 1 or int(changed[row, :, :size].all(1).sum()) == 8
            if changed[row].any():
                values = made[row][changed[row]]
                torch.testing.assert_close(values, x[row, :, :size].mean().expand_as(values))
    assert (hits[0] > 0).float().mean() > 0.9 and (hits[1, :, :12] > 0).float().mean() > 0.9


def test_a_warp_scales_the_axis_of_mels_of_each_clip() -> None:
    """A ramp over the mels names its axis: a scaled ramp is a ramp of another slope, equal in all frames."""
    ramp = torch.arange(20.0)[None, :, None].expand(6, 20, 4)
    made = warped(ramp, 0.25, Draws((0, 0), list(range(6))))
    slopes = made[:, 1, 0]
    expected = (torch.arange(20.0) * slopes[:, None]).clamp(max=19.0)[:, :, None].expand(6, 20, 4)
    torch.testing.assert_close(made, expected)
    assert ((slopes >= 0.75) & (slopes <= 1.25)).all() and slopes.std() > 0.05
    assert torch.equal(warped(ramp, 0.0, Draws((0, 0), list(range(6)))), ramp)


def test_an_echo_adds_the_power_of_an_earlier_frame() -> None:
    frames = torch.tensor([40, 40, 40, 7])
    x = torch.rand(4, 5, 40, generator=torch.Generator().manual_seed(0))
    made = echoed(x, frames, 1.0, Draws((0, 0), list(range(4))))
    power, old = 10 ** (4 * made.double() - 4), 10 ** (4 * x.double() - 4)
    added = power - old
    for row, size in enumerate(frames.tolist()):
        begun = int((added[row] > 1e-9).any(0).nonzero()[0])  # the first frame that hears it
        assert 1 <= begun <= 15
        gain = added[row, :, begun:size] / old[row, :, : size - begun]
        torch.testing.assert_close(gain, gain.mean().expand_as(gain), rtol=1e-3, atol=1e-3)
        assert 10**-1.2 <= float(gain.mean()) <= 1
        assert torch.equal(made[row, :, size:], x[row, :, size:])
    assert torch.equal(echoed(x, frames, 0.0, Draws((0, 0), list(range(4)))), x)


def test_a_tilt_is_a_line_over_the_mels_of_each_clip() -> None:
    frames = torch.tensor([6, 2])
    made = tilted(torch.zeros(2, 5, 6), frames, 8.0, Draws((0, 0), [0, 1])) * 40  # decibels
    assert made[1, :, 2:].abs().max() == 0
    for row in made:
        line = row[:, :1]
        assert torch.equal(row[:, :2], line.expand(5, 2)) and 0 < line.abs().max() <= 8
        torch.testing.assert_close(line.diff(dim=0, n=2), torch.zeros(3, 1), atol=1e-5, rtol=0)
        assert line[2].abs() < 1e-6


def test_a_band_is_never_wider_than_asked() -> None:
    config = SpeechAugment(frequency_masks=1, frequency_width=3)
    sizes = set()
    for epoch in range(60):
        x = torch.randn(1, 8, 5)
        changed = spec_augment(x, torch.tensor([5]), config, Draws((0, epoch), [0]))[0] != x[0]
        assert torch.equal(changed.all(1), changed.any(1))
        sizes.add(int(changed.all(1).sum()))
    assert sizes == {0, 1, 2, 3}


def test_augmentation_depends_on_seed_epoch_and_clip_alone() -> None:
    made = examples(clips([1600, 2400, 1600]), noise=1.0, warp=0.1, echo=0.7, tilt=5.0, frequency_masks=1, time_masks=1)
    one = made.batch([0, 1, 2], (0, 3))["source"]
    two = made.batch([2, 0], (0, 3))["source"]
    torch.testing.assert_close(one[0, :, :10], two[1, :, :10], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(one[2, :, :10], two[0, :, :10], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(one, made.batch([0, 1, 2], (0, 4))["source"])
    assert not torch.allclose(one, made.batch([0, 1, 2], (1, 3))["source"])
    plain = examples(clips([1600, 2400, 1600])).batch([0, 1, 2], None)["source"]
    assert torch.equal(made.batch([0, 1, 2], None)["source"], plain), "evaluation is not augmented"


def test_noise_lies_as_far_below_the_clip_as_asked() -> None:
    clip = torch.sin(torch.arange(16000) * 0.1)
    noise = noisy(clip, 20.0, np.random.default_rng(0)) - clip
    assert float(10 * (clip.square().mean() / noise.square().mean()).log10()) == pytest.approx(20.0, abs=0.2)
    with pytest.raises(ConfigError, match=r"snr.*should rise"):
        SpeechAugment(snr=(30.0, 10.0))


# --- tables of the Hub


def cell(words: list[str], kind: str = "WAV") -> dict[str, Any]:
    held = io.BytesIO()
    soundfile.write(held, tones(words), 8000, format=kind)
    return {"bytes": held.getvalue(), "path": f"{words[0]}.{kind.lower()}"}


def write_table(path: Path, columns: dict[str, list[Any]], features: Features) -> None:
    """datasets encodes audio only with torchcodec; the column is built as bytes and its schema put beside it."""
    audio = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table({name: pa.array(values, audio) if name == "audio" else values for name, values in columns.items()})
    pq.write_table(table.replace_schema_metadata(features.arrow_schema.metadata), path)


def librispeech(folder: Path) -> Path:
    """The columns of openslr/librispeech_asr."""
    folder.mkdir()
    kinds: dict[str, Any] = {"file": Value("string"), "audio": Audio(16000), "text": Value("string")}
    kinds |= {"speaker_id": Value("int64"), "chapter_id": Value("int64"), "id": Value("string")}
    for split, rows in (("train.100", 6), ("validation", 2), ("test", 2)):
        said = [["low", "mid"], ["high"], ["mid"]]
        words = [said[row % 3] for row in range(rows)]
        columns: dict[str, list[Any]] = {
            "file": [f"{row}.flac" for row in range(rows)],
            "audio": [cell(told, "FLAC") for told in words],
            "text": [" ".join(told).upper() for told in words],
            "speaker_id": [100 + row % 2 for row in range(rows)],
            "chapter_id": [1] * rows,
            "id": [f"{split}-{row}" for row in range(rows)],
        }
        write_table(folder / f"{split}-00000-of-00001.parquet", columns, Features(kinds))
    return folder


def test_the_librispeech_schema_is_read(tmp_path: Path) -> None:
    config = HubSpeech(
        path=str(librispeech(tmp_path / "libri")),
        splits={"train": "train.100", "val": "validation", "test": "test"},  # type: ignore[arg-type]
        columns={"speaker": "speaker_id"},  # type: ignore[arg-type]
    )
    data = config.load()
    assert [len(part) for part in (data.train, data.val, data.test)] == [6, 2, 2]
    assert data.train.texts[:2] == ("low mid", "high")
    assert data.train.speakers[:3] == ("100", "101", "100")
    for row in range(6):
        assert len(data.train.read(row)) == data.train.lengths[row] == len(data.train.texts[row].split()) * 3200
    spectrum = torch.fft.rfft(data.train.read(1)).abs()
    assert abs(float(spectrum.argmax()) / 0.2 - 2700) < 10, "resampled to another pitch"


def test_the_speech_commands_schema_is_read(tmp_path: Path) -> None:
    """Words are class names; _silence_ has no words and no speaker."""
    names = ["low", "mid", "high", "_silence_"]
    kinds: dict[str, Any] = {"file": Value("string"), "audio": Audio(16000), "label": ClassLabel(names=names)}
    kinds |= {"is_unknown": Value("bool"), "speaker_id": Value("string"), "utterance_id": Value("int8")}
    for split, rows in (("train", 8), ("validation", 4), ("test", 4)):
        labels = [row % 4 for row in range(rows)]
        columns: dict[str, list[Any]] = {
            "file": [f"{row}.wav" for row in range(rows)],
            "audio": [cell([names[label % 3]]) for label in labels],
            "label": labels,
            "is_unknown": [False] * rows,
            "speaker_id": [None if label == 3 else f"s{label}" for label in labels],
            "utterance_id": pa.array([0] * rows, pa.int8()),  # type: ignore[dict-item]
        }
        write_table(tmp_path / f"{split}-00000-of-00001.parquet", columns, Features(kinds))
    config = HubSpeech(path=str(tmp_path), columns={"text": "label", "speaker": "speaker_id"})  # type: ignore[arg-type]
    data = config.load()
    assert data.test.texts == ("low", "mid", "high", "")
    assert data.test.speakers == ("s0", "s1", "s2", "")
    with pytest.raises(ConfigError, match="'text' is not a column"):
        HubSpeech(path=str(tmp_path)).load()


def test_a_missing_split_is_held_out_by_speaker(tmp_path: Path) -> None:
    kinds = Features({"audio": Audio(16000), "text": Value("string"), "speaker": Value("string")})
    columns: dict[str, list[Any]] = {
        "audio": [cell(["low"]) for _ in range(60)],
        "text": ["low"] * 60,
        "speaker": [f"s{row % 20}" for row in range(60)],
    }
    write_table(tmp_path / "train-00000-of-00001.parquet", columns, kinds)
    config = HubSpeech(
        path=str(tmp_path),
        splits={"val": None, "test": None},  # type: ignore[arg-type]
        columns={"speaker": "speaker"},  # type: ignore[arg-type]
        held_out=0.2,
    )
    data = config.load()
    speakers = [set(part.speakers) for part in (data.train, data.val, data.test)]
    assert sum(map(len, speakers)) == 20 and all(speakers)
    assert sum(len(part) for part in (data.train, data.val, data.test)) == 60


# --- folders


@pytest.mark.parametrize("suffix", [".wav", ".flac", ".ogg", ".mp3"])
def test_a_folder_of_recordings_is_read(tmp_path: Path, suffix: str) -> None:
    folder = write_recordings(tmp_path / "own", 16, suffix)
    data = AudioFolder(path=str(folder)).load()
    speakers = [set(part.speakers) for part in (data.train, data.val, data.test)]
    assert sum(map(len, speakers)) == 8 and all(speakers), "a speaker is on two sides"
    for part in (data.train, data.val, data.test):
        for row, text in enumerate(part.texts):
            samples = part.read(row)
            assert text == text.lower()
            assert abs(len(samples) - 3200 * len(text.split())) <= (2400 if suffix == ".mp3" else 0)
            assert abs(len(samples) - int(part.lengths[row])) <= 2


def test_tables_are_csv_tsv_or_jsonl_and_may_name_splits(tmp_path: Path) -> None:
    folder = write_recordings(tmp_path, 3)
    rows = [
        {"file": f"{n}.wav", "text": "Ünder  way", "split": split} for n, split in enumerate(("train", "val", "test"))
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    lines = ["file\ttext\tsplit", *("\t".join(row.values()) for row in rows)]
    (tmp_path / "t.tsv").write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    for name in ("t.jsonl", "t.tsv"):
        data = AudioFolder(path=str(folder), table=name, lowercase=False).load()
        assert data.train.texts == data.val.texts == data.test.texts == ("Ünder way",)


def test_mistakes_in_a_folder_are_told(tmp_path: Path) -> None:
    folder = write_recordings(tmp_path, 4)
    with pytest.raises(ConfigError, match="no such folder"):
        AudioFolder(path=str(tmp_path / "nowhere")).load()
    with pytest.raises(ConfigError, match=r"cannot read .*none\.csv"):
        AudioFolder(path=str(folder), table="none.csv").load()
    (folder / "a.csv").write_text("name,words\nx,y\n")
    with pytest.raises(ConfigError, match=r"row 1 of .* should have file and text, got name, words"):
        AudioFolder(path=str(folder), table="a.csv").load()
    (folder / "b.csv").write_text("file,text\nlost.wav,y\n")
    with pytest.raises(ConfigError, match=r"b\.csv names 'lost\.wav'"):
        AudioFolder(path=str(folder), table="b.csv").load()
    (folder / "2.wav").write_bytes(b"no sound")
    with pytest.raises(ConfigError, match=r"2\.wav cannot be read as audio"):
        AudioFolder(path=str(folder)).load()
    soundfile.write(folder / "2.wav", np.zeros(0), 8000)
    with pytest.raises(ConfigError, match=r"2\.wav holds no sample"):
        AudioFolder(path=str(folder)).load()


def test_long_training_clips_are_left_out_and_test_clips_stay(tmp_path: Path) -> None:
    folder = write_recordings(tmp_path, 24)
    data = AudioFolder(path=str(folder)).load()
    short = data.shortened(0.25, SAMPLE_RATE)
    assert len(short.train) == sum(len(text.split()) == 1 for text in data.train.texts) < len(data.train)
    assert len(short.test) == len(data.test)
    assert data.shortened(None, SAMPLE_RATE) is data
    kept = [row for row in range(len(data.train)) if data.train.lengths[row] <= 0.25 * SAMPLE_RATE]
    assert all(torch.equal(short.train.read(n), data.train.read(row)) for n, row in enumerate(kept))


def test_settings_survive_a_round_trip() -> None:
    config = spoken_digits.SpokenDigits(clips=5, augment=SpeechAugment(noise=0.5))
    assert decode("data", encode(config), "data") == config
