"""The tokenizers by name: bpe, wordpiece, unigram, characters, bytes, words."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import Field

from recipes.data.text.spelling import NIBBLES, Alphabet, find_alphabet
from recipes.data.text.tokenizer_models import CONTINUES, ByteModel, CharacterModel, PieceModel, TextModel, WordModel
from recipes.data.text.tokenizers import TokenizerConfig
from zoo.registry import register

__all__ = ["Bpe", "Bytes", "Characters", "Unigram", "WordPiece", "Words"]

# Words with the space before them, numbers, punctuation, white space: nothing is lost, and none is long enough for the
# quadratic search of WordPiece to matter.
WORDS = r" ?\p{L}{1,40}| ?\p{N}{1,40}| ?[^\s\p{L}\p{N}]{1,40}|\s{1,40}(?!\S)|\s{1,40}"
BREAK = "\U000ffffd"  # between words in a training text; reserved, so that no text of known characters holds it


@register("tokenizer", "bpe", paper="Sennrich et al. 2015, arXiv:1508.07909")
class Bpe(TokenizerConfig):
    """Byte-level byte-pair encoding, as in GPT-2 (Radford et al. 2019).

    vocab_size: special tokens and sentinels included. Text of few words gives fewer.
    """

    vocab_size: int = Field(default=1024, ge=1)

    def model(self, texts: Sequence[str]) -> TextModel:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        room = self.room(self.vocab_size, 256)
        library = Tokenizer(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
        every_byte = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(vocab_size=room, initial_alphabet=every_byte, show_progress=False)
        library.train_from_iterator(texts, trainer)
        return PieceModel("bpe", library, None)


class _Pieces(TokenizerConfig):
    """Base of tokenizers that learn pieces over an alphabet.

    vocab_size: special tokens and sentinels included. alphabet: most frequent characters of the training texts that are
    known; all others are spelled in bytes, two tokens each.
    """

    vocab_size: int = Field(default=2048, ge=1)
    alphabet: int = Field(default=512, ge=1)


@register("tokenizer", "wordpiece", paper="Wu et al. 2016, arXiv:1609.08144")
class WordPiece(_Pieces):
    """WordPiece as in BERT: words are cut greedily into the longest known pieces.

    Departures: the space before a word belongs to it and case stays, so that nothing is lost; a word of unknown
    characters is spelled instead of becoming one unknown token. Pieces are learnt by merging frequent pairs, as the
    `tokenizers` library does it.
    """

    def model(self, texts: Sequence[str]) -> TextModel:
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

        known = find_alphabet(texts, self.alphabet)
        letters = known.characters
        room = self.room(self.vocab_size, NIBBLES + 2 * len(letters)) - NIBBLES
        # A letter inside a word is another symbol than at its start. The library's own trainer numbers these symbols in
        # the order of a hash table, other in every process, so each gets a private character and plain merging runs.
        inner = {ord(letter): 0xF0001 + place for place, letter in enumerate(letters)}
        outer = {private: letter for letter, private in inner.items()}
        merging = Tokenizer(models.BPE())
        merging.pre_tokenizer = pre_tokenizers.Split(BREAK, "removed")  # pyright: ignore[reportAttributeAccessIssue]
        alphabet = [*letters, *map(chr, outer)]
        trainer = trainers.BpeTrainer(vocab_size=room, initial_alphabet=alphabet, show_progress=False)
        merging.train_from_iterator(_repeated(_words(texts, known), inner), trainer)
        learnt = sorted(merging.get_vocab().items(), key=lambda item: item[1])
        tokens = [(CONTINUES if ord(token[0]) in outer else "") + token.translate(outer) for token, _ in learnt]
        vocabulary = {token: place for place, token in enumerate(tokens)}
        greedy = models.WordPiece(vocabulary, unk_token="", continuing_subword_prefix=CONTINUES)
        greedy.max_input_chars_per_word = 64
        library = Tokenizer(greedy)
        library.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
        return PieceModel("wordpiece", library, letters)


@register("tokenizer", "unigram", paper="Kudo 2018, arXiv:1804.10959")
class Unigram(_Pieces):
    """The unigram language model of SentencePiece: the most probable of all ways to cut a word.

    Departures: the space before a word is kept as it is, instead of one sign for all white space. Scores are rounded,
    since the library sums them in no fixed order.
    """

    def model(self, texts: Sequence[str]) -> TextModel:
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

        known = find_alphabet(texts, self.alphabet)
        letters = known.characters
        room = self.room(self.vocab_size, NIBBLES + len(letters)) - NIBBLES
        split: Any = pre_tokenizers.Split(Regex(WORDS), "isolated")
        scores: dict[str, float] = {}
        if letters:
            learning = Tokenizer(models.Unigram())
            learning.pre_tokenizer = split
            trainer = trainers.UnigramTrainer(vocab_size=room, initial_alphabet=list(letters), show_progress=False)
            learning.train_from_iterator(map(known.known_only, texts), trainer)
            scores = {piece: round(score, 4) for piece, score in json.loads(learning.to_str())["model"]["vocab"]}
        # Every letter stays, however rare; of the other pieces the most probable, as many as there is room for.
        least = min(scores.values(), default=0.0)
        kept = {letter: scores.get(letter, least) for letter in letters}
        ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
        longer = [item for item in ranked if item[0] not in kept][: room - len(kept)]
        library = Tokenizer(models.Unigram([*sorted(kept.items()), *longer]))
        library.pre_tokenizer = split
        return PieceModel("unigram", library, letters)


@register("tokenizer", "characters")
class Characters(TokenizerConfig):
    """A token for each character of the training texts; others are spelled in bytes, two tokens each.

    alphabet: most frequent characters that get a token.
    """

    alphabet: int = Field(default=512, ge=1)

    def model(self, texts: Sequence[str]) -> TextModel:
        return CharacterModel(find_alphabet(texts, self.alphabet).characters)


@register("tokenizer", "bytes")
class Bytes(TokenizerConfig):
    """A token for each byte of UTF-8; nothing to train."""

    def model(self, texts: Sequence[str]) -> TextModel:
        return ByteModel()


@register("tokenizer", "words")
class Words(TokenizerConfig):
    """A token for each symbol that white space separates, such as phonemes.

    Round trips hold for known symbols joined by one space. Unknown ones become `unk`, or ValueError where that is not
    among the special tokens. limit: most frequent symbols that are kept; None: all.
    """

    limit: int | None = Field(default=None, ge=1)

    def model(self, texts: Sequence[str]) -> TextModel:
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text.split())
        ranked = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
        return WordModel(sorted(ranked[: self.limit]), "unk" in self.special)


def _words(texts: Sequence[str], known: Alphabet) -> Counter[str]:
    """How often each word occurs in the texts without unknown characters; cut as `WORDS`, in Python's classes."""
    pattern = re.compile(r" ?[^\W\d_]{1,40}| ?\d{1,40}| ?(?:[^\w\s]|_){1,40}|\s{1,40}(?!\S)|\s{1,40}")
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(pattern.findall(known.known_only(text)))
    return counts


def _repeated(counts: Counter[str], inner: dict[int, int]) -> Iterator[str]:
    """Each word as often as it occurs, its letters after the first made private; in sorted order."""
    for word, count in sorted(counts.items()):
        symbols = word[0] + word[1:].translate(inner) + BREAK
        for start in range(0, count, 10_000):
            yield symbols * min(10_000, count - start)
