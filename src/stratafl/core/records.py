"""Records: frozen dataclasses that print, compare, and go to TOML and back.

Everything a person configures (steps, objectives, edits, partitions, algorithms) is a record. A record only stores its
keyword arguments, so `repr`, equality, `dataclasses.replace` and the TOML round-trip need no code of its own.
"""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

from stratafl.errors import RecordError, unknown

T = TypeVar("T")
_CLASSES: dict[str, type[Any]] = {}
_TEXTUAL: dict[type[Any], Callable[[str], Any]] = {}


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass that `from_table` can rebuild by its class name."""
    made = dataclasses.dataclass(frozen=True)(cls)
    known = _CLASSES.get(made.__name__)
    if known is not None and (known.__module__, known.__qualname__) != (made.__module__, made.__qualname__):
        raise RecordError(f"two records are called '{made.__name__}': in {known.__module__} and in {made.__module__}")
    _CLASSES[made.__name__] = made
    return made


def textual(cls: type[T], parse: Callable[[str], T]) -> None:
    """Declare that instances of `cls` are written as `str(value)` and read back with `parse`."""
    _TEXTUAL[cls] = parse


def to_table(value: Any) -> Any:
    """A record as plain tables, lists, numbers and strings; fields at `None` are left out."""
    if type(value) in _TEXTUAL:
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if _CLASSES.get(type(value).__name__) is not type(value):
            raise RecordError(f"{type(value).__name__} is not a record: decorate it with @record")
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {"type": type(value).__name__} | {k: to_table(v) for k, v in fields.items() if v is not None}
    if isinstance(value, tuple | list):
        return [to_table(v) for v in value]
    if isinstance(value, dict):
        return {k: to_table(v) for k, v in value.items()}
    if isinstance(value, bool | int | float | str):
        return value
    raise RecordError(f"a record cannot hold {type(value).__name__}: {value!r}")


def from_table(table: Any) -> Any:
    """The record that `to_table` wrote; unknown types and keys are refused with the nearest match."""
    if isinstance(table, list):
        return tuple(from_table(v) for v in table)
    if not isinstance(table, dict):
        return table
    if "type" not in table:
        return {k: from_table(v) for k, v in table.items()}
    name = table["type"]
    if not isinstance(name, str):
        raise RecordError(f"the type of a record is a name, not {name!r}")
    if name not in _CLASSES:
        raise unknown("record type", name, _CLASSES)
    cls = _CLASSES[name]
    hints = typing.get_type_hints(cls)
    fields = {f.name for f in dataclasses.fields(cls)}
    given = {k: v for k, v in table.items() if k != "type"}
    for key in given:
        if key not in fields:
            raise unknown(f"key of {name}", key, sorted(fields))
    try:
        return cls(**{k: _read(hints[k], v) for k, v in given.items()})
    except TypeError as error:
        raise RecordError(f"{name}: {error}") from error


def _read(hint: Any, value: Any) -> Any:
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for option in options:
        if option in _TEXTUAL and isinstance(value, str):
            return _TEXTUAL[option](value)
    if isinstance(value, int) and not isinstance(value, bool) and float in options and int not in options:
        return float(value)
    return from_table(value)


def to_toml(value: Any) -> str:
    """A record as TOML text."""
    import tomli_w  # only the people who write files need it

    return tomli_w.dumps(to_table(value))


def from_toml(text: str) -> Any:
    """The record that `to_toml` wrote."""
    try:
        return from_table(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise RecordError(f"not TOML: {error}") from error


def whole_number(name: str, value: Any, least: int) -> int:
    """The value, if it is a whole number from `least` on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise RecordError(f"{name} is a whole number from {least}, not {value}")
    return value


def finite_number(name: str, value: Any, least: float) -> float:
    """The value, if it is a finite number from `least` on."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value < float("inf"):
        raise RecordError(f"{name} is a finite number from {least}, not {value}")
    return value
