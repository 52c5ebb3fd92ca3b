"""BERT, RoBERTa and DistilBERT to and from transformers.

    zoo                            BERT, RoBERTa                                DistilBERT
    embed.weight                   embeddings.word_embeddings                   the same
    types.weight                   embeddings.token_type_embeddings             (none)
    stack.position.weight          embeddings.position_embeddings               the same
    stack.input_norm               embeddings.LayerNorm                         the same
    stack.blocks.i.mixer.qkv       ...attention.self.{query,key,value}          ...attention.{q,k,v}_lin
    stack.blocks.i.ffn.{up,down}   ...intermediate.dense, output.dense          ...ffn.{lin1,lin2}
    head                           cls.predictions, lm_head                     vocab_{transform,layer_norm,projector}
    pooler, sentence_head          bert.pooler.dense, cls.seq_relationship      (none)
    pooler, classifier             bert.pooler.dense, classifier (BERT); classifier.{dense,out_proj} (RoBERTa)

Which heads a model has is read from the weights, not from `architectures`: published files often hold more than their
architecture says. RoBERTa counts positions from `pad_token_id` + 1 on: those first rows are our `offset`. It derives
them from the ids, we from the mask: the same for rows whose padding is masked.
"""

from __future__ import annotations

from typing import Any

from zoo.blocks.positions import LearnedPositionConfig
from zoo.interop.family import Family, Weights, attention_at, common, mlp, plain_width
from zoo.interop.fields import Fields, activation_name
from zoo.interop.weights import Rule, both, fused, linear
from zoo.models.bert import BERTConfig
from zoo.registry import ConfigError

__all__ = ["BERT", "DISTILBERT", "ROBERTA", "encoder_choices", "encoder_fields", "encoder_layers", "old_norms"]


def _read(fields: Fields, weights: Weights) -> BERTConfig:
    kind, roberta = fields.model_type, fields.model_type == "roberta"
    choices = encoder_choices(fields)
    if roberta:
        offset = fields.int("pad_token_id", 1) + 1
        choices["position"] = {"name": "learned", "offset": offset}
        choices["max_len"] -= offset
    if weights is None:  # by the architecture's name
        pretraining, base = "PreTraining" in fields.architecture, fields.architecture in ("BertModel", "RobertaModel")
        rows = len(fields.get("id2label", {0: "", 1: ""})) if "SequenceClass" in fields.architecture else 0
        heads = {"masked_lm": not (rows or base), "pooler": bool(rows or base or pretraining)}
        heads |= {"next_sentence": pretraining, "num_classes": rows}
    else:
        classifier = "classifier.out_proj.weight" if roberta else "classifier.weight"
        heads = {
            "masked_lm": ("lm_head.dense.weight" if roberta else "cls.predictions.transform.dense.weight") in weights,
            "pooler": f"{kind}.pooler.dense.weight" in weights or (roberta and classifier in weights),
            "next_sentence": "cls.seq_relationship.weight" in weights,
            "num_classes": len(weights[classifier]) if classifier in weights else 0,
        }
    if heads["masked_lm"]:
        fields.only("hidden_act", "gelu", "gelu_python")  # the head's transform has the trunk's activation there
        fields.only("tie_word_embeddings", True)
    fields.get("tie_word_embeddings")
    return BERTConfig(**choices, **heads)


def _read_distilbert(fields: Fields, weights: Weights) -> BERTConfig:
    fields.only("sinusoidal_pos_embds", False)
    masked = weights is None or "vocab_transform.weight" in weights
    fields.only("tie_word_embeddings", True, *(() if masked else (False,)))
    fields.get("tie_weights_")
    fields.get("seq_classif_dropout")
    if masked:
        fields.only("activation", "gelu")
    if weights is not None and "pre_classifier.weight" in weights:
        raise ConfigError("DistilBERT's classifier has ReLU where ours has tanh; choices: DistilBertForMaskedLM")
    return BERTConfig(
        dim=fields.int("dim", 768),
        depth=fields.int("n_layers", 6),
        heads=fields.int("n_heads", 12),
        mixer={"name": "attention", "dropout": fields.float("attention_dropout", 0.1)},  # type: ignore[arg-type]
        ffn={
            "name": "mlp",
            "hidden": fields.int("hidden_dim", 3072),
            "activation": fields.activation("activation", "gelu"),
        },  # type: ignore[arg-type]
        vocab_size=fields.int("vocab_size", 30522),
        max_len=fields.int("max_position_embeddings", 512),
        token_types=0,
        pooler=False,
        masked_lm=masked,
        dropout=fields.float("dropout", 0.1),
        init_std=fields.float("initializer_range", 0.02),
    )


