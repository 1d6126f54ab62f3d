"""The verdict on each claim, from paired differences of numbers that were measured with several seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from types import MappingProxyType

from stratafl.recipes.claims import OF_CONVERGENCE, OVER_COLUMNS, PER_ROUND, Claim
from stratafl.report.intervals import interval
from stratafl.report.verdict import Verdict

Place = tuple[str, str]  # row and column
Numbers = Mapping[Place, Mapping[int, float]]  # by seed
Printed = Mapping[Place, float]
NO_SHORTER: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class PairedDifference:
    """A difference over the seeds that both sides have; positive is better."""

    mean: float
    margin: float | None  # half of the 95 % interval; None with one seed
    seeds: int

    @staticmethod
    def of(differences: Sequence[float]) -> "PairedDifference | None":
        """From the difference of each seed; None without any."""
        if not differences:
            return None
        estimate = interval(differences)
        margin = None if estimate is None else estimate.high - estimate.mean
        return PairedDifference(fmean(differences), margin, len(differences))

    def undecided(self, *limits: float) -> bool:
        """Whether a deciding limit is within the interval, so that other seeds may change the verdict."""
        return self.margin is not None and any(abs(self.mean - limit) <= self.margin for limit in limits)

    def below(self, limit: float) -> bool:
        """Whether it is at most the limit, beyond noise."""
        return self.margin is not None and self.mean <= limit and not self.undecided(limit)

    def near(self, within: float | None) -> tuple[bool, bool]:
        """Whether its size is at most `within`, and whether that is undecided."""
        limit = float(within or 0)
        return abs(self.mean) <= limit, self.undecided(-limit, limit)

    def text(self, claim: Claim, noise: bool) -> str:
        """The difference of the numbers themselves, with its margin."""
        digits = 2 if claim.measure in ("seconds", "relative", "time", "bytes") else 1
        value = f"{round(claim.sign * self.mean, digits) + 0.0:+.{digits}f}"  # + 0.0: no minus before zero
        if self.margin is None:
            return f"{value} (one seed, no interval)"
        noisy = ", within noise" if noise else ""
        if self.margin < 0.5 * 10**-digits and self.mean:
            return f"{value} (with each of {self.seeds} seeds{noisy})"
        return f"{value} (± {self.margin:.{digits}f} over {self.seeds} seeds{noisy})"


def leads(claim: Claim, numbers: Numbers, a: Place, b: Place) -> dict[int, float]:
    """How much better `a` is than `b`, by seed."""
    ours, theirs = numbers.get(a, {}), numbers.get(b, {})
    return {seed: claim.sign * (ours[seed] - theirs[seed]) for seed in sorted(set(ours) & set(theirs))}


def verdicts(
    claim: Claim, numbers: Numbers, printed: Printed, columns: Sequence[str], shorter: Mapping[str, str] = NO_SHORTER
) -> list[Verdict]:
    """One verdict for each column that is run, or one for several columns together.

    `shorter` has a text for columns that are run for fewer rounds than in the paper; it ends their reasons.
    """
    asked = list(claim.columns or columns)
    run = [column for column in asked if column in columns]
    if claim.kind not in OVER_COLUMNS:
        judged = [_after(_Judge(claim, numbers, printed, column).verdict(), claim, [column], shorter) for column in run]
    elif len(run) > 1 and (claim.kind == "flat" or (run[0], run[-1]) == (asked[0], asked[-1])):
        over = _Judge(replace(claim, columns=run), numbers, printed, " → ".join(run)).verdict()
        judged = [_after(over, claim, run, shorter)]
    else:
        judged = []
    where = " → " if claim.kind in OVER_COLUMNS else "; "
    return judged or [_Judge(claim, numbers, printed, where.join(asked)).unknown("not part of this scale")]


def _after(verdict: Verdict, claim: Claim, columns: Sequence[str], shorter: Mapping[str, str]) -> Verdict:
    """The verdict, with the number of rounds if it is not the paper's."""
    fewer_rounds = dict.fromkeys(shorter[column] for column in columns if column in shorter)
    if verdict.holds is None or claim.measure in PER_ROUND or not fewer_rounds:
        return verdict
    return replace(verdict, reason="; ".join([verdict.reason, *fewer_rounds]))


