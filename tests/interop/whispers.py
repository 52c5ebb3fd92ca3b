"""A small Whisper of transformers with a tokenizer, as a folder that `save_pretrained` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

LANGUAGES = ("en", "de", "yue")
END = 256
SUPPRESS, BEGIN_SUPPRESS = [1, 7, 40, 257, 262, 263], [220, END]


def tokenizer(multilingual: bool = True) -> Tokenizer:
    """Bytes, then Whisper's special tokens in its order, with 101 timestamps."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    made.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    names = ["endoftext", "startoftranscript", *(LANGUAGES if multilingual else ()), "translate", "transcribe"]
    names += ["startoflm", "startofprev", "nospeech", "notimestamps"]
    made.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in names])
    made.add_tokens([AddedToken(f"<|{i * 0.02:.2f}|>") for i in range(101)])
    return made


def whisper(folder: Path | None = None, *, multilingual: bool = True, stamps: bool = True, **choices: Any) -> Any:
    """The model with random weights everywhere; with its folder written if one is given.

    `stamps` False suppresses timestamps: where a model writes them unasked, transformers cuts its answer there.
    """
    words = tokenizer(multilingual)
    at = words.get_vocab(with_added_tokens=True)
    sizes: dict[str, Any] = {
        "vocab_size": len(at),
        "num_mel_bins": 80,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 40,
        "decoder_ffn_dim": 40,
        "max_target_positions": 64,
        "decoder_start_token_id": at["<|startoftranscript|>"],
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": END,
        "begin_suppress_tokens": BEGIN_SUPPRESS,
    }
    torch.manual_seed(0)
    model: Any = hf.WhisperForConditionalGeneration(hf.WhisperConfig(**{**sizes, **choices}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "model.encoder.embed_positions.weight":
                parameter.add_(torch.randn_like(parameter) * 0.1)
    generation = model.generation_config
    generation.suppress_tokens, generation.begin_suppress_tokens = SUPPRESS, BEGIN_SUPPRESS
    if not stamps:
        generation.suppress_tokens = SUPPRESS + list(range(at["<|0.00|>"], len(at)))
    generation.no_timestamps_token_id = at["<|notimestamps|>"]
    generation.max_initial_timestamp_index = 50
    generation.is_multilingual, generation.return_timestamps = multilingual, False
    generation.max_length = 64
    if multilingual:
        generation.lang_to_id = {f"<|{name}|>": at[f"<|{name}|>"] for name in LANGUAGES}
        generation.task_to_id = {name: at[f"<|{name}|>"] for name in ("transcribe", "translate")}
    if folder is not None:
        model.save_pretrained(folder)
        words.save(str(folder / "tokenizer.json"))
    return model.eval()
