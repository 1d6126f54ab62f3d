"""The lines of clients in one round of a run, of a journal that may be long."""

import re
from pathlib import Path
from types import UnionType
from typing import Any

from stratafl.errors import DamagedError
from stratafl.evaluation.measure import Line
from stratafl.runs.json_files import line_bodies, parsed_line

_ROUND = re.compile(rb'"round":\s*(\d{1,18})')


def lines_of_round(path: Path, number: int, *, summed: bool = False) -> list[Line]:
    """The clients' lines of one round; other rounds are not parsed. `summed` journals have checksums."""
    numbered = ((body, _ROUND.search(body)) for body in line_bodies(path, summed=summed))
    wanted = (body for body, written in numbered if written and int(written[1]) == number)
    return [_client_line(path, parsed_line(path, body)) for body in wanted]


def _client_line(path: Path, line: Line) -> Line:
    if not is_number(line.get("client"), int):
        raise DamagedError(f"'{path}' is damaged: a line lacks client")
    scores = [value for key, value in line.items() if key.startswith(("test.", "validation."))]
    if not all(value is None or is_number(value, int | float) for value in scores):
        raise DamagedError(f"'{path}' is damaged: a score is not a number")
    return line


def is_number(value: Any, kind: type | UnionType) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
