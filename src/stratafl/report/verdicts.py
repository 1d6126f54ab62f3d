"""Verdicts about published claims: a list in `verdicts.json`, written by whoever repeats a paper's experiments."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from stratafl.errors import RunError, counted, unknown
from stratafl.report.tables import Cell, Table, as_csv, text
from stratafl.runs.json_files import read_json_value

VERDICTS = "verdicts.json"
NOISE = "within noise: other seeds may turn the verdict"
STAND_IN = "with other data in place of the paper's, which is no evidence"
WORDS = {True: "✓ holds", False: "✗ does not hold", None: "– not run"}


def in_words(holds: bool | None, noise: bool) -> str:
    """A verdict as a sign and in words."""
    return f"{WORDS[holds]}, within noise" if noise and holds is not None else WORDS[holds]


class Judged(Protocol):
    """What is counted of a verdict."""

    @property
    def holds(self) -> bool | None:
        """Whether the claim does; `None` if it was not run."""

    @property
    def noise(self) -> bool:
        """Whether what decides lies within the noise between seeds."""

    @property
    def stand_in(self) -> bool:
        """Whether it is of other data and models than the paper's."""


def tally(told: Sequence[Judged]) -> str:
    """How many claims hold, how many do not, and how many of these other seeds may turn."""
    claims = counted(len(told), "claim")
    verbs = ((True, f"of {claims} holds", f"of {claims} hold"), (False, "does not", "do not"))
    said = []
    for sign, one, several in (*verbs, (None, "was not run", "were not run")):
        found = [each for each in told if each.holds is sign]
        noisy = sum(each.noise for each in found if sign is not None)
        share = "" if not noisy else " (within noise)" if noisy == len(found) == 1 else f" ({noisy} within noise)"
        if found or sign:
            said.append(f"{len(found)} {one if len(found) == 1 else several}{share}")
    return ", ".join(said) + (f"; {STAND_IN}" if any(each.stand_in for each in told) else "")


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
    noise: bool = False  # what decides lies within the noise between seeds
    stand_in: bool = False  # of other data and models than the paper's: no evidence

    @property
    def words(self) -> str:
        """The verdict as a sign and in words."""
        return in_words(self.holds, self.noise)


def verdicts(places: Sequence[Path]) -> list[Verdict]:
    """The verdicts in these folders."""
    paths = [place / VERDICTS for place in places if (place / VERDICTS).is_file()]
    return [verdict for path in paths for verdict in _read(path)]


def verdict_table(told: Sequence[Verdict]) -> Table | None:
    """All verdicts, and how many of them hold; its CSV has every key."""
    if not told:
        return None
    rows = tuple(
        (
            Cell(verdict.claim, below=verdict.predicate),
            text(verdict.words, _look(verdict)),
            text(", ".join(filter(None, (verdict.paper, verdict.table)))),
            text(verdict.paper_value),
            text(verdict.measured),
            text(verdict.reason),
        )
        for verdict in told
    )
    head = ("claim", "verdict", "where", "in the paper", "here", "why")
    keys = [field.name for field in fields(Verdict)]
    written = as_csv(keys, [[getattr(verdict, key) for key in keys] for verdict in told])
    caption = "; ".join([tally(told), *([NOISE] if any(verdict.noise for verdict in told) else [])])
    return Table("verdicts", caption, head, rows, left=len(head), written=written, stacked=True)


def _look(verdict: Verdict) -> str:
    if verdict.holds is None:
        return "unrun"
    return "doubtful" if verdict.noise or verdict.stand_in else "holds" if verdict.holds else "fails"


def _read(path: Path) -> list[Verdict]:
    found = read_json_value(path)
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
    signs = {key: entry.get(key, False) for key in ("noise", "stand_in")}
    for key, sign in signs.items():
        if not isinstance(sign, bool):
            raise RunError(f"'{path}': {key} of verdict {number} is true or false, not {sign!r}")
    texts: dict[str, Any] = {name: _text(entry.get(name)) for name in names if name not in ("holds", *signs)}
    return Verdict(**texts, holds=entry["holds"], **signs)


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
