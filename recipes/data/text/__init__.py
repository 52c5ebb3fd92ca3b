"""Text of the recipes: corpora, tokenizers, and the examples that models of language train on.

A corpus (kind "data") loads to documents, pairs or labelled texts (`corpora`); a tokenizer (kind "tokenizer") is
trained once on the training split and turns texts into `Sequences`, one flat array of ids; examples cut batches out of
these (`packing`, `masked`, `spans`, `denoising`, `pairs`, `labelled`), and `bucketing` orders them by length.
"""
