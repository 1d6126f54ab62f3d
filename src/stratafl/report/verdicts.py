"""Verdicts about published claims: a list in `verdicts.json`, written by whoever repeats a paper's experiments."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stratafl.errors import RunError, unknown
from stratafl.report.tables import Table, text

VERDICTS = "verdicts.json"
WORDS = {True: "✓ holds", False: "✗ does not hold", None: "– not run"}


@dataclass(frozen=True)
class Verdict:
    """A claim of a paper and whether it holds here; `None` if it was not run."""

    paper: str
    table: str
    claim: str
    predicate: str
    paper_value: str
    measured: str
    holds: bool | None
    reason: str = ""

    @property
    def words(self) -> str:
        """The verdict as a sign and in words."""
        return WORDS[self.holds]


def verdicts(places: Sequence[Path]) -> list[Verdict]:
    """The verdicts in these folders."""
    paths = [place / VERDICTS for place in places if (place / VERDICTS).is_file()]
    return [verdict for path in paths for verdict in _read(path)]


def verdict_table(told: Sequence[Verdict]) -> Table | None:
    """All verdicts, and how many of them hold."""
    looks = {True: "holds", False: "fails", None: "unrun"}
    rows = tuple(
        (
            text(verdict.paper),
            text(verdict.table),
            text(verdict.claim),
            text(verdict.predicate),
            text(verdict.words, looks[verdict.holds]),
            text(verdict.paper_value),
            text(verdict.measured),
            text(verdict.reason),
        )
        for verdict in told
    )
    counts = {word: sum(verdict.holds is value for verdict in told) for value, word in looks.items()}
    caption = (
        f"Claims that hold: {counts['holds']}; that do not: {counts['fails']}; that were not run: {counts['unrun']}"
    )
    head = ("paper", "table", "claim", "predicate", "verdict", "paper's value", "measured", "reason")
    return Table("verdicts", caption, head, rows, left=len(head)) if rows else None


def _read(path: Path) -> list[Verdict]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"cannot read '{path}': {error.strerror}") from error
    except ValueError as error:
        raise RunError(f"'{path}' is damaged: {error}") from error
    if not isinstance(found, list):
        raise RunError(f"'{path}' holds {type(found).__name__}, not a list of verdicts")
    return [_verdict(path, number, entry) for number, entry in enumerate(found, 1)]


def _verdict(path: Path, number: int, entry: Any) -> Verdict:
    if not isinstance(entry, dict):
        raise RunError(f"'{path}': verdict {number} is {type(entry).__name__}, not an object")
    names = [field.name for field in fields(Verdict)]
    for key in entry:
        if key not in names:
            raise unknown(f"key of verdict {number} in '{path}'", key, names)
    for key in ("paper", "claim", "holds"):
        if key not in entry:
            raise RunError(f"'{path}': verdict {number} lacks '{key}'")
    if entry["holds"] not in (True, False, None) or isinstance(entry["holds"], int) != isinstance(entry["holds"], bool):
        raise RunError(f"'{path}': holds of verdict {number} is true, false or null, not {entry['holds']!r}")
    texts = {name: _text(entry.get(name)) for name in names if name != "holds"}
    return Verdict(**texts, holds=entry["holds"])


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
