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
        digits = _digits(claim)
        unit = " %" if claim.share else ""
        value = f"{round(claim.sign * self.mean, digits) + 0.0:+.{digits}f}{unit}"  # + 0.0: no minus before zero
        if self.margin is None:
            return f"{value} (one seed, no interval)"
        noisy = ", within noise" if noise else ""
        if self.margin < 0.5 * 10**-digits and self.mean:
            return f"{value} (with each of {self.seeds} seeds{noisy})"
        return f"{value} (± {self.margin:.{digits}f} over {self.seeds} seeds{noisy})"


def _digits(claim: Claim) -> int:
    return 2 if claim.measure in ("seconds", "relative", "server", "time", "bytes") and not claim.share else 1


def excess(claim: Claim, ours: float, theirs: float) -> float:
    """How far a number is above another; with `share`, in per cent of the other."""
    return 100 * (ours / theirs - 1) if claim.share else ours - theirs


def leads(claim: Claim, numbers: Numbers, a: Place, b: Place) -> dict[int, float]:
    """How much better `a` is than `b`, by seed."""
    ours, theirs = numbers.get(a, {}), numbers.get(b, {})
    seeds = (seed for seed in sorted(set(ours) & set(theirs)) if theirs[seed] or not claim.share)
    return {seed: claim.sign * excess(claim, ours[seed], theirs[seed]) for seed in seeds}


def averaged(several: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean of several numbers, by the seeds that all of them have."""
    common = set[int].intersection(*map(set, several)) if several else set[int]()
    return {seed: fmean(values[seed] for values in several) for seed in sorted(common)}


def verdicts(
    claim: Claim, numbers: Numbers, printed: Printed, columns: Sequence[str], shorter: Mapping[str, str] = NO_SHORTER
) -> list[Verdict]:
    """One verdict for each column that is run, or one for several columns together.

    `shorter` has a text for columns that are run for fewer rounds than in the paper; it ends their reasons.
    """
    asked = list(claim.columns or columns)
    run = [column for column in asked if column in columns]
    where = " → " if claim.kind in ("rises", "widens", "flat") else "; "
    if claim.kind not in OVER_COLUMNS:
        judged = [_after(_Judge(claim, numbers, printed, column).verdict(), claim, [column], shorter) for column in run]
    elif _suffice(claim, run, asked):
        over = _Judge(replace(claim, columns=run), numbers, printed, where.join(run)).verdict()
        left_out = f"; {len(run)} of {len(asked)} columns" if claim.kind == "average" and len(run) < len(asked) else ""
        over = replace(over, reason=over.reason + left_out)
        judged = [_after(over, claim, run, shorter)]
    else:
        judged = []
    return judged or [_Judge(claim, numbers, printed, where.join(asked)).unknown("not part of this scale")]


def _suffice(claim: Claim, run: Sequence[str], asked: Sequence[str]) -> bool:
    """Whether a claim over columns can be judged in those that are run."""
    if claim.kind == "average":
        return bool(run)
    return len(run) > 1 and (claim.kind == "flat" or (run[0], run[-1]) == (asked[0], asked[-1]))


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
        both = a in self.printed and b in self.printed
        return f"{excess(self.claim, self.printed[a], self.printed[b]):+.2f}" if both else ""

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

    def _average(self) -> Verdict:
        """Over all cells, a column and a rival each, in which both were run; the largest difference is shown too."""
        claim, row = self.claim, str(self.claim.row)
        cells = [((row, column), (rival, column)) for rival in claim.rivals for column in claim.columns or ()]
        every = {cell: leads(claim, self.numbers, *cell) for cell in cells}
        run = {cell: values for cell, values in every.items() if values}
        average = PairedDifference.of(list(averaged(list(run.values())).values()))
        if average is None:
            return self._not_run(f"'{row}' or '{claim.than or 'its rivals'}'")
        both = [cell for cell in run if all(place in self.printed for place in cell)]
        paper = _mean_and_most(claim, [excess(claim, *(self.printed[place] for place in cell)) for cell in both])
        shown = _mean_and_most(claim, [claim.sign * fmean(values.values()) for values in run.values()])
        noise = average.undecided(claim.by)
        reason = f"{row} against {', '.join(claim.rivals)}, on average: {average.text(claim, noise)}"
        reason += f"; {len(run)} of {len(cells)} cells" if len(run) < len(cells) else ""
        return self._decided(average.mean > claim.by, reason, paper, shown, noise, average.margin is None)

    def _widens(self) -> Verdict:
        claim, row, columns = self.claim, str(self.claim.row), self.claim.columns or [""]
        ends = (columns[0], columns[-1])
        rivals = [rival for rival in claim.rivals if all((rival, end) in self.numbers for end in ends)]
        first, last = (
            averaged([leads(claim, self.numbers, (row, end), (rival, end)) for rival in rivals]) for end in ends
        )
        change = PairedDifference.of([last[seed] - first[seed] for seed in first if seed in last])
        if change is None:
            return self._not_run(f"'{row}' or '{claim.than or 'its rivals'}'", " in both columns")
        shown = " → ".join(f"{fmean(lead.values()):+.2f}" for lead in (first, last))
        noise, one_seed = change.undecided(claim.by), change.margin is None
        reason = f"the lead of {row} over {', '.join(rivals)} changes by {change.text(claim, noise)}"
        return self._decided(change.mean > claim.by, reason, self._paper_leads(rivals, ends), shown, noise, one_seed)

    def _paper_leads(self, rivals: Sequence[str], ends: Sequence[str]) -> str:
        """The differences in the paper at both ends, averaged over rivals."""
        places = [((str(self.claim.row), end), (rival, end)) for end in ends for rival in rivals]
        if any(place not in self.printed for pair in places for place in pair):
            return ""
        differences = [excess(self.claim, *(self.printed[place] for place in pair)) for pair in places]
        halves = differences[: len(rivals)], differences[len(rivals) :]
        return " → ".join(f"{fmean(half):+.2f}" for half in halves)

    def _over(self) -> Verdict:
        return self._against_limit(1)

    def _under(self) -> Verdict:
        return self._against_limit(-1)

    def _against_limit(self, side: int) -> Verdict:
        """Whether the number is above the limit, or, with side −1, below it."""
        row, limit = str(self.claim.row), float(self.claim.limit or 0)
        numbers = self.numbers.get((row, self.column), {}).values()
        beyond = PairedDifference.of([self.claim.sign * (number - limit) for number in numbers])
        if beyond is None:
            return self._not_run(f"'{row}'")
        noise = beyond.undecided(0)
        in_paper = self.printed.get((row, self.column))
        reason = f"{row} against {limit:g}: {beyond.text(self.claim, noise)}"
        paper = "" if in_paper is None else f"{in_paper:.2f}"
        holds = side * self.claim.sign * beyond.mean > 0
        return self._decided(holds, reason, paper, self._mean(row, self.column), noise, beyond.margin is None)

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


def _mean_and_most(claim: Claim, differences: Sequence[float]) -> str:
    """Their mean and the one that is furthest on the better side; nothing without any."""
    if not differences:
        return ""
    most, unit = max(differences, key=lambda each: claim.sign * each), " %" if claim.share else ""
    alone = f"{fmean(differences):+.2f}{unit}"
    return alone if len(differences) == 1 else f"{alone}, up to {most:+.2f}{unit}"
