"""The verdict on each claim, from what was measured with several seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from types import MappingProxyType

from stratafl.recipes.claims import OF_CONVERGENCE, OVER_COLUMNS, PER_ROUND, Claim
from stratafl.recipes.gaps import Gap, Numbers, Place, gap, leads, mean
from stratafl.report.verdicts import in_words

Printed = Mapping[Place, float]
NOTHING: Mapping[str, str] = MappingProxyType({})


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
    noise: bool = False  # what decides lies within the noise between seeds
    stand_in: bool = False  # of other data and models than the paper's: no evidence

    @property
    def words(self) -> str:
        """The verdict as a sign and in words."""
        return in_words(self.holds, self.noise)


def verdicts(
    claim: Claim, numbers: Numbers, printed: Printed, columns: Sequence[str], shorter: Mapping[str, str] = NOTHING
) -> list[Verdict]:
    """One for each column that is run, or one over columns together.

    `shorter` says of columns that are run for fewer rounds than the paper's how many, which reasons then end with.
    """
    judge, asked = _JUDGES[claim.kind], list(claim.columns or columns)
    run = [column for column in asked if column in columns]
    if claim.kind not in OVER_COLUMNS:
        found = [_after(judge(claim, numbers, printed, column), claim, [column], shorter) for column in run]
    elif len(run) > 1 and (claim.kind == "flat" or (run[0], run[-1]) == (asked[0], asked[-1])):
        over = judge(replace(claim, columns=run), numbers, printed, " → ".join(run))
        found = [_after(over, claim, run, shorter)]
    else:
        found = []
    where = " → " if claim.kind in OVER_COLUMNS else "; "
    return found or [_verdict(claim, where.join(asked), None, "not part of this scale")]


def _after(verdict: Verdict, claim: Claim, columns: Sequence[str], shorter: Mapping[str, str]) -> Verdict:
    """The verdict, and after how many rounds it was reached where those are not the paper's."""
    said = dict.fromkeys(shorter[column] for column in columns if column in shorter)
    if verdict.holds is None or claim.measure in PER_ROUND or not said:
        return verdict
    return replace(verdict, reason="; ".join([verdict.reason, *said]))


def _verdict(
    claim: Claim, column: str, holds: bool | None, reason: str, paper: str = "", measured: str = "", noise: bool = False
) -> Verdict:
    return Verdict(claim.says, claim.predicate, column, holds, reason, paper, measured, noise)


def _not_run(claim: Claim, column: str, who: str, where: str = "", paper: str = "") -> Verdict:
    improving = ", or is still improving" if claim.measure in OF_CONVERGENCE else ""
    return _verdict(claim, column, None, f"{who} was not run{where}{improving}", paper)


def _pairs(claim: Claim, numbers: Numbers, printed: Printed, column: str, pairs: Sequence[tuple[str, str]]) -> Verdict:
    """The first of each pair is better than the second by more than is asked for; one that surely is not decides."""
    gaps = list[Gap]()
    for a, b in pairs:
        found = gap(claim, numbers, (a, column), (b, column))
        if found is None:
            return _not_run(claim, column, f"'{a}' or '{b}'")
        gaps.append(found)
    doubtful = [each.undecided(claim.by) for each in gaps]
    holds, noise = all(each.mean > claim.by for each in gaps), any(doubtful)
    noise = noise and not any(each.below(claim.by) for each in gaps)
    texts = [each.text(claim, doubt) for each, doubt in zip(gaps, doubtful, strict=True)]
    said = [f"{a} against {b}: {text}" for (a, b), text in zip(pairs, texts, strict=True)]
    paper = [text for a, b in pairs if (text := _difference(printed, (a, column), (b, column)))]
    shown = " · ".join(f"{name} {_number(mean(numbers, name, column))}" for name in dict.fromkeys(sum(pairs, ())))
    return _verdict(claim, column, holds, "; ".join(said), ", ".join(paper), shown, noise)


def _difference(printed: Printed, a: Place, b: Place) -> str:
    return f"{printed[a] - printed[b]:+.2f}" if a in printed and b in printed else ""


def _above(claim: Claim, numbers: Numbers, printed: Printed, column: str) -> Verdict:
    return _pairs(claim, numbers, printed, column, [(str(claim.row), str(claim.than))])


def _order(claim: Claim, numbers: Numbers, printed: Printed, column: str) -> Verdict:
    return _pairs(claim, numbers, printed, column, list(pairwise(claim.rows or [])))


