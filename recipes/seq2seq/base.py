"""The base of recipes from one sequence to another: data, loss, evaluation by generation, pictures, answers.

Data is a corpus of pairs, such as `cmudict` (letters to phonemes), `wmt14`, `xsum`, or a user's own files. Where the
target is made of symbols (`task.target_tokenizer: words`), the figures are per, errors per symbol of the nearest
reference (insertions, deletions and substitutions over its length), and wer, the share of sources whose answer equals
none of their references. Other texts get exact_match, bleu and chrf. All come from generated answers, beside loss and
token_accuracy with the right target given so far.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor, nn

from recipes.data.loader import Examples
from recipes.data.text.bucketing import Bucketed
from recipes.data.text.corpora import Pair, PairData
from recipes.data.text.padding import IGNORE
from recipes.data.text.pairs import PairExamples
from recipes.data.text.tokenizer_kinds import Characters, Words
from recipes.data.text.tokenizers import TokenizerConfig
from recipes.recipe import Batch, Metrics, Recipe, TaskConfig, decode_as, fed
from recipes.seq2seq.vocabulary import PairVocabulary
from zoo.blocks.api import Context, ModelConfig
from zoo.files import write_text
from zoo.registry import Config, ConfigError, decode, describe, part

__all__ = ["Seq2SeqData", "Seq2SeqRecipe", "Seq2SeqTask"]

Count = Annotated[int, Field(ge=1)]
SPLITS = ("train", "val", "test")


class Seq2SeqTask(TaskConfig):
    """Keys of `task`."""

    batch_size: Count = 64
    """Pairs a step."""
    eval_batch_size: Count = 512
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    tokenizer: Annotated[TokenizerConfig, part("tokenizer")] = Characters(special=("pad", "bos", "eos"))
    """Of the source; its special tokens (pad and eos at least) serve both sides."""
    target_tokenizer: Annotated[TokenizerConfig | None, part("tokenizer")] = Words(special=("unk",))
    """Of the target, whose ids come after those of the source; null: one tokenizer, trained on both sides."""
    max_tokens: Count | None = None
    """Longer sources and targets are cut; null: none is."""
    limit: Count | None = None
    """Pairs of each split that are used, the first ones; null: all."""
    pool: Count = 50
    """Batches that are sorted by length together, so that rows of a batch are about as long as each other."""
    beams: Count = 1
    """Beams of the evaluation; with more than one, the test figures of greedy ones stand beside it: <name>@greedy."""
    length_penalty: float = 1.0
    """A beam's summed log-probability is divided by its length to this power."""
    answer_tokens: Count | None = None
    """Longest answer; null: half as long again as the longest training target."""
    samples: Annotated[int, Field(ge=0)] = 20
    """Answers that are written to figures/samples.txt."""


class Answering(Config):
    """What must be known to answer a user's text with an exported model, beside its tokenizers."""

    answer_tokens: Count
    max_tokens: Count | None = None
    lowercase: bool = False
    """All sources in training were lower case, so a user's are made so too."""
    length_penalty: float = 1.0


@dataclass(frozen=True)
class Seq2SeqData:
    """A corpus of pairs as rows of ids, and the texts themselves."""

    corpus: PairData
    vocabulary: PairVocabulary
    answering: Answering
    train: Examples
    val: Examples
    test: Examples

    def references(self, split: str) -> list[tuple[str, ...]]:
        """All right answers to each source of a split."""
        return [pair.references for pair in getattr(self.corpus, split)]


