"""Small models of transformers with random weights everywhere, and inputs for them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from zoo.interop.hub import FAMILIES
from zoo.interop.weights import stored

VOCAB, LENGTH = 61, 14
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2, "max_position_embeddings": 64}
_MAMBA: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "state_size": 6,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
_MAMBA2 = {**_MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 10000.0}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_SEQ2SEQ: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "forced_eos_token_id": None,
}
_T5: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 40,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "dropout_rate": 0.0,
}


def _llama(**choices: Any) -> Callable[[], nn.Module]:
    return lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**{**_GROUPED, **choices}))


DECODERS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=32, n_layer=3, n_head=4, n_inner=40)
    ),
    "gpt2 relu, scores not scaled": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=VOCAB,
            n_positions=64,
            n_embd=32,
            n_layer=2,
            n_head=4,
            activation_function="relu",
            scale_attn_weights=False,
            tie_word_embeddings=False,
        )
    ),
    "llama": _llama(),
    "llama tied, biases, wide heads": _llama(
        tie_word_embeddings=True, attention_bias=True, mlp_bias=True, head_dim=16, hidden_act="gelu_pytorch_tanh"
    ),
    "llama linear": _llama(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}),
    "llama yarn": _llama(rope_parameters=_YARN, head_dim=32, max_position_embeddings=4096),
    "llama yarn mscale": _llama(
        rope_parameters={**_YARN, "mscale": 0.7, "mscale_all_dim": 1.0, "beta_fast": 16.0},
        head_dim=32,
        max_position_embeddings=4096,
    ),
    "llama llama3": _llama(rope_parameters={**_LLAMA3, "rope_theta": 500.0, "original_max_position_embeddings": 16}),
    "mistral window 5": lambda: hf.MistralForCausalLM(hf.MistralConfig(**_GROUPED, sliding_window=5)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**_GROUPED, head_dim=12, tie_word_embeddings=True)),
    "qwen3 windows above layer 1": lambda: hf.Qwen3ForCausalLM(
        hf.Qwen3Config(**_GROUPED, head_dim=12, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    ),
    "gemma2 window 5": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(
            **_GROUPED,
            head_dim=12,
            sliding_window=5,
            query_pre_attn_scalar=9,
            attn_implementation="eager",
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
        )
    ),
    "olmo2": lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**_GROUPED)),
    "mamba": lambda: hf.MambaForCausalLM(hf.MambaConfig(**_MAMBA)),
    "mamba wide steps, no bias of the convolution": lambda: hf.MambaForCausalLM(
        hf.MambaConfig(
            **_MAMBA, time_step_rank=5, conv_kernel=3, expand=1, use_conv_bias=False, tie_word_embeddings=False
        )
    ),
    "mamba2": lambda: hf.Mamba2ForCausalLM(hf.Mamba2Config(**_MAMBA2)),
    "mamba2 groups": lambda: hf.Mamba2ForCausalLM(
        hf.Mamba2Config(
            **{**_MAMBA2, "head_dim": 16, "num_heads": 4, "n_groups": 2},
            tie_word_embeddings=True,
            initializer_range=0.3,  # at 0.1 the decays of the last layer have next to no gradient
        )
    ),
}

ENCODERS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: hf.BertForPreTraining(hf.BertConfig(**_SIZES, **_NO_DROPOUT, max_position_embeddings=32)),
    "bert relu trunk": lambda: hf.BertModel(hf.BertConfig(**_SIZES, **_NO_DROPOUT, hidden_act="relu")),
    "roberta": lambda: hf.RobertaForMaskedLM(
        hf.RobertaConfig(**{**_SIZES, "pad_token_id": 1}, **_NO_DROPOUT, max_position_embeddings=32, type_vocab_size=1)
    ),
    "distilbert": lambda: hf.DistilBertForMaskedLM(
        hf.DistilBertConfig(
            vocab_size=VOCAB,
            max_position_embeddings=32,
            n_layers=3,
            n_heads=4,
            dim=32,
            hidden_dim=40,
            dropout=0.0,
            attention_dropout=0.0,
        )
    ),
    "electra generator": lambda: hf.ElectraForMaskedLM(
        hf.ElectraConfig(**_SIZES, **_NO_DROPOUT, max_position_embeddings=32, embedding_size=24)
    ),
    "modernbert windows of 3 to each side": lambda: hf.ModernBertForMaskedLM(
        hf.ModernBertConfig(
            **{**_SIZES, "num_hidden_layers": 5, "cls_token_id": None, "sep_token_id": None, "local_attention": 6}
        )
    ),
    "modernbert with biases": lambda: hf.ModernBertForMaskedLM(
        hf.ModernBertConfig(
            **{**_SIZES, "num_hidden_layers": 4, "cls_token_id": None, "sep_token_id": None, "local_attention": 6},
            attention_bias=True,
            mlp_bias=True,
            norm_bias=True,
            classifier_bias=True,
        )
    ),
}


def _untied(model: nn.Module) -> nn.Module:
    """T5 1.1: transformers builds it with a tied head, and unties it when a checkpoint holds another one."""
    head: Any = model.lm_head
    head.weight = nn.Parameter(0.1 * head.weight.detach())  # theirs starts at 1, which gives logits far above 1
    return model


ENCODER_DECODERS: dict[str, Callable[[], nn.Module]] = {
    "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**_T5)),
    "t5 1.1": lambda: _untied(
        hf.T5ForConditionalGeneration(hf.T5Config(**_T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False))
    ),
    "bart": lambda: hf.BartForConditionalGeneration(
        hf.BartConfig(**_SEQ2SEQ, pad_token_id=1, eos_token_id=2, dropout=0.0)
    ),
    "marian": lambda: hf.MarianMTModel(
        hf.MarianConfig(
            **_SEQ2SEQ,
            pad_token_id=VOCAB - 1,
            decoder_start_token_id=VOCAB - 1,
            eos_token_id=0,
            dropout=0.0,
            activation_function="swish",
            scale_embedding=True,
        )
    ),
    "marian, two vocabularies": lambda: hf.MarianMTModel(
        hf.MarianConfig(
            **{**_SEQ2SEQ, "vocab_size": VOCAB + 9, "decoder_vocab_size": VOCAB, "dropout": 0.0, "eos_token_id": 0},
            pad_token_id=VOCAB - 1,
            decoder_start_token_id=VOCAB - 1,
            share_encoder_decoder_embeddings=False,
        )
    ),
}
_MOE = {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}
_QWEN3_MOE = {**_MOE, "num_hidden_layers": 5, "moe_intermediate_size": 12}
_DEEPSEEK: dict[str, Any] = {
    **_SIZES,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "moe_intermediate_size": 12,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}
_LLAMA4: dict[str, Any] = {
    **_GROUPED,
    "num_hidden_layers": 4,
    "intermediate_size": 12,
    "intermediate_size_mlp": 40,
    "head_dim": 12,
    "num_local_experts": 4,
    "attention_chunk_size": 5,
}
_SWITCH: dict[str, Any] = {
    **_T5,
    "num_layers": 4,
    "num_decoder_layers": 4,
    "num_sparse_encoder_layers": 2,
    "num_sparse_decoder_layers": 2,
    "num_experts": 4,
    "expert_capacity": 64,
}


_QWEN3_NEXT: dict[str, Any] = {
    **_GROUPED,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 20,
    "num_experts": 6,
    "num_experts_per_tok": 3,
}
_KIMI: dict[str, Any] = {
    **{name: value for name, value in _DEEPSEEK.items() if name not in ("n_routed_experts", "first_k_dense_replace")},
    "num_hidden_layers": 4,
    "q_lora_rank": None,
    "num_local_experts": 8,
    "linear_num_heads": 3,
    "linear_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
}


def _without_fla(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """fla's kernels, where installed, need a GPU: the modeling file is imported with them hidden."""

    def build() -> nn.Module:
        with pytest.MonkeyPatch.context() as hidden:
            for kernels in ("fla", "causal_conv1d"):
                hidden.setitem(sys.modules, kernels, None)
            return _calm(make())

    return build


