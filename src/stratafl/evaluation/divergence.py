"""Whether a run diverged: how many clients end with uploads or models that are not finite, and since when.

A few clients that are left out from the beginning may have broken data, which no learning rate mends: `flags.py` names
them. Many of them, or clients that trained well before, mean that training itself diverges.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median_low

from stratafl.core.schema import NOT_FINITE as UPLOAD_NOT_FINITE
from stratafl.errors import counted
from stratafl.evaluation.measure import LEFT_OUT, NOT_FINITE, TOTAL, Line
from stratafl.execute.uploads import ENDLESS, STATE_NOT_FINITE

REASONS = (UPLOAD_NOT_FINITE, STATE_NOT_FINITE, ENDLESS)
MANY_SHARE = 0.25  # share of clients that diverge, whenever they began to
NEW_SHARE = 0.1  # share of clients that diverge, and did not before
MODELS = ("validation.", "test.")  # with which the names of scores of clients that take part begin


@dataclass(frozen=True)
class Divergence:
    """How many of how many clients diverged, and from which round on."""

    diverged: int
    clients: int
    since: int

    def __str__(self) -> str:
        of = f"{self.diverged} of {counted(self.clients, 'client')}"
        return f"{of} diverged from round {self.since} on; lower the learning rate"


def divergence(lines: Sequence[Line], clients: int = 0) -> Divergence | None:
    """How these rounds of a federation of so many clients end, by default as many as the lines say; None if well.

    A round may ask a part of the clients. So what counts are the last rounds that together asked as many clients as
    there are, and whether clients diverged before is seen in all such stretches.
    """
    models = [(int(line["round"]), broken_models(line)) for line in lines if _evaluated(line)]
    broken = models[-1][1] if models else 0
    if not broken and not any(map(diverging_clients, lines)):
        return None
    total = clients or max(int(line.get(TOTAL) or line.get("cohort") or 1) for line in lines)
    stretches = list(_stretches(lines, total))
    count = max(len(stretches[-1]), broken)
    of_uploads = count == len(stretches[-1])
    before = min(map(len, stretches)) if of_uploads else min(count for _, count in models)
    many = count >= total or (count > 1 and count >= MANY_SHARE * total)
    if not many and count - before < max(1.0, NEW_SHARE * total):
        return None
    first = {client: int(line["round"]) for line in reversed(lines) for client in diverging_clients(line)}
    since = [first[client] for client in stretches[-1]] if of_uploads else [min(t for t, broken in models if broken)]
    return Divergence(min(count, total), total, median_low(since))


def diverging_clients(line: Line) -> list[int]:
    """The clients whose upload was left out of a round because it, or their model, was not finite."""
    return [entry["client"] for entry in line.get(LEFT_OUT, ()) if entry["reason"].startswith(REASONS)]


def _stretches(lines: Sequence[Line], total: int) -> Iterator[set[int]]:
    """The clients that diverged in each stretch of rounds that asked as many clients as there are, and in the last."""
    for end in range(1, len(lines) + 1):
        asked, diverged = 0, set[int]()
        for line in reversed(lines[:end]):
            asked, diverged = asked + int(line.get("cohort") or 1), diverged | set(diverging_clients(line))
            if asked >= total:
                break
        if asked >= total or end == len(lines):
            yield diverged


def _evaluated(line: Line) -> bool:
    return any(key.startswith(MODELS) for key in line)


def broken_models(line: Line) -> int:
    """How many clients have a model that is not finite, at the stage and on the split with the most of them."""
    return max((int(v) for k, v in line.items() if k.startswith(MODELS) and k.endswith(f".{NOT_FINITE}")), default=0)
