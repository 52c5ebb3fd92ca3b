"""bert: tell masked tokens from both sides, then learn a classification from a few labels.

    python -m zoo.run recipe=bert

Pre-training is masked language modelling (Devlin et al. 2018, arXiv:1810.04805), with `model.next_sentence=true` also
next-sentence prediction, and with `model=electra` replaced-token detection (Clark et al. 2020, arXiv:2003.10555).
Figures, on val and test:

    masked_accuracy, masked_loss     on fixed masks: `task.eval_probability` of the tokens, the same in every run, and
                                     shown as in BERT's own masked_lm_accuracy (80 % mask token, 10 % another token,
                                     10 % as they are); ELECTRA: told by the generator
    hidden_accuracy                  on those of them alone that are shown as the mask token
    next_sentence_accuracy, replaced_accuracy, replaced_share
    downstream_accuracy              fine-tuned on the labelled texts (`task.downstream`), mean over the draws of
    downstream_accuracy_std          labels, and its standard deviation (of the draws, not of the mean)
    downstream_probe                 logistic regression on the frozen features, mean over the draws

beside neighbours of the same masked tokens, the same model from scratch, tf-idf with logistic regression, the most
frequent class, and for syllables two hand-made rules. What is tuned in a run is tuned on the validation labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from recipes.data.text.bucketing import Bucketed
from recipes.data.text.corpora import LabelledText, TextData
from recipes.data.text.masked import MaskedExamples
from recipes.data.text.tokenizer_kinds import Characters
from recipes.data.text.tokenizers import Tokenizer, TokenizerConfig
from recipes.masked.arms import DownstreamArms, classes_of, mean_over_draws
from recipes.masked.corpus import MaskedData, labelled_splits, rows_of
from recipes.masked.downstream import DownstreamTask
from recipes.masked.loader import WindowLoader
from recipes.masked.losses import electra_loss, masked_lm_loss, on_device
from recipes.masked.sentence_pairs import SentencePairs
from recipes.recipe import Batch, Metrics, Recipe, TaskConfig
from zoo.blocks.api import ModelConfig
from zoo.registry import ConfigError, decode, describe, part

__all__ = ["BertTask"]

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Probability = Annotated[float, Field(gt=0.0, le=1.0)]


class BertTask(TaskConfig):
    """Keys of `task`."""

    batch_size: Count = 128
    """Rows a step."""
    length: Annotated[int, Field(ge=3)] = 128
    """Longest row in tokens, cls and sep included; longer documents are cut into several rows."""
    probability: Probability = 0.15
    """Share of the tokens that are to be told."""
    mask: Share | None = None
    """Of these, the share shown as the mask token; null: 0.8, for ELECTRA 0.85."""
    random: Share | None = None
    """The share shown as another token; null: 0.1, for ELECTRA 0. The rest is shown as it is."""
    whole_word: bool = False
    """All tokens of a word are masked or none."""
    eval_probability: Probability = 0.15
    """Share of the tokens that are masked in evaluation."""
    eval_mask: Share = 0.8
    """Of these, the share shown as the mask token."""
    eval_random: Share = 0.1
    """The share shown as another token."""
    replaced_weight: Annotated[float, Field(ge=0.0)] = 50.0
    """ELECTRA: weight of the discriminator's loss."""
    tokenizer: Annotated[TokenizerConfig, part("tokenizer")] = Characters(special=("pad", "cls", "sep", "mask"))
    downstream: DownstreamTask = DownstreamTask()
    pretrained: str | None = None
    """Run folder whose weights and tokenizer this run starts from."""


