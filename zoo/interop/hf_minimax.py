"""MiniMax-01 to and from transformers' MiniMaxForCausalLM: lightning and softmax attention, Mixtral's experts.

    zoo                                  transformers
    stack.input_norm                     model.layers.0.input_layernorm
    stack.blocks.i.residuals.mixer.norm  model.layers.i.post_attention_layernorm
    stack.blocks.i.residuals.ffn.norm    model.layers.i+1.input_layernorm, of the last layer model.norm
    ....mixer.{qkv,out}                  ....self_attn.{q,k,v,o}_proj, as in hf_llama.py                softmax
    ....mixer.{qkv,gate,norm.norm,out}   ....self_attn.{qkv_proj,output_gate,norm,out_proj}             lightning
    ....ffn.{router.weight,experts}      ....block_sparse_moe.{gate.weight,experts}, as Mixtral's in hf_moe.py

Their layers normalise what the branch reads and what goes by it, x = N(x), then a x + b f(x). That is DeepNorm here,
each norm counted to the branch before it and the first one to the embeddings. Their a and b may differ from one kind
of branch to another; in the published models, and here, they do not.

Lightning's qkv_proj has a head's queries, keys and values before the next head's. Its decays are those of slopes
"transformers". Three departures of their class: the authors' own code computes slopes "minimax"; the published weights
rotate half of each head (`rotary_dim`), of which their class takes no notice, while here it is read, and such a model
is not written; and their cache counts no tokens where layer 0 is lightning (as published), so that logits of a
continued text are wrong there.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from zoo.blocks.ffn.glu import SwiGLUConfig
from zoo.blocks.ffn.moe import MoEConfig
from zoo.blocks.mixers.attention import AttentionConfig
from zoo.blocks.mixers.hybrid import HybridConfig
from zoo.blocks.mixers.lightning import LightningConfig, lightning_slopes
from zoo.blocks.residual import DeepNormConfig
from zoo.interop.family import Family, Weights, common, experts, layered
from zoo.interop.fields import Fields
from zoo.interop.hf_llama import attention_rules
from zoo.interop.hf_moe import expert_rules, gated_expert
from zoo.interop.rope import read_rope, write_rope
from zoo.interop.weights import Rule, both, by_part
from zoo.models.gpt import GPTConfig
from zoo.registry import ConfigError

__all__ = ["MINIMAX"]

_FULL, _LINEAR = "full_attention", "linear_attention"
_BLOCK = 256  # their default; nothing but the size of their tables depends on it
_KINDS = ("mlp", "full_attn", "linear_attn")


class _MiniMaxFamily(Family):
    """Compares with defaults told as such, and the lightning layers without what they have no use for."""

    def config_to(self, config: Any, weights: Weights = None) -> dict[str, Any]:
        mixers = [_bare(m, config) if isinstance(m, LightningConfig) else m for m in _mixers(config)]
        residual = _residual(config)
        alpha = _alpha(residual.stream(config.depth), config.depth)
        changes: dict[str, Any] = {"residual": residual.model_copy(update={"alpha": alpha})}
        if mixers:
            changes["mixer"] = HybridConfig(pattern=tuple(mixers))
        return super().config_to(config.model_copy(update=changes), weights)

    def to_huggingface(self, model: nn.Module) -> dict[str, Tensor]:
        """With the tables of decays that follow from the config, which their files hold and ours are read without."""
        state, config = super().to_huggingface(model), model.config
        for layer, mixer in enumerate(_mixers(config)):  # type: ignore[arg-type]
            if isinstance(mixer, LightningConfig):
                tables = _decays(mixer.heads or config.heads, layer, config.depth)  # type: ignore[union-attr, arg-type]
                where, like = f"model.layers.{layer}.self_attn", state[f"model.layers.{layer}.self_attn.norm.weight"]
                state |= {f"{where}.{name}": table.to(like).contiguous() for name, table in tables.items()}
        return state


def _decays(heads: int, layer: int, depth: int) -> dict[str, Tensor]:
    """Of one layer, in blocks of N tokens: m (H, 1, 1), exp(-m i) and exp(-m (N - i)) (H, N, 1), and exp(-m (i - j))
    (1, H, N, N), 0 for later j."""
    slopes = lightning_slopes("transformers", heads, layer, depth)[:, None, None]
    place = torch.arange(1, _BLOCK + 1)[:, None]
    between = place - place.T
    return {
        "slope_rate": slopes,
        "query_decay": torch.exp(-slopes * place),
        "key_decay": torch.exp(-slopes * (_BLOCK - place)),
        "diagonal_decay": torch.exp(-slopes * between).where(between >= 0, 0.0)[None],
    }


def _bare(mixer: LightningConfig, config: GPTConfig) -> LightningConfig:
    heads = None if mixer.heads == config.heads else mixer.heads
    width = None if mixer.head_dim == config.dim // config.heads else mixer.head_dim
    return mixer.model_copy(update={"heads": heads, "head_dim": width, "chunk": 64, "tied": False, "scan": "row"})


def _alpha(value: float, depth: int) -> float | None:
    """None for DeepNorm's own factor on the stream."""
    return None if math.isclose(value, DeepNormConfig().stream(depth)) else value


