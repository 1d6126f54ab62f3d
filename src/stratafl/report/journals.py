"""Long journals, read line by line: a report needs little of them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratafl.errors import RunError
from stratafl.measure import Line
from stratafl.reprs import short_repr

PLAIN = ("round", "layer", "columns", "bytes.down", "bytes.up")
_ROUND = re.compile(r'"round":\s*(\d+)')
Matrix = list[list[float | None]]


@short_repr
@dataclass(frozen=True)
class Looks:
    """What the journal of layers says: bytes of the whole run, and what the laboratory saw, by key, layer and round."""

    bytes: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, dict[str, dict[int, float | None]]] = field(default_factory=dict)
    matrices: dict[str, dict[str, dict[int, Matrix]]] = field(default_factory=dict)

    @property
    def layers(self) -> list[str]:
        """The layers in the order of the model."""
        return list(self.bytes)


def lines_of_round(path: Path, number: int) -> list[Line]:
    """The lines of one round; others are not even parsed."""
    wanted = (text for text in _texts(path) if (found := _ROUND.search(text)) and int(found[1]) == number)
    return [_parsed(path, text) for text in wanted]


def looks(path: Path) -> Looks:
    """The journal of layers in a few tables."""
    seen = Looks()
    for text in _texts(path):
        line = _parsed(path, text)
        layer, number = line.get("layer"), line.get("round")
        if not isinstance(layer, str) or not isinstance(number, int):
            raise RunError(f"'{path}' is damaged: a line lacks round or layer")
        seen.bytes[layer] = seen.bytes.get(layer, 0) + int(line.get("bytes.down", 0)) + int(line.get("bytes.up", 0))
        for key, value in line.items():
            if isinstance(value, list):
                seen.matrices.setdefault(key, {}).setdefault(layer, {})[number] = _matrix(value)
            elif key not in PLAIN and isinstance(value, int | float | None):
                seen.numbers.setdefault(key, {}).setdefault(layer, {})[number] = value
    return seen


def _matrix(value: list[Any]) -> Matrix:
    return value if value and isinstance(value[0], list) else [value]


def _texts(path: Path) -> Iterator[str]:
    """Whole lines; one that is torn at the end is left out."""
    try:
        with path.open(encoding="utf-8") as file:
            yield from (text for text in file if text.endswith("\n"))
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"cannot read '{path}': {error}") from error


def _parsed(path: Path, text: str) -> Line:
    try:
        line = json.loads(text)
    except ValueError as error:
        raise RunError(f"'{path}' is damaged: {error}") from error
    if not isinstance(line, dict):
        raise RunError(f"'{path}' is damaged: its lines are not all objects")
    return line