class Seq2SeqRecipe(Recipe):
    """Sequence to sequence with any model that has `encode`, `features` and `head` (zoo/models/encoder_decoder.py)."""

    task_type = Seq2SeqTask
    headline = ("test/per", "test/wer", "test/chrf", "test/bleu", "test/exact_match", "test/loss")  # those there are
    task: Seq2SeqTask
    family = "transformer"
    """The model where the settings name none."""
    _answers: tuple[str, int, list[str]] | None = None
    """Split, the model's id, and its answers, so that figures need not ask again."""

    @property
    def symbols(self) -> bool:
        """Whether targets are made of symbols, such as phonemes."""
        return isinstance(self.task.target_tokenizer, Words)

    def load(self) -> Seq2SeqData:
        corpus = self.data_config.load(self.settings.get("seed") or 0)
        if not isinstance(corpus, PairData):
            name = self.data_config.registered_name
            raise ConfigError(f"'{name}' is no corpus of pairs; choices: cmudict, hub_pairs", "data")
        if self.task.limit is not None:
            cut = {split: getattr(corpus, split)[: self.task.limit] for split in SPLITS}
            corpus = PairData(**cut, source=corpus.source, content_hash=corpus.content_hash)
        checkpoint = self.settings.get("checkpoint")  # other data is read with the tokenizers of the model
        if checkpoint:
            vocabulary, answering = load_answering(Path(checkpoint) / "model")
        else:
            vocabulary = self.make_vocabulary(corpus)
            answering = self._answering(corpus, vocabulary)
        examples = {split: self._examples(getattr(corpus, split), vocabulary) for split in SPLITS}
        return Seq2SeqData(corpus, vocabulary, answering, **examples)

    def make_vocabulary(self, corpus: PairData) -> PairVocabulary:
        """The tokenizers, trained on the training split alone."""
        sources, targets = ([getattr(pair, side) for pair in corpus.train] for side in ("source", "target"))
        if self.task.target_tokenizer is None:
            return PairVocabulary(self.task.tokenizer.train(sources + targets))
        return PairVocabulary(self.task.tokenizer.train(sources), self.task.target_tokenizer.train(targets))

    def _answering(self, corpus: PairData, vocabulary: PairVocabulary) -> Answering:
        longest = int(vocabulary.targets([pair.target for pair in corpus.train]).lengths.max())
        longest = min(longest + 1, self.task.max_tokens or longest + 1)
        return Answering(
            answer_tokens=self.task.answer_tokens or longest + longest // 2,
            max_tokens=self.task.max_tokens,
            lowercase=all(pair.source == pair.source.lower() for pair in corpus.train),
            length_penalty=self.task.length_penalty,
        )

    def _examples(self, pairs: Sequence[Pair], vocabulary: PairVocabulary) -> Any:
        sources = vocabulary.sources([pair.source for pair in pairs])
        targets = vocabulary.targets([pair.target for pair in pairs])
        ends = {"eos": vocabulary.eos_id, "source_eos": vocabulary.eos_id, "pad": vocabulary.pad_id}
        made = PairExamples(sources, targets, start=vocabulary.start_id, limit=self.task.max_tokens, **ends)
        return Bucketed(made, pool=self.task.pool)

    def model_config(self, data: Seq2SeqData) -> ModelConfig:
        given = self.settings.get("model") or self.family
        value: dict[str, Any] = {"family": given} if isinstance(given, str) else dict(given)
        value.setdefault("family", self.family)
        made = describe("model", value["family"]).make
        fields = (made if isinstance(made, type) else type(made())).model_fields
        if "source_vocab_size" not in fields:
            text = f"'{value['family']}' has no encoder and decoder; choices: transformer, t5, rnn and their presets"
            raise ConfigError(text, "model")
        size = data.vocabulary.vocab_size
        longest = max(int(data.train.lengths.max()), data.answering.answer_tokens + 1)  # type: ignore[attr-defined]
        for name, fact in (("vocab_size", size), ("max_len", longest), ("start_id", data.vocabulary.start_id)):
            if value.get(name) is None:
                value[name] = fact
        config: Any = decode("model", value, "model")
        for name in ("vocab_size", "source_vocab_size"):
            tokens = getattr(config, name)
            if tokens is not None and tokens < size:
                text = f"should be the {size} tokens of both tokenizers or more, got {tokens}"
                raise ConfigError(text, f"model.{name}")
        if config.start_id != data.vocabulary.start_id:
            text = f"should be {data.vocabulary.start_id}, what targets start with here, got {config.start_id}"
            raise ConfigError(text, "model.start_id")
        return config

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        labels = fed(model, batch["labels"])  # (B, T)
        x = features(model, batch)  # (B, T, D)
        if model.training:
            return model.head.loss(x, labels, label_smoothing=self.task.label_smoothing), {}
        loss, hits = model.head.score(x, labels)
        return loss, {"token_accuracy": hits}

    def tokens(self, batch: Batch) -> int:
        return batch["source"].numel() + batch["target"].numel()

    def example_inputs(self, data: Seq2SeqData) -> tuple[Any, ...]:
        batch = data.test.batch([0], None)
        self._example_tokens = self.tokens(batch)
        return batch["source"], batch["target"]

    _example_tokens = 1

    @property
    def example_tokens(self) -> int:
        return self._example_tokens

    def evaluate(self, model: nn.Module, data: Seq2SeqData, split: str) -> Metrics:
        loss = hits = targets = 0.0
        for batch in self.eval_batches(getattr(data, split)):
            summed, logs = self.loss(model, batch)
            loss, hits = loss + float(summed), hits + float(logs["token_accuracy"])
            targets += float(batch["window_targets"])
        found = self._scored(self.answers(model, data, split), data, split)
        found |= {"loss": loss / targets, "token_accuracy": hits / targets}
        if self.task.beams > 1 and split == "test":
            greedy = self._scored(self._generated(model, data, split, beams=1), data, split)
            found |= {f"{name}@greedy": value for name, value in greedy.items()}
        return {f"{split}/{name}": value for name, value in found.items()}

    def answers(self, model: nn.Module, data: Seq2SeqData, split: str) -> list[str]:
        """Answers to all sources of a split, in its order. Those asked for last are kept."""
        if self._answers is None or self._answers[:2] != (split, id(model)):
            self._answers = split, id(model), self._generated(model, data, split, beams=self.task.beams)
        return self._answers[2]

    def _generated(self, model: nn.Module, data: Seq2SeqData, split: str, beams: int) -> list[str]:
        from recipes.seq2seq.generation import answer_examples

        search = {"most": data.answering.answer_tokens, "beams": beams, "length_penalty": self.task.length_penalty}
        return answer_examples(model, data.vocabulary, self.eval_batches(getattr(data, split)), **search)

    def _scored(self, answers: Sequence[str], data: Seq2SeqData, split: str) -> Metrics:
        from recipes.seq2seq.metrics import symbol_errors, text_overlap

        return (symbol_errors if self.symbols else text_overlap)(answers, data.references(split))

    def baselines(self, data: Seq2SeqData) -> dict[str, Metrics]:
        from recipes.seq2seq.baselines import PUBLISHED, aligned_symbols

        train, test = data.corpus.train, data.corpus.test
        if not self.symbols:
            copied = self._scored([pair.source for pair in test], data, "test")
            return {"the source itself": {f"test/{name}": value for name, value in copied.items()}}
        found = self._scored(aligned_symbols(train, [pair.source for pair in test]), data, "test")
        named = {"most frequent symbol of each letter": {f"test/{name}": value for name, value in found.items()}}
        return named | PUBLISHED.get(self.data_config.registered_name, {})

    def figures(self, model: nn.Module, data: Seq2SeqData, folder: Path) -> list[Path]:
        from recipes.figures import learning_curves
        from recipes.seq2seq.figures import cross_attention, errors_by_length

        answers, pairs = self.answers(model, data, "test"), data.corpus.test
        drawn = [
            learning_curves(folder.parent / "metrics.csv", folder / "learning_curves.png"),
            errors_by_length(answers, pairs, folder / "errors_by_length.png", symbols=self.symbols),
            cross_attention(model, data, folder / "attention.png"),
            self._samples(answers, pairs, folder / "samples.txt"),
        ]
        return [path for path in drawn if path is not None]

    def _samples(self, answers: Sequence[str], pairs: Sequence[Pair], path: Path) -> Path | None:
        """Source, answer, and what would have been right where it is not."""
        if not self.task.samples:
            return None
        lines = []
        step = max(1, len(pairs) // self.task.samples)
        for answer, pair in list(zip(answers, pairs, strict=True))[::step][: self.task.samples]:
            right = answer in pair.references
            lines.append(f"{pair.source} -> {answer}" + ("" if right else f"   (right: {' / '.join(pair.references)})"))
        write_text(path, "\n".join(lines) + "\n")
        return path

    def export(self, model: nn.Module, data: Seq2SeqData, folder: Path) -> None:
        from zoo.library import save_pretrained
        from zoo.registry import encode

        save_pretrained(model, folder)
        data.vocabulary.save(folder)
        write_text(folder / ANSWERING, json.dumps(encode(data.answering), indent=2) + "\n")

    def load_exported(self, folder: Path) -> nn.Module:
        from zoo.library import load_pretrained

        return load_pretrained(folder)

    def check_fits(self, model: nn.Module, data: Seq2SeqData) -> None:
        config: Any = model.config
        size = data.vocabulary.vocab_size
        if config.vocab_size < size:
            raise ConfigError(f"the model has {config.vocab_size} tokens, the tokenizers {size}", "data")

    @classmethod
    def predict(cls, run: Path, argv: Sequence[str]) -> int:
        from recipes.seq2seq.answer import answer
        from zoo.library import load_pretrained

        vocabulary, answering = load_answering(run / "model")
        return answer(load_pretrained(run / "model"), vocabulary, answering, argv)


ANSWERING = "answering.json"


def load_answering(folder: Path) -> tuple[PairVocabulary, Answering]:
    """What `export` wrote beside the model. Raises ConfigError."""
    try:
        held = json.loads((folder / ANSWERING).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError(f"'{folder / ANSWERING}' is missing or damaged; train the run anew", "checkpoint") from None
    return PairVocabulary.load(folder), decode_as(Answering, held, ANSWERING)


def features(model: Any, batch: Batch) -> Tensor:
    """What the head reads (B, T, D) for a batch of source, source_mask where padded, target, and labels if it has them.

    A target is padded at its end, where no real token sees the padding: it is masked for what counts tokens only.
    """
    mask = batch.get("source_mask")
    mask = None if mask is None else fed(model, mask)
    memory = model.encode(fed(model, batch["source"]), mask)  # (B, S, D)
    real = fed(model, batch["labels"] != IGNORE) if "labels" in batch else None  # (B, T)
    return model.features(fed(model, batch["target"]), Context(memory=memory, memory_mask=mask, counted=real))
