"""Claims of a paper as predicates over what was measured, and the verdict on each.

kind      needs                    holds where, in every column,
best      row                      the row is better than every other row that was run
above     row, than, by            row − than > by (0)
order     rows                     each of the rows is better than the next
close     row, to (=than), within  |row − than| ≤ within
printed   row, within              |row − what the paper prints| ≤ within
rises     row, columns, by         in the last of the columns it is more than by (0) above the first
flat      row, columns, within     its largest and smallest number in these columns differ by at most within
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import fmean, stdev

from stratafl.errors import RecordError, unknown

Numbers = Mapping[tuple[str, str], Mapping[int, float]]  # by row and column, by seed
Printed = Mapping[tuple[str, str], float]
MEASURES = ("score", "global", "spread", "rounds", "seconds", "bytes")
LESS_IS_BETTER = ("spread", "rounds", "seconds", "bytes")
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # Student's t, 97.5 %, 1 to 9 degrees of freedom
_NEEDS = {
    "best": ("row",),
    "above": ("row", "than"),
    "order": ("rows",),
    "close": ("row", "than", "within"),
    "printed": ("row", "within"),
    "rises": ("row", "columns"),
    "flat": ("row", "columns", "within"),
}


@dataclass(frozen=True)
class Claim:
    """What a paper says, and when that holds; without `columns`, in every column that was run."""

    says: str
    kind: str
    row: str | None = None
    than: str | None = None
    rows: list[str] | None = None
    columns: list[str] | None = None
    by: float = 0.0
    within: float | None = None
    measure: str = "score"

    @property
    def names(self) -> list[str]:
        """The rows that it speaks of."""
        return [name for name in (self.row, self.than, *(self.rows or ())) if name is not None]

    def check(self) -> None:
        """Refuse a claim that lacks something."""
        if self.kind not in _NEEDS:
            raise unknown("kind of claim", self.kind, _NEEDS)
        if self.measure not in MEASURES:
            raise unknown("measure", self.measure, MEASURES)
        for name in _NEEDS[self.kind]:
            if getattr(self, name) is None:
                raise RecordError(f"the claim '{self.says}' is of kind {self.kind}, which needs '{name}'")


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds in a column (None: not run), and why."""

    claim: str
    predicate: str
    column: str
    holds: bool | None
    reason: str
    paper: str = ""
    measured: str = ""


def verdicts(claim: Claim, numbers: Numbers, printed: Printed, columns: Sequence[str]) -> list[Verdict]:
    """One for each column; over columns together for `rises` and `flat`."""
    judge = _JUDGES[claim.kind]
    if claim.kind in ("rises", "flat"):
        return [judge(claim, numbers, printed, " → ".join(claim.columns or ()))]
    return [judge(claim, numbers, printed, column) for column in claim.columns or columns]


@dataclass(frozen=True)
class Gap:
    """A difference over seeds that both sides have, in the direction that is better."""

    mean: float
    margin: float | None  # of a 95 % interval; None with one seed
    seeds: int

    @property
    def noise(self) -> str:
        """What is to be said of its size."""
        if self.margin is None:
            return "one seed"
        sure = abs(self.mean) > self.margin
        return f"± {self.margin:.1f} over {self.seeds} seeds{'' if sure else ', within noise'}"


def gap(claim: Claim, numbers: Numbers, a: tuple[str, str], b: tuple[str, str]) -> Gap | None:
    """How much better `a` is than `b`; None where no seed has both."""
    common = sorted(set(numbers.get(a, {})) & set(numbers.get(b, {})))
    if not common:
        return None
    sign = -1 if claim.measure in LESS_IS_BETTER else 1
    each = [sign * (numbers[a][seed] - numbers[b][seed]) for seed in common]
    margin = _T[min(len(each) - 1, len(_T)) - 1] * stdev(each) / sqrt(len(each)) if len(each) > 1 else None
    return Gap(fmean(each), margin, len(each))


def mean(numbers: Numbers, row: str, column: str) -> float | None:
    """The mean over seeds of a cell; None where it was not run."""
    values = numbers.get((row, column))
    return fmean(values.values()) if values else None


def _verdict(
    claim: Claim, column: str, holds: bool | None, reason: str, paper: str = "", measured: str = ""
) -> Verdict:
    parts = [claim.kind, *claim.names, *([f"by {claim.by:g}"] if claim.by else [])]
    parts += [f"within {claim.within:g}"] if claim.within is not None else []
    parts += [f"({claim.measure})"] if claim.measure != "score" else []
    return Verdict(claim.says, " ".join(parts), column, holds, reason, paper, measured)


