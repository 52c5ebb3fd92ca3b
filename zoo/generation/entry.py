"""Text, or any ids, from a model: greedy, sampling and beam search for decoders and encoder-decoders.

    zoo.generate(model, ids, max_new_tokens=64, top_p=0.9)           decoder-only
    zoo.generate(model, source=ids, beams=4, eos_id=1)               encoder-decoder

The model is called with new tokens only and keeps the rest in its state (zoo/blocks/state.py), whatever its mixers;
the head sees the last token only. Padding may stand anywhere. See `GenerationConfig` for the choices; the parts are in
zoo/generation/.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from zoo.blocks.api import Context
from zoo.generation.beam import generate_beams
from zoo.generation.config import GenerationConfig
from zoo.generation.decoder import Decoder
from zoo.generation.logits import Rule
from zoo.generation.prompts import Prompts, as_batch, as_features, check_room, pack
from zoo.generation.result import Generated
from zoo.generation.single import generate_single
from zoo.registry import ConfigError

__all__ = ["Generated", "GenerationConfig", "generate", "prefill", "state_bytes"]


def generate(
    model: Any,
    ids: Any = None,
    *,
    token_mask: Tensor | None = None,
    source: Any = None,
    source_mask: Tensor | None = None,
    config: GenerationConfig | Mapping[str, Any] | None = None,
    state: Any = None,
    history: Any = None,
    use_state: bool = True,
    generator: torch.Generator | None = None,
    stream: Callable[[Tensor], object] | None = None,
    rule: Rule | None = None,
    **choices: Any,
) -> Generated:
    """New tokens after each prompt.

    ids: prompts: int (T,) or (B, T), or a list of rows of any lengths. An encoder-decoder starts with its
        `config.start_id` where they are left out.
    token_mask: (B, T) bool, True = a real token; padding may stand left, right or inside a row.
    source, source_mask: what an encoder-decoder reads, in the same forms; it is encoded once. Of a model that reads
        features: (B, M, F) or (M, F), and the mask (B, F) of their frames.
    config, choices: a GenerationConfig, and fields of it as keywords, which come on top.
    state: of an earlier call (`keep_state`, `prefill`): ids are only the new tokens. It is written: clone it to keep it
        as it is.
    rule: rule(new (N, n), logits (N, V)) -> logits (N, V), called at every step with the new tokens so far; -inf
        excludes a token. It must not write into its arguments. Beam search gives it log-probabilities.
    history: the prompts that the state has seen, for the repetition penalty alone.
    use_state: False reads the whole row again at every step: slow, the same tokens.
    generator: of the draws, on the model's device; or give `seed`.
    stream: called at every step with the new token of each row (N,), -1 where the row had ended.

    Dropout is off meanwhile. The answers to a prompt stand side by side: row b `num_sequences` + i of the result.
    Raises ConfigError before any work for what cannot be right, ValueError when the model's logits are not numbers.
    """
    with torch.inference_mode():
        result = _generate(
            model,
            ids,
            token_mask,
            source,
            source_mask,
            config,
            state,
            history,
            use_state,
            generator,
            stream,
            rule,
            choices,
        )
    return _usable(result)


def _generate(
    model: Any,
    ids: Any,
    token_mask: Tensor | None,
    source: Any,
    source_mask: Tensor | None,
    config: GenerationConfig | Mapping[str, Any] | None,
    state: Any,
    history: Any,
    use_state: bool,
    generator: torch.Generator | None,
    stream: Callable[[Tensor], object] | None,
    rule: Rule | None,
    choices: dict[str, Any],
) -> Generated:
    options = _options(config, choices)
    device, vocab_size = _place(model)
    seq2seq = hasattr(model, "encode")
    _check_call(seq2seq, ids, source, source_mask, state, use_state, options, history, generator, device, stream)
    memory = memory_mask = None
    if source is not None:
        read = as_features if getattr(model, "reads", "ids") == "features" else as_batch
        source, source_mask = read(source, source_mask, "source", device)  # (B, S) or (B, M, F)
        if source_mask is not None and bool(source_mask.all()):
            source_mask = None
        if source.shape[-1] == 0:
            raise ConfigError("source holds no token; give one token or more")
    if ids is None:
        if not seq2seq:
            raise ConfigError("ids is required: give prompts (T,) or (B, T), or a list of rows")
        rows = source.shape[0] if source is not None else state.length.shape[0]
        ids = torch.full((rows, 1), model.config.start_id)
    prompts = pack(ids, token_mask, vocab_size=vocab_size, device=device, bos_id=options.bos_id)
    batch, width = prompts.ids.shape
    if source is not None and source.shape[0] != batch:
        raise ConfigError(f"source has {source.shape[0]} rows and ids {batch}; give one prompt for each source row")
    past = 0
    if state is not None:
        if state.length.shape[0] != batch:
            raise ConfigError(f"the state has {state.length.shape[0]} rows and ids {batch}; give one row for each")
        past = int(state.length.max())
    check_room(model, past + width, options.max_new_tokens)
    earlier = None
    if history is not None:
        earlier = pack(history, None, vocab_size=vocab_size, device=device, bos_id=None)
    if options.seed is not None:
        generator = torch.Generator(device).manual_seed(options.seed)
    with _evaluating(model):
        if source is not None:
            memory = model.encode(source, source_mask)  # (B, S, D)
            memory_mask = model.memory_mask(source_mask)
        if state is None and use_state:
            state = model.init_state(batch, width + max(options.max_new_tokens - 1, 0))
        decoder = Decoder(model, state=state, memory=memory, memory_mask=memory_mask)
        if options.max_new_tokens == 0:
            return _nothing(decoder, prompts, options)
        if options.beams > 1:
            return generate_beams(decoder, prompts, options, vocab_size=vocab_size, history=earlier, rule=rule)
        return generate_single(
            decoder,
            prompts,
            options,
            vocab_size=vocab_size,
            generator=generator,
            history=earlier,
            stream=stream,
            rule=rule,
        )


def prefill(
    model: Any, ids: Any, *, token_mask: Tensor | None = None, state: Any = None, chunk: int | None = None
) -> Any:
    """The state after the prompts ids, read in calls of at most `chunk` tokens; it goes on from `state` if given.

    For decoder-only models. Raises ConfigError.
    """
    if hasattr(model, "encode"):
        raise ConfigError("prefill reads prompts of decoder-only models; an encoder-decoder encodes its source once")
    if chunk is not None and chunk < 1:
        raise ConfigError(f"chunk should be at least 1, got {chunk}; leave it out to read all in one call")
    with torch.inference_mode():
        device, vocab_size = _place(model)
        prompts = pack(ids, token_mask, vocab_size=vocab_size, device=device, bos_id=None)
        batch, width = prompts.ids.shape
        check_room(model, width + (0 if state is None else int(state.length.max())), 0)
        with _evaluating(model):
            state = model.init_state(batch, width) if state is None else state
            Decoder(model, state=state).read(prompts.ids, prompts.mask, chunk)
    return state.clone()  # tensors of inference mode could not be used in a pass with gradients


@torch.inference_mode()
def state_bytes(model: Any, batch: int, max_len: int, *, source_len: int = 0, dtype: torch.dtype | None = None) -> int:
    """Bytes that the state of `batch` rows of up to `max_len` tokens takes, exactly `state.nbytes()`.

    With `source_len` also what an encoder-decoder keeps of sources of that length. Nothing is allocated.
    """
    if not source_len:
        return model.init_state(batch, max_len, device="meta", dtype=dtype).nbytes()
    if not hasattr(model, "encode"):
        raise ConfigError(f"source_len {source_len} has no meaning for a decoder-only model; leave it at 0")
    memo = {id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for p in model.parameters()}
    memo |= {id(b): torch.empty_like(b, device="meta") for b in model.buffers()}
    shadow = copy.deepcopy(model, memo).to(dtype).eval()  # the same modules without their numbers
    state = shadow.init_state(batch, max_len, device="meta", dtype=dtype)
    memory = shadow.encode(shadow.empty_source(batch, source_len, "meta"))
    shadow.features(torch.zeros(batch, 1, dtype=torch.int64, device="meta"), Context(memory=memory), state)
    return state.nbytes()


def _options(config: GenerationConfig | Mapping[str, Any] | None, choices: dict[str, Any]) -> GenerationConfig:
    if config is None:
        return GenerationConfig(**choices)
    if isinstance(config, GenerationConfig):
        config = {name: getattr(config, name) for name in config.model_fields_set}
    return GenerationConfig(**{**config, **choices})


def _place(model: Any) -> tuple[torch.device, int]:
    table = model.head.table  # (V, D)
    return table.device, table.shape[0]


def _check_call(
    seq2seq: bool,
    ids: Any,
    source: Any,
    source_mask: Any,
    state: Any,
    use_state: bool,
    options: GenerationConfig,
    history: Any,
    generator: torch.Generator | None,
    device: torch.device,
    stream: Any,
) -> None:
    """Raises ConfigError for arguments that do not go together."""
    if not seq2seq and (source is not None or source_mask is not None):
        raise ConfigError("source has no meaning for a decoder-only model; give the prompts as ids")
    if seq2seq and source is None and state is None:
        raise ConfigError("source is required: this model is an encoder-decoder, and ids are its first target tokens")
    if seq2seq and source is not None and state is not None:
        raise ConfigError("the state keeps what it needs of the source; give one of source and state")
    if state is not None and not use_state:
        raise ConfigError("use_state false reads all tokens again at every step; give one of state and use_state")
    if not use_state and options.keep_state:
        raise ConfigError("keep_state needs a state to keep; leave use_state true")
    if state is not None and history is None and options.repetition_penalty != 1.0:
        raise ConfigError(
            f"repetition_penalty {options.repetition_penalty} counts the tokens of the whole row, and a state does not "
            "hold them; give history, the prompts that the state has seen"
        )
    if generator is not None and options.seed is not None:
        raise ConfigError(f"seed {options.seed} makes a generator of its own; give one of seed and generator")
    if generator is not None and generator.device.type != device.type:
        raise ConfigError(f"the generator is on {generator.device} and the model on {device}; make it on {device}")
    if stream is not None and options.beams > 1:
        raise ConfigError(f"stream has no meaning with beams {options.beams}: no token is sure before the end")


def _usable(result: Generated) -> Generated:
    """The same with tensors that a pass with gradients can use, which those of inference mode are not."""
    return Generated(
        sequences=[row.clone() for row in result.sequences],
        new=[row.clone() for row in result.new],
        log_probs=[row.clone() for row in result.log_probs],
        scores=result.scores.clone(),
        finished=result.finished,
        pending=result.pending.clone(),
        state=None if result.state is None else result.state.clone(),
    )


def _nothing(decoder: Decoder, prompts: Prompts, options: GenerationConfig) -> Generated:
    """The result of no new token: with `keep_state` the prompts are read but for their last tokens."""
    ids, count = prompts.ids, options.num_sequences
    if options.keep_state and ids.shape[1] > 1:
        decoder.read(ids[:, :-1], None if prompts.mask is None else prompts.mask[:, :-1], options.prefill_chunk)
    elif options.keep_state and decoder.memory is not None:  # a masked token: only the memory is taken in
        decoder.read(ids, torch.zeros_like(ids, dtype=torch.bool))
    rows = torch.arange(ids.shape[0], device=ids.device).repeat_interleave(count)
    decoder.reorder(rows)
    whole = [row for row in prompts.rows() for _ in range(count)]
    return Generated(
        sequences=whole,
        new=[row[:0] for row in whole],
        log_probs=[row[:0].float() for row in whole],
        scores=torch.zeros(len(whole), device=ids.device),
        finished=("length",) * len(whole),
        pending=ids[:, -1:].index_select(0, rows),
        state=decoder.state if options.keep_state else None,
    )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout and the like off; afterwards every module is as it was."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
