"""Models from and to folders of transformers: config.json and safetensors. Neither needs transformers installed.

zoo.from_hf("gpt2")                   a hub id, downloaded once through huggingface_hub, or found in its cache
zoo.from_hf("some/folder")            what `save_pretrained` of transformers, or `to_hf`, wrote
zoo.to_hf(model, "folder")            a folder that AutoModel....from_pretrained loads
zoo.from_hf("google/electra-small-discriminator", generator="google/electra-small-generator")
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from zoo.interop import (
    hf_bart,
    hf_bert,
    hf_decision,
    hf_deepseek,
    hf_electra,
    hf_gpt2,
    hf_jamba,
    hf_kimi_linear,
    hf_llama,
    hf_llama4,
    hf_mamba,
    hf_minimax,
    hf_modernbert,
    hf_moe,
    hf_qwen3_next,
    hf_switch,
    hf_t5,
    hf_vit,
    hf_whisper,
)
from zoo.interop.family import Family, experts
from zoo.interop.weights import load_weights, stored
from zoo.models import electra
from zoo.models.bert import BERTConfig
from zoo.models.decision import DecisionConfig
from zoo.models.electra import ELECTRAConfig
from zoo.models.gpt import GPTConfig
from zoo.models.t5 import T5Config
from zoo.models.transformer import OriginalTransformerConfig
from zoo.models.vit import ViT, ViTConfig
from zoo.models.whisper import WhisperConfig
from zoo.registry import ConfigError, nearest

__all__ = ["FAMILIES", "from_hf", "to_hf"]


class _ViTFamily(Family):
    """ViT's maps are older than the rules and work on whole state dicts."""

    def from_huggingface(self, state: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]:
        return hf_vit.from_huggingface(state)

    def sketch(self, model: nn.Module) -> dict[str, Tensor]:
        return {"classifier.weight": model.head.linear.weight}  # type: ignore[union-attr]

    def to_huggingface(self, model: nn.Module) -> dict[str, Tensor]:
        assert isinstance(model, ViT)
        return {name: tensor.contiguous() for name, tensor in hf_vit.to_huggingface(model).items()}


_VIT = _ViTFamily("vit", "", hf_vit.read_vit, hf_vit.write_vit, lambda config: [])
FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        hf_gpt2.GPT2,
        hf_llama.LLAMA,
        hf_llama.MISTRAL,
        hf_llama.QWEN3,
        hf_llama.GEMMA2,
        hf_llama.OLMO2,
        hf_moe.MIXTRAL,
        hf_moe.QWEN3_MOE,
        hf_deepseek.DEEPSEEK_V3,
        hf_llama4.LLAMA4,
        hf_mamba.MAMBA,
        hf_mamba.MAMBA2,
        hf_qwen3_next.QWEN3_NEXT,
        hf_kimi_linear.KIMI_LINEAR,
        hf_jamba.JAMBA,
        hf_minimax.MINIMAX,
        hf_bert.BERT,
        hf_bert.ROBERTA,
        hf_bert.DISTILBERT,
        hf_electra.ELECTRA,
        hf_modernbert.MODERNBERT,
        hf_t5.T5,
        hf_switch.SWITCH,
        hf_bart.BART,
        hf_bart.MARIAN,
        hf_decision.DECISION,
        hf_whisper.WHISPER,
        _VIT,
    )
}
"""Maps by transformers' model_type."""

_HYBRIDS = {"gated_delta": "qwen3_next", "kda": "kimi_linear", "mamba": "jamba", "lightning": "minimax"}
"""The model_type whose class has such a mixer in some of its layers."""

_FILES = ["config.json", "model.safetensors", "model-*.safetensors", "model.safetensors.index.json"]
_FILES += ["tokenizer.json", "generation_config.json"]  # of Whisper


def from_hf(
    source: str | os.PathLike[str],
    *,
    generator: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    revision: str | None = None,
) -> nn.Module:
    """The model of a folder or hub id of transformers, in evaluation mode and in the file's dtype unless `dtype` says.

    Only the weights are ever held in memory: the model is built without any and takes each as it is read. `generator`
    is the second checkpoint of an ELECTRA. Everything in config.json that would change the computation and has no
    counterpart here is refused.

    Raises ConfigError: no such folder or id, no network, no safetensors, an unknown model_type or field, a weight
    missing, left over or of another shape.
    """
    folder = _folder(source, revision)
    if generator is None and (folder / "discriminator").is_dir() and (folder / "generator").is_dir():
        folder, generator = folder / "discriminator", folder / "generator"
    if generator is not None:
        return _pair(folder, _folder(generator, None), device, dtype)
    plain = _config(folder)
    family = _family(plain, folder)
    with _Checkpoint(folder, family, device) as weights:
        config = family.config_from(plain, weights, str(folder / "config.json"))
        with torch.device("meta"):
            model = config.build()
        if isinstance(family, _ViTFamily | hf_decision.DecisionFamily):  # maps of whole state dicts
            pairs = iter(family.from_huggingface(dict(weights), config).items())
        else:
            pairs = load_weights(family.rules(config), weights, weights.__getitem__)
        _fill(model, pairs, dtype, folder)
    family.attach(model, folder)
    return model.eval()


