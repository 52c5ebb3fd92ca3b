"""transformer: from one sequence to another with the Transformer of 2017.   python -m zoo.run recipe=transformer

Vaswani et al. 2017, arXiv:1706.03762: post-norm, sinusoidal positions, embeddings times sqrt(D), one table for source,
target and head, label smoothing. `model=rnn` is the arm before it, an LSTM with additive attention (Bahdanau et al.
2014, arXiv:1409.0473). The default data is letters to phonemes (`cmudict`); recipes/seq2seq/base.py names the figures.
"""

from __future__ import annotations

from recipes.seq2seq.base import Seq2SeqRecipe

__all__ = ["Transformer"]


class Transformer(Seq2SeqRecipe):
    family = "transformer"


RECIPE = Transformer
