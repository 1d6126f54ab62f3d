"""The search of one method: trials are run directories, and what is done next is decided by their journals alone.

trials/METHOD/000/          a run directory of the full number of rounds, advanced as far as its rung
trials/METHOD/003.failed    why trial 3 could not be run
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal

from stratafl.config.assemble import algorithm_of
from stratafl.config.experiment import Experiment, with_values
from stratafl.config.setting_tables import EvaluateTable
from stratafl.config.settings import Settings
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.core.annotations import said
from stratafl.errors import RecordError, unknown
from stratafl.evaluation.flags import diverged
from stratafl.evaluation.measure import Line, local_steps
from stratafl.files import is_plain
from stratafl.runs import checkpoint
from stratafl.runs.directory import CHECKPOINTS, ROUNDS, config_of, is_run
from stratafl.runs.journal import read_lines
from stratafl.runs.predictions import PREDICTIONS
from stratafl.runs.summary import counting, evaluated, stop_reason, validation_score
from stratafl.tuning.grid import beyond, points
from stratafl.tuning.halving import Rung, promoted, rungs
from stratafl.tuning.space import LR, NO_GRIDS, OWN, Dimension, Grids, search_space

SAMPLERS, BUDGETS = ("grid", "tpe"), ("trials", "steps")
MOST = 10_000  # trials of a method
Side = Literal["inside", "lowest", "highest"]


@dataclass(frozen=True)
class Plan:
    """What every method gets: how many trials, how they are thinned out, and what is looked for."""

    trials: int = 12
    eta: int = 2
    only: tuple[str, ...] = ()
    grids: Grids = field(default_factory=lambda: NO_GRIDS)
    sampler: str = "grid"
    budget: str = "trials"
    widen: bool = True

    def __post_init__(self) -> None:
        for what, given, most in (("trials", self.trials, MOST), ("eta", self.eta, 10)):
            if not 1 <= given <= most:
                raise RecordError(f"--{what} must be from 1 to {most:,}, not {said(given)}")
        for what, name, known in (("sampler", self.sampler, SAMPLERS), ("budget", self.budget, BUDGETS)):
            if name not in known:
                raise unknown(what, name, known)
        if self.grids and (self.sampler, self.budget) != ("grid", "trials"):
            raise RecordError("--grid says which values are tried: leave out --sampler and --budget, or --grid")


@dataclass(frozen=True)
class Work:
    """A run that is to be advanced to a round; `failure` is where it is written down that it cannot be."""

    method: str
    title: str
    experiment: Experiment
    folder: Path
    rounds: int
    trust: Trust = NO_TRUST
    failure: Path | None = None


@dataclass(frozen=True)
class TrialResult:
    """What became of a trial: its score on validation data is after `rounds` rounds, `first` that at the first rung."""

    number: int
    settings: Settings
    rounds: int
    steps: int
    first: float | None = None
    score: float | None = None  # higher is better
    failed: str | None = None  # why it counts as the worst


@dataclass(frozen=True)
class SearchResult:
    """What the search of a method came to; without settings if every trial failed."""

    settings: Settings | None
    default: Settings
    score: float | None
    trials: tuple[TrialResult, ...]
    sides: Mapping[str, Side] = field(default_factory=dict)  # where the chosen value lies among those tried
    widened: bool = False
    left: tuple[str, ...] = ()  # settings with a range that were left at their defaults

    @property
    def is_default(self) -> bool:
        return self.settings == self.default

    @property
    def steps(self) -> int:
        return sum(trial.steps for trial in self.trials)

    @property
    def rounds(self) -> int:
        return sum(trial.rounds for trial in self.trials)


class Search:
    """Trials of one method in a folder, on a grid with successive halving; `base` has the method and the seed."""

    def __init__(
        self, folder: Path, base: Experiment, plan: Plan, trust: Trust = NO_TRUST, trials: int | None = None
    ) -> None:
        self.folder, self.plan, self.trust = folder, plan, trust
        self.method, self.trials = base.algorithm.name, plan.trials if trials is None else trials
        self.base = blinded(base)
        self._journals: dict[Path, tuple[int, list[Line]]] = {}
        self._evaluate: dict[Path, EvaluateTable] = {}

    def with_trials(self, trials: int) -> "Search":
        """The same search with another number of trials."""
        found = type(self)(self.folder, self.base, self.plan, self.trust, trials)
        found._journals = self._journals
        return found

    @cached_property
    def space(self) -> tuple[Dimension, ...]:
        return search_space(self.base, self.plan.only, self.plan.grids, self.trust)

    @cached_property
    def points(self) -> list[Settings]:
        """The settings of each trial; the first is the default."""
        return points(self.space, self.trials)

    def check(self) -> None:
        """Refuse given values that a setting cannot have."""
        for each in self.space:
            for value in each.values:
                algorithm_of(self.experiment({each.path: value}), self.trust)

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
        return rungs(self.planned, self.rounds, self.plan.eta, self.base.evaluate.every)

    @property
    def default(self) -> Settings:
        return {each.path: each.default for each in self.space}

    def experiment(self, settings: Settings) -> Experiment:
        return with_values(self.base, settings)

    def work_at(self, number: int, settings: Settings, rounds: int) -> Work:
        title = f"{self.method}, trial {number} ({shown_settings(settings)})"
        failure = self.folder / f"{number:03}.failed"
        return Work(self.method, title, self.experiment(settings), self.place(number), rounds, self.trust, failure)

    def place(self, number: int) -> Path:
        return self.folder / f"{number:03}"

    def work(self) -> list[Work]:
        """What can be done now; nothing if the choice is made."""
        return self._decided()[0]

    def choice(self) -> SearchResult | None:
        """What the journals decide; None while trials are missing."""
        work, best, numbers = self._decided()
        return None if work else self._choice(best, numbers)

    def _decided(self) -> tuple[list[Work], int | None, dict[int, Settings]]:
        """What is to be done before the choice is made; or else the best trial, and the settings of all trials."""
        numbers = dict(enumerate(self.points))
        alive = list(numbers)
        for k, rung in enumerate(self.schedule):
            if work := [self.work_at(n, numbers[n], rung.rounds) for n in alive if not self.reached(n, rung.rounds)]:
                return work, None, numbers
            last = rung is self.schedule[-1]
            alive = self.best(alive, rung.rounds, 1 if last else self.schedule[k + 1].trials)
        best = alive[0] if alive else None
        further = self._beyond(numbers, best)
        if further is None or best is None:
            return [], best, numbers
        number, numbers = len(numbers), {**numbers, len(numbers): further}
        if not self.reached(number, self.rounds):
            return [self.work_at(number, further, self.rounds)], None, numbers
        return [], self.best([best, number], self.rounds, 1)[0], numbers

    def best(self, numbers: Iterable[int], rounds: int, keep: int) -> list[int]:
        scores = {number: self.score(number, rounds) for number in numbers}
        found = promoted(scores, keep)
        return found if keep > 1 else sorted(found, key=lambda n: (-_or_worst(scores[n]), n))[:1]

    def _beyond(self, numbers: Mapping[int, Settings], best: int | None) -> Settings | None:
        """The best settings with a learning rate one step further, if the best one lies at the edge."""
        rate = next((each for each in self.space if each.path == LR), None)
        if best is None or rate is None or not self.plan.widen:
            return None
        value = beyond(rate, sorted({settings[LR] for settings in numbers.values()}), numbers[best][LR])
        return None if value is None else {**numbers[best], LR: value}

    def _choice(self, best: int | None, numbers: Mapping[int, Settings]) -> SearchResult:
        results = tuple(self.result(number, settings) for number, settings in numbers.items())
        chosen = None if best is None else numbers[best]
        score = None if best is None else self.score(best, self.rounds)
        tried = {each.path: [s[each.path] for s in numbers.values()] for each in self.space if each.numeric}
        several = {path: values for path, values in tried.items() if len({*values}) > 1}
        sides = {} if chosen is None else {path: self.side(path, chosen[path], several[path]) for path in several}
        left = tuple(each.path for each in self.space if len({str(s[each.path]) for s in numbers.values()}) == 1)
        return SearchResult(chosen, self.default, score, results, sides, len(numbers) > self.planned, left)

    def side(self, path: str, chosen: Any, tried: Sequence[Any]) -> Side:
        """Where the chosen value of a setting lies among those tried."""
        return side(tried, chosen)

    def result(self, number: int, settings: Settings) -> TrialResult:
        lines = self.lines(number)
        at = lines[-1]["round"] if lines else 0
        first, score = (self.score(number, rounds) for rounds in (self.schedule[0].rounds, at))
        steps = sum(local_steps(line) for line in lines)
        return TrialResult(number, settings, at, steps, _finite(first), _finite(score), self.failed(number, at))

    def reached(self, number: int, rounds: int) -> bool:
        """Whether a trial has come to a round, has stopped by its own rule, or cannot be run."""
        lines = self.lines(number)
        if lines and (
            lines[-1]["round"] >= rounds or stop_reason(lines, self.base.stop, self.evaluate(number)) is not None
        ):
            return True
        return (self.folder / f"{number:03}.failed").exists()

    def failed(self, number: int, rounds: int) -> str | None:
        """Why a trial counts as the worst, if it does."""
        failure = self.folder / f"{number:03}.failed"
        if failure.exists():
            return failure.read_text(errors="replace").strip()
        upto = [line for line in self.lines(number) if line["round"] <= rounds]
        return "diverged" if upto and has_diverged(upto) else None

    def score(self, number: int, rounds: int) -> float | None:
        """The score of a trial after so many rounds; −∞ if it failed, None if no round was evaluated."""
        if self.failed(number, rounds) is not None:
            return -inf
        upto = [line for line in self.lines(number) if line["round"] <= rounds]
        return validation_score(upto, self.evaluate(number))

    def evaluate(self, number: int) -> EvaluateTable:
        """What a trial is judged by; its run has made definite what was left to the data."""
        folder = self.place(number)
        if folder not in self._evaluate and is_run(folder):
            self._evaluate[folder] = config_of(folder).evaluate
        return self._evaluate.get(folder, self.base.evaluate)

    def lines(self, number: int) -> list[Line]:
        """The rounds of a trial that a checkpoint covers, so that they stay what they are."""
        folder = self.place(number)
        mark = checkpoint.committed(folder / CHECKPOINTS).get("rounds")
        size = 0 if mark is None else mark.size
        if self._journals.get(folder, (-1, []))[0] != size:
            self._journals[folder] = (size, committed_lines(folder))
        return self._journals[folder][1]

    def steps_per_round(self) -> float | None:
        """Local steps of a round of the first trial, over the rounds of its first rung; None if it is not there yet."""
        rounds = rungs(self.plan.trials, self.rounds, self.plan.eta, self.base.evaluate.every)[0].rounds
        if not self.reached(0, rounds):
            return None
        lines = [line for line in self.lines(0) if line["round"] <= rounds]
        return sum(map(local_steps, lines)) / len(lines) if lines else 0.0

    def first_work(self) -> list[Work]:
        """What `steps_per_round` waits for."""
        rounds = rungs(self.plan.trials, self.rounds, self.plan.eta, self.base.evaluate.every)[0].rounds
        return [] if self.reached(0, rounds) else [self.work_at(0, self.default, rounds)]


def committed_lines(folder: Path) -> list[Line]:
    """The rounds of a run that a checkpoint covers; none if there is no run."""
    mark = checkpoint.committed(folder / CHECKPOINTS).get("rounds")
    return [] if mark is None else read_lines(folder / ROUNDS, until=mark)


def is_open(work: Work) -> bool:
    """Whether the run has not come as far as it is to be advanced, can be run, and has not stopped by its own rule.

    A run on a fresh seed, which has no `failure`, ends with its predictions.
    """
    lines = committed_lines(work.folder)
    if lines:
        begun = config_of(work.folder)
        if lines[-1]["round"] >= work.rounds or stop_reason(lines, begun.stop, begun.evaluate) is not None:
            return work.failure is None and lacks_predictions(work.folder, lines, begun.evaluate)
    return work.failure is None or not work.failure.exists()


def lacks_predictions(folder: Path, lines: Sequence[Line], evaluate: EvaluateTable) -> bool:
    """Whether a finished run was killed before it wrote its predictions; without the state for them it never will."""
    if evaluate.stage == "trained" or is_plain(folder / PREDICTIONS):
        return False
    return checkpoint.selected_round(folder / CHECKPOINTS) == int(counting(lines, evaluate)["round"])


def blinded(experiment: Experiment) -> Experiment:
    """The experiment as a trial runs it: it scores no test sample, looks at no layer and tells no service."""
    evaluate = experiment.evaluate
    select = "validation" if evaluate.select == "best" else evaluate.select
    evaluate = replace(evaluate, test=False, select=select, lab=0)
    return replace(experiment, evaluate=evaluate, log=replace(experiment.log, to=()))


def has_diverged(lines: Sequence[Line]) -> bool:
    """Whether the loss, or the upload of every client, became NaN or infinite in the last of these rounds."""
    last, scored = lines[-1], evaluated(lines)
    losses = [last.get("train.loss", 0), *(v for k, v in (scored[-1] if scored else {}).items() if k.endswith(".loss"))]
    return any(loss is None for loss in losses) or diverged(last)


def side(values: Sequence[Any], chosen: Any) -> Side:
    """Whether a value lies inside of those that were tried; None, a method's own way, is neither end."""
    numbers = sorted({value for value in values if value is not None})
    if chosen is None or numbers[0] < chosen < numbers[-1]:
        return "inside"
    return "lowest" if chosen == numbers[0] else "highest"


def shown_settings(settings: Settings) -> str:
    """Settings in one line, without the word before options of the method."""
    return ", ".join(f"{path.removeprefix(OWN)}={said_value(value)}" for path, value in settings.items())


def said_value(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _or_worst(score: float | None) -> float:
    return -inf if score is None else score
