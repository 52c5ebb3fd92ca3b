"""Pictures of a model of speech: errors by voice, what each word listens to; and clips to listen to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from recipes.data.speech.clips import Clips
from recipes.data.text.tokenizers import Tokenizer
from recipes.figures import new_figure, save_figure
from recipes.recipe import fed
from recipes.speech.metrics import by_speaker
from zoo.blocks.api import Recorder
from zoo.files import write_text, write_whole
from zoo.ops.log_mel import HOP, SAMPLE_RATE

__all__ = ["errors_by_speaker", "listening", "spectrogram_and_attention"]

MOST_SPEAKERS = 60
LONGEST = 1000
"""Frames beyond which a map of attention is no longer legible."""


def errors_by_speaker(answers: Sequence[str], clips: Clips, known: set[str], path: Path) -> Path | None:
    """Word error rate of each speaker, the worst first; None where no speaker is told."""
    found = by_speaker(answers, clips.texts, clips.speakers)
    if set(found) <= {""}:
        return None
    shown = list(found.items())[:MOST_SPEAKERS]
    colours = ["C7" if speaker in known else "C0" for speaker, _ in shown]
    figure = new_figure(max(6, 0.2 * len(shown)), 4.5)
    axis = figure.subplots()
    axis.bar(range(len(shown)), [rate for _, rate in shown], color=colours)
    names = [speaker.rpartition("+")[2] or "(none)" for speaker, _ in shown]
    axis.set_xticks(range(len(shown)), names, rotation=90, fontsize=7)
    blank = sum(rate == 0 for rate in found.values())
    title = f"test: {blank} of {len(found)} voices without an error (blue: unseen in training, grey: seen)"
    axis.set(ylabel="word error rate", ylim=(0, max(0.1, 1.05 * max(found.values()))))
    axis.set_title(title, fontsize=9)
    axis.grid(alpha=0.3, axis="y")
    return save_figure(figure, path)


@torch.no_grad()
def spectrogram_and_attention(
    model: Any, tokenizer: Tokenizer, examples: Any, path: Path, most: int = 2
) -> Path | None:
    """Log-mel frames of the test clips with the most words, and below what the decoder listens to before each of their
    tokens, averaged over heads and layers. None for a model that records no maps from words to sound."""
    frames, words = examples.lengths.T
    order = np.argsort(-np.where(frames <= LONGEST, words, 0), kind="stable")
    drawn = []
    for number in order[:most].tolist():
        batch = examples.batch([number], None)
        recorder = Recorder("attention")
        source, target = batch["source"], batch["target"]  # (1, M, F), (1, T)
        model(fed(model, source), fed(model, target), record=recorder)
        reads = [tap for name, tap in recorder.taps.items() if "cross" in name and tap.shape[-2] == target.shape[1]]
        if reads and source.shape[2] <= LONGEST:
            names = [tokenizer.name(i) for i in batch["labels"][0].tolist()]
            maps = torch.stack([tap[0].float().mean(0).cpu() for tap in reads]).mean(0)  # (T, S)
            drawn.append((source[0].float().numpy(), maps.numpy(), names))
    if not drawn:
        return None
    figure = new_figure(5.5 * len(drawn), 5)
    axes = figure.subplots(2, len(drawn), squeeze=False, sharex="col")
    for (above, below), (x, weights, names) in zip(axes.T, drawn, strict=True):
        end = x.shape[1] * HOP / SAMPLE_RATE
        above.imshow(x, origin="lower", aspect="auto", cmap="magma", extent=(0, end, 0, x.shape[0]))
        above.set_ylabel("mel")
        edges = (0, end, len(names), 0)
        below.imshow(weights, aspect="auto", cmap="Blues", vmin=0, extent=edges, interpolation="nearest")
        below.set_yticks(np.arange(len(names)) + 0.5, names, fontsize=8)
        below.set_xlabel("seconds")
    return save_figure(figure, path)


def _as_wav(samples: NDArray[np.float32], file: Any) -> None:
    import soundfile

    soundfile.write(file, samples, SAMPLE_RATE, format="WAV")


def listening(answers: Sequence[str], clips: Clips, folder: Path, most: int) -> list[Path]:
    """Some test clips as wav files, and samples.txt with what was heard in each (and what was said)."""
    if not most or not len(clips):
        return []
    lines, written = [], []
    for place, row in enumerate(list(range(len(clips)))[:: max(1, len(clips) // most)][:most]):
        path = folder / f"sample_{place}.wav"
        samples = clips.read(row).numpy()
        write_whole(path, partial(_as_wav, samples))
        heard, said, speaker = answers[row], clips.texts[row], clips.speakers[row] or "nobody"
        lines.append(f"{path.name} ({speaker}): {heard}" + ("" if heard == said else f"   (said: {said})"))
        written.append(path)
    told = folder / "samples.txt"
    write_text(told, "\n".join(lines) + "\n")
    return [*written, told]
