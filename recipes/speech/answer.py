"""Words of a user's own audio files, a line a file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipes.arguments import Parser
from recipes.data.speech.examples import levelled
from recipes.data.text.tokenizers import Tokenizer
from recipes.speech.answering import Answering
from recipes.speech.windows import pieces
from zoo.registry import ConfigError

__all__ = ["answer"]


def answer(model: Any, tokenizer: Tokenizer, answering: Answering, argv: Sequence[str]) -> int:
    """Print the words of each file in `argv`: wav, flac, ogg, mp3, of any rate and number of channels.

    Long files are heard in windows (recipes/speech/windows.py, which says what counts as silence); a window in which
    the model finds no words adds none. A broken file is named on stderr and the others are still answered.
    Options: --beams N, --json for one JSON object a line (with "error" where a file failed).
    Returns 0, or 1 when any file failed. Raises ConfigError for wrong options.
    """
    options = _parse(argv)
    failed = False
    for file in options.files:
        told: dict[str, Any] = {"file": file}
        try:
            told["text"] = _words(model, tokenizer, answering, Path(file), options.beams)
        except ConfigError as error:
            told["error"], failed = str(error), True
            sys.stdout.flush()
            print(f"error: {_named(file, told['error'])}", file=sys.stderr, flush=True)
        if options.json:
            print(json.dumps(told, ensure_ascii=False), flush=True)
        elif "text" in told:
            print(f"{file}: {told['text']}".rstrip(), flush=True)
    return int(failed)


def _words(model: Any, tokenizer: Tokenizer, answering: Answering, file: Path, beams: int) -> str:
    from zoo.speech import SpeechConventions, load_audio, transcribe

    assert tokenizer.pad_id is not None and tokenizer.bos_id is not None and tokenizer.eos_id is not None
    speech = SpeechConventions(
        tokenizer=tokenizer,
        start_id=tokenizer.bos_id,
        end_id=tokenizer.eos_id,
        suppress=(tokenizer.pad_id, tokenizer.bos_id),
        window=answering.seconds + 1,  # pieces are cut already
        fixed=False,
        floor=answering.floor,
    )
    heard = [levelled(piece) for piece in pieces(load_audio(file), answering.seconds)]
    if not heard:
        return ""
    made = transcribe(model, heard, speech=speech, beams=beams, max_new_tokens=answering.answer_tokens)
    return " ".join(transcript.text for transcript in made if transcript.text)


def _named(file: str, problem: str) -> str:
    return problem if file in problem else f"{file}: {problem}"


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("use RUN_DIR file.wav ... [--beams N] [--json]")
    parser.add_argument("files", nargs="+", metavar="file.wav")
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_intermixed_args(list(argv))
    if options.beams < 1:
        parser.error(f"--beams should be at least 1, got {options.beams}")
    return options
