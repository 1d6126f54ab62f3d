"""Differences of what was measured, seed by seed, and whether other seeds may turn what they decide."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from stratafl.recipes.claims import Claim
from stratafl.report.intervals import interval

Place = tuple[str, str]  # row and column
Numbers = Mapping[Place, Mapping[int, float]]  # by seed


@dataclass(frozen=True)
class Gap:
    """A difference over seeds that both sides have, in the direction that is better."""

    mean: float
    margin: float | None  # of a 95 % interval; None with one seed
    seeds: int

    @staticmethod
    def of(each: Sequence[float]) -> "Gap | None":
        """Of the differences with each seed; None where there are none."""
        if not each:
            return None
        found = interval(each)
        return Gap(fmean(each), None if found is None else found.high - found.mean, len(each))

    def undecided(self, *limits: float) -> bool:
        """Whether one of the limits that decide lies within the interval: other seeds may turn the verdict."""
        return self.margin is not None and any(abs(self.mean - limit) <= self.margin for limit in limits)

    def below(self, limit: float) -> bool:
        """Whether it is no more than the limit, and no other seeds would turn that."""
        return self.margin is not None and self.mean <= limit and not self.undecided(limit)

    def near(self, within: float) -> tuple[bool, bool]:
        """Whether it is that near to nothing, and whether other seeds may turn that."""
        return abs(self.mean) <= within, self.undecided(-within, within)

    def text(self, claim: Claim, noise: bool) -> str:
        """It as a difference of the numbers themselves, and what is to be said of its size."""
        digits = 2 if claim.measure in ("seconds", "time", "bytes") else 1
        value = f"{round(claim.sign * self.mean, digits) + 0.0:+.{digits}f}"  # + 0.0: no minus before zero
        if self.margin is None:
            return f"{value} (one seed)"
        if self.margin < 0.5 * 10**-digits and self.mean:
            return f"{value} (with each of {self.seeds} seeds{', within noise' if noise else ''})"
        return f"{value} (± {self.margin:.{digits}f} over {self.seeds} seeds{', within noise' if noise else ''})"


def gap(claim: Claim, numbers: Numbers, a: Place, b: Place) -> Gap | None:
    """How much better `a` is than `b`; None where no seed has both."""
    return Gap.of(list(leads(claim, numbers, a, b).values()))


def leads(claim: Claim, numbers: Numbers, a: Place, b: Place) -> dict[int, float]:
    """How much better `a` is than `b`, by seed."""
    here, there = numbers.get(a, {}), numbers.get(b, {})
    return {seed: claim.sign * (here[seed] - there[seed]) for seed in sorted(set(here) & set(there))}


def mean(numbers: Numbers, row: str, column: str) -> float | None:
    """The mean over seeds of a cell; None where it was not run."""
    values = numbers.get((row, column))
    return fmean(values.values()) if values else None
