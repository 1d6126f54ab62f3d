"""What trials give: of each candidate its predictions, its score, and the score that they let expect."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stratafl.advice.candidate_methods import Candidate
from stratafl.advice.problem import Problem
from stratafl.core.reprs import short_repr
from stratafl.evaluation.predictions import Predictions

UNKNOWN = float("nan")


@short_repr
@dataclass(frozen=True)
class Result:
    """How far a candidate came, how good it was on validation samples then, and what that lets expect."""

    candidate: Candidate
    seen: Mapping[int, Predictions] = field(repr=False)  # of validation samples, by round
    trained: Predictions = field(repr=False)  # of training samples, in the last of these rounds
    bytes_per_round: float = 0.0
    score: float = UNKNOWN  # larger is better
    fitted: float = UNKNOWN  # the score on training samples
    expected: float = UNKNOWN  # the score after all rounds, if its learning curve goes on

    @property
    def rounds(self) -> int:
        return max(self.seen)

    @property
    def predictions(self) -> Predictions:
        return self.seen[self.rounds]

    def judged(self, problem: Problem) -> "Result":
        """With the scores that the problem's metric gives."""
        return replace(self, score=problem.score(self.predictions), fitted=problem.score(self.trained))


@short_repr
@dataclass(frozen=True)
class Tryout:
    """All results, those that came furthest first and among them the best; and what was spent of what was allowed."""

    problem: Problem  # with the metric that they were judged by
    results: tuple[Result, ...]
    steps: int
    allowed: int
    full: int
    switched: bool = False  # whether that metric took the place of one that showed nothing

    def of(self, name: str) -> Result:
        return next(each for each in self.results if each.candidate.name == name)

    @property
    def finalists(self) -> list[Result]:
        """Those that came as far as any."""
        return [each for each in self.results if each.rounds == self.results[0].rounds]

    @property
    def forecast(self) -> bool:
        """Whether the finalists were scored in two rounds, without which nothing says how scores go on."""
        return all(len(each.seen) > 1 for each in self.finalists)
