"""What the tests of the command share."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import stratafl

HERE = Path(__file__).parent
SOURCE = Path(stratafl.__file__).resolve().parents[1]
TINY = ("--set", "data.clients=4", "--set", "data.partition=iid", "--set", "train.batch=50")
SMALL = (*TINY, "--set", "model.hidden=[8]")  # for the model `mlp`


class Result(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


Strata = Callable[..., Result]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "stratafl", *map(str, arguments)]


def checked_line(result: Result) -> str:
    """The one line of a command that failed as it should."""
    assert result.code == 2, result
    assert result.err.startswith("strata: ")
    assert result.err.endswith("\n")
    assert result.err.count("\n") == 1
    assert "Traceback" not in result.err
    return result.err.removeprefix("strata: ").strip()


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Everything in a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a journal without what takes time, which is never the same twice."""
    read = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        {key: value for key, value in line.items() if not key.startswith(("seconds.", "checksum"))} for line in read
    ]


def journals(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """All that a run wrote down."""
    return {name: lines(folder / f"{name}.jsonl") for name in ("rounds", "clients", "layers")}
