"""The journal of clients, `clients.jsonl`: a line for each client, or for many clients a line with their columns.

A line of columns is `{"round": 3, "clients": 2000, "whole": {"client": "…", …}, "numbers": {"test.deployed.loss": "…",
…}}`. Each column is little-endian numbers of 64 bits in base64: for 100,000 clients that takes a tenth of the time and
a third of the bytes of their lines. `ClientTable` says what stands for keys that a client lacks.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stratafl.errors import DamagedError
from stratafl.evaluation.measure import ClientTable, Line
from stratafl.runs.json_files import is_count

MIN_COLUMN_CLIENTS = 1000  # evaluated clients from which there are columns
MAX_LINE_CLIENTS = 2**17  # clients in a line, which has limited bytes
_KINDS = {"whole": np.dtype("<i8"), "numbers": np.dtype("<f8")}


def journal_lines(number: int, tables: Sequence[ClientTable]) -> Iterator[Line]:
    """The lines of a round."""
    if sum(map(len, tables)) < MIN_COLUMN_CLIENTS:
        yield from ({"round": number, **line} for table in tables for line in table.lines())
        return
    for table in tables:
        for start in range(0, len(table), MAX_LINE_CLIENTS):
            block = slice(start, start + MAX_LINE_CLIENTS)
            columns = {kind: _packed(getattr(table, kind), kind, block) for kind in _KINDS}
            about = {"round": number, "clients": len(table.whole["client"][block])}
            yield {**about, **({"new": True} if table.new else {}), **columns}


def _packed(columns: Mapping[str, Any], kind: str, block: slice) -> dict[str, str]:
    return {name: b64encode(x[block].astype(_KINDS[kind]).tobytes()).decode() for name, x in columns.items()}


def client_lines(path: Path, line: Line) -> list[Line]:
    """The clients' lines that a line of the journal stands for, without the round if it has columns."""
    if "whole" not in line:
        return [line]
    try:
        count, new = line["clients"], line.get("new", False)
        if not is_count(count) or new not in (True, False):
            raise ValueError("clients is not a number of clients")
        whole, numbers = (_unpacked(line[kind], kind, count) for kind in _KINDS)
        return ClientTable({"client": whole.pop("client"), **whole}, numbers, new).lines()
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise DamagedError(f"'{path}' is damaged: the columns of a round cannot be read ({error})") from error


def _unpacked(columns: Mapping[str, str], kind: str, count: int) -> dict[str, Any]:
    arrays = {name: np.frombuffer(b64decode(text, validate=True), _KINDS[kind]) for name, text in columns.items()}
    if wrong := [name for name, x in arrays.items() if len(x) != count]:
        raise ValueError(f"{wrong[0]} does not have {count} values")
    return arrays
