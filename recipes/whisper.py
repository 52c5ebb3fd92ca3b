"""whisper: from speech to words.   python -m zoo.run recipe=whisper

An encoder-decoder over log-mel frames (Radford et al. 2022, arXiv:2212.04356), small, and trained from scratch on words
alone: no language, task or timestamp tokens. Loss: cross-entropy over the real words and the end. The default data are
digit strings in synthetic voices (`spoken_digits`): synthetic digits are not human speech, and their error rates say
nothing of it. Figures are those of recipes/speech/metrics.py, over all test clips, and, where some of their speakers
are met in training and some are not, over each kind: test/unseen_wer, test/seen_wer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor, nn

from recipes.data.speech.clips import Clips, SpeechData
from recipes.data.speech.examples import SpeechExamples
from recipes.data.text.bucketing import Bucketed
from recipes.data.text.padding import IGNORE
from recipes.data.text.tokenizer_kinds import Words
from recipes.data.text.tokenizers import Tokenizer, TokenizerConfig
from recipes.recipe import Batch, Metrics, Recipe, TaskConfig, fed
from recipes.speech.answering import Answering, load_answering, save_answering
from recipes.speech.generation import words_of_batches
from zoo.blocks.api import Context, ModelConfig
from zoo.models.whisper import WhisperConfig
from zoo.ops.log_mel import SAMPLE_RATE
from zoo.registry import ConfigError, decode, part

__all__ = ["Whisper", "WhisperTask"]

Count = Annotated[int, Field(ge=1)]
SPLITS = ("train", "val", "test")


class WhisperTask(TaskConfig):
    """Keys of `task`."""

    batch_size: Count = 24
    """Clips a step."""
    eval_batch_size: Count = 128
    tokenizer: Annotated[TokenizerConfig, part("tokenizer")] = Words()
    """Of the words: `words` where there are few, else characters or bpe. It has pad, bos and eos."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    floor: Annotated[float, Field(gt=0)] = 8.0
    """Decades below a clip's loudest feature at which features are cut."""
    max_tokens: Count | None = None
    """Longer training texts are cut; null: none is."""
    answer_tokens: Count | None = None
    """Longest answer; null: half as long again as the longest training text."""
    pool: Count = 20
    """Batches that are sorted by length together, so that clips of a batch are about as long as each other."""
    beams: Count = 1
    """Beams of the evaluation; with more than one, the test figures of greedy ones stand beside it: <name>@greedy."""
    length_penalty: float = 1.0
    """A beam's summed log-probability is divided by its length to this power."""
    samples: Annotated[int, Field(ge=0)] = 6
    """Test clips that are written to figures/ as wav files, with what was heard in them."""


@dataclass(frozen=True)
class Prepared:
    """Clips as examples, and what their words are made of."""

    speech: SpeechData
    tokenizer: Tokenizer
    answering: Answering
    train: Any
    val: Any
    test: Any

    def clips(self, split: str) -> Clips:
        return getattr(self.speech, split)


