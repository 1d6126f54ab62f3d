"""Whether a run diverged: how many clients end with uploads or models that are not finite, and since when.

A few clients that are left out from the beginning may have broken data, which no learning rate mends: `flags.py` names
them. Many of them, or clients that trained well before, mean that training itself diverges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from stratafl.core.schema import NOT_FINITE as UPLOAD_NOT_FINITE
from stratafl.errors import counted
from stratafl.evaluation.measure import EVALUATED, LEFT_OUT, NOT_FINITE, TOTAL, Line
from stratafl.execute.uploads import ENDLESS, STATE_NOT_FINITE

REASONS = (UPLOAD_NOT_FINITE, STATE_NOT_FINITE, ENDLESS)
MANY_SHARE = 0.25  # share of clients that diverge, whenever they began to
NEW_SHARE = 0.1  # share of clients that diverge, and did not before
SURELY_ASKED = 3  # times as many clients as there are: after these, 19 of 20 clients have been asked
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
    """How these rounds of a federation of `clients` clients (0: as many as the lines say) end; None if well.

    A round may ask a part of the clients. So what counts are the last rounds that together asked as many clients as
    there are.
    """
    total = clients or max((int(line.get(TOTAL) or line.get("cohort") or 1) for line in lines), default=1)
    ends = (_of_uploads(lines, total), _of_models(lines, total))
    return max(filter(None, ends), key=lambda end: end.diverged, default=None)


def _of_uploads(lines: Sequence[Line], total: int) -> Divergence | None:
    diverged = _last_diverged(lines, total)
    if not _is_divergence(len(diverged), len(_trained_before(lines, diverged, total)), total):
        return None
    first = {client: int(line["round"]) for line in reversed(lines) for client in diverging_clients(line)}
    return Divergence(len(diverged), total, median_low(first[client] for client in diverged))


def _of_models(lines: Sequence[Line], total: int) -> Divergence | None:
    last = next((line for line in reversed(lines) if _evaluated(line)), Line())
    broken = broken_models(last)
    if not broken:
        return None
    counts = {int(line["round"]): broken_models(line) for line in lines if _evaluated(line)}
    total = int(last.get(EVALUATED) or total)
    if not _is_divergence(broken, broken - min(counts.values()), total):
        return None
    return Divergence(min(broken, total), total, min(number for number, count in counts.items() if count))


def _is_divergence(count: int, new: int, total: int) -> bool:
    """Whether `count` clients, `new` of which trained well before, mean that training itself diverges."""
    many = count > 0 and (count >= total or (count > 1 and count >= MANY_SHARE * total))
    return many or new >= max(1.0, NEW_SHARE * total)


def _last_diverged(lines: Sequence[Line], total: int) -> set[int]:
    """The clients that diverged in the last rounds that asked as many clients as there are, or in all rounds."""
    asked, diverged = 0, set[int]()
    for line in reversed(lines):
        asked, diverged = asked + _cohort(line), diverged | set(diverging_clients(line))
        if asked >= total:
            break
    return diverged


def _trained_before(lines: Sequence[Line], diverged: set[int], total: int) -> set[int]:
    """Those of these clients that trained well before.

    A round that asked all clients shows it. If every round asked a part, lines do not say whom: then a client counts if
    it diverged first after rounds that asked `SURELY_ASKED` times as many clients as there are. A client with broken
    data was among these, most probably, and was left out.
    """
    whole = [set(diverging_clients(line)) for line in lines if _cohort(line) >= total] if diverged else []
    if whole:
        return diverged - whole[0].intersection(*whole)
    before, asked = set[int](), 0
    for line in lines:
        asked += _cohort(line)
        before.update(diverging_clients(line))
        if asked >= SURELY_ASKED * total:
            return diverged - before
    return set()


def _cohort(line: Line) -> int:
    return int(line.get("cohort") or 1)


def diverging_clients(line: Line) -> list[int]:
    """The clients whose upload was left out of a round because it, or their model, was not finite."""
    return [entry["client"] for entry in line.get(LEFT_OUT, ()) if entry["reason"].startswith(REASONS)]


def _evaluated(line: Line) -> bool:
    return any(key.startswith(MODELS) for key in line)


def broken_models(line: Line) -> int:
    """How many clients have a model that is not finite, at the stage and on the split with the most of them."""
    return max((int(v) for k, v in line.items() if k.startswith(MODELS) and k.endswith(f".{NOT_FINITE}")), default=0)
