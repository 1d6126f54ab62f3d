"""Tables of settings: frozen dataclasses ↔ plain tables, every key known, every value of its type and in its range."""

import dataclasses
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import field
from math import isfinite
from typing import Any, TypeVar

from stratafl.errors import RecordError, unknown

T = TypeVar("T")
_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "least": ("at least", operator.ge),
    "most": ("at most", operator.le),
    "above": ("above", operator.gt),
    "below": ("below", operator.lt),
}
_WORDS = {
    float: "a number",
    int: "a whole number",
    str: "a text",
    bool: "true or false",
    tuple: "a list",
    Mapping: "a table",
}
_UNITS = {"": 1, "b": 1} | {
    f"{letter}{i}b": base**power for power, letter in enumerate("kmgt", 1) for i, base in (("", 1000), ("i", 1024))
}
_SIZE = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})\s*", re.IGNORECASE)
OPTIONS = "options"  # the field of a table that takes the keys it does not know itself


def setting(default: Any, says: str, **limits: Any) -> Any:
    """A key with its default, what it says, and limits: `least`, `most`, `above`, `below`, `among`, `named` or `size`.

    What is `named` is among the given names or a path `package.module:name`; a `size` may be written with its unit; of
    a list, `each` is among the given names.
    """
    return field(default=default, metadata={"says": says, **limits})


def from_table(name: str, cls: type[T], table: Mapping[str, Any]) -> T:
    """The dataclass of a table; unknown keys are refused with the nearest match, or become options."""
    if not isinstance(table, Mapping):
        raise RecordError(f"[{name}] is a table, not {table!r}")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.name != OPTIONS}  # type: ignore[arg-type]
    known = {key: value for key, value in table.items() if key in fields}
    options = {key: value for key, value in table.items() if key not in fields}
    if options and OPTIONS not in hints:
        raise unknown(f"key of [{name}]", next(iter(options)), fields)
    for key, value in options.items():
        _check_plain(f"{name}.{key}", value)
    for key, each in fields.items():
        if key not in known and each.default is each.default_factory is dataclasses.MISSING:
            raise RecordError(f"[{name}] needs '{key}'")
    values = {key: checked(f"{name}.{key}", hints[key], value, fields[key].metadata) for key, value in known.items()}
    return cls(**values, **({OPTIONS: options} if OPTIONS in hints else {}))


def _check_plain(key: str, value: Any) -> None:
    """Refuse what cannot be written down again: dates, and numbers that are not finite."""
    parts = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    for part in parts:
        _check_plain(key, part)
    if not isinstance(value, bool | int | float | str | list | dict) or (
        isinstance(value, float) and not isfinite(value)
    ):
        raise RecordError(f"{key} is a finite number, a text, true or false, or a list of them, not {value}")


def to_table(value: Any) -> dict[str, Any]:
    """A dataclass as a plain table, its options among its keys; keys at None are left out."""
    there = {key: each for key, each in vars(value).items() if key != OPTIONS and each is not None}
    plain = {key: list(each) if isinstance(each, tuple) else each for key, each in there.items()}
    return {**plain, **vars(value).get(OPTIONS, {})}


def without_options(cls: type[Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """A plain table with only those keys that are fields of its dataclass."""
    fields = {f.name for f in dataclasses.fields(cls)}
    return {key: value for key, value in table.items() if key in fields}


def checked(key: str, hint: Any, value: Any, limits: Mapping[str, Any] | None = None) -> Any:
    """The value, if it is of the hinted type and within the limits; whole numbers pass for numbers."""
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    kinds = tuple(typing.get_origin(kind) or kind for kind in (typing.get_args(hint) if union else (hint,)))
    if value is None and type(None) in kinds:
        return None
    if limits and limits.get("size"):
        return _bytes(key, value)
    if isinstance(value, int) and not isinstance(value, bool) and float in kinds and int not in kinds:
        value = float(value)
    if isinstance(value, list) and tuple in kinds:  # records never change
        value = tuple(value)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = ", ".join(sorted((limits or {}).get("among", ())))
        wanted = f"one of {names}" if names else _WORDS.get(kinds[0], f"a {kinds[0].__name__}")
        raise RecordError(f"{key} is {wanted}, not {value!r}")
    _check_limits(key, value, limits or {})
    return value


def _bytes(key: str, value: Any) -> int:
    """A size in bytes, from a whole number or a text with a unit."""
    found = _SIZE.fullmatch(str(value)) if isinstance(value, str | int) and not isinstance(value, bool) else None
    size = int(float(found[1]) * _UNITS[found[2].lower()]) if found else 0
    if size < 1:
        raise RecordError(f"{key} is a size such as 8GB, 500MB, 1.5GiB or a number of bytes, not {value!r}")
    return size


def documented(tables: Mapping[str, type[Any]]) -> str:
    """All keys of all tables with their defaults, limits and meaning, as Markdown."""
    return "\n".join(_documented(name, cls) for name, cls in tables.items())


def _documented(name: str, cls: type[Any]) -> str:
    fields = [f for f in dataclasses.fields(cls) if f.name != OPTIONS]
    rows = [f"| `{f.name}` | {_default(f.default)} | {f.metadata['says']}{_range(f.metadata)} |" for f in fields]
    return "\n".join([f"## [{name}]", "", "| key | default | meaning |", "|---|---|---|", *rows, ""])


def _default(value: Any) -> str:
    if isinstance(value, tuple):
        value = list(value)
    return "none" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _range(limits: Mapping[str, Any]) -> str:
    words = [f"{word} {limits[limit]}" for limit, (word, _) in _LIMITS.items() if limit in limits]
    if "among" in limits:
        words.append("one of " + ", ".join(f"`{name}`" for name in limits["among"]))
    if "each" in limits:
        words.append("any of " + ", ".join(f"`{name}`" for name in limits["each"]))
    return f" ({', '.join(words)})" if words else ""


def _check_limits(key: str, value: Any, limits: Mapping[str, Any]) -> None:
    if "among" in limits and value not in limits["among"]:
        raise unknown(key, str(value), sorted(limits["among"]))
    for each in value if "each" in limits else ():
        if each not in limits["each"]:
            raise unknown(key, str(each), sorted(limits["each"]))
    if "named" in limits and ":" not in value and value not in limits["named"]:
        raise unknown(key, str(value), sorted(limits["named"]))
    if isinstance(value, float) and not isfinite(value):
        raise RecordError(f"{key} must be a finite number, not {value}")
    for limit, (word, fits) in _LIMITS.items():
        if limit in limits and not fits(value, limits[limit]):
            raise RecordError(f"{key} must be {word} {limits[limit]}, not {value}")