def _calm(model: nn.Module) -> nn.Module:
    """Embeddings of size 1 and decays that leave something of a state: gradients of O(1), and none that vanishes."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("embed_tokens.weight"):
                parameter.normal_()
            if name.endswith(("A_log", "dt_bias")):
                parameter.normal_(-1.0, 0.5)
    return model


def _qwen3_next(**choices: Any) -> Callable[[], nn.Module]:
    return _without_fla(lambda: hf.Qwen3NextForCausalLM(hf.Qwen3NextConfig(**{**_QWEN3_NEXT, **choices})))


def _kimi(**choices: Any) -> Callable[[], nn.Module]:
    return _without_fla(lambda: hf.KimiLinearForCausalLM(hf.KimiLinearConfig(**{**_KIMI, **choices})))


def _deepseek(**choices: Any) -> Callable[[], nn.Module]:
    return lambda: hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(**{**_DEEPSEEK, **choices}))


def _llama4(**choices: Any) -> Callable[[], nn.Module]:
    return lambda: hf.Llama4ForCausalLM(hf.Llama4TextConfig(**{**_LLAMA4, **choices}))


def _switch(**choices: Any) -> Callable[[], nn.Module]:
    config = hf.SwitchTransformersConfig
    return lambda: hf.SwitchTransformersForConditionalGeneration(config(**{**_SWITCH, **choices}))


EXPERT_DECODERS: dict[str, Callable[[], nn.Module]] = {
    "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**{**_MOE, "intermediate_size": 12})),
    "mixtral window 5": lambda: hf.MixtralForCausalLM(
        hf.MixtralConfig(**{**_MOE, "num_experts_per_tok": 3}, sliding_window=5, tie_word_embeddings=True)
    ),
    "deepseek_v3": _deepseek(),
    "deepseek_v3 yarn of the scores, no query latent, biases": _deepseek(
        rope_parameters={**_YARN, "mscale": 0.7, "mscale_all_dim": 0.7}, q_lora_rank=None, attention_bias=True,
        max_position_embeddings=4096, rope_interleave=False, n_shared_experts=2,
    ),
    "deepseek_v3 yarn of cos and sin, all layers sparse": _deepseek(
        rope_parameters=_YARN, max_position_embeddings=4096, first_k_dense_replace=0, norm_topk_prob=False
    ),
    "qwen3_moe": lambda: hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**_QWEN3_MOE, head_dim=12, norm_topk_prob=True)),
    "qwen3_moe dense layers between, window 5": lambda: hf.Qwen3MoeForCausalLM(
        hf.Qwen3MoeConfig(
            **_QWEN3_MOE, decoder_sparse_step=2, mlp_only_layers=[1], use_sliding_window=True, sliding_window=5
        )
    ),
    "llama4_text": _llama4(attn_temperature_tuning=False),
    "llama4_text dense layers between, no norms": _llama4(
        interleave_moe_layer_step=2, use_qk_norm=False, attn_temperature_tuning=False, num_experts_per_tok=2,
        rope_parameters={**_LLAMA3, "high_freq_factor": 1.0, "rope_theta": 500.0,
                         "original_max_position_embeddings": 16},
    ),
    "qwen3_next": _qwen3_next(),
    "qwen3_next dense layers between, biases, equal heads, all channels turn": _qwen3_next(
        decoder_sparse_step=2, mlp_only_layers=[3], attention_bias=True, norm_topk_prob=False,
        linear_num_value_heads=2, linear_value_head_dim=8, layer_types=["full_attention", "linear_attention"] * 2,
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0, "partial_rotary_factor": 1.0},
    ),
    "kimi_linear": _kimi(),
    "kimi_linear query latent, biases, two shared experts, no dense layer": _kimi(
        q_lora_rank=20, attention_bias=True, n_shared_experts=2, mlp_layer_types=["sparse"] * 4, n_group=1,
        topk_group=1, norm_topk_prob=False,
    ),
    "llama4_text temperature": _llama4(floor_scale=4, attn_scale=0.5),
}  # fmt: skip
EXPERT_ENCODER_DECODERS: dict[str, Callable[[], nn.Module]] = {
    "switch_transformers": _switch(),
    "switch_transformers every third layer": _switch(
        num_layers=7, num_decoder_layers=3, num_sparse_decoder_layers=1, dense_act_fn="gelu_new"
    ),
}
_JAMBA: dict[str, Any] = {
    **_GROUPED,
    "num_hidden_layers": 5,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "num_experts": 4,
    "mamba_d_state": 6,
}
_MINIMAX: dict[str, Any] = {
    **_MOE,
    "num_hidden_layers": 4,
    "intermediate_size": 12,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    **dict.fromkeys(("full_attn_alpha_factor", "linear_attn_alpha_factor", "mlp_alpha_factor"), 8**0.25),
}
STATE_DECODERS: dict[str, Callable[[], nn.Module]] = {
    "jamba": lambda: hf.JambaForCausalLM(hf.JambaConfig(**_JAMBA)),
    "jamba no experts, wide steps, no bias of the convolution": lambda: hf.JambaForCausalLM(
        hf.JambaConfig(
            **{**_JAMBA, "num_experts": 1, "num_hidden_layers": 3},
            mamba_dt_rank=5, mamba_d_conv=3, mamba_expand=1, mamba_conv_bias=False, tie_word_embeddings=True,
        )
    ),
    "minimax": lambda: hf.MiniMaxForCausalLM(hf.MiniMaxConfig(**_MINIMAX)),
    "minimax other factors, wide heads, window 5": lambda: hf.MiniMaxForCausalLM(
        hf.MiniMaxConfig(
            **{**_MINIMAX, "num_hidden_layers": 3, "layer_types": None, "num_experts_per_tok": 3},
            **{f"{kind}_beta_factor": 0.7 for kind in ("full_attn", "linear_attn", "mlp")},
            head_dim=12, sliding_window=5, tie_word_embeddings=True,
        )
    ),
}  # fmt: skip
"""State spaces or lightning attention with some attention and experts."""
EVERY = {**DECODERS, **ENCODERS, **ENCODER_DECODERS, **EXPERT_DECODERS, **EXPERT_ENCODER_DECODERS, **STATE_DECODERS}


def build(name: str, seed: int = 0) -> Any:
    """The model with random weights everywhere, norms, biases and position tables too: nothing hides behind a zero."""
    torch.manual_seed(seed)
    model = EVERY[name]()
    fixed = [p for p in model.parameters() if not p.requires_grad]  # Marian's sines
    with torch.no_grad():
        for parameter in model.parameters():
            if not any(parameter is other for other in fixed):
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for key, buffer in model.named_buffers():
            if key == "final_logits_bias":
                buffer.copy_(torch.randn_like(buffer))
                buffer.requires_grad_()
            if key.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.1)
    return model.eval()


def ours(peer: Any) -> tuple[Any, Any]:
    """Our model with the peer's weights, and its maps."""
    family = FAMILIES[peer.config.model_type]
    state = peer.state_dict()
    config: Any = family.config_from(peer.config.to_dict(), family.canonical(state))
    model = config.build().eval()
    load(model, family.from_huggingface(state, config))
    return model.to(next(peer.parameters()).dtype), family


