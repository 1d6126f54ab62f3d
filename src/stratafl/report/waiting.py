"""Comparisons that were left before all of their runs had begun."""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from stratafl.errors import StrataError
from stratafl.runs.comparison import Comparison
from stratafl.runs.directory import COMPARISON, is_run


def waiting(places: Iterable[Path]) -> list[str]:
    """A sentence on each comparison at or below these places that has runs which nobody has begun."""
    folders = dict.fromkeys(path.parent for place in places for path in sorted(place.glob(f"**/{COMPARISON}")))
    return [said for folder in folders for said in _said(folder)]


def _said(folder: Path) -> Iterator[str]:
    try:
        members = [is_run(member.folder) for member in Comparison.read(folder).members()]
    except StrataError:  # whoever resumes it is told what is wrong; its runs can be reported all the same
        return
    missing = members.count(False)
    if missing:
        again = f"strata resume {shlex.quote(str(folder))}"
        have = "has" if missing == 1 else "have"
        yield f"{missing} of the {len(members)} runs of '{folder}' {have} not begun: '{again}' goes on."