def to_hf(model: nn.Module, folder: str | os.PathLike[str]) -> Path:
    """Write config.json and model.safetensors of transformers, which its Auto classes load; returns the folder.

    The model_type is the one whose class computes the same. An ELECTRA becomes two folders, `discriminator` and
    `generator`. What transformers' class cannot hold is refused, and nothing is written. Token ids beyond those our
    config knows are left out: set them beside the tokenizer.

    Raises ConfigError for a model without a counterpart, naming the first difference.
    """
    folder, config = Path(folder), getattr(model, "config", None)
    if isinstance(model, electra.ELECTRA):
        plains, states = hf_electra.config_to_pair(model.config), hf_electra.to_pair(model)
        for name, plain, state in zip(("discriminator", "generator"), plains, states, strict=True):
            _write(folder / name, plain, state)
        return folder
    family = FAMILIES[_model_type(config)]
    plain = family.config_to(config, family.sketch(model))  # type: ignore[arg-type]
    _write(folder, plain, family.to_huggingface(model))
    family.attached(model, folder)
    return folder


def _model_type(config: Any) -> str:
    """The model_type whose class is nearest to a config; whether it fits is checked afterwards."""
    if isinstance(config, ViTConfig):
        return "vit"
    if isinstance(config, DecisionConfig):
        return "decision_transformer"
    if isinstance(config, WhisperConfig):
        return "whisper"
    if isinstance(config, T5Config):
        return "t5" if experts(config) is None else "switch_transformers"
    if isinstance(config, OriginalTransformerConfig):
        return "bart" if config.position.registered_name == "learned" else "marian"
    if isinstance(config, BERTConfig) and not isinstance(config, ELECTRAConfig):
        if config.position.place != "input":
            return "modernbert"
        if (config.embedding_dim or config.dim) != config.dim:
            return "electra"
        if not config.token_types:
            return "distilbert"
        return "roberta" if getattr(config.position, "offset", 0) else "bert"
    if isinstance(config, GPTConfig):
        if config.mixer.registered_name in ("mamba", "mamba2"):
            return config.mixer.registered_name
        mixers = {config.mixer.at(layer, config.depth).registered_name for layer in range(config.depth)}
        for name, kind in _HYBRIDS.items():
            if name in mixers:
                return kind
        if config.position.place == "input":
            return "gpt2"
        residual, mixer = config.residual.registered_name, config.mixer.at(0, max(config.depth, 1))
        moe = experts(config)
        if mixer.registered_name == "mla":
            return "deepseek_v3"
        if moe is not None and moe.weigh == "input":
            return "llama4_text"
        if residual in ("sandwich", "res_post"):
            return {"sandwich": "gemma2", "res_post": "olmo2"}[residual]
        if getattr(mixer, "qk_norm", None) is not None:
            return "qwen3" if moe is None else "qwen3_moe"
        if moe is not None:
            return "mixtral"
        return "mistral" if getattr(mixer, "window", None) is not None else "llama"
    name = getattr(config, "registered_name", "") or "this model"
    raise ConfigError(
        f"'{name}' has no counterpart in transformers; choices: gpt, bert, electra, t5, transformer, vit, whisper"
    )


def _write(folder: Path, plain: Mapping[str, Any], state: dict[str, Tensor]) -> None:
    from zoo.files import write_text, write_whole

    folder.mkdir(parents=True, exist_ok=True)
    dtypes = {tensor.dtype for tensor in state.values()}
    plain = dict(plain) | {"dtype": str(max(dtypes, key=lambda d: d.itemsize)).removeprefix("torch.")}
    write_whole(folder / "model.safetensors", lambda file: save_file(state, file.name, metadata={"format": "pt"}))
    write_text(folder / "config.json", json.dumps(plain, indent=2) + "\n")


def _pair(discriminator: Path, generator: Path, device: torch.device | str, dtype: torch.dtype | None) -> nn.Module:
    plains = [_config(folder) for folder in (discriminator, generator)]
    for plain, folder in zip(plains, (discriminator, generator), strict=True):
        if plain.get("model_type") != "electra":
            raise ConfigError(f"{folder} is a '{plain.get('model_type')}', and only 'electra' has a generator")
    with (
        _Checkpoint(discriminator, hf_electra.ELECTRA, device) as large,
        _Checkpoint(generator, hf_electra.ELECTRA, device) as small,
    ):
        config = hf_electra.config_from_pair(*plains)
        with torch.device("meta"):
            model = config.build()
        _fill(model, iter(hf_electra.from_pair(large, small, config).items()), dtype, discriminator)
    return model.eval()


