"""`audio_folder`: your own recordings, and a table of what is said in them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from pydantic import Field

from recipes.data.speech.clips import Clips, SpeechData, SpeechDataConfig
from recipes.data.speech.recordings import FileAudio, text_of
from recipes.data.splitting import by_name
from recipes.data.text.corpora import check_splits, text_hash
from zoo.registry import ConfigError, register

__all__ = ["AudioFolder"]

SPLITS = ("train", "val", "test")
Row = dict[str, str]


@register("data", "audio_folder")
class AudioFolder(SpeechDataConfig):
    """Recordings (wav, flac, ogg, mp3) below `path`, and a table of their words. Source and licence are yours.

    table: a csv, tsv or jsonl file in `path`, with the columns file (below `path`) and text, and, where you have them,
    speaker and split (train, val or test). Without splits, the shares `validation` and `test` are held out by the sha1
    of the speaker, or of the file where no speaker is told: they stay what they are when recordings are added. (Where
    that leaves a split empty, the speakers are ranked by their sha1 instead.)
    """

    path: str
    table: str = "transcripts.csv"
    lowercase: bool = True
    validation: float = Field(default=0.1, gt=0, lt=1)
    test: float = Field(default=0.1, gt=0, lt=1)

    def load(self, seed: int = 0) -> SpeechData:
        root = Path(self.path).expanduser()
        if not root.is_dir():
            raise ConfigError(f"no such folder '{self.path}'", "data.path")
        rows = read_table(root / self.table)
        for row in rows:
            if not (root / row["file"]).is_file():
                raise ConfigError(f"{self.table} names '{row['file']}', which is not in '{self.path}'", "data.table")
        by_split = self._split(rows)
        check_splits(self.path, **by_split)
        parts = {split: self._clips(root, chosen) for split, chosen in by_split.items()}
        told = text_hash(value for row in rows for value in (row["file"], row["text"]))
        return SpeechData(**parts, source=str(root), content_hash=told)

    def _clips(self, root: Path, rows: list[Row]) -> Clips:
        audio = FileAudio([root / row["file"] for row in rows])
        texts = tuple(text_of(row["text"], self.lowercase) for row in rows)
        return Clips(texts, tuple(row.get("speaker") or "" for row in rows), audio.lengths(), audio)

    def _split(self, rows: list[Row]) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {split: [] for split in SPLITS}
        if any(row.get("split") for row in rows):
            for row in rows:
                if row.get("split") not in SPLITS:
                    problem = f"split of '{row['file']}' should be train, val or test, got {row.get('split')!r}"
                    raise ConfigError(problem, "data.table")
                found[row["split"]].append(row)
            return found
        names = sorted({row.get("speaker") or row["file"] for row in rows}, key=by_name)
        edges = (self.test, self.test + self.validation)
        place = {name: sum(by_name(name) >= edge for edge in edges) for name in names}
        if len(set(place.values())) < len(SPLITS):
            counts = [max(1, round(share * len(names))) for share in (self.test, self.validation)]
            place = {name: sum(n >= edge for edge in (counts[0], sum(counts))) for n, name in enumerate(names)}
        for row in rows:
            found[("test", "val", "train")[place[row.get("speaker") or row["file"]]]].append(row)
        return found


def read_table(path: Path) -> list[Row]:
    """Rows of a transcript table, each with `file` and `text`. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read '{path}': {error.strerror or error}", "data.table") from None
    except UnicodeDecodeError:
        raise ConfigError(f"'{path}' is no text in UTF-8", "data.table") from None
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        if path.suffix == ".jsonl":
            rows = [
                {str(key): "" if value is None else str(value) for key, value in json.loads(line).items()}
                for line in lines
            ]
        else:
            rows = [dict(row) for row in csv.DictReader(lines, delimiter="\t" if path.suffix == ".tsv" else ",")]
    except (ValueError, AttributeError, csv.Error) as error:
        raise ConfigError(f"'{path}' is no {path.suffix.lstrip('.') or 'csv'}: {error}", "data.table") from None
    for number, row in enumerate(rows, 1):
        if not row.get("file") or row.get("text") is None:
            raise ConfigError(f"row {number} of '{path}' should have file and text, got {', '.join(row)}", "data.table")
    if not rows:
        raise ConfigError(f"'{path}' holds no row", "data.table")
    return rows
