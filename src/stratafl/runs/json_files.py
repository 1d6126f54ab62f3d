"""JSON files that are read without trust: of limited size, with finite numbers, and not nested without end."""

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from stratafl.errors import DamagedError, RunError
from stratafl.files import read_plain, write_atomically

LARGEST = 64 << 20  # bytes of a JSON file, or of a line of a journal
_DIGITS = 19  # of whole numbers


def write_json(path: Path, value: Mapping[str, Any], *, folder: int | None = None) -> None:
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False).encode() + b"\n", folder=folder)


def read_json(path: Path) -> dict[str, Any]:
    value = read_json_value(path)
    if not isinstance(value, dict):
        raise DamagedError(f"'{path}' is damaged: it holds {type(value).__name__}, not an object")
    return value


def read_json_value(path: Path) -> Any:
    try:
        return parse_json(path, read_plain(path, LARGEST))
    except OSError as error:
        raise RunError(f"cannot read '{path}': {error.strerror}") from error


def parse_json(path: Path, data: bytes) -> Any:
    """The JSON value in these bytes of the file `path`."""
    try:
        return json.loads(data.decode(), parse_constant=_refused, parse_float=_finite, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        reason = "values are nested too deeply" if isinstance(error, RecursionError) else error
        raise DamagedError(f"'{path}' is damaged: {reason}") from error


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is kind for each in value)


def _refused(text: str) -> float:
    raise ValueError(f"{text[:20]} is not a number that JSON knows")


def _finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _refused(text)


def _whole(text: str) -> int:
    return int(text) if len(text) <= _DIGITS else int(_refused(text))