def _fill(model: nn.Module, pairs: Iterator[tuple[str, Tensor]], dtype: torch.dtype | None, folder: Path) -> None:
    """Give each parameter of a model on the meta device its tensor; shared modules hold one parameter, so stay tied."""
    left = stored(model)
    for name, tensor in pairs:
        if name not in left:
            raise ConfigError(f"{folder}: weight '{name}' has no place in the model")
        empty = left.pop(name)
        if empty.shape != tensor.shape:
            raise ConfigError(
                f"{folder}: weight '{name}' is {tuple(tensor.shape)} where the config says {tuple(empty.shape)}"
            )
        place, _, leaf = name.rpartition(".")
        module = model.get_submodule(place)
        setattr(module, leaf, nn.Parameter(tensor) if isinstance(empty, nn.Parameter) else tensor)
        if dtype is not None:
            module.to(dtype)  # which a router takes in its own way
    if left:
        raise ConfigError(f"{folder}: the file has nothing for weight '{min(left)}'")
    assert not any(buffer.is_meta for buffer in model.buffers())


class _Checkpoint(Mapping[str, Tensor]):
    """The weights of a folder by their present names, each read from its file when it is asked for."""

    def __init__(self, folder: Path, family: Family, device: torch.device | str) -> None:
        self._where, self._files = str(folder), {}
        self._places: dict[str, tuple[Path, str]] = {}
        self._device = str(device)
        found = _weight_files(folder)
        names: dict[str, Path] = {}
        for path in found:
            names |= dict.fromkeys(self._open(path).keys(), path)
        bare = family.is_bare(names)
        for found_name, path in names.items():
            name = family.name(found_name, bare)
            if name is not None:
                self._places[name] = (path, found_name)

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            try:
                self._files[path] = safe_open(path, framework="pt", device=self._device)
            except (SafetensorError, OSError) as error:
                raise ConfigError(f"{path}: {str(error).splitlines()[0]}") from None
        return self._files[path]

    def __getitem__(self, name: str) -> Tensor:
        path, stored = self._places[name]
        return self._open(path).get_tensor(stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __enter__(self) -> _Checkpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self._files.clear()


def _weight_files(folder: Path) -> list[Path]:
    """The one file, or those of the index. Raises ConfigError when there is none, or one of them is missing."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if index.is_file():
        try:
            files = sorted({folder / name for name in json.loads(index.read_text())["weight_map"].values()})
        except (ValueError, KeyError, AttributeError, TypeError):
            raise ConfigError(f"{index} is not an index of weights") from None
        absent = [path.name for path in files if not path.is_file()]
        if absent:
            raise ConfigError(f"{folder} lacks {absent[0]}, one of the {len(files)} files of its index")
        return files
    raise ConfigError(
        f"{folder} has no model.safetensors; only safetensors are read, since pickled weights (.bin) can run code: "
        "save it anew with transformers, or choose a revision that has them"
    )


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"{folder} has no config.json; give a folder that transformers' save_pretrained wrote")
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(plain, dict):
        raise ConfigError(f"{path} should hold a dict, got {type(plain).__name__}")
    if "family" in plain and "model_type" not in plain:
        raise ConfigError(f"{folder} was written by zoo.save_pretrained; read it with zoo.load_pretrained")
    return plain


def _family(plain: Mapping[str, Any], folder: Path) -> Family:
    kind = plain.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        near = nearest(str(kind), FAMILIES)
        raise ConfigError(f"model_type {kind!r} is unknown here{near}; choices: {', '.join(FAMILIES)}", str(folder))
    return FAMILIES[kind]


def _folder(source: str | os.PathLike[str], revision: str | None) -> Path:
    """A folder as it is; a hub id from the network or the cache."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(source)) or str(source).startswith("."):
        raise ConfigError(f"{source} is no folder, and no hub id such as 'gpt2' or 'google/t5-v1_1-small'")
    return _download(str(source), revision)


def _download(name: str, revision: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            LocalEntryNotFoundError,
            OfflineModeIsEnabled,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ImportError:
        raise ConfigError(
            f"'{name}' is no folder, and hub ids need huggingface_hub: pip install huggingface_hub"
        ) from None
    fetch: Callable[..., str] = snapshot_download
    try:
        return Path(fetch(name, revision=revision, allow_patterns=_FILES))
    except GatedRepoError:
        raise ConfigError(f"'{name}' is gated: accept its terms on the hub and log in (hf auth login)") from None
    except RepositoryNotFoundError:
        raise ConfigError(f"'{name}' is neither a folder nor a model of the hub that you may read") from None
    except RevisionNotFoundError:
        raise ConfigError(f"'{name}' has no revision '{revision}'") from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        offline = "HF_HUB_OFFLINE is set" if os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0") else "no network"
        raise ConfigError(
            f"'{name}' is no folder and is not in the hub's cache, and it cannot be fetched: {offline}; "
            "give a folder, or fetch it where there is a network (hf download)"
        ) from None
    except Exception as error:  # whatever the network does
        raise ConfigError(f"'{name}' could not be fetched: {(str(error) or repr(error)).splitlines()[0]}") from None
