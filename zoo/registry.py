"""Registry of parts, and strict decoding of plain values into their configs.

Every part of the zoo (a mixer, a norm, a model ...) is a `Config`: a frozen, keyword-only pydantic model
that holds only the part's own choices. `register` gives it a name; from then on a plain value stands for it:

    "attention"                                  the part with its defaults
    {"name": "attention", "window": 8}           the part with choices
    {"window": 8}                                choices on top of the field's default part

`decode` turns such a value into a config and refuses what it does not know, in one line that names the place,
the value and the choices. `encode` is its inverse: plain dicts, lists, numbers, strings and None only.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

__all__ = [
    "Config",
    "ConfigError",
    "decode",
    "describe",
    "encode",
    "kinds",
    "name_key",
    "names",
    "nearest",
    "part",
    "register",
    "register_preset",
]


class ConfigError(ValueError):
    """A wrong choice, told in one line. `problems` holds (place, message) pairs; the text joins them."""

    def __init__(self, problems: str | Iterable[tuple[tuple[str, ...], str]], where: str = "") -> None:
        pairs = [((), problems)] if isinstance(problems, str) else list(problems)
        prefix = (where,) if where else ()
        self.problems: list[tuple[tuple[str, ...], str]] = [(prefix + place, text) for place, text in pairs]
        lines = [f"{'.'.join(place)}: {text}" if place else text for place, text in self.problems]
        super().__init__("; ".join(lines))


class Config(BaseModel):
    """Base of every config: frozen, keyword-only, unknown keys refused, types strict (no "8" for 8)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)

    kind: ClassVar[str] = ""
    registered_name: ClassVar[str] = ""

    if not TYPE_CHECKING:  # the type checker keeps pydantic's generated signature

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigError(_problems(error, type(self))) from None

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, values: Any) -> Any:
        """Lists become tuples, and a dict without a name adds choices to the field's default part."""
        if not isinstance(values, Mapping):
            return values
        prepared: dict[str, Any] = {}
        for key, value in values.items():
            field = cls.model_fields.get(key)
            default = field.default if field is not None else None
            if isinstance(value, Mapping) and isinstance(default, Config) and name_key(default.kind) not in value:
                value = merge(encode(default), value)
            prepared[key] = _tuples(value)
        return prepared


ConfigT = TypeVar("ConfigT", bound=Config)


@dataclass(frozen=True)
class Entry:
    """One registered name: a config class, or a function that returns a config (a preset)."""

    kind: str
    name: str
    make: Callable[..., Config]
    summary: str
    paper: str

    @property
    def is_preset(self) -> bool:
        return not isinstance(self.make, type)


_ENTRIES: dict[str, dict[str, Entry]] = {}


def register(kind: str, name: str, *, paper: str = "") -> Callable[[Any], Any]:
    """Class or function decorator that files a config class, or a preset function, under `kind` and `name`.

    `paper` is "Authors year, arXiv:id". The first line of the docstring is the summary that `zoo list` prints.
    Raises ValueError when the name is taken by something else.
    """

    def add(made: Any) -> Any:
        entries = _ENTRIES.setdefault(kind, {})
        if name in entries and entries[name].make.__qualname__ != made.__qualname__:
            raise ValueError(f"{kind} '{name}' is registered already, by {entries[name].make.__qualname__}")
        summary = (made.__doc__ or "").strip().split("\n")[0]
        entries[name] = Entry(kind, name, made, summary, paper)
        if isinstance(made, type):
            made.kind, made.registered_name = kind, name  # type: ignore[attr-defined]
        return made

    return add


def register_preset(
    config: Callable[..., Config], name: str, summary: str, paper: str, choices: dict[str, Any]
) -> None:
    """File a model preset: `config` with these choices, made anew at each call."""

    def preset() -> Config:
        return config(**choices)

    preset.__doc__, preset.__qualname__ = summary, name
    register("model", name, paper=paper)(preset)


def kinds() -> list[str]:
    """Names of all kinds of parts, sorted."""
    return sorted(_ENTRIES)


def names(kind: str) -> list[str]:
    """Names registered under `kind`, sorted."""
    return sorted(_ENTRIES.get(kind, {}))


