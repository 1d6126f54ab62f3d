"""The search of one method: which trials run, how far they run, and which settings they choose.

trials/METHOD/000/          a run directory of the full number of rounds, advanced as far as its rung
trials/METHOD/003.failed    why trial 3 could not be run

A search stores nothing. Everything it decides follows from the journals of its trials (`trials`), so any
process can continue it at any time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal

from stratafl.config.assemble import algorithm_of
from stratafl.config.experiment import Experiment, with_values
from stratafl.config.metric_choice import stored_metric
from stratafl.config.setting_tables import Settings
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.core.annotations import said
from stratafl.errors import RecordError, unknown
from stratafl.evaluation.metrics import Metric
from stratafl.report.tuned import TunedMethod, TunedTrial
from stratafl.tuning.grid import beyond, points
from stratafl.tuning.halving import Rung, promoted, rungs
from stratafl.tuning.space import LR, NO_GRIDS, OPTION_PREFIX, Dimension, Grids, search_space
from stratafl.tuning.trials import PendingRun, TrialJournals

SAMPLERS, BUDGETS = ("grid", "tpe"), ("trials", "steps")
MAX_TRIALS, MAX_ETA = 10_000, 10  # of a method
Side = Literal["inside", "lowest", "highest"]


@dataclass(frozen=True)
class TuningPlan:
    """What every method gets: how many trials, how they are thinned out, and which settings are searched."""

    trials: int = 12
    eta: int = 2
    only: tuple[str, ...] = ()
    grids: Grids = field(default_factory=lambda: NO_GRIDS)
    sampler: str = "grid"
    budget: str = "trials"
    widen: bool = True

    def __post_init__(self) -> None:
        for option, value, most in (("trials", self.trials, MAX_TRIALS), ("eta", self.eta, MAX_ETA)):
            if not 1 <= value <= most:
                raise RecordError(f"--{option} must be from 1 to {most:,}, not {said(value)}")
        for option, name, allowed in (("sampler", self.sampler, SAMPLERS), ("budget", self.budget, BUDGETS)):
            if name not in allowed:
                raise unknown(option, name, allowed)
        if self.grids and (self.sampler, self.budget) != ("grid", "trials"):
            raise RecordError("--grid lists the values to try: leave out --sampler and --budget, or leave out --grid")


@dataclass(frozen=True)
class SearchDecision:
    """What the journals decide so far: runs to advance next, or the best trial (None if every trial failed)."""

    settings: Mapping[int, Settings]  # of every trial, by its number
    pending: Sequence[PendingRun] = ()
    best: int | None = None


class Search:
    """Trials of one method in a folder, on a grid with successive halving; `base` has the method and the seed."""

    def __init__(
        self, folder: Path, base: Experiment, plan: TuningPlan, trust: Trust = NO_TRUST, trials: int | None = None
    ) -> None:
        self.folder, self.plan, self.trust = folder, plan, trust
        self.method, self.trials = base.algorithm.name, plan.trials if trials is None else trials
        self.base = blinded(base)
        self.journals = TrialJournals(folder, self.base)

    def with_trials(self, trials: int) -> "Search":
        """The same search with another number of trials."""
        search = type(self)(self.folder, self.base, self.plan, self.trust, trials)
        search.journals = self.journals
        return search

    def work(self) -> Sequence[PendingRun]:
        """The runs that can be advanced now; none if the choice is made."""
        return self.decision().pending

    def choice(self) -> TunedMethod | None:
        """The settings that the trials choose; None while trials are missing."""
        decision = self.decision()
        return None if decision.pending else self._result(decision)

    def decision(self) -> SearchDecision:
        """Successive halving: all trials of a rung run, the best go on to the next rung, the best of all is chosen."""
        settings = dict(enumerate(self.points))
        alive, promotions = list(settings), [*(rung.trials for rung in self.schedule[1:]), 1]
        for rung, keep in zip(self.schedule, promotions, strict=True):
            if pending := self._unfinished(alive, settings, rung.rounds):
                return SearchDecision(settings, pending)
            alive = self._best(alive, rung.rounds, keep)
        return self._widened(settings, alive[0] if alive else None)

    def _widened(self, settings: Mapping[int, Settings], best: int | None) -> SearchDecision:
        """The best trial, after one more trial if its learning rate is the lowest or the highest that was tried."""
        further = None if best is None else self._beyond(settings, best)
        if best is None or further is None:
            return SearchDecision(settings, best=best)
        number = len(settings)
        settings = {**settings, number: further}
        if pending := self._unfinished([number], settings, self.rounds):
            return SearchDecision(settings, pending)
        return SearchDecision(settings, best=self._best([best, number], self.rounds, 1)[0])

    def _unfinished(self, numbers: Iterable[int], settings: Mapping[int, Settings], rounds: int) -> list[PendingRun]:
        return [self.pending_run(n, settings[n], rounds) for n in numbers if not self.journals.reached(n, rounds)]

    def _best(self, numbers: Iterable[int], rounds: int, keep: int) -> list[int]:
        """The trials that go on after a rung.

        With `keep` 1 it is exactly one, also before any round was evaluated, when `promoted` would keep them all.
        """
        scores = {number: self.journals.score(number, rounds) for number in numbers}
        best = promoted(scores, keep)
        return best if keep > 1 else sorted(best, key=lambda n: (-_or_worst(scores[n]), n))[:1]

    def _beyond(self, settings: Mapping[int, Settings], best: int) -> Settings | None:
        """The best settings with a learning rate one step further, if the best one lies at the edge."""
        rate = next((dimension for dimension in self.space if dimension.path == LR), None)
        if rate is None or not self.plan.widen:
            return None
        value = beyond(rate, sorted({trial[LR] for trial in settings.values()}), settings[best][LR])
        return None if value is None else {**settings[best], LR: value}

    # What is tried

    @cached_property
    def space(self) -> tuple[Dimension, ...]:
        return search_space(self.base, self.plan.only, self.plan.grids, self.trust)

    @cached_property
    def points(self) -> list[Settings]:
        """The settings of each trial; the first is the default."""
        return points(self.space, self.trials)

    @property
    def planned(self) -> int:
        """How many trials there are, before the range is widened."""
        return len(self.points)

    @cached_property
    def rounds(self) -> int:
        """The rounds of a complete run, with a finishing phase."""
        return self.base.run.rounds + algorithm_of(self.base, self.trust).requires.extra_rounds

    @cached_property
    def schedule(self) -> list[Rung]:
        return self._rungs(self.planned)

    def _rungs(self, trials: int) -> list[Rung]:
        return rungs(trials, self.rounds, self.plan.eta, self.base.evaluate.every)

    @property
    def default(self) -> Settings:
        return {dimension.path: dimension.default for dimension in self.space}

    def experiment(self, settings: Settings) -> Experiment:
        return with_values(self.base, settings)

    def check(self) -> None:
        """Raise if a grid lists a value that its setting cannot have."""
        for dimension in self.space:
            for value in dimension.values:
                algorithm_of(self.experiment({dimension.path: value}), self.trust)

    def place(self, number: int) -> Path:
        return self.journals.place(number)

    def pending_run(self, number: int, settings: Settings, rounds: int) -> PendingRun:
        title = f"{self.method}, trial {number} ({shown_settings(settings)})"
        place, failure = self.place(number), self.journals.failure(number)
        return PendingRun(self.method, title, self.experiment(settings), place, rounds, self.trust, failure)

    # The result

    def _result(self, decision: SearchDecision) -> TunedMethod:
        settings, best, metric = decision.settings, decision.best, self._metric
        tried = {each.path: [trial[each.path] for trial in settings.values()] for each in self.space}
        chosen = None if best is None else settings[best]
        return TunedMethod(
            self.method,
            chosen,
            self.default,
            validation=None if best is None else self._natural(self.journals.score(best, self.rounds)),
            sides={} if chosen is None else self._sides(chosen, tried),
            widened=len(settings) > self.planned,
            left=[path for path, values in tried.items() if len({*map(str, values)}) == 1],
            trials=[self._trial_result(number, trial) for number, trial in settings.items()],
            metric=metric.name,
            larger=metric.larger_is_better,
            percent=metric.percent,
        )

    def _sides(self, chosen: Settings, tried: Mapping[str, Sequence[Any]]) -> dict[str, Side]:
        """Where each chosen number lies among those tried, if there were several."""
        varied = [each for each in self.space if each.numeric and len({*tried[each.path]}) > 1]
        return {each.path: self._side(each, chosen, tried[each.path]) for each in varied}

    def _side(self, dimension: Dimension, chosen: Settings, tried: Sequence[Any]) -> Side:
        return side(tried, chosen[dimension.path])

    @property
    def _metric(self) -> Metric:
        return stored_metric(self.base.evaluate, regression=False)  # definite since the tuning was made

    def _natural(self, score: float | None) -> float | None:
        """A score of the journals (higher is better) as a value of the metric; None if it is not finite."""
        return self._metric.sign * score if score is not None and isfinite(score) else None

    def _trial_result(self, number: int, settings: Settings) -> TunedTrial:
        lines = self.journals.lines(number)
        rounds = lines[-1]["round"] if lines else 0
        first, score = (self._natural(self.journals.score(number, end)) for end in (self.schedule[0].rounds, rounds))
        failed = self.journals.failed(number, rounds)
        return TunedTrial(number, settings, rounds, self.journals.steps(number), first, score, failed)

    # With a budget of steps, the first rung of the default tells what a round costs

    def steps_per_round(self) -> float | None:
        """Local steps of a round of the first trial; None until it has come to the end of its first rung."""
        rounds = self._rungs(self.plan.trials)[0].rounds
        if not self.journals.reached(0, rounds):
            return None
        lines = self.journals.lines(0, rounds)
        return self.journals.steps(0, rounds) / len(lines) if lines else 0.0

    def pending_for_cost(self) -> list[PendingRun]:
        """What `steps_per_round` waits for."""
        return self._unfinished([0], {0: self.default}, self._rungs(self.plan.trials)[0].rounds)


def blinded(experiment: Experiment) -> Experiment:
    """The experiment as a trial runs it: it scores no test sample, measures no layer and reports to no service."""
    evaluate = experiment.evaluate
    select = "validation" if evaluate.select == "best" else evaluate.select
    evaluate = replace(evaluate, test=False, select=select, lab=0)
    return replace(experiment, evaluate=evaluate, log=replace(experiment.log, to=()))


def side(values: Sequence[Any], chosen: Any) -> Side:
    """Where a value lies among those tried; None, which leaves the choice to the method, is neither end."""
    numbers = sorted({value for value in values if value is not None})
    if chosen is None or numbers[0] < chosen < numbers[-1]:
        return "inside"
    return "lowest" if chosen == numbers[0] else "highest"


def shown_settings(settings: Settings) -> str:
    """Settings in one line, without the prefix of a method's options."""
    return ", ".join(f"{path.removeprefix(OPTION_PREFIX)}={said_value(value)}" for path, value in settings.items())


def said_value(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _or_worst(score: float | None) -> float:
    return -inf if score is None else score