@dataclass(frozen=True)
class _Judge:
    """Judges a claim in a column, or over the columns of the claim; one method for each kind of claim."""

    claim: Claim
    numbers: Numbers
    printed: Printed
    column: str

    def verdict(self) -> Verdict:
        verdict: Verdict = getattr(self, f"_{self.claim.kind}")()
        return verdict

    def unknown(self, reason: str, paper: str = "") -> Verdict:
        return Verdict(self.claim.says, self.claim.predicate, paper, "", None, reason, column=self.column)

    def _decided(self, holds: bool, reason: str, paper: str, measured: str, noise: bool, one_seed: bool) -> Verdict:
        claim = self.claim
        return Verdict(claim.says, claim.predicate, paper, measured, holds, reason, noise, one_seed, column=self.column)

    def _not_run(self, rows: str, where: str = "", paper: str = "") -> Verdict:
        improving = ", or is still improving" if self.claim.measure in OF_CONVERGENCE else ""
        return self.unknown(f"{rows} was not run{where}{improving}", paper)

    def _difference(self, a: Place, b: Place) -> PairedDifference | None:
        """How much better `a` is than `b`; None without a common seed."""
        return PairedDifference.of(list(leads(self.claim, self.numbers, a, b).values()))

    def _paper_difference(self, a: Place, b: Place) -> str:
        return f"{self.printed[a] - self.printed[b]:+.2f}" if a in self.printed and b in self.printed else ""

    def _mean(self, row: str, column: str) -> str:
        values = self.numbers.get((row, column))
        return f"{fmean(values.values()):.2f}" if values else "–"

    def _means(self, rows: Sequence[str]) -> str:
        return " · ".join(f"{row} {self._mean(row, self.column)}" for row in rows)

    def _pairs(self, pairs: Sequence[tuple[str, str]]) -> Verdict:
        """Whether the first of each pair is better by more than `by`; a pair that fails beyond noise decides."""
        claim, column, differences = self.claim, self.column, list[PairedDifference]()
        for a, b in pairs:
            difference = self._difference((a, column), (b, column))
            if difference is None:
                return self._not_run(f"'{a}' or '{b}'")
            differences.append(difference)
        doubtful = [each.undecided(claim.by) for each in differences]
        fails = any(each.below(claim.by) for each in differences)
        noise = any(doubtful) and not fails
        one_seed = any(each.margin is None for each in differences) and not fails
        texts = [each.text(claim, doubt) for each, doubt in zip(differences, doubtful, strict=True)]
        reason = "; ".join(f"{a} against {b}: {text}" for (a, b), text in zip(pairs, texts, strict=True))
        paper = ", ".join(filter(None, (self._paper_difference((a, column), (b, column)) for a, b in pairs)))
        shown = self._means(list(dict.fromkeys(row for pair in pairs for row in pair)))
        holds = all(each.mean > claim.by for each in differences)
        return self._decided(holds, reason, paper, shown, noise, one_seed)

    def _above(self) -> Verdict:
        return self._pairs([(str(self.claim.row), str(self.claim.than))])

    def _order(self) -> Verdict:
        return self._pairs(list(pairwise(self.claim.rows or [])))

    def _best(self) -> Verdict:
        """Against the rival that is nearest with common seeds: another rival may only have had easier seeds.

        Also against the first that is better beyond noise, or, if none is, every rival that other seeds may put first.
        """
        row, by = str(self.claim.row), self.claim.by
        rivals = [other for other, where in self.numbers if where == self.column and other != row]
        every = {other: self._difference((row, self.column), (other, self.column)) for other in rivals}
        differences = {other: difference for other, difference in every.items() if difference is not None}
        if not differences:
            return self.unknown(f"'{row}' or its rivals were not run")
        nearest, *others = sorted(differences, key=lambda other: differences[other].mean)
        better = [other for other in (nearest, *others) if differences[other].below(by)]
        doubtful = [] if better else [other for other in others if differences[other].undecided(by)]
        verdict = self._pairs([(row, other) for other in dict.fromkeys((nearest, *better[:1], *doubtful))])
        one_seed = not better and any(each.margin is None for each in differences.values())
        return replace(verdict, one_seed=verdict.one_seed or one_seed)

    def _close(self) -> Verdict:
        a, b = str(self.claim.row), str(self.claim.than)
        difference = self._difference((a, self.column), (b, self.column))
        if difference is None:
            return self._not_run(f"'{a}' or '{b}'")
        holds, noise = difference.near(self.claim.within)
        paper = self._paper_difference((a, self.column), (b, self.column))
        reason = f"{a} against {b}: {difference.text(self.claim, noise)}"
        return self._decided(holds, reason, paper, self._means((a, b)), noise, difference.margin is None)

    def _printed(self) -> Verdict:
        place = str(self.claim.row), self.column
        in_paper = self.printed.get(place)
        if in_paper is None:
            return self.unknown("the paper prints no number")
        numbers = self.numbers.get(place, {}).values()
        difference = PairedDifference.of([self.claim.sign * (number - in_paper) for number in numbers])
        if difference is None:
            return self._not_run(f"'{self.claim.row}'", paper=f"{in_paper:.2f}")
        holds, noise = difference.near(self.claim.within)
        reason = f"against the paper: {difference.text(self.claim, noise)}"
        one_seed = difference.margin is None
        return self._decided(holds, reason, f"{in_paper:.2f}", self._mean(*place), noise, one_seed)

    def _rises(self) -> Verdict:
        claim, row, columns = self.claim, str(self.claim.row), self.claim.columns or [""]
        first, last = (row, columns[0]), (row, columns[-1])
        difference = self._difference(last, first)
        if difference is None:
            return self._not_run(f"'{row}'", " in both columns")
        holds, noise = claim.sign * difference.mean > claim.by, difference.undecided(claim.sign * claim.by)
        shown = " → ".join(self._mean(row, each) for each in columns)
        paper, one_seed = self._paper_difference(last, first), difference.margin is None
        return self._decided(holds, difference.text(claim, noise), paper, shown, noise, one_seed)

    def _widens(self) -> Verdict:
        claim, row, than, columns = self.claim, str(self.claim.row), str(self.claim.than), self.claim.columns or [""]
        ends = (columns[0], columns[-1])
        first, last = (leads(claim, self.numbers, (row, each), (than, each)) for each in ends)
        difference = PairedDifference.of([last[seed] - first[seed] for seed in first if seed in last])
        if difference is None:
            return self._not_run(f"'{row}' or '{than}'", " in both columns")
        shown = " → ".join(f"{fmean(lead.values()):+.2f}" for lead in (first, last))
        paper = " → ".join(self._paper_difference((row, each), (than, each)) for each in ends).strip(" →")
        noise = difference.undecided(claim.by)
        reason = f"the lead of {row} over {than} changes by {difference.text(claim, noise)}"
        return self._decided(difference.mean > claim.by, reason, paper, shown, noise, difference.margin is None)

    def _flat(self) -> Verdict:
        """The difference of the largest and the smallest number, over the seeds that all columns have."""
        by_column = {where: self.numbers.get((str(self.claim.row), where), {}) for where in self.claim.columns or ()}
        common = set[int].intersection(*(set(values) for values in by_column.values()))
        if not common:
            return self._not_run(f"'{self.claim.row}'", " in all columns")
        means = {where: fmean(values[seed] for seed in common) for where, values in by_column.items()}
        high, low = (by_column[end(means, key=lambda where: means[where])] for end in (max, min))
        difference = PairedDifference.of([self.claim.sign * (high[seed] - low[seed]) for seed in sorted(common)])
        assert difference is not None  # there is a common seed
        holds, noise = difference.near(self.claim.within)
        shown = " → ".join(f"{value:.2f}" for value in means.values())
        reason, one_seed = f"they differ by {difference.text(self.claim, noise)}", difference.margin is None
        return self._decided(holds, reason, "", shown, noise, one_seed)
