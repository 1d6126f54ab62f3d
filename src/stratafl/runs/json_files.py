"""JSON files that are read without trust: of limited size, with finite numbers, and not nested without end."""

import json
from collections.abc import Container, Mapping
from math import isfinite
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from stratafl.errors import DamagedError, RunError, shown
from stratafl.files import json_value, read_plain, write_atomically

MAX_JSON_BYTES = 64 << 20  # bytes of a JSON file, or of a line of a journal
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", list: "a list"}
_WORDS |= {dict: "a table", NoneType: "nothing"}


def write_json(path: Path, value: Mapping[str, Any], *, folder: int | None = None) -> None:
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False).encode() + b"\n", folder=folder)


def read_json(path: Path) -> dict[str, Any]:
    value = read_json_value(path)
    if not isinstance(value, dict):
        raise DamagedError(f"'{path}' is damaged: it holds {type(value).__name__}, not an object")
    return value


def read_json_value(path: Path) -> Any:
    try:
        return parse_json(path, read_plain(path, MAX_JSON_BYTES))
    except OSError as error:
        raise RunError(f"cannot read '{path}': {error.strerror}") from error


def parse_json(path: Path, data: bytes) -> Any:
    """The JSON value in these bytes of the file `path`."""
    try:
        return json_value(data)
    except ValueError as error:
        raise DamagedError(f"'{path}' is damaged: {error}") from error


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is kind for each in value)


def check_table(table: Any, kinds: Mapping[str, Any], optional: Container[str] = ()) -> dict[str, Any]:
    """The table, if each key has a value of its type, such as `float | None`; ValueError says what is wrong."""
    if not isinstance(table, dict):
        raise ValueError(f"{shown(table)} is not a table")
    for key, kind in kinds.items():
        if key in table:
            check_value(key, table[key], kind)
        elif key not in optional:
            raise ValueError(f"{key} is missing")
    return table


def check_value(key: str, value: Any, kind: Any) -> None:
    """Raise ValueError unless the value is of the type; a number is finite, and may be whole."""
    allowed = get_args(kind) or (kind,)
    sound = type(value) in allowed or (type(value) is int and float in allowed)
    if not sound or (type(value) is float and not isfinite(value)):
        words = " or ".join(_WORDS[each] for each in allowed)
        raise ValueError(f"{shown(key)} is {shown(value)}, not {words}")