def describe(kind: str, name: str) -> Entry:
    """The entry of one name. Raises ConfigError with the nearest match and the choices."""
    entries = _ENTRIES.get(kind, {})
    if name not in entries:
        raise ConfigError(f"unknown {kind} '{name}'{nearest(name, entries)}; choices: {', '.join(sorted(entries))}")
    return entries[name]


def nearest(name: str, choices: Iterable[str]) -> str:
    """', did you mean ...?' for the closest choice, or an empty string."""
    close = difflib.get_close_matches(str(name), list(choices), n=1, cutoff=0.6)
    return f", did you mean '{close[0]}'?" if close else ""


def decode(kind: str, value: Any, where: str = "") -> Any:
    """Config of `kind` from a config, a name, or a dict with a name. `where` is the place shown in errors."""
    try:
        return _decode(kind, value)
    except ConfigError as error:
        raise ConfigError(error.problems, where) from None


def encode(config: Any) -> Any:
    """Plain value of a config: dicts with names, lists, numbers, strings, booleans and None. decode's inverse."""
    if isinstance(config, Config):
        head = {name_key(config.kind): config.registered_name} if config.registered_name else {}
        return head | {name: encode(getattr(config, name)) for name in type(config).model_fields}
    if isinstance(config, Mapping):
        return {str(key): encode(value) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        return [encode(value) for value in config]
    return config


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Base with changes; a nested dict is merged unless it names another part, which replaces it."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            renamed = any(k in value and value[k] != old.get(k) for k in ("name", "family"))
            merged[key] = dict(value) if renamed else merge(old, value)
        else:
            merged[key] = value
    return merged


def part(kind: str) -> BeforeValidator:
    """Annotation of a field that takes any part of `kind`: `mixer: Annotated[MixerConfig, part("mixer")]`."""
    return BeforeValidator(lambda value: None if value is None else _decode(kind, value))


def _decode(kind: str, value: Any) -> Any:
    if isinstance(value, Config):
        if value.kind != kind:
            raise ConfigError(f"should be a {kind}, got the {value.kind or 'config'} {type(value).__name__}")
        return value
    if isinstance(value, str):
        value = {name_key(kind): value}
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"should be the name of a {kind} or a dict with '{name_key(kind)}', got {value!r}; "
            f"choices: {', '.join(names(kind))}"
        )
    rest = {str(key): item for key, item in value.items()}
    name = rest.pop(name_key(kind), None)
    if not isinstance(name, str):
        raise ConfigError(
            f"needs '{name_key(kind)}', the name of a {kind}, got {name!r}; choices: {', '.join(names(kind))}"
        )
    entry = describe(kind, name)
    if entry.is_preset:
        return _decode(kind, merge(encode(entry.make()), rest)) if rest else entry.make()
    return entry.make(**rest)


def name_key(kind: str) -> str:
    """The dict key that holds the part's name. Models say `family`, so that an arm may have a `name` of its own."""
    return "family" if kind == "model" else "name"


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _problems(error: ValidationError, cls: type[Config]) -> list[tuple[tuple[str, ...], str]]:
    """pydantic's report as (place, message) pairs in our words."""
    found: list[tuple[tuple[str, ...], str]] = []
    for item in error.errors():
        place = tuple(str(key) for key in item["loc"])
        inner = item.get("ctx", {}).get("error")
        if isinstance(inner, ConfigError):
            found += [(place + deeper, text) for deeper, text in inner.problems]
        elif item["type"] == "extra_forbidden":
            keys = list(cls.model_fields)
            found.append((place, f"unknown key{nearest(place[-1], keys)}; choices: {', '.join(keys) or '(none)'}"))
        elif item["type"] == "missing":
            found.append((place, "is required"))
        elif inner is not None:
            found.append((place, str(inner)))
        else:
            expected = item["msg"].removeprefix("Input ").replace("instance of ", "")
            hint = nearest(str(item["input"]), re.findall(r"'([^']*)'", item.get("ctx", {}).get("expected", "")))
            found.append((place, f"{expected}, got {_short(item['input'])}{hint}"))
    return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
