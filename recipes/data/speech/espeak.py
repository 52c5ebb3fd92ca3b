"""Speech from eSpeak NG, in a process of its own: python espeak.py PLAN.json SPEECH.npz

eSpeak NG is GPL-3.0-or-later (the audio that it makes is not covered by that). So nothing here is linked or imported:
the shared library of the package espeakng-loader is opened with ctypes when this file runs as a script.

It is not deterministic call by call: the library keeps state, and the noise of its voices is drawn from a stream that
goes on. The same plan gives the same samples in a fresh process that makes its calls in order, with the stream of
random numbers set before each.

PLAN.json is a list of {"seed", "voice", "text", "rate", "pitch"}. SPEECH.npz holds `flat`, the int16 samples of all
utterances end to end, `offsets` (N + 1,) and `rate`, hertz.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import numpy as np

SYNCHRONOUS, UTF8, RATE, PITCH = 2, 1, 1, 3
"""espeak_AUDIO_OUTPUT, espeakCHARS_UTF8, and two of espeak_PARAMETER (speak_lib.h)."""


def speak(plan: list[dict[str, Any]]) -> tuple[list[np.ndarray], int]:
    """The samples (L,) int16 of each utterance, and their rate. Raises RuntimeError for a voice that is not there."""
    import espeakng_loader

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    rate = library.espeak_Initialize(SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), 0)
    if rate <= 0:
        raise RuntimeError(f"eSpeak NG does not start: error {rate}")
    pieces: list[np.ndarray] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    def keep(samples: Any, count: int, events: Any) -> int:
        if samples and count:
            pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    library.espeak_SetSynthCallback(keep)
    library.espeak_ng_SetRandSeed.argtypes = [ctypes.c_long]
    library.espeak_Synth.argtypes = [
        ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int, ctypes.c_uint, ctypes.c_uint,
        ctypes.c_void_p, ctypes.c_void_p,
    ]  # fmt: skip
    spoken = []
    for utterance in plan:
        if library.espeak_SetVoiceByName(utterance["voice"].encode()):
            raise RuntimeError(f"eSpeak NG has no voice '{utterance['voice']}'")
        library.espeak_SetParameter(RATE, utterance["rate"], 0)
        library.espeak_SetParameter(PITCH, utterance["pitch"], 0)
        library.espeak_ng_SetRandSeed(utterance["seed"])
        text = utterance["text"].encode()
        pieces.clear()
        failed = library.espeak_Synth(text, len(text) + 1, 0, 0, 0, UTF8, None, None) or library.espeak_Synchronize()
        if failed or not pieces:
            raise RuntimeError(f"eSpeak NG says nothing for {utterance}: error {failed}")
        spoken.append(np.concatenate(pieces))
    return spoken, rate


def main(plan: str, out: str) -> int:
    with open(plan, encoding="utf-8") as file:
        spoken, rate = speak(json.load(file))
    offsets = np.concatenate([[0], np.cumsum([len(samples) for samples in spoken])]).astype(np.int64)
    np.savez(out, flat=np.concatenate(spoken), offsets=offsets, rate=np.int64(rate))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