def encoder_choices(fields: Fields) -> dict[str, Any]:
    """What BERT, RoBERTa and ELECTRA say of their trunk in the same words."""
    fields.only("position_embedding_type", "absolute")
    fields.only("is_decoder", False)
    fields.only("add_cross_attention", False)
    hidden = 1024 if fields.model_type == "electra" else 3072
    dropout = fields.float("hidden_dropout_prob", 0.1)
    return {
        "dim": fields.int("hidden_size", 256 if fields.model_type == "electra" else 768),
        "depth": fields.int("num_hidden_layers", 12),
        "heads": fields.int("num_attention_heads", 4 if fields.model_type == "electra" else 12),
        "mixer": {"name": "attention", "dropout": fields.float("attention_probs_dropout_prob", 0.1)},
        "ffn": {
            "name": "mlp",
            "hidden": fields.int("intermediate_size", hidden),
            "activation": fields.activation("hidden_act", "gelu"),
        },
        "norm": {"name": "layernorm", "eps": fields.float("layer_norm_eps", 1e-12)},
        "vocab_size": fields.int("vocab_size", 50265 if fields.model_type == "roberta" else 30522),
        "max_len": fields.int("max_position_embeddings", 512),
        "token_types": fields.int("type_vocab_size", 2),
        "dropout": dropout,
        "head_dropout": fields.float("classifier_dropout", dropout),
        "init_std": fields.float("initializer_range", 0.02),
    }


