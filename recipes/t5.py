"""t5: learn to fill in text, then a task from one sequence to another.   python -m zoo.run recipe=t5

Raffel et al. 2019, arXiv:1910.10683. The first `task.pretrain_steps` steps learn `task.objective` from the texts of the
training split, sources and targets each for themselves, so that no text of val or test and no pairing is seen; all
further steps learn the task. Objectives: span_corruption (T5), prefix_lm (section 3.2.1 there), bart_denoise (Lewis et
al. 2019, arXiv:1910.13461). `task.pretrain_steps=0` learns the task from scratch. One optimizer and one schedule run
through both phases. The figures are those of recipes/seq2seq/base.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from recipes.data.loader import EpochLoader
from recipes.data.text.bucketing import Bucketed
from recipes.data.text.denoising import Denoising, DenoisingExamples
from recipes.data.text.sequences import Sequences
from recipes.data.text.spans import PrefixExamples, RewrittenExamples, SpanExamples
from recipes.data.text.tokenizer_kinds import Characters
from recipes.data.text.tokenizers import TokenizerConfig
from recipes.seq2seq.base import Seq2SeqData, Seq2SeqRecipe, Seq2SeqTask
from recipes.seq2seq.phases import Phases
from zoo.registry import ConfigError, part

__all__ = ["T5", "T5Task"]


class T5Task(Seq2SeqTask):
    """Keys of `task`."""

    tokenizer: Annotated[TokenizerConfig, part("tokenizer")] = Characters(special=("pad", "eos", "mask"), sentinels=16)
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    pretrain_steps: Annotated[int, Field(ge=0)] = 600
    """Steps of the objective before the task; 0: none."""
    objective: Literal["span_corruption", "prefix_lm", "bart_denoise"] = "span_corruption"
    density: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of tokens that span corruption takes out."""
    mean_span: Annotated[float, Field(ge=1)] = 3.0
    """Mean length of its spans."""
    denoising: Denoising = Denoising()
    """How bart_denoise damages a text."""


class T5(Seq2SeqRecipe):
    task_type = T5Task
    task: T5Task
    family = "t5"
    optional_lr_scale = ("mixer.bias",)  # a mixer other than attention has no relative bias

    def train_batches(self, data: Seq2SeqData, accumulate: int, rank: int, ranks: int) -> Any:
        if not self.task.pretrain_steps:
            return super().train_batches(data, accumulate, rank, ranks)
        seed, size = self.settings.get("seed") or 0, self.task.batch_size
        steps = self.task.pretrain_steps * accumulate
        first: Any = Bucketed(self.pretraining(data), pool=self.task.pool)
        train: Any = data.train
        phases = Phases(first, train, steps=steps, size=size * ranks, seed=seed)
        options: dict[str, Any] = {"accumulate": accumulate, "rank": rank, "world_size": ranks}
        return EpochLoader(phases, size, shuffle=True, seed=seed, workers=self.task.workers, **options)

    def pretraining(self, data: Seq2SeqData) -> RewrittenExamples:
        """The objective over each text of the training split, once. Raises ConfigError."""
        vocabulary, pairs = data.vocabulary, data.corpus.train
        sources = vocabulary.sources(list(dict.fromkeys(pair.source for pair in pairs)))
        targets = vocabulary.targets(list(dict.fromkeys(pair.target for pair in pairs)))
        rows = Sequences.join([sources, targets]).framed(limit=self.task.max_tokens)
        tokenizer: Any = vocabulary  # it has what the objectives ask a tokenizer for
        ends: dict[str, Any] = {"start": vocabulary.start_id, "eos": vocabulary.eos_id}
        try:
            if self.task.objective == "prefix_lm":
                return PrefixExamples(rows, tokenizer, **ends)
            if self.task.objective == "bart_denoise":
                return DenoisingExamples(rows, tokenizer, self.task.denoising, **ends)
            noise = {"density": self.task.density, "mean_span": self.task.mean_span}
            return SpanExamples(rows, tokenizer, **noise, **ends)
        except ConfigError as error:
            raise ConfigError(error.problems, "task") from None


RECIPE = T5
