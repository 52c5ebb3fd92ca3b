"""Decision Transformer to and from transformers' DecisionTransformerModel.

Theirs keeps the tables of GPT-2 that the paper's code took out: `wte`, which nothing reads, and `wpe`, whose row 0 is
added to every token. Here that row joins the bias of the norm before it; written, both tables are zero.

zoo                              transformers
embed_{timestep,return,state,action}   the same
stack.input_norm                 embed_ln (its bias + encoder.wpe.weight[0])
stack.blocks.i, stack.norm       encoder.h.i, encoder.ln_f, as GPT-2's (hf_gpt2.py)
head, next_state, next_return    predict_action.0, predict_state, predict_return
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from zoo.interop.family import Family, Weights, attention_at, common, mlp, plain_width
from zoo.interop.fields import Fields, activation_name
from zoo.interop.weights import Rule, both, linear
from zoo.models.decision import DecisionConfig

__all__ = ["DECISION", "DecisionFamily"]

_POSITIONS, _BIAS = "encoder.wpe.weight", "embed_ln.bias"
_ROWS = {_POSITIONS: 1024, "encoder.wte.weight": 1}
"""Tables without a use, and their rows where we write them."""


class DecisionFamily(Family):
    """The rules, and the one sum that they cannot say."""

    def from_huggingface(self, state: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]:
        held = dict(self.canonical(state))
        if _POSITIONS in held and _BIAS in held:
            held[_BIAS] = held[_BIAS] + held[_POSITIONS][0]
        return super().from_huggingface({name: held[name] for name in held if name not in _ROWS}, config)

    def to_huggingface(self, model: nn.Module) -> dict[str, Tensor]:
        state = super().to_huggingface(model)
        norm = state[_BIAS]
        return state | {name: norm.new_zeros(rows, len(norm)) for name, rows in _ROWS.items()}


def _read(fields: Fields, weights: Weights) -> DecisionConfig:
    dim = fields.int("hidden_size", 128)
    fields.only("scale_attn_by_inverse_layer_idx", False)
    fields.only("add_cross_attention", False)
    fields.only("layer_norm_epsilon", 1e-5)  # the norm of the embeddings has it whatever the field says
    for name in ("reorder_and_upcast_attn", "vocab_size", "n_positions", "tie_word_embeddings"):
        fields.get(name)  # the same sums in another precision, and the sizes of tables without a use
    dropout = fields.float("resid_pdrop", 0.1)
    fields.get("embd_pdrop")
    mixer: dict[str, Any] = {"name": "attention", "dropout": fields.float("attn_pdrop", 0.1)}
    if not fields.bool("scale_attn_weights", True):
        mixer["scale"] = 1.0
    ffn = {
        "name": "mlp",
        "hidden": fields.int("n_inner", 4 * dim),
        "activation": fields.activation("activation_function", "relu"),
    }
    return DecisionConfig(
        dim=dim,
        depth=fields.int("n_layer", 3),
        heads=fields.int("n_head", 1),
        mixer=mixer,  # type: ignore[arg-type]
        ffn=ffn,  # type: ignore[arg-type]
        state_dim=fields.int("state_dim", 17),
        action_dim=fields.int("act_dim", 4),
        action_tanh=fields.bool("action_tanh", True),
        max_timestep=fields.int("max_ep_len", 4096),
        predict_next=True,
        dropout=dropout,
        init_std=fields.float("initializer_range", 0.02),
    )


def _write(config: DecisionConfig) -> dict[str, Any]:
    mixer, ffn = attention_at(config, 0), mlp(config)
    return {
        "architectures": ["DecisionTransformerModel"],
        "vocab_size": _ROWS["encoder.wte.weight"],
        "n_positions": _ROWS[_POSITIONS],
        "hidden_size": config.dim,
        "n_layer": config.depth,
        "n_head": config.heads,
        "n_inner": plain_width(config),
        "state_dim": config.state_dim,
        "act_dim": config.action_dim,
        "action_tanh": config.action_tanh,
        "max_ep_len": config.max_timestep,
        "activation_function": activation_name(ffn.activation),
        "scale_attn_weights": mixer.scale != 1.0,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": mixer.dropout,
        "bos_token_id": None,  # theirs are those of GPT-2's own vocabulary
        "eos_token_id": None,
        **common(config),
    }


def _rules(config: DecisionConfig) -> list[Rule]:
    rules = [both("embed_timestep.weight", "embed_timestep.weight")]
    for name in ("embed_return", "embed_state", "embed_action"):
        rules += linear(name, name)
    rules += linear("stack.input_norm", "embed_ln")
    rules += linear("stack.norm", "encoder.ln_f")
    rules += linear("head", "predict_action.0")
    rules += linear("next_state", "predict_state")
    rules += linear("next_return", "predict_return")
    for layer in range(config.depth):
        ours, theirs = f"stack.blocks.{layer}", f"encoder.h.{layer}"
        rules += linear(f"{ours}.residuals.mixer.norm", f"{theirs}.ln_1")
        rules += linear(f"{ours}.residuals.ffn.norm", f"{theirs}.ln_2")
        rules += linear(f"{ours}.mixer.qkv", f"{theirs}.attn.c_attn", view="transposed")
        rules += linear(f"{ours}.mixer.out", f"{theirs}.attn.c_proj", view="transposed")
        rules += linear(f"{ours}.ffn.up", f"{theirs}.mlp.c_fc", view="transposed")
        rules += linear(f"{ours}.ffn.down", f"{theirs}.mlp.c_proj", view="transposed")
    return rules


DECISION = DecisionFamily(
    "decision_transformer", "", _read, _write, _rules, buffers=(".attn.bias", ".attn.masked_bias")
)