def encoder_fields(config: BERTConfig) -> dict[str, Any]:
    """`encoder_choices` the other way round."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": plain_width(config),
        "hidden_act": activation_name(mlp(config).activation),
        "layer_norm_eps": getattr(config.norm, "eps", 1e-12),
        "max_position_embeddings": config.max_len,
        "type_vocab_size": config.token_types,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": attention_at(config, 0).dropout if config.depth else 0.0,
        "classifier_dropout": config.head_dropout,
        **common(config),
    }


def _write(config: BERTConfig) -> dict[str, Any]:
    head = "ForSequenceClassification" if config.num_classes else "ForMaskedLM" if config.masked_lm else "Model"
    head = "ForPreTraining" if config.next_sentence else head
    plain = {"architectures": [f"Bert{head}"], **encoder_fields(config)}
    return plain | _labels(config)


def _write_roberta(config: BERTConfig) -> dict[str, Any]:
    head = "ForSequenceClassification" if config.num_classes else "ForMaskedLM" if config.masked_lm else "Model"
    offset = config.position.offset if isinstance(config.position, LearnedPositionConfig) else 0
    plain = {"architectures": [f"Roberta{head}"], **encoder_fields(config), **_labels(config)}
    return plain | {"pad_token_id": offset - 1, "max_position_embeddings": config.max_len + offset}


def _write_distilbert(config: BERTConfig) -> dict[str, Any]:
    return {
        "architectures": ["DistilBertForMaskedLM" if config.masked_lm else "DistilBertModel"],
        "vocab_size": config.vocab_size,
        "dim": config.dim,
        "n_layers": config.depth,
        "n_heads": config.heads,
        "hidden_dim": plain_width(config),
        "activation": activation_name(mlp(config).activation),
        "max_position_embeddings": config.max_len,
        "dropout": config.dropout,
        "attention_dropout": attention_at(config, 0).dropout if config.depth else 0.0,
        **common(config),
    }


def _labels(config: BERTConfig) -> dict[str, Any]:
    if not config.num_classes:
        return {}
    labels = [f"LABEL_{i}" for i in range(config.num_classes)]
    return {"id2label": {str(i): n for i, n in enumerate(labels)}, "label2id": {n: i for i, n in enumerate(labels)}}


def encoder_layers(config: BERTConfig, trunk: str, ours: str = "") -> list[Rule]:
    """Embeddings and layers of BERT, RoBERTa and ELECTRA; `ours` is where our BERT stands in a larger model."""
    rules = linear(f"{ours}stack.input_norm", f"{trunk}.embeddings.LayerNorm")
    rules.append(both(f"{ours}stack.position.weight", f"{trunk}.embeddings.position_embeddings.weight"))
    if config.token_types:
        rules.append(both(f"{ours}types.weight", f"{trunk}.embeddings.token_type_embeddings.weight"))
    for layer in range(config.depth):
        mine, theirs = f"{ours}stack.blocks.{layer}", f"{trunk}.encoder.layer.{layer}"
        parts = [f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")]
        rules += fused(f"{mine}.mixer.qkv", parts, (config.dim,) * 3, ("weight", "bias"))
        rules += linear(f"{mine}.mixer.out", f"{theirs}.attention.output.dense")
        rules += linear(f"{mine}.residuals.mixer.norm", f"{theirs}.attention.output.LayerNorm")
        rules += linear(f"{mine}.ffn.up", f"{theirs}.intermediate.dense")
        rules += linear(f"{mine}.ffn.down", f"{theirs}.output.dense")
        rules += linear(f"{mine}.residuals.ffn.norm", f"{theirs}.output.LayerNorm")
    return rules


def _rules(config: BERTConfig) -> list[Rule]:
    rules = encoder_layers(config, "bert")
    rules.append(both("embed.weight", "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"))
    if config.pooler:
        rules += linear("pooler", "bert.pooler.dense")
    if config.masked_lm:
        rules += linear("head.transform.dense", "cls.predictions.transform.dense")
        rules += linear("head.transform.norm", "cls.predictions.transform.LayerNorm")
        rules.append(both("head.bias", "cls.predictions.bias", "cls.predictions.decoder.bias"))
    if config.next_sentence:
        rules += linear("sentence_head", "cls.seq_relationship")
    if config.num_classes:
        rules += linear("classifier", "classifier")
    return rules


def _rules_roberta(config: BERTConfig) -> list[Rule]:
    rules = encoder_layers(config, "roberta")
    rules.append(both("embed.weight", "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"))
    if config.num_classes:
        rules += linear("pooler", "classifier.dense") + linear("classifier", "classifier.out_proj")
    elif config.pooler:
        rules += linear("pooler", "roberta.pooler.dense")
    if config.masked_lm:
        rules += linear("head.transform.dense", "lm_head.dense")
        rules += linear("head.transform.norm", "lm_head.layer_norm")
        rules.append(both("head.bias", "lm_head.bias", "lm_head.decoder.bias"))
    return rules


def _rules_distilbert(config: BERTConfig) -> list[Rule]:
    embeddings = "distilbert.embeddings"
    rules = linear("stack.input_norm", f"{embeddings}.LayerNorm")
    rules.append(both("stack.position.weight", f"{embeddings}.position_embeddings.weight"))
    rules.append(both("embed.weight", f"{embeddings}.word_embeddings.weight", "vocab_projector.weight"))
    for layer in range(config.depth):
        ours, theirs = f"stack.blocks.{layer}", f"distilbert.transformer.layer.{layer}"
        parts = [f"{theirs}.attention.{part}_lin" for part in "qkv"]
        rules += fused(f"{ours}.mixer.qkv", parts, (config.dim,) * 3, ("weight", "bias"))
        rules += linear(f"{ours}.mixer.out", f"{theirs}.attention.out_lin")
        rules += linear(f"{ours}.residuals.mixer.norm", f"{theirs}.sa_layer_norm")
        rules += linear(f"{ours}.ffn.up", f"{theirs}.ffn.lin1")
        rules += linear(f"{ours}.ffn.down", f"{theirs}.ffn.lin2")
        rules += linear(f"{ours}.residuals.ffn.norm", f"{theirs}.output_layer_norm")
    if config.masked_lm:
        rules += linear("head.transform.dense", "vocab_transform")
        rules += linear("head.transform.norm", "vocab_layer_norm")
        rules.append(both("head.bias", "vocab_projector.bias"))
    return rules


def old_norms(name: str) -> str:
    """Norms of the files that came from TensorFlow."""
    return name.replace(".LayerNorm.gamma", ".LayerNorm.weight").replace(".LayerNorm.beta", ".LayerNorm.bias")


_TABLES = (".position_ids", ".token_type_ids")
BERT = Family("bert", "bert", _read, _write, _rules, heads=("cls.", "classifier."), rename=old_norms, buffers=_TABLES)
ROBERTA = Family(
    "roberta",
    "roberta",
    _read,
    _write_roberta,
    _rules_roberta,
    heads=("lm_head.", "classifier."),
    rename=old_norms,
    buffers=_TABLES,
)
DISTILBERT = Family(
    "distilbert",
    "distilbert",
    _read_distilbert,
    _write_distilbert,
    _rules_distilbert,
    heads=("vocab_", "pre_classifier.", "classifier."),
    buffers=_TABLES,
)
