"""Long journals, read line by line: a report needs little of them."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any

from stratafl.core.reprs import short_repr
from stratafl.errors import DamagedError
from stratafl.evaluation.measure import Line
from stratafl.runs.journal import line_bodies, parsed_line

PLAIN = ("round", "layer", "columns", "bytes.down", "bytes.up")
_ROUND = re.compile(rb'"round":\s*(\d{1,18})')
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


def lines_of_round(path: Path, number: int, *, summed: bool = False) -> list[Line]:
    """The lines of one round; others are not even parsed. All of them have checksums, if they are `summed`."""
    wanted = (
        body for body in line_bodies(path, summed=summed) if (found := _ROUND.search(body)) and int(found[1]) == number
    )
    return [_client_line(path, parsed_line(path, body)) for body in wanted]


def looks(path: Path, *, summed: bool = False) -> Looks:
    """The journal of layers in a few tables."""
    seen = Looks()
    for body in line_bodies(path, summed=summed):
        line = parsed_line(path, body)
        layer, number = line.get("layer"), line.get("round")
        if not isinstance(layer, str) or not isinstance(number, int) or isinstance(number, bool):
            raise DamagedError(f"'{path}' is damaged: a line lacks round or layer")
        sent = [line.get(key, 0) for key in ("bytes.down", "bytes.up")]
        if not all(_is_number(each, int) for each in sent):
            raise DamagedError(f"'{path}' is damaged: bytes are not whole numbers")
        seen.bytes[layer] = seen.bytes.get(layer, 0) + sum(sent)
        for key, value in line.items():
            if isinstance(value, list):
                seen.matrices.setdefault(key, {}).setdefault(layer, {})[number] = _matrix(path, value)
            elif key not in PLAIN and (value is None or _is_number(value, int | float)):
                seen.numbers.setdefault(key, {}).setdefault(layer, {})[number] = value
    return seen


def _client_line(path: Path, line: Line) -> Line:
    if not _is_number(line.get("client"), int):
        raise DamagedError(f"'{path}' is damaged: a line lacks client")
    if not all(
        v is None or _is_number(v, int | float) for k, v in line.items() if k.startswith(("test.", "validation."))
    ):
        raise DamagedError(f"'{path}' is damaged: a score is not a number")
    return line


def _is_number(value: Any, kind: type | UnionType) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _matrix(path: Path, value: list[Any]) -> Matrix:
    """Rows of one length; a single row is one of them."""
    rows = value if value and isinstance(value[0], list) else [value]
    whole = all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows)
    if not whole or not all(each is None or _is_number(each, int | float) for row in rows for each in row):
        raise DamagedError(f"'{path}' is damaged: a matrix is not rows of numbers")
    return rows