class Bert(Recipe):
    """Masked language modelling with any encoder of the `bert` or `electra` family, and its use."""

    task_type = BertTask
    loader_type = WindowLoader
    headline = ("test/masked_accuracy", "test/hidden_accuracy", "test/downstream_accuracy", "test/downstream_probe")
    task: BertTask

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.arms = DownstreamArms(self.task.downstream, self.task.length, self.task.eval_batch_size)
        self._kept_baselines: dict[str, Metrics] = {}

    @property
    def _electra(self) -> bool:
        return "generator_share" in self._fields()

    def _fields(self) -> Any:
        """The fields of the model that the settings name."""
        value = self.settings.get("model") or "bert"
        family = value if isinstance(value, str) else value.get("family") or "bert"
        made = describe("model", family).make
        return (made if isinstance(made, type) else type(made())).model_fields

    # Data

    def load(self) -> MaskedData:
        corpus = self.data_config.load(self.settings.get("seed") or 0)
        if not isinstance(corpus, (TextData, LabelledText)):
            name = self.data_config.registered_name
            raise ConfigError(f"'{name}' is no text; choices: cmudict_words, kjv, hub_text, hub_labelled", "data")
        start = self.settings.get("checkpoint") or self.task.pretrained  # its tokens are those of the weights
        if start and not (Path(start) / "model").is_dir():
            raise ConfigError(f"'{start}' is not a run folder with an exported model", "task.pretrained")
        tokenizer = Tokenizer.load(Path(start) / "model") if start else self.task.tokenizer.train(corpus.train)
        for role in ("pad", "cls", "sep", "mask"):
            if getattr(tokenizer, f"{role}_id") is None:
                raise ConfigError(f"needs {role} among its special tokens", "task.tokenizer.special")
        rows = rows_of(corpus, tokenizer, self.task.length - 2)
        made = {split: self._examples(rows[split], tokenizer, split) for split in rows}
        labelled = labelled_splits(corpus)
        return MaskedData(
            tokenizer, **made, rows=rows, labelled=labelled, source=corpus.source, content_hash=corpus.content_hash
        )

    def _examples(self, rows: Any, tokenizer: Tokenizer, split: str) -> Bucketed:
        task = self.task
        shares: dict[str, Any] = {"mask": task.eval_mask, "random": task.eval_random}
        probability = task.eval_probability
        if split == "train":
            usual = (0.85, 0.0) if self._electra else (0.8, 0.1)
            given = zip(("mask", "random"), (task.mask, task.random), usual, strict=True)
            shares = {name: default if value is None else value for name, value, default in given}
            probability = task.probability
            if sum(shares.values()) > 1:
                raise ConfigError(f"should be at most 1 with task.random, got {sum(shares.values()):g}", "task.mask")
        if self._next_sentence():
            options: dict[str, Any] = {**shares, "whole_word": task.whole_word, "limit": task.length}
            return Bucketed(SentencePairs(rows, tokenizer, probability, **options))
        return Bucketed(MaskedExamples(rows, tokenizer, probability, whole_word=task.whole_word, **shares))

    def _next_sentence(self) -> bool:
        value = self.settings.get("model")
        return bool(isinstance(value, Mapping) and value.get("next_sentence"))

    # Model

    def model_config(self, data: MaskedData) -> ModelConfig:
        given = self.settings.get("model") or "bert"
        value: dict[str, Any] = {"family": given} if isinstance(given, str) else dict(given)
        value.setdefault("family", "bert")
        fields = self._fields()
        if "token_types" not in fields or "masked_lm" not in fields:
            raise ConfigError(
                f"'{value['family']}' does not tell masked tokens; choose bert, electra or a preset", "model"
            )
        if self._next_sentence() and self._electra:
            raise ConfigError("ELECTRA has no next-sentence loss; leave it out", "model.next_sentence")
        if self._next_sentence() and value.get("token_types", 2) < 2:
            raise ConfigError("should be 2 or more with next_sentence", "model.token_types")
        for name, fact in (("vocab_size", data.tokenizer.vocab_size), ("max_len", self.task.length)):
            if value.get(name) is None:
                value[name] = fact
        config: Any = decode("model", value, "model")
        if config.vocab_size < data.tokenizer.vocab_size:
            text = f"should be the {data.tokenizer.vocab_size} tokens of the tokenizer or more, got {config.vocab_size}"
            raise ConfigError(text, "model.vocab_size")
        if config.max_len < self.task.length:
            raise ConfigError(
                f"should be task.length {self.task.length} or more, got {config.max_len}", "model.max_len"
            )
        if config.num_classes:
            raise ConfigError("should be 0: the classes of the data get a model of their own", "model.num_classes")
        if not self._electra and not config.masked_lm:
            raise ConfigError("should be true: pre-training tells masked tokens", "model.masked_lm")
        return config

    def prepare(self, model: nn.Module, data: MaskedData) -> None:
        if self.task.pretrained is None:
            return
        theirs = self.load_exported(Path(self.task.pretrained) / "model").state_dict()
        self.arms.exported = None
        try:
            model.load_state_dict(theirs)
        except RuntimeError as error:
            why = str(error).splitlines()[-1].strip()
            raise ConfigError(f"the weights in '{self.task.pretrained}' do not fit: {why}", "task.pretrained") from None

    def example_inputs(self, data: MaskedData) -> tuple[Any, ...]:
        return (torch.zeros(1, self._row(data), dtype=torch.long),)

    def _row(self, data: MaskedData) -> int:
        """Tokens of a usual row."""
        self._tokens = int(np.median(data.train.lengths))
        return self._tokens

    _tokens = 1

    @property
    def example_tokens(self) -> int:
        return self._tokens

    def tokens(self, batch: Batch) -> int:
        return batch["ids"].numel()

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        batch = on_device(model, batch)
        if hasattr(model, "discriminator"):
            return electra_loss(model, batch, self.task.replaced_weight)
        return masked_lm_loss(model, batch)

    # Result

    def evaluate(self, model: nn.Module, data: MaskedData, split: str) -> Metrics:
        from recipes.masked.scoring import masked_places, next_sentence_accuracy, replaced_accuracy

        batches = self.eval_batches(getattr(data, split))
        told = masked_places(model, batches, data.tokenizer.mask_id)
        found: Metrics = {"masked_accuracy": told.accuracy, "hidden_accuracy": told.hidden_accuracy}
        found["masked_loss"] = told.loss
        if hasattr(model, "discriminator"):
            found |= replaced_accuracy(model, batches)
        if getattr(model, "sentence_head", None) is not None and self._next_sentence():
            found["next_sentence_accuracy"] = next_sentence_accuracy(model, batches)
        found |= self.arms.pretrained(model, data).get(split, {})
        return {f"{split}/{name}": value for name, value in found.items()}

    def baselines(self, data: MaskedData) -> dict[str, Metrics]:
        from recipes.masked.neighbours import hidden_only, neighbour_accuracies
        from recipes.masked.syllables import CLASSES, rule_accuracies
        from recipes.masked.text_baselines import majority_accuracy, tfidf_accuracy

        tokenizer, labelled = data.tokenizer, data.labelled
        framed = data.rows["train"].framed(tokenizer.cls_id, tokenizer.sep_id)
        told = neighbour_accuracies(framed, tokenizer.first, self.eval_batches(data.test))
        hidden = hidden_only(self.eval_batches(data.test), tokenizer.mask_id)
        of_hidden = neighbour_accuracies(framed, tokenizer.first, hidden)
        found: dict[str, Metrics] = {
            name: {"test/masked_accuracy": told[name], "test/hidden_accuracy": of_hidden[name]} for name in told
        }
        if labelled is not None:
            with torch.random.fork_rng([]):
                torch.manual_seed(self.settings.get("seed") or 0)
                fresh = self.model_config(data).build().eval()
            scratch = self.arms.from_scratch(fresh, data)["test"]
            found["from scratch"] = {f"test/{name}": value for name, value in scratch.items()}
            letters = tokenizer.model.kind == "characters"
            draws = self.arms.draws(data)
            tfidf = [tfidf_accuracy(rows, labelled.val, labelled.test, letters=letters) for rows in draws]
            most = [majority_accuracy(rows, labelled.test) for rows in draws]
            for name, values in (("tf-idf + logistic", tfidf), ("most frequent class", most)):
                found[name] = {f"test/{key}": value for key, value in mean_over_draws({"accuracy": values}).items()}
            if labelled.classes == CLASSES:
                texts, labels = [text for text, _ in labelled.test], [label for _, label in labelled.test]
                for name, value in rule_accuracies(texts, labels).items():
                    found[name] = {"test/downstream_accuracy": value}
        self._kept_baselines = found
        return found

    def figures(self, model: nn.Module, data: MaskedData, folder: Path) -> list[Path]:
        from recipes.figures import learning_curves
        from recipes.masked.figures import accuracy_by_place, attention, downstream_bars
        from recipes.masked.scoring import masked_places

        told = masked_places(model, self.eval_batches(data.test), data.tokenizer.mask_id)
        row = data.rows["test"][int(np.argmax(data.rows["test"].lengths >= np.median(data.rows["test"].lengths)))]
        drawn = [
            learning_curves(folder.parent / "metrics.csv", folder / "learning_curves.png"),
            accuracy_by_place(told, folder / "accuracy_by_place.png"),
            attention(model, data.tokenizer, data.tokenizer.decode(row.tolist()), folder / "attention.png"),
        ]
        name, spread = "test/downstream_accuracy", "test/downstream_accuracy_std"
        own = {f"test/{key}": value for key, value in self.arms.found.get("test", {}).items()}
        arms = {"pre-trained": own, **self._kept_baselines}
        bars = {arm: (found[name], found.get(spread, 0.0)) for arm, found in arms.items() if name in found}
        if bars:
            drawn.append(downstream_bars(bars, folder / "downstream.png"))
        return [path for path in drawn if path is not None]

    def export(self, model: nn.Module, data: MaskedData, folder: Path) -> None:
        from zoo.library import save_pretrained

        save_pretrained(model, folder)
        data.tokenizer.save(folder)
        self.arms.export(model, data, folder)

    def load_exported(self, folder: Path) -> nn.Module:
        from zoo.library import load_pretrained

        self.arms.exported = folder
        return load_pretrained(folder)

    def check_fits(self, model: nn.Module, data: MaskedData) -> None:
        size = getattr(getattr(model, "config", None), "vocab_size", data.tokenizer.vocab_size)
        if size < data.tokenizer.vocab_size:
            raise ConfigError(f"the model has {size} tokens, the tokenizer {data.tokenizer.vocab_size}", "data")

    @classmethod
    def predict(cls, run: Path, argv: Sequence[str]) -> int:
        from recipes.masked.answer import answer
        from zoo.library import load_pretrained

        folder = run / "model"
        classes = classes_of(folder)
        classifier = load_pretrained(folder / "classifier_0") if (folder / "classifier_0").is_dir() else None
        return answer(load_pretrained(folder), Tokenizer.load(folder), classifier, classes, argv)


RECIPE = Bert