def _best(claim: Claim, numbers: Numbers, printed: Printed, column: str) -> Verdict:
    """Against the rival that comes nearest with the seeds that both have: others may have easier seeds behind them.

    And against all others that other seeds may bring before it, unless that one surely is.
    """
    row = str(claim.row)
    rivals = [other for other, where in numbers if where == column and other != row]
    gaps = {other: found for other in rivals if (found := gap(claim, numbers, (row, column), (other, column)))}
    if not gaps:
        return _verdict(claim, column, None, f"'{row}' or its rivals were not run")
    nearest, *others = sorted(gaps, key=lambda other: gaps[other].mean)
    settled = gaps[nearest].below(claim.by)
    doubtful = [other for other in others if not settled and gaps[other].undecided(claim.by)]
    return _pairs(claim, numbers, printed, column, [(row, other) for other in (nearest, *doubtful)])


def _close(claim: Claim, numbers: Numbers, printed: Printed, column: str) -> Verdict:
    a, b = str(claim.row), str(claim.than)
    found = gap(claim, numbers, (a, column), (b, column))
    if found is None:
        return _not_run(claim, column, f"'{a}' or '{b}'")
    holds, noise = found.near(float(claim.within or 0))
    paper = _difference(printed, (a, column), (b, column))
    shown = " · ".join(f"{name} {_number(mean(numbers, name, column))}" for name in (a, b))
    return _verdict(claim, column, holds, f"{a} against {b}: {found.text(claim, noise)}", paper, shown, noise)


def _printed(claim: Claim, numbers: Numbers, printed: Printed, column: str) -> Verdict:
    place = str(claim.row), column
    there, here = printed.get(place), mean(numbers, *place)
    if there is None:
        return _verdict(claim, column, None, "the paper prints no number")
    found = Gap.of([claim.sign * (value - there) for value in numbers.get(place, {}).values()])
    if found is None:
        return _not_run(claim, column, f"'{claim.row}'", paper=_number(there))
    holds, noise = found.near(float(claim.within or 0))
    reason = f"against the paper: {found.text(claim, noise)}"
    return _verdict(claim, column, holds, reason, _number(there), _number(here), noise)


def _rises(claim: Claim, numbers: Numbers, printed: Printed, column: str) -> Verdict:
    row, columns = str(claim.row), claim.columns or [""]
    first, last = (row, columns[0]), (row, columns[-1])
    found = gap(claim, numbers, last, first)
    if found is None:
        return _not_run(claim, column, f"'{row}'", " in both columns")
    holds, noise = claim.sign * found.mean > claim.by, found.undecided(claim.sign * claim.by)
    shown = " → ".join(_number(mean(numbers, row, each)) for each in columns)
    paper = _difference(printed, last, first)
    return _verdict(claim, column, holds, found.text(claim, noise), paper, shown, noise)


def _widens(claim: Claim, numbers: Numbers, printed: Printed, column: str) -> Verdict:
    row, than, columns = str(claim.row), str(claim.than), claim.columns or [""]
    both = [leads(claim, numbers, (row, each), (than, each)) for each in (columns[0], columns[-1])]
    found = Gap.of([both[1][seed] - both[0][seed] for seed in both[0] if seed in both[1]])
    if found is None:
        return _not_run(claim, column, f"'{row}' or '{than}'", " in both columns")
    shown = " → ".join(f"{fmean(lead.values()):+.2f}" for lead in both)
    paper = " → ".join(_difference(printed, (row, each), (than, each)) for each in (columns[0], columns[-1]))
    noise = found.undecided(claim.by)
    reason = f"the lead of {row} over {than} changes by {found.text(claim, noise)}"
    return _verdict(claim, column, found.mean > claim.by, reason, paper.strip(" →"), shown, noise)


def _flat(claim: Claim, numbers: Numbers, printed: Printed, column: str) -> Verdict:
    """Of the largest and the smallest number with the seeds that all columns have."""
    each = {where: numbers.get((str(claim.row), where), {}) for where in claim.columns or ()}
    common = set[int].intersection(*(set(values) for values in each.values()))
    if not common:
        return _not_run(claim, column, f"'{claim.row}'", " in all columns")
    means = {where: fmean(values[seed] for seed in common) for where, values in each.items()}
    high, low = each[max(means, key=lambda where: means[where])], each[min(means, key=lambda where: means[where])]
    found = Gap.of([claim.sign * (high[seed] - low[seed]) for seed in sorted(common)])
    assert found is not None  # there are seeds
    holds, noise = found.near(float(claim.within or 0))
    shown = " → ".join(_number(value) for value in means.values())
    return _verdict(claim, column, holds, f"they differ by {found.text(claim, noise)}", "", shown, noise)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


_JUDGES: dict[str, Callable[[Claim, Numbers, Printed, str], Verdict]] = {
    "best": _best,
    "above": _above,
    "order": _order,
    "close": _close,
    "printed": _printed,
    "rises": _rises,
    "widens": _widens,
    "flat": _flat,
}
