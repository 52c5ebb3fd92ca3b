"""ELECTRA to and from transformers, where it is two models: ElectraForPreTraining and ElectraForMaskedLM.

    zoo                              transformers
    discriminator, generator         electra.{embeddings,encoder} of the one and of the other, as BERT's
    ....stack.project                electra.embeddings_project, where embeddings are narrower
    generator.head.transform         generator_predictions.{dense,LayerNorm}
    generator.head.bias              generator_lm_head.bias
    dense, replaced_head             discriminator_predictions.{dense,dense_prediction}

Our model holds both and one set of embeddings, so it is read from two checkpoints whose embeddings are equal, and
written as two. A generator alone is a BERT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from zoo.interop.family import Family, Weights, same_computation
from zoo.interop.fields import Fields
from zoo.interop.hf_bert import encoder_choices, encoder_fields, encoder_layers, old_norms
from zoo.interop.weights import Rule, both, linear, to_ours, to_theirs
from zoo.models import electra
from zoo.models.bert import BERTConfig
from zoo.models.electra import ELECTRAConfig
from zoo.registry import ConfigError

__all__ = [
    "DISCRIMINATOR_HEAD",
    "ELECTRA",
    "config_from_pair",
    "config_to_pair",
    "from_pair",
    "rules_of_pair",
    "to_pair",
]

DISCRIMINATOR_HEAD = "discriminator_predictions.dense.weight"


def _choices(fields: Fields) -> dict[str, Any]:
    choices = encoder_choices(fields)
    width = fields.int("embedding_size", 128)
    fields.get("generator_size")
    fields.only("hidden_act", "gelu", "gelu_python")  # the heads have GELU
    fields.only("tie_word_embeddings", True)
    return choices | {"pooler": False, "embedding_dim": width if width != choices["dim"] else None}


def _read(fields: Fields, weights: Weights) -> BERTConfig:
    masked = weights is None or "generator_predictions.dense.weight" in weights
    if weights is not None and DISCRIMINATOR_HEAD in weights:
        raise ConfigError(
            "this is an ELECTRA discriminator, and our model holds its generator too; "
            "give both: from_hf(DISCRIMINATOR, generator=GENERATOR)"
        )
    if weights is not None and any(name.startswith("classifier.") for name in weights):
        raise ConfigError("ELECTRA's classifier has GELU where ours has tanh; choices: ElectraForMaskedLM")
    return BERTConfig(**_choices(fields), masked_lm=masked)


def _write(config: BERTConfig) -> dict[str, Any]:
    head = "ElectraForMaskedLM" if config.masked_lm else "ElectraModel"
    width = {"embedding_size": config.embedding_dim or config.dim}
    return {"architectures": [head], **encoder_fields(config), **width}


def _trunk(config: BERTConfig, ours: str = "") -> list[Rule]:
    rules = encoder_layers(config, "electra", ours)
    rules.append(both(f"{ours}embed.weight", "electra.embeddings.word_embeddings.weight", "generator_lm_head.weight"))
    if (config.embedding_dim or config.dim) != config.dim:
        rules += linear(f"{ours}stack.project", "electra.embeddings_project")
    return rules


def _rules(config: BERTConfig, ours: str = "") -> list[Rule]:
    rules = _trunk(config, ours)
    if config.masked_lm:
        rules += linear(f"{ours}head.transform.dense", "generator_predictions.dense")
        rules += linear(f"{ours}head.transform.norm", "generator_predictions.LayerNorm")
        rules.append(both(f"{ours}head.bias", "generator_lm_head.bias"))
    return rules


ELECTRA = Family(
    "electra",
    "electra",
    _read,
    _write,
    _rules,
    heads=("generator_", "discriminator_", "classifier."),
    rename=old_norms,
    buffers=(".position_ids", ".token_type_ids"),
)


def config_from_pair(discriminator: Mapping[str, Any], generator: Mapping[str, Any]) -> ELECTRAConfig:
    """Our config from the plain ones of a discriminator and its generator. Raises ConfigError if they do not fit."""
    fields = Fields(discriminator, "discriminator's config.json")
    choices = _choices(fields)
    fields.close()
    small: Any = ELECTRA.config_from(generator, where="generator's config.json")
    config = ELECTRAConfig(**choices, generator_share=min(small.dim / choices["dim"], 1.0))
    same_computation(config.part(config.generator_share, masked_lm=True), small, "the generator of this discriminator")
    return config


def config_to_pair(config: ELECTRAConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plain configs of discriminator and generator. Raises ConfigError for what has no counterpart."""
    large, small = config.part(1.0, masked_lm=False), config.part(config.generator_share, masked_lm=True)
    plain = ELECTRA.config_to(large, {}) | {"architectures": ["ElectraForPreTraining"]}
    return plain, ELECTRA.config_to(small)


def rules_of_pair(config: ELECTRAConfig) -> tuple[list[Rule], list[Rule]]:
    """Rules of the discriminator and of the generator. The generator's embeddings are the discriminator's."""
    large = _trunk(config.part(1.0, masked_lm=False), "discriminator.")
    large += linear("dense", "discriminator_predictions.dense")
    large += linear("replaced_head", "discriminator_predictions.dense_prediction")
    small = _rules(config.part(config.generator_share, masked_lm=True), "generator.")
    return large, [_shared(rule) for rule in small]


def _shared(rule: Rule) -> Rule:
    tables = ("generator.embed.weight", "generator.types.weight", "generator.stack.position.weight")
    if rule.ours[0] not in tables:
        return rule
    return both(rule.ours[0].replace("generator.", "discriminator.", 1), *rule.theirs, *rule.aliases)


def from_pair(
    discriminator: Mapping[str, Tensor], generator: Mapping[str, Tensor], config: ELECTRAConfig
) -> dict[str, Tensor]:
    """Our state dict from theirs. Raises ConfigError where the two have different embeddings: ours share them."""
    large, small = rules_of_pair(config)
    ours = to_ours(large, ELECTRA.canonical(discriminator))
    for name, tensor in to_ours(small, ELECTRA.canonical(generator)).items():
        if name in ours and not (ours[name].shape == tensor.shape and ours[name].equal(tensor)):
            raise ConfigError(f"'{name}' differs between discriminator and generator; our ELECTRA shares it")
        ours[name] = tensor
    return ours


def to_pair(model: electra.ELECTRA) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Their state dicts of discriminator and generator from our model."""
    state = {name: parameter.detach() for name, parameter in model.named_parameters()}
    large, small = rules_of_pair(model.config)
    return tuple(  # type: ignore[return-value]
        to_theirs(rules, {name: state[name] for rule in rules for name in rule.ours}) for rules in (large, small)
    )
