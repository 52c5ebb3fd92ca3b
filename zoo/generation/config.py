"""The choices of generation, checked before any work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from zoo.registry import Config, ConfigError

__all__ = ["GenerationConfig"]

_BOUNDS: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "temperature": (lambda x: x > 0, "above 0", "for the likeliest token at every step leave the sampling choices out"),
    "top_k": (lambda x: x >= 1, "at least 1", "leave it out to keep all tokens"),
    "top_p": (lambda x: 0 < x <= 1, "above 0 and at most 1", "leave it out to keep all tokens"),
    "min_p": (lambda x: 0 <= x <= 1, "between 0 and 1", "leave it out to keep all tokens"),
    "repetition_penalty": (lambda x: x > 0, "above 0", "1 changes nothing, above 1 repeats less"),
    "max_new_tokens": (lambda x: x >= 0, "at least 0", "give the most tokens that a row may gain"),
    "beams": (lambda x: x >= 1, "at least 1", "1 searches without beams"),
    "num_sequences": (lambda x: x >= 1, "at least 1", "give the number of answers to each prompt"),
    "prefill_chunk": (lambda x: x >= 1, "at least 1", "leave it out to read the prompt in one call"),
}
_SAMPLING = ("temperature", "top_k", "top_p", "min_p")


class GenerationConfig(Config):
    """How the next tokens are chosen, and when a row ends.

    The likeliest token at every step unless a sampling choice or `beams` says otherwise. Raises ConfigError.
    """

    max_new_tokens: int = 64
    """Most tokens that each row gains."""
    sample: bool | None = None
    """Draw tokens at random; None: where one of the four choices below is made."""
    temperature: float | None = None
    """Logits are divided by it."""
    top_k: int | None = None
    """Only the k likeliest tokens, and those that tie with the last of them (Fan et al. 2018, arXiv:1805.04833)."""
    top_p: float | None = None
    """Only the fewest likeliest tokens with this probability together (Holtzman et al. 2019, arXiv:1904.09751)."""
    min_p: float | None = None
    """Only tokens of this share of the likeliest one's probability (Nguyen et al. 2024, arXiv:2407.01082)."""
    repetition_penalty: float = 1.0
    """Logits of tokens of the row so far, prompt included: divided where positive, multiplied where negative
    (Keskar et al. 2019, arXiv:1909.05858)."""
    beams: int = 1
    """Beams of each prompt."""
    length_penalty: float = 1.0
    """A beam of n new tokens scores its summed log-probabilities divided by n to this power; 0: the plain sum."""
    early_stopping: Literal["first", "heuristic", "exact"] = "heuristic"
    """When a beam search ends, once `beams` answers are finished. first: at once. heuristic: when the best running
    beam, scored at its present length, is no better than the worst of them. exact: when it cannot become better at
    any length (transformers' True, False and "never")."""
    num_sequences: int = 1
    """Answers to each prompt: samples, or the best beams."""
    eos_id: int | tuple[int, ...] | None = None
    """Tokens that end a row; they are part of it."""
    stop: tuple[tuple[int, ...], ...] = ()
    """Sequences of new tokens that end a row; they are part of it."""
    bos_id: int | None = None
    """First token of an empty prompt."""
    prefill_chunk: int | None = None
    """Prompt tokens of one call; None: all. Bounds the memory of a long prompt."""
    seed: Annotated[int, Field(ge=0)] | None = None
    """Of a fresh generator for the draws; None: the global one, or the generator given."""
    keep_state: bool = False
    """Return the state, so that another call goes on."""

    @field_validator(*_BOUNDS, mode="after")
    @classmethod
    def _bounds(cls, value: Any, info: Any) -> Any:
        if value is not None:
            fits, wanted, fix = _BOUNDS[info.field_name]
            if not fits(value):
                raise ConfigError(f"should be {wanted}, got {value}; {fix}")
        return value

    @field_validator("stop", mode="after")
    @classmethod
    def _stops(cls, value: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        if any(not sequence for sequence in value):
            raise ConfigError("holds an empty sequence, which every row ends with; give one id or more in each")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        chosen = [name for name in _SAMPLING if getattr(self, name) is not None]
        if self.sample is False and chosen:
            raise ConfigError(f"sample false leaves {chosen[0]} without effect; leave one of them out")
        if self.beams > 1 and self.samples:
            name = chosen[0] if chosen else "sample"
            raise ConfigError(f"beams {self.beams} takes no {name}: beams are not drawn; choose one of the two")
        if self.beams > 1 and self.num_sequences > self.beams:
            raise ConfigError(f"num_sequences {self.num_sequences} should be at most beams {self.beams}; raise beams")
        if self.beams > 1 and self.keep_state:
            raise ConfigError(f"keep_state has no meaning with beams {self.beams}: answers end at different steps")
        if self.beams == 1 and self.num_sequences > 1 and not self.samples:
            raise ConfigError(
                f"num_sequences {self.num_sequences} would be equal; set temperature, top_k, top_p, min_p or beams"
            )
        return self

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn."""
        chosen = any(getattr(self, name) is not None for name in _SAMPLING)
        return chosen if self.sample is None else self.sample

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """`eos_id` as a tuple."""
        if self.eos_id is None:
            return ()
        return (self.eos_id,) if isinstance(self.eos_id, int) else self.eos_id
