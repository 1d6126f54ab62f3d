"""Flagged clients: those that rounds left out, and those with outlying updates, from a run's journal.

`stratafl.execute.uploads` decides which clients these are; this module says it, during a run and at its end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stratafl.errors import counted, shown
from stratafl.evaluation.divergence import broken_models, divergence, diverging_clients
from stratafl.evaluation.measure import LEFT_OUT, NOT_FINITE, OUTLIERS, Line
from stratafl.execute.uploads import FAR

MAX_NAMED_CLIENTS = 3  # clients that are named one by one
ALL_LEFT_OUT, DIVERGED = "all left out", "diverged"  # messages that are given once


@dataclass(frozen=True)
class Flag:
    """A client: in how many rounds it was left out (and why the last time), in how many its update was an outlier."""

    client: int
    name: str  # such as: client 3, client 'north'
    left_out: int = 0
    reason: str = ""
    far: int = 0
    ratio: float | None = 0.0  # the largest; None: more than a float can hold

    @property
    def times(self) -> str:
        return _times(self.ratio)


def flags(lines: Sequence[Line]) -> list[Flag]:
    """The flagged clients of a run; the one that was left out most often comes first."""
    by_client: dict[int, Flag] = {}
    for line in lines:
        for entry in line.get(LEFT_OUT, ()):
            was = by_client.get(entry["client"], Flag(entry["client"], client_title(entry)))
            by_client[was.client] = Flag(was.client, was.name, was.left_out + 1, entry["reason"], was.far, was.ratio)
        for entry in line.get(OUTLIERS, ()):
            was = by_client.get(entry["client"], Flag(entry["client"], client_title(entry)))
            ratio = None if None in (was.ratio, entry["ratio"]) else max(was.ratio or 0, entry["ratio"])
            by_client[was.client] = Flag(was.client, was.name, was.left_out, was.reason, was.far + 1, ratio)
    return sorted(by_client.values(), key=lambda flag: (-flag.left_out, -flag.far, flag.client))


def all_left_out(line: Line) -> bool:
    """Whether every client of the round was left out, so that no model changed."""
    return len(line.get(LEFT_OUT, ())) > 0 and len(line[LEFT_OUT]) == line.get("cohort")


def well_formed(line: Line) -> bool:
    """Whether what a line says about flagged clients can be read."""
    return all(
        isinstance(line.get(key, []), list) and all(_entry(each, value, kind) for each in line.get(key, []))
        for key, value, kind in ((LEFT_OUT, "reason", str), (OUTLIERS, "ratio", int | float | None))
    )


def _entry(entry: Any, value: str, kind: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("client"), int) or value not in entry:
        return False
    return isinstance(entry[value], kind) and isinstance(entry.get("name", ""), str)


def client_title(entry: Line) -> str:
    return f"client '{shown(entry['name'])}'" if "name" in entry else f"client {entry['client']}"


class Notices:
    """Messages during a run: for each client one when it is left out first, and one for its first outlying update.

    If the run diverges, one message says that, and those clients are not named.
    """

    def __init__(self, begun: int = 0) -> None:
        self._seen = begun  # lines from before
        self._said: set[tuple[str, int]] = set()

    def of(self, lines: Sequence[Line]) -> Iterator[str]:
        """The messages on lines that were not seen yet."""
        for end in range(self._seen, len(lines)):
            yield from self._divergence(lines[: end + 1])
            yield from self._round(lines[end])
        self._seen = max(self._seen, len(lines))

    def _divergence(self, lines: Sequence[Line]) -> Iterator[str]:
        clients, broken = diverging_clients(lines[-1]), broken_models(lines[-1])
        # All rounds are looked through only if this one shows something: a run of many rounds is told of each of them.
        looks = (clients or broken) and (DIVERGED, -1) not in self._said
        diverged = divergence(lines) if looks else None
        if diverged is not None:
            self._said.add((DIVERGED, -1))
            yield str(diverged)
        if (DIVERGED, -1) in self._said:
            self._said |= {(LEFT_OUT, client) for client in clients}
            self._said |= {(ALL_LEFT_OUT, -1)} if len(clients) == lines[-1].get("cohort") else set()
        elif broken and (NOT_FINITE, -1) not in self._said:
            self._said.add((NOT_FINITE, -1))
            of = f"the models of {counted(broken, 'client')}"
            yield f"round {lines[-1].get('round')}: {of} are not finite and count as guessing"

    def _round(self, line: Line) -> Iterator[str]:
        where = f"round {line.get('round')}"
        if all_left_out(line):
            if (ALL_LEFT_OUT, -1) not in self._said:
                first = line[LEFT_OUT][0]
                yield (
                    f"{where}: all {counted(line['cohort'], 'client')} are left out, so no model changes "
                    f"({client_title(first)}: {shown(first['reason'])})"
                )
            self._said |= {(ALL_LEFT_OUT, -1), *((LEFT_OUT, entry["client"]) for entry in line[LEFT_OUT])}
        left_out = [
            f"{client_title(entry)} is left out: {shown(entry['reason'])}" for entry in self._new(line, LEFT_OUT)
        ]
        yield from _few(where, left_out, "are left out")
        far = [
            f"the update of {client_title(entry)} has {_times(entry['ratio'])} times the cohort's median norm"
            for entry in self._new(line, OUTLIERS)
        ]
        yield from _few(where, far, "sent an outlying update")

    def _new(self, line: Line, key: str) -> list[Line]:
        new = [each for each in line.get(key, ()) if (key, each["client"]) not in self._said]
        self._said |= {(key, each["client"]) for each in new}
        return new


def _few(where: str, messages: Sequence[str], what: str) -> Iterator[str]:
    yield from (f"{where}: {each}" for each in messages[:MAX_NAMED_CLIENTS])
    if len(messages) > MAX_NAMED_CLIENTS:
        more = len(messages) - MAX_NAMED_CLIENTS
        yield f"{where}: {counted(more, 'more client')} {what.replace('are ', 'is ', 1) if more == 1 else what}"


def _times(ratio: float | None) -> str:
    """A ratio to the median, in words; None: more than a float can hold."""
    if ratio is None:
        return f"far more than {FAR:g}"
    return f"{ratio:,.0f}" if ratio < 1e9 else f"{ratio:.0e}".replace("e+", "e")
