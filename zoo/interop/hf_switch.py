"""Switch Transformers to and from transformers' SwitchTransformersForConditionalGeneration: T5 1.0 (hf_t5.py) with
experts in every second feed-forward.

    zoo                              transformers
    ....ffn.{up,down}                ....mlp.{wi,wo}                        dense layers
    ....ffn.router.weight            ....mlp.router.classifier.weight
    ....ffn.experts.{up,down}        ....mlp.experts.expert_e.{wi,wo}, one expert below the other

Their experts take at most `expert_capacity` tokens of each row, and pass the others by, also in evaluation. Here none
is passed by (an expert that is full would make a pass over a row differ from steps through it), so the two agree where
no expert is asked for by more tokens than that, as in all rows of up to `expert_capacity`. Written is `max_len`.
"""

from __future__ import annotations

from typing import Any

from zoo.blocks.api import FFNConfig
from zoo.blocks.ffn.mlp import MLPConfig
from zoo.blocks.ffn.moe import MoEConfig
from zoo.interop.family import Family, Weights, experts, ffns, layered_ffn, mlp
from zoo.interop.fields import Fields, activation_name
from zoo.interop.hf_t5 import rules_of, shape_of
from zoo.interop.weights import Rule, both, linear
from zoo.models.t5 import T5Config
from zoo.registry import ConfigError

__all__ = ["SWITCH"]

_NAMES = (("up", "wi"), ("down", "wo"))


def _read(fields: Fields, weights: Weights) -> T5Config:
    dim, encoder_depth = fields.int("d_model", 768), fields.int("num_layers", 12)
    depth = fields.int("num_decoder_layers", 12)
    dense = MLPConfig(
        hidden=fields.int("d_ff", 2048),
        activation=fields.activation("dense_act_fn", "relu"),  # type: ignore[arg-type]
        bias=False,
    )
    for name, value in {"router_bias": False, "router_dtype": "float32", "is_decoder": False}.items():
        fields.only(name, value)
    for name in (
        *("expert_capacity", "router_jitter_noise", "router_ignore_padding_tokens", "add_router_probs"),
        *("feed_forward_proj", "is_gated_act", "num_selected_experts", "router_type", "batch_prioritized_routing"),
        "add_cross_attention",
    ):
        fields.get(name)  # see above; while training; and what their class does not look at
    moe = MoEConfig(
        experts=fields.int("num_experts", 8),
        top_k=1,
        expert=dense,
        normalise=False,
        balance=fields.float("router_aux_loss_coef", 0.001),
        z_loss=fields.float("router_z_loss_coef", 0.001),
    )
    steps = [_step(fields, side, layers) for side, layers in (("encoder", encoder_depth), ("decoder", depth))]
    if steps[0] != steps[1]:
        fields.refuse("decoder_sparse_step", steps[1], f"encoder_sparse_step {steps[0]}")
    layers: list[FFNConfig] = [moe if _is_sparse(i, steps[0]) else dense for i in range(max(encoder_depth, depth))]
    fields.only("tie_word_embeddings", True)  # untied, both stacks have tables of their own there
    return T5Config(
        dim=dim,
        depth=depth,
        encoder_depth=encoder_depth if encoder_depth != depth else None,
        heads=fields.int("num_heads", 12),
        mixer={"head_dim": fields.int("d_kv", 64)},  # type: ignore[arg-type]
        ffn=layered_ffn(layers, dense),
        norm={"name": "rmsnorm", "eps": fields.float("layer_norm_epsilon", 1e-6)},  # type: ignore[arg-type]
        position={
            "name": "t5_bias",
            "num_buckets": fields.int("relative_attention_num_buckets", 32),
            "max_distance": fields.int("relative_attention_max_distance", 128),
            "init_std": dim**-0.5,
        },  # type: ignore[arg-type]
        vocab_size=fields.int("vocab_size", 32128),
        start_id=fields.int("decoder_start_token_id", fields.int("pad_token_id", 0)),
        tie_embeddings=True,
        scale_head=True,
        dropout=fields.float("dropout_rate", 0.1),
        max_len=fields.int("n_positions", 512),  # of no effect: distances have no end
    )


def _step(fields: Fields, side: str, depth: int) -> int:
    """Every how many layers there are experts."""
    sparse = fields.int(f"num_sparse_{side}_layers", 3)
    return fields.int(f"{side}_sparse_step", depth // sparse if sparse else depth)


def _is_sparse(layer: int, step: int) -> bool:
    return step == 1 or (step > 1 and layer % step == 1)


def _write(config: T5Config) -> dict[str, Any]:
    moe, layers = experts(config) or MoEConfig(), ffns(config)
    expert = mlp(config.model_copy(update={"ffn": moe.expert}))
    sparse = [isinstance(ffn, MoEConfig) for ffn in layers]
    steps = range(1, len(layers) + 1)
    step = next((n for n in steps if sparse == [_is_sparse(i, n) for i in range(len(layers))]), 0)
    if not step:
        raise ConfigError("experts stand where transformers' class has none; choices: each layer, or every n-th", "ffn")
    shape = shape_of(config)
    return shape | {
        "architectures": ["SwitchTransformersForConditionalGeneration"],
        "d_ff": expert.hidden or int(config.dim * expert.ratio),
        "dense_act_fn": activation_name(expert.activation),
        "num_experts": moe.experts,
        "expert_capacity": config.max_len,
        "n_positions": config.max_len,
        "num_sparse_encoder_layers": shape["num_layers"] // step,
        "num_sparse_decoder_layers": config.depth // step,
        "encoder_sparse_step": step,
        "decoder_sparse_step": step,
        "router_aux_loss_coef": moe.balance,
        "router_z_loss_coef": moe.z_loss,
    }


def _ffn_rules(config: T5Config, layer: int, ours: str, theirs: str) -> list[Rule]:
    there = f"{theirs}.mlp"
    ffn: Any = ffns(config)[layer]
    if not isinstance(ffn, MoEConfig):
        return [r for mine, name in _NAMES for r in linear(f"{ours}.{mine}", f"{there}.{name}", ("weight",))]
    rules = [both(f"{ours}.router.weight", f"{there}.router.classifier.weight")]
    for mine, name in _NAMES:
        each = tuple(f"{there}.experts.expert_{number}.{name}.weight" for number in range(ffn.experts))
        rules.append(Rule((f"{ours}.experts.{mine}.weight",), each, theirs_rows=(1,) * ffn.experts, view="stacked"))
    return rules


SWITCH = Family("switch_transformers", "", _read, _write, lambda config: rules_of(config, _ffn_rules))
