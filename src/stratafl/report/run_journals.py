"""A run's journals of its clients and layers, which may be long and are read line by line."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any

from stratafl.core.reprs import short_repr
from stratafl.errors import DamagedError
from stratafl.evaluation.measure import Line
from stratafl.runs.client_journal import client_lines
from stratafl.runs.json_files import line_bodies, parsed_line

NOT_DIAGNOSTICS = ("round", "layer", "columns", "bytes.down", "bytes.up")  # keys of a layer's line
Matrix = list[list[float | None]]
_ROUND = re.compile(rb'"round":\s*(\d{1,18})')


def lines_of_round(path: Path, number: int, *, summed: bool = False) -> list[Line]:
    """The clients' lines of one round; other rounds are not parsed. `summed` journals have checksums."""
    numbered = ((body, _ROUND.search(body)) for body in line_bodies(path, summed=summed))
    wanted = (body for body, written in numbered if written and int(written[1]) == number)
    return [_checked(path, line) for body in wanted for line in client_lines(path, parsed_line(path, body))]


def _checked(path: Path, line: Line) -> Line:
    if not is_number(line.get("client"), int):
        raise DamagedError(f"'{path}' is damaged: a line lacks client")
    scores = [value for key, value in line.items() if key.startswith(("test.", "validation."))]
    if not all(value is None or is_number(value, int | float) for value in scores):
        raise DamagedError(f"'{path}' is damaged: a score is not a number")
    return line


def is_number(value: Any, kind: type | UnionType) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


@short_repr
@dataclass(frozen=True)
class LayerJournal:
    """What `layers.jsonl` says: bytes of the whole run by layer, and the layer diagnostics by key, layer and round."""

    bytes: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, dict[str, dict[int, float | None]]] = field(default_factory=dict)
    matrices: dict[str, dict[str, dict[int, Matrix]]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return list(self.bytes)


def read_layer_journal(path: Path, *, summed: bool = False) -> LayerJournal:
    """The journal of layers, read line by line because it may be long."""
    journal = LayerJournal()
    for body in line_bodies(path, summed=summed):
        line = parsed_line(path, body)
        layer, number = line.get("layer"), line.get("round")
        if not isinstance(layer, str) or not isinstance(number, int) or isinstance(number, bool):
            raise DamagedError(f"'{path}' is damaged: a line lacks round or layer")
        sent = [line.get(key, 0) for key in ("bytes.down", "bytes.up")]
        if not all(is_number(each, int) for each in sent):
            raise DamagedError(f"'{path}' is damaged: bytes are not whole numbers")
        journal.bytes[layer] = journal.bytes.get(layer, 0) + sum(sent)
        for key, value in line.items():
            if isinstance(value, list):
                journal.matrices.setdefault(key, {}).setdefault(layer, {})[number] = _matrix(path, value)
            elif key not in NOT_DIAGNOSTICS and (value is None or is_number(value, int | float)):
                journal.numbers.setdefault(key, {}).setdefault(layer, {})[number] = value
    return journal


def _matrix(path: Path, value: list[Any]) -> Matrix:
    """Rows of one length; a list of numbers is a single row."""
    rows = value if value and isinstance(value[0], list) else [value]
    whole = all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows)
    if not whole or not all(each is None or is_number(each, int | float) for row in rows for each in row):
        raise DamagedError(f"'{path}' is damaged: a matrix is not rows of numbers")
    return rows
