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

from stratafl.errors import RecordError, shown, unknown

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
WHOLE = 2**63 - 1  # the largest whole number that a file, a seed or a tensor holds
LONGEST, DEEPEST = 4096, 16  # letters of a text, and lists within lists
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
        raise RecordError(f"[{name}] is a table, not {said(table)}")
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


def _check_plain(key: str, value: Any, depth: int = 0) -> None:
    """Refuse what cannot be written down again: dates, numbers that are not finite, lists without end."""
    if depth > DEEPEST:
        raise RecordError(f"{shown(key)} holds lists within lists, more than {DEEPEST} deep: make it simpler")
    parts = value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, dict) else ()
    for part in parts:
        _check_plain(key, part, depth + 1)
    _check_text(key, key)
    _check_size(key, value)
    if not isinstance(value, bool | int | float | str | list | dict) or (
        isinstance(value, float) and not isfinite(value)
    ):
        allowed = "a finite number, a text, true or false, or a list of them"
        raise RecordError(f"{shown(key)} is {allowed}, not {shown(value)}")


def _check_size(key: str, value: Any, most: float = WHOLE) -> None:
    """Refuse whole numbers and texts that no setting can need, and that files and tensors do not hold."""
    if isinstance(value, int) and abs(value) > WHOLE:
        bound = f"at most {_number(most)}" if value > 0 else f"at least {-WHOLE:,}"
        raise RecordError(f"{shown(key)} must be {bound}, not {shown(said(value))}")
    if isinstance(value, str):
        _check_text(key, value)


def _check_text(key: str, value: str) -> None:
    if len(value) > LONGEST:
        raise RecordError(f"{shown(key)} has at most {LONGEST:,} letters, not {len(value):,}: '{shown(value)}'")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # such as a file's name that is not in the encoding of the system
        raise RecordError(f"{shown(key)} must be a text in UTF-8, not '{shown(value)}'") from error


def said(value: Any) -> str:
    """A value in an error: short, and never an error of its own."""
    try:
        return shown(repr(value), 200)
    except ValueError:  # a whole number with more digits than Python writes down
        return f"a number of about {value.bit_length() * 3 // 10:,} digits" if isinstance(value, int) else "a number"
    except RecursionError:
        return "lists within lists"


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
    _check_size(key, value, (limits or {}).get("most", WHOLE))
    if isinstance(value, int) and not isinstance(value, bool) and float in kinds and int not in kinds:
        value = float(value)
    if isinstance(value, list) and tuple in kinds:  # records never change
        value = tuple(value)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = ", ".join(sorted((limits or {}).get("among", ())))
        wanted = f"one of {names}" if names else _WORDS.get(kinds[0], f"a {kinds[0].__name__}")
        raise RecordError(f"{key} is {wanted}, not {said(value)}")
    _check_limits(key, value, limits or {})
    return value


def _bytes(key: str, value: Any) -> int:
    """A size in bytes, from a whole number or a text with a unit."""
    plain = isinstance(value, str | int) and not isinstance(value, bool)
    if plain:
        _check_size(key, value)
    found = _SIZE.fullmatch(str(value)) if plain else None
    size = float(found[1]) * _UNITS[found[2].lower()] if found else 0
    if not 1 <= size <= WHOLE:
        raise RecordError(f"{key} is a size such as 8GB, 500MB, 1.5GiB or a number of bytes, not {said(value)}")
    return value if isinstance(value, int) else int(size)


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
    words = [f"{word} {_number(limits[limit])}" for limit, (word, _) in _LIMITS.items() if limit in limits]
    if "among" in limits:
        words.append("one of " + ", ".join(f"`{name}`" for name in limits["among"]))
    if "each" in limits:
        words.append("any of " + ", ".join(f"`{name}`" for name in limits["each"]))
    return f" ({', '.join(words)})" if words else ""


def _number(value: float) -> str:
    """A limit: large ones with commas, since nobody counts noughts."""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _check_limits(key: str, value: Any, limits: Mapping[str, Any]) -> None:
    if "among" in limits and value not in limits["among"]:
        raise unknown(key, str(value), sorted(limits["among"]))
    for each in value if "each" in limits else ():
        if not isinstance(each, str) or each not in limits["each"]:
            raise unknown(key, said(each), sorted(limits["each"]))
    if "named" in limits and ":" not in value and value not in limits["named"]:
        raise unknown(key, str(value), sorted(limits["named"]))
    if isinstance(value, float) and not isfinite(value):
        raise RecordError(f"{key} must be a finite number, not {value}")
    for limit, (word, fits) in _LIMITS.items():
        if limit in limits and not fits(value, limits[limit]):
            raise RecordError(f"{key} must be {word} {_number(limits[limit])}, not {value}")