def _mixers(config: GPTConfig) -> list[AttentionConfig | LightningConfig]:
    """Of the layers. Raises ConfigError for others: transformers' class has none."""
    mixers: list[Any] = [config.mixer.at(layer, config.depth) for layer in range(config.depth)]
    for mixer in mixers:
        if not isinstance(mixer, (AttentionConfig, LightningConfig)):
            raise ConfigError(
                f"mixer '{mixer.registered_name}' has no counterpart in transformers' class; "
                "choices: attention, lightning",
                config.registered_name,
            )
    return mixers


def _residual(config: GPTConfig) -> DeepNormConfig:
    if not isinstance(config.residual, DeepNormConfig):
        raise ConfigError(
            f"residual '{config.residual.registered_name}' has no counterpart in transformers' class; "
            "choices: deepnorm, with input_norm",
            config.registered_name,
        )
    return config.residual


def _moe(config: GPTConfig) -> MoEConfig:
    found = experts(config)
    if found is None:
        name = config.ffn.registered_name
        raise ConfigError(
            f"ffn '{name}' has no counterpart in transformers' class; choices: moe", config.registered_name
        )
    return found


def _read(fields: Fields, weights: Weights) -> GPTConfig:
    dim, depth = fields.int("hidden_size", 4096), fields.int("num_hidden_layers", 32)
    heads, max_len = fields.int("num_attention_heads", 32), fields.int("max_position_embeddings", 131072)
    width = fields.int("head_dim", dim // max(heads, 1))
    fields.only("hidden_act", "silu", "swish")
    for name in ("block_size", "router_jitter_noise", "shared_moe_mode", "auto_map"):
        fields.get(name)  # a way to compute the same, training, of shared experts that are not there, and code
    fields.only("postnorm", True)  # the authors' own name
    alpha, branch = _read_factor(fields, "alpha"), _read_factor(fields, "beta")
    moe = MoEConfig(
        experts=fields.int("num_local_experts", fields.int("num_experts", 8)),
        top_k=fields.int("num_experts_per_tok", 2),
        expert=SwiGLUConfig(hidden=fields.int("intermediate_size", 14336)),
        normalise=True,
        balance=fields.float("router_aux_loss_coef", 0.001),
    )
    position, turning = read_rope(fields, max_len, 1e6), fields.int("rotary_dim", width)
    return GPTConfig(
        dim=dim,
        depth=depth,
        heads=heads,
        mixer=_read_mixers(fields, dim, depth, heads, width),  # type: ignore[arg-type]
        ffn=moe,
        norm={"name": "rmsnorm", "eps": fields.float("rms_norm_eps", 1e-5)},  # type: ignore[arg-type]
        residual=DeepNormConfig(alpha=_alpha(alpha, depth), branch=branch),
        input_norm=True,
        position=position if turning == width else {**position, "fraction": turning / width},  # type: ignore[arg-type]
        vocab_size=fields.int("vocab_size", 32000),
        max_len=max_len,
        tie_embeddings=fields.bool("tie_word_embeddings", False),
        init_std=fields.float("initializer_range", 0.02),
    )


def _read_factor(fields: Fields, name: str) -> float:
    """The factor of all branches. Raises ConfigError where they differ."""
    factors = {f"{kind}_{name}_factor": fields.float(f"{kind}_{name}_factor", 1.0) for kind in _KINDS}
    first = factors[f"mlp_{name}_factor"]
    for field, factor in factors.items():
        if factor != first:
            fields.refuse(field, factor, f"mlp_{name}_factor {first}")
    return first


def _read_mixers(fields: Fields, dim: int, depth: int, heads: int, width: int) -> dict[str, Any]:
    kv_heads = fields.int("num_key_value_heads", heads if "num_key_value_heads" in fields else 8)
    wide: dict[str, Any] = {"head_dim": width} if width * heads != dim else {}
    lightning = {"name": "lightning", "slopes": "transformers", **wide}
    attention = {"name": "attention", "bias": False, "out_bias": False, **wide}
    attention |= {"kv_heads": kv_heads} if kv_heads != heads else {}
    attention |= {"window": fields.get("sliding_window"), "dropout": fields.float("attention_dropout", 0.0)}
    types = fields.get("layer_types", [_LINEAR if layer % 2 else _FULL for layer in range(depth)])
    if len(types) != depth or set(types) - {_FULL, _LINEAR}:
        fields.refuse("layer_types", types, f"{depth} of {_FULL}, {_LINEAR}")
    fields.only("attn_type_list", [int(each == _FULL) for each in types])  # the authors' own name
    return layered([attention if each == _FULL else lightning for each in types])


def _write(config: GPTConfig) -> dict[str, Any]:
    mixers, moe, residual = _mixers(config), _moe(config), _residual(config)
    attention = next((m for m in mixers if isinstance(m, AttentionConfig)), AttentionConfig())
    width = (mixers[0].head_dim if mixers else None) or config.dim // config.heads
    factors = {f"{kind}_alpha_factor": residual.stream(config.depth) for kind in _KINDS}
    factors |= {f"{kind}_beta_factor": residual.branch for kind in _KINDS}
    return {
        "architectures": ["MiniMaxForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": gated_expert(moe).width(config.dim),
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "num_key_value_heads": attention.kv_heads or config.heads,
        "head_dim": width,
        "hidden_act": "silu",
        "layer_types": [_FULL if isinstance(mixer, AttentionConfig) else _LINEAR for mixer in mixers],
        **factors,
        "max_position_embeddings": config.max_len,
        "rms_norm_eps": getattr(config.norm, "eps", 1e-5),
        "rope_parameters": write_rope(attention.position or config.position),
        "sliding_window": attention.window,
        "attention_dropout": attention.dropout,
        "num_local_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "router_aux_loss_coef": moe.balance,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": None,  # theirs are those of one vocabulary
        "eos_token_id": None,
        "pad_token_id": None,
        **common(config),
    }


def _lightning_rules(config: GPTConfig, mixer: LightningConfig, ours: str, theirs: str) -> list[Rule]:
    heads = mixer.heads or config.heads
    width = mixer.head_dim or config.dim // heads
    names = {"gate": "output_gate", "norm.norm": "norm", "out": "out_proj"}
    return [
        Rule((f"{ours}.qkv.weight",), (f"{theirs}.qkv_proj.weight",), order=by_part(heads, (width,) * 3)),
        *(both(f"{ours}.{mine}.weight", f"{theirs}.{its}.weight") for mine, its in names.items()),
    ]


def _rules(config: GPTConfig) -> list[Rule]:
    before = [f"model.layers.{layer}.input_layernorm.weight" for layer in range(config.depth)]
    before.append("model.norm.weight")
    rules = [both("stack.input_norm.weight", before[0])]
    if config.tie_embeddings:
        rules.append(both("embed.weight", "model.embed_tokens.weight", "lm_head.weight"))
    else:
        rules += [both("embed.weight", "model.embed_tokens.weight"), both("head.weight", "lm_head.weight")]
    moe = _moe(config)
    for layer, mixer in enumerate(_mixers(config)):
        ours, theirs = f"stack.blocks.{layer}", f"model.layers.{layer}"
        rules.append(both(f"{ours}.residuals.mixer.norm.weight", f"{theirs}.post_attention_layernorm.weight"))
        rules.append(both(f"{ours}.residuals.ffn.norm.weight", before[layer + 1]))
        if isinstance(mixer, LightningConfig):
            rules += _lightning_rules(config, mixer, f"{ours}.mixer", f"{theirs}.self_attn")
        else:
            rules += attention_rules(config, layer, ours, theirs)
        there = f"{theirs}.block_sparse_moe"
        rules.append(both(f"{ours}.ffn.router.weight", f"{there}.gate.weight"))
        rules += expert_rules(config, moe, f"{ours}.ffn.experts", f"{there}.experts", ("w1", "w3", "w2"))
    return rules


MINIMAX = _MiniMaxFamily(
    "minimax",
    "model",
    _read,
    _write,
    _rules,
    heads=("lm_head.",),
    rename=lambda name: name.replace(".mlp.", ".block_sparse_moe."),
    buffers=("rotary_emb.inv_freq", "slope_rate", "query_decay", "key_decay", "diagonal_decay"),
)