class Whisper(Recipe):
    task_type = WhisperTask
    headline = ("test/unseen_wer", "test/seen_wer", "test/wer", "test/cer", "test/ser", "test/wer@greedy")
    task: WhisperTask
    _answers: tuple[str, int, list[str]] | None = None
    """Split, the model's id, and its answers, so that figures need not ask again."""

    def load(self) -> Prepared:
        speech = self.data_config.load(self.settings.get("seed") or 0)
        if not isinstance(speech, SpeechData):
            name = self.data_config.registered_name
            raise ConfigError(f"'{name}' holds no speech; choices: spoken_digits, audio_folder, hub_speech", "data")
        speech = speech.shortened(self.data_config.max_seconds, SAMPLE_RATE)
        checkpoint = self.settings.get("checkpoint")  # other data is read with the tokenizer of the model
        if checkpoint:
            tokenizer, answering = load_answering(Path(checkpoint) / "model")
        else:
            tokenizer = self._tokenizer(speech)
            answering = self._answering(speech, tokenizer)
        options: dict[str, Any] = {"mels": self._model().mels, "floor": answering.floor}
        made: dict[str, Any] = {}
        for split in SPLITS:
            limit = self.task.max_tokens if split == "train" else None
            examples = SpeechExamples(
                getattr(speech, split), tokenizer, self.data_config.augment, limit=limit, **options
            )
            made[split] = Bucketed(examples, pool=self.task.pool)
        return Prepared(speech, tokenizer, answering, **made)

    def _tokenizer(self, speech: SpeechData) -> Tokenizer:
        """Trained on the words of the training clips alone. Raises ConfigError."""
        missing = [role for role in ("pad", "bos", "eos") if role not in self.task.tokenizer.special]
        if missing:
            raise ConfigError(f"needs '{missing[0]}' among its special tokens", "task.tokenizer.special")
        return self.task.tokenizer.train(list(speech.train.texts))

    def _answering(self, speech: SpeechData, tokenizer: Tokenizer) -> Answering:
        longest = int(tokenizer.sequences(speech.train.texts).lengths.max()) + 1
        longest = min(longest, self.task.max_tokens or longest)
        return Answering(
            answer_tokens=self.task.answer_tokens or longest + longest // 2,
            seconds=ceil(int(speech.train.lengths.max()) / SAMPLE_RATE * 10) / 10,
            floor=self.task.floor,
        )

    def _model(self, **facts: Any) -> WhisperConfig:
        """The model of the settings; facts fill what they leave open. Raises ConfigError."""
        given = self.settings.get("model") or "whisper"
        value: dict[str, Any] = {"family": given} if isinstance(given, str) else dict(given)
        value.setdefault("family", "whisper")
        value |= {name: fact for name, fact in facts.items() if value.get(name) is None}
        config = decode("model", value, "model")
        if not isinstance(config, WhisperConfig):
            raise ConfigError(f"'{value['family']}' reads no speech; choose whisper or a preset of it", "model")
        return config

    def model_config(self, data: Prepared) -> ModelConfig:
        size, start = data.tokenizer.vocab_size, data.tokenizer.bos_id
        longest = max(int(split.labels.lengths.max()) for split in (data.train, data.val, data.test))
        longest = max(longest, data.answering.answer_tokens + 1)
        config = self._model(vocab_size=size, start_id=start, max_len=longest)
        if config.vocab_size < size:
            raise ConfigError(
                f"should be the tokenizer's {size} tokens or more, got {config.vocab_size}", "model.vocab_size"
            )
        if config.start_id != start:
            raise ConfigError(
                f"should be {start}, what targets start with here, got {config.start_id}", "model.start_id"
            )
        return config

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        labels = fed(model, batch["labels"])  # (B, T)
        mask = batch.get("source_mask")  # (B, F)
        mask = None if mask is None else fed(model, mask)
        memory = model.encode(fed(model, batch["source"]), mask)  # (B, S, D)
        context = Context(memory=memory, memory_mask=model.memory_mask(mask), counted=labels != IGNORE)
        x = model.features(fed(model, batch["target"]), context)  # (B, T, D)
        if model.training:
            return model.head.loss(x, labels, label_smoothing=self.task.label_smoothing), {}
        loss, hits = model.head.score(x, labels)
        return loss, {"token_accuracy": hits}

    def tokens(self, batch: Batch) -> int:
        """Frames and words."""
        rows, _, frames = batch["source"].shape
        return rows * frames + batch["target"].numel()

    def example_inputs(self, data: Prepared) -> tuple[Any, ...]:
        batch = data.test.batch([0], None)
        self._example_tokens = self.tokens(batch)
        return batch["source"], batch["target"]

    _example_tokens = 1

    @property
    def example_tokens(self) -> int:
        return self._example_tokens

    def evaluate(self, model: nn.Module, data: Prepared, split: str) -> Metrics:
        loss = hits = targets = 0.0
        for batch in self.eval_batches(getattr(data, split)):
            summed, logs = self.loss(model, batch)
            loss, hits = loss + float(summed), hits + float(logs["token_accuracy"])
            targets += float(batch["window_targets"])
        found = self._scored(self.answers(model, data, split), data, split)
        found |= {"loss": loss / targets, "token_accuracy": hits / targets}
        if self.task.beams > 1 and split == "test":
            greedy = self._scored(self._written(model, data, split, beams=1), data, split)
            found |= {f"{name}@greedy": value for name, value in greedy.items()}
        return {f"{split}/{name}": value for name, value in found.items()}

    def answers(self, model: nn.Module, data: Prepared, split: str) -> list[str]:
        """The words of all clips of a split, in its order. Those asked for last are kept."""
        if self._answers is None or self._answers[:2] != (split, id(model)):
            self._answers = split, id(model), self._written(model, data, split, beams=self.task.beams)
        return self._answers[2]

    def _written(self, model: nn.Module, data: Prepared, split: str, beams: int) -> list[str]:
        search = {"most": data.answering.answer_tokens, "beams": beams, "length_penalty": self.task.length_penalty}
        return words_of_batches(model, data.tokenizer, self.eval_batches(getattr(data, split)), **search)

    def _scored(self, answers: Sequence[str], data: Prepared, split: str) -> Metrics:
        """Errors over all clips; and over those of seen and of unseen speakers, where there are both."""
        from recipes.speech.metrics import speech_errors

        clips, known = data.clips(split), set(data.speech.train.speakers)
        found = speech_errors(answers, clips.texts)
        kinds = {row: "seen" if clips.speakers[row] in known else "unseen" for row in clips.spoken}
        for kind in sorted(set(kinds.values())) if len(set(kinds.values())) == 2 else ():
            rows = [row for row, its in kinds.items() if its == kind]
            errors = speech_errors([answers[row] for row in rows], [clips.texts[row] for row in rows])
            found |= {f"{kind}_{name}": value for name, value in errors.items()}
        return found

    def baselines(self, data: Prepared) -> dict[str, Metrics]:
        from recipes.speech.baselines import constant_answer, equal_pieces

        constant = constant_answer(data.speech.train.texts)
        size = len(data.speech.test)
        answers = {"nothing": [""] * size, f"always '{constant}'": [constant] * size}
        pieces = equal_pieces(data.train.examples, data.test.examples)
        if pieces is not None:
            answers["equal pieces, logistic regression"] = pieces
        scored = {name: self._scored(told, data, "test") for name, told in answers.items()}
        return {name: {f"test/{key}": value for key, value in found.items()} for name, found in scored.items()}

    def figures(self, model: nn.Module, data: Prepared, folder: Path) -> list[Path]:
        from recipes.figures import learning_curves
        from recipes.speech.figures import errors_by_speaker, listening, spectrogram_and_attention

        answers, clips = self.answers(model, data, "test"), data.clips("test")
        known = set(data.speech.train.speakers)
        drawn = [
            learning_curves(folder.parent / "metrics.csv", folder / "learning_curves.png"),
            errors_by_speaker(answers, clips, known, folder / "errors_by_voice.png"),
            spectrogram_and_attention(model, data.tokenizer, data.test, folder / "attention.png"),
            *listening(answers, clips, folder, self.task.samples),
        ]
        return [path for path in drawn if path is not None]

    def export(self, model: nn.Module, data: Prepared, folder: Path) -> None:
        from zoo.library import save_pretrained

        save_pretrained(model, folder)
        save_answering(data.tokenizer, data.answering, folder)

    def load_exported(self, folder: Path) -> nn.Module:
        from zoo.library import load_pretrained

        return load_pretrained(folder)

    def check_fits(self, model: nn.Module, data: Prepared) -> None:
        config: Any = model.config
        if config.vocab_size < data.tokenizer.vocab_size:
            told = f"the model has {config.vocab_size} tokens, the tokenizer {data.tokenizer.vocab_size}"
            raise ConfigError(told, "data")

    @classmethod
    def predict(cls, run: Path, argv: Sequence[str]) -> int:
        from recipes.speech.answer import answer
        from zoo.library import load_pretrained

        return answer(load_pretrained(run / "model"), *load_answering(run / "model"), argv)


RECIPE = Whisper