def _pairs(claim: Claim, numbers: Numbers, printed: Printed, column: str, pairs: Sequence[tuple[str, str]]) -> Verdict:
    """The first of each pair is better than the second by more than is asked for."""
    said, holds = [], True
    for a, b in pairs:
        found = gap(claim, numbers, (a, column), (b, column))
        if found is None:
            return _verdict(claim, column, None, f"'{a}' or '{b}' was not run")
        holds &= found.mean > claim.by
        said.append(f"{a} {found.mean:+.1f} against {b} ({found.noise})")
    paper = [f"{printed[a, column] - printed[b, column]:+.2f}" for a, b in pairs if _both(printed, a, b, column)]
    shown = " · ".join(f"{name} {_number(mean(numbers, name, column))}" for name in dict.fromkeys(sum(pairs, ())))
    return _verdict(claim, column, holds, "; ".join(said), ", ".join(paper), shown)


def _both(printed: Printed, a: str, b: str, column: str) -> bool:
    return (a, column) in printed and (b, column) in printed


def _above(claim: Claim, numbers: Numbers, printed: Printed, column: str) -> Verdict:
    return _pairs(claim, numbers, printed, column, [(str(claim.row), str(claim.than))])


def _order(claim: Claim, numbers: Numbers, printed: Printed, column: str) -> Verdict:
    rows = claim.rows or []
    return _pairs(claim, numbers, printed, column, list(pairwise(rows)))


def _best(claim: Claim, numbers: Numbers, printed: Printed, column: str) -> Verdict:
    rivals = [row for row, where in numbers if where == column and row != claim.row]
    if mean(numbers, str(claim.row), column) is None or not rivals:
        return _verdict(claim, column, None, f"'{claim.row}' or its rivals were not run")
    sign = -1 if claim.measure in LESS_IS_BETTER else 1
    second = max(rivals, key=lambda row: sign * (mean(numbers, row, column) or 0.0))
    return _pairs(claim, numbers, printed, column, [(str(claim.row), second)])


def _close(claim: Claim, numbers: Numbers, printed: Printed, column: str) -> Verdict:
    a, b = str(claim.row), str(claim.than)
    found = gap(claim, numbers, (a, column), (b, column))
    if found is None:
        return _verdict(claim, column, None, f"'{a}' or '{b}' was not run")
    holds = abs(found.mean) <= float(claim.within or 0)
    paper = f"{printed[a, column] - printed[b, column]:+.2f}" if _both(printed, a, b, column) else ""
    return _verdict(claim, column, holds, f"{a} {found.mean:+.1f} against {b} ({found.noise})", paper)


def _printed(claim: Claim, numbers: Numbers, printed: Printed, column: str) -> Verdict:
    there, here = printed.get((str(claim.row), column)), mean(numbers, str(claim.row), column)
    if there is None:
        return _verdict(claim, column, None, "the paper prints no number")
    if here is None:
        return _verdict(claim, column, None, f"'{claim.row}' was not run", _number(there))
    holds = abs(here - there) <= float(claim.within or 0)
    return _verdict(claim, column, holds, f"{here - there:+.1f} from the paper", _number(there), _number(here))


def _rises(claim: Claim, numbers: Numbers, printed: Printed, column: str) -> Verdict:
    row, first, last = str(claim.row), (claim.columns or [""])[0], (claim.columns or [""])[-1]
    found = gap(claim, numbers, (row, last), (row, first))
    if found is None:
        return _verdict(claim, column, None, f"'{row}' was not run in both columns")
    known = (row, first) in printed and (row, last) in printed
    paper = f"{printed[row, last] - printed[row, first]:+.2f}" if known else ""
    shown = " → ".join(_number(mean(numbers, row, each)) for each in claim.columns or ())
    return _verdict(claim, column, found.mean > claim.by, f"{found.mean:+.1f} ({found.noise})", paper, shown)


def _flat(claim: Claim, numbers: Numbers, printed: Printed, column: str) -> Verdict:
    found = [mean(numbers, str(claim.row), each) for each in claim.columns or ()]
    known = [value for value in found if value is not None]
    if len(known) < len(found):
        return _verdict(claim, column, None, f"'{claim.row}' was not run in all columns")
    spread = max(known) - min(known)
    shown = " → ".join(_number(value) for value in known)
    return _verdict(claim, column, spread <= float(claim.within or 0), f"they differ by {spread:.1f}", "", shown)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


_JUDGES: dict[str, Callable[[Claim, Numbers, Printed, str], Verdict]] = {
    "best": _best,
    "above": _above,
    "order": _order,
    "close": _close,
    "printed": _printed,
    "rises": _rises,
    "flat": _flat,
}