def load(model: nn.Module, state: dict[str, Tensor]) -> None:
    """All weights by their first names, no more and no fewer."""
    named = stored(model)
    assert named.keys() == state.keys()
    with torch.no_grad():
        for name, tensor in state.items():
            assert named[name].shape == tensor.shape, name
            named[name].copy_(tensor)


def gradients(peer: nn.Module) -> dict[str, Tensor]:
    """Gradients of a peer under the names of its weights; zeros for those that took no part, or that never have any."""
    found = {
        name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in peer.named_parameters() if p.is_leaf
    }
    buffers = {name: b.grad for name, b in peer.named_buffers() if b.grad is not None}
    fixed = {name: torch.zeros_like(b) for name, b in peer.named_buffers() if "e_score_correction" in name}
    return found | fixed | buffers


def rows(
    padding: str, *, batch: int = 3, length: int = LENGTH, low: int = 3, high: int = VOCAB - 1
) -> tuple[Tensor, Tensor]:
    """Ids (B, T) without special ones, and a mask (B, T): "none", "left" or "right" padding."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(low, high, (batch, length), generator=generator)
    mask = torch.ones(batch, length, dtype=torch.bool)
    for row, short in enumerate((0, 5, 9)[:batch]):
        if padding == "left":
            mask[row, :short] = False
        if padding == "right":
            mask[row, length - short :] = False
    return ids, mask


def positions(mask: Tensor) -> Tensor:
    """Positions (B, T) of the real tokens, as transformers' generate derives them."""
    return (mask.cumsum(-1) - 1).clamp(min=0)
