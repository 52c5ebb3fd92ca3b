"""Strict reading of transformers' config.json: each field is taken, or known to say nothing of the computation.

What is left over is refused: a field that nobody looked at may change what the model computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zoo.registry import ConfigError

__all__ = ["ACTIVATIONS", "Fields", "activation_name"]

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
    "linear": "identity",
}
"""Theirs to ours. The tanh form has several names for one formula."""

_SILENT = frozenset(
    """
    model_type architectures transformers_version _name_or_path torch_dtype dtype use_cache return_dict
    output_hidden_states output_attentions torchscript use_bfloat16 is_encoder_decoder id2label label2id
    problem_type num_labels _num_labels tokenizer_class prefix finetuning_task task_specific_params
    initializer_range initializer_factor initializer_cutoff_factor init_std gradient_checkpointing pretraining_tp
    n_ctx chunk_size_feed_forward bos_token_id eos_token_id pad_token_id cls_token_id sep_token_id unk_token_id
    decoder_start_token_id forced_bos_token_id forced_eos_token_id max_length min_length num_beams num_beam_groups
    length_penalty early_stopping no_repeat_ngram_size encoder_no_repeat_ngram_size do_sample temperature top_k
    top_p typical_p repetition_penalty diversity_penalty bad_words_ids num_return_sequences suppress_tokens
    begin_suppress_tokens exponential_decay_length_penalty output_scores return_dict_in_generate
    remove_invalid_values summary_type summary_use_proj summary_activation summary_proj_to_labels
    summary_first_dropout summary_last_dropout qa_dropout classifier_dropout classif_dropout encoder_layerdrop
    decoder_layerdrop output_past vocab_file deterministic_flash_attn sparse_prediction sparse_pred_ignore_index
    reference_compile repad_logits_with_grad _attn_implementation attn_implementation is_llama_config
    transformers.js_config pooler_output_size encoder_stride cache_implementation _attn_implementation_autoset
    n_positions_original directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head pooler_type
    """.split()  # noqa: SIM905  a list of words
)
"""Housekeeping, training and generation: nothing here changes a forward pass in evaluation mode."""


def activation_name(ours: str, preferred: str = "gelu_new") -> str:
    """Their name of one of our activations; `preferred` for the tanh form of GELU."""
    if ours == "gelu_tanh":
        return preferred
    return next(theirs for theirs, mine in ACTIVATIONS.items() if mine == ours)


class Fields:
    """The fields of one config.json. What is absent has the default of transformers' class."""

    def __init__(self, plain: Mapping[str, Any], where: str = "config.json") -> None:
        self.where, self._plain, self._seen = where, dict(plain), set[str]()
        self.model_type = str(plain.get("model_type", ""))

    def get(self, name: str, default: Any = None) -> Any:
        """The value of one field, any."""
        self._seen.add(name)
        value = self._plain.get(name)
        return default if value is None else value

    def int(self, name: str, default: int | None) -> int:
        """A whole number of at least 0; a default of None makes the field one that must be there."""
        value = self.get(name, default)
        if value is None:
            raise ConfigError(f"'{name}' is required for model_type '{self.model_type}'", self.where)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self.refuse(name, value, "a whole number")
        return value

    def float(self, name: str, default: float) -> float:
        value = self.get(name, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            self.refuse(name, value, "a number")
        return float(value)

    def bool(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            self.refuse(name, value, "true, false")
        return value

    def activation(self, name: str, default: str) -> str:
        """Our name of an activation."""
        value = self.get(name, default)
        if value not in ACTIVATIONS:
            self.refuse(name, value, ", ".join(ACTIVATIONS))
        return ACTIVATIONS[value]

    def only(self, name: str, *allowed: Any) -> None:
        """Refuse all values but those that this family of ours computes with; absent stands for the first."""
        value = self._plain.get(name, allowed[0])
        self._seen.add(name)
        if value is not None and value not in allowed:
            self.refuse(name, value, ", ".join(map(repr, allowed)))

    def refuse(self, name: str, value: Any, choices: str) -> None:
        raise ConfigError(
            f"{name} {value!r} has no counterpart here for model_type '{self.model_type}'; choices: {choices}",
            self.where,
        )

    def __contains__(self, name: str) -> bool:
        """Whether the file has the field, even as null: null may be a choice of its own."""
        return name in self._plain

    @property
    def architecture(self) -> str:
        """The first of `architectures`, or an empty string."""
        found = self._plain.get("architectures") or [""]
        return str(found[0])

    def close(self) -> None:
        """Refuse what nobody took, unless it is off (None, false, empty) or says nothing of the computation."""
        for name, value in self._plain.items():
            if name not in self._seen and name not in _SILENT and value not in (None, False, {}, []):
                text = repr(value)
                raise ConfigError(
                    f"{name} {text if len(text) <= 60 else text[:57] + '...'} is unknown for model_type "
                    f"'{self.model_type}', and may change what it computes; choices: leave it out, or null",
                    self.where,
                )
