"""Trials: candidates train side by side for some rounds, are scored on validation samples, and the worse ones leave.

There is no test split here: `held_out` removes it before anything is trained. What is spent is counted in client-steps:
one step of one client on one batch, of training and of tuning before use, as methods note them (`…/steps`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, isfinite, log, sqrt

import numpy as np
import torch
from torch import Tensor

from stratafl.advice.candidates import ALONE, Candidate
from stratafl.config.assemble import algorithm_of
from stratafl.config.experiment import Experiment
from stratafl.config.tables import AlgorithmTable
from stratafl.config.trust import NOTHING, Trust
from stratafl.core.reprs import short_repr
from stratafl.core.state import State
from stratafl.data import Federation
from stratafl.data.federation import Ragged
from stratafl.evaluation.evaluate import client_models
from stratafl.evaluation.metrics import METRICS, Metric
from stratafl.evaluation.predictions import Predictions, joined, row_predictions
from stratafl.execute import Matrix, Progress, Simulation, simulation
from stratafl.execute.build import ModelSource
from stratafl.execute.round import Report
from stratafl.runtime.speed import Speed

HELD = 0.25  # at least this share of a client's samples outside the test split is for validation
PARTS = 20  # of the validation samples, for standard errors
FIRST = 0.55  # share of the budget of the first stage, in which all take part
FINALISTS = 2  # trainings that reach the second stage, besides training alone
STEEPEST = 1.5  # exponent of a learning curve that is still believed
OWN = 0.75  # weight of a candidate's own exponent; the rest is the mean of all
FLATTER = 0.6  # of an exponent so far is left for the rounds to come; measured, see docs/results/advice.md

Watch = Callable[[str, int, int], None]  # what is running, client-steps spent, client-steps allowed


@short_repr
@dataclass(frozen=True, eq=False)
class Problem:
    """What candidates are tried on: settings, a federation without test samples, a model, and what counts as good."""

    experiment: Experiment
    federation: Federation
    model: ModelSource
    metric: Metric
    over: str  # `samples` or `clients`
    trust: Trust | bool = NOTHING

    @property
    def rounds(self) -> int:
        return self.experiment.run.rounds

    def simulation(self, candidate: Candidate) -> Simulation:
        run, model = self.experiment.run, self.experiment.model
        return simulation(
            algorithm_of(configured(self.experiment, candidate), self.trust),
            self.federation,
            self.model,
            rounds=run.rounds,
            participation=run.participation,
            seed=run.seed,
            granularity=run.granularity,
            buffers=run.buffers,
            head=model.head,
            weights=model.weights,
            device=run.device,
            engine=run.engine,
            speed=Speed(run.precision, "off", "off", run.convolutions, None),  # too short for either to pay
            memory_limit=run.memory_limit,
            new_clients=self.experiment.data.new_clients,
        )

    def score(self, predictions: Predictions) -> float:
        """How good, larger is better."""
        value = predictions.average(self.metric, self.over)
        return value if self.metric.larger_is_better else -value

    def epoch_steps(self, share: float = 1.0) -> float:
        """Client-steps of `train.epochs` epochs of all clients, or of the share that takes part."""
        train = self.experiment.train
        clients = self.federation.counts("train").tolist()
        taking_part = clients[: len(clients) - self.experiment.data.new_clients]
        batches = [n // train.batch if train.drop_last else ceil(n / train.batch) for n in taking_part]
        return float(share * train.epochs * sum(batches))

    def cost(self, candidate: Candidate, rounds: int) -> float:
        """Client-steps of so many rounds of a candidate; who trains alone trains in every round."""
        share = 1.0 if candidate.method == ALONE else self.experiment.run.participation
        return self.epoch_steps(share) * candidate.epochs * rounds + self.epoch_steps() * candidate.tuning

    def full_cost(self, candidates: Sequence[Candidate]) -> float:
        """Client-steps of running all of them for all rounds, each for itself."""
        return sum(self.cost(each, self.rounds) for each in candidates)


def configured(experiment: Experiment, candidate: Candidate) -> Experiment:
    return replace(experiment, algorithm=AlgorithmTable(candidate.method, dict(candidate.options)))


def held_out(federation: Federation) -> Federation:
    """The federation without test samples, and with enough validation samples to tell candidates apart.

    Where validation samples are fewer than `HELD`, some training samples, the same share of each class, become
    validation samples; not if samples belong to groups, which must stay on one side.
    """
    nobody = Ragged.from_lists([[] for _ in range(federation.clients)])
    without = replace(federation, splits={**federation.splits, "test": nobody})
    if federation.group is not None:
        return without
    train, validation = [], []
    for client in range(federation.clients):
        mine, seen = federation.split("train").of(client), federation.split("validation").of(client)
        wanted = min(int(HELD * (len(mine) + len(seen))) - len(seen), len(mine) - 1)
        moved = _evenly(mine, federation.y.cpu(), max(0, wanted))
        train.append(mine[~moved])
        validation.append(torch.cat([seen, mine[moved]]))
    splits = {"train": Ragged.from_lists(train), "validation": Ragged.from_lists(validation), "test": nobody}
    return replace(federation, splits=splits)


def _evenly(samples: Tensor, y: Tensor, count: int) -> Tensor:
    """Which of the samples to take: so many of them, evenly over the order of their targets."""
    chosen = torch.zeros(len(samples), dtype=torch.bool)
    if count:
        order = torch.argsort(y[samples].reshape(len(samples), -1)[:, 0], stable=True)
        chosen[order[((torch.arange(count) + 0.5) * len(samples) / count).long()]] = True
    return chosen


class Training:
    """One training, which several candidates may share, as far as it has come."""

    def __init__(self, problem: Problem, candidates: Sequence[Candidate]) -> None:
        self.candidates = list(candidates)
        self.problem = problem
        self.sim = problem.simulation(candidates[0])
        self.progress: Progress = self.sim.start()
        self.steps, self.bytes = 0, 0
        self._deployed = {
            each.name: replace(self.sim, algorithm=algorithm_of(configured(problem.experiment, each), problem.trust))
            for each in self.candidates
        }

    @property
    def first(self) -> Candidate:
        return self.candidates[0]

    @property
    def rounds(self) -> int:
        return self.progress.t

    def round(self) -> None:
        self.count(*self.sim.round(self.progress, Matrix()))

    def count(self, progress: Progress, report: Report) -> None:
        """Go on to where somebody has trained it."""
        self.progress = progress
        self.steps += steps_in(report.notes)
        self.bytes += report.down.total + report.up.total

    def predictions(self, candidate: Candidate) -> tuple[Predictions, Predictions]:
        """What the candidate's models give for validation and for training samples; tuning them counts."""
        sim, found = self._deployed[candidate.name], list[tuple[Predictions, Predictions]]()
        with sim.arithmetic():
            for some in client_models(sim, self.progress, torch.arange(sim.setup.clients)):
                rows = some.rows("deployed")
                self.steps += steps_in(some.task.notes)  # type: ignore[attr-defined]
                of = partial(row_predictions, sim, some.rnd, rows, some.ids)
                found.append((of("validation"), of("train")))
        return joined([each[0] for each in found]), joined([each[1] for each in found])

    def close(self) -> None:
        self.sim.runtime.close()


def steps_in(notes: State | Mapping[str, Tensor]) -> int:
    """The client-steps that notes count."""
    return sum(
        int(value.sum()) for name, value in notes.items() if name.endswith("steps") and isinstance(value, Tensor)
    )


@short_repr
@dataclass(frozen=True)
class Result:
    """How far a candidate came, how good it was on validation samples then, and what that lets expect."""

    candidate: Candidate
    seen: Mapping[int, Predictions] = field(repr=False)  # by round
    score: float  # larger is better
    fitted: float  # the score on training samples
    bytes_per_round: float = 0.0
    expected: float = float("nan")  # the score after all rounds, if its learning curve goes on

    @property
    def rounds(self) -> int:
        return max(self.seen)

    @property
    def predictions(self) -> Predictions:
        return self.seen[self.rounds]


@short_repr
@dataclass(frozen=True)
class Outcome:
    """All results, those that came furthest first and among them the best; and what was spent of what was allowed."""

    results: tuple[Result, ...]
    steps: int
    allowed: int
    full: int

    def of(self, name: str) -> Result:
        return next(each for each in self.results if each.candidate.name == name)

    @property
    def finalists(self) -> list[Result]:
        """Those that came as far as any."""
        return [each for each in self.results if each.rounds == self.results[0].rounds]


def try_out(
    problem: Problem, trainings: Sequence[Training], allowed: float, full: float, watch: Watch | None = None
) -> Outcome:
    """Advance all trainings to one round, then the best of them, and training alone, to a later one.

    Both rounds are as late as the budget allows: `FIRST` of it is for the first stage. Who goes on is decided by what
    is expected after all rounds, because methods that share a model start slowly.
    """

    def spent() -> int:
        return sum(each.steps for each in trainings)

    def tell(name: str) -> None:
        if watch is not None:
            watch(name, spent(), int(allowed))

    found: dict[str, Result] = {}

    def score(alive: Sequence[Training], target: int) -> None:
        """Advance all of them to a round, and score them there."""
        _advance(alive, target, tell)
        for training in alive:
            found.update({each.candidate.name: each for each in _results(problem, training, found)})

    target = max(1, _target(problem, trainings, FIRST * allowed - spent(), looks=2))
    if target > 1:
        score(trainings, target // 2)
    score(trainings, target)
    alive = _survivors(problem, trainings, found)
    later = _target(problem, alive, allowed - spent(), looks=1)
    if later > target:
        score(alive, later)
    results = sorted(found.values(), key=lambda each: -each.rounds)
    furthest = [each for each in results if each.rounds == results[0].rounds]
    guessed = dict(zip([each.candidate.name for each in furthest], expected(problem, furthest), strict=True))
    results = [replace(each, expected=guessed.get(each.candidate.name, float("nan"))) for each in results]
    results.sort(key=lambda each: (-each.rounds, -_rank(each.expected), -_rank(each.score)))
    return Outcome(tuple(results), spent(), int(allowed), int(full))


def _target(problem: Problem, alive: Sequence[Training], share: float, looks: int) -> int:
    """The round that all of them can reach within so many client-steps, if they are scored so often."""
    tuning = looks * sum(problem.cost(each, 0) for training in alive for each in training.candidates)
    cost = [problem.cost(training.first, 1) - problem.cost(training.first, 0) for training in alive]
    share += sum(one * training.rounds for one, training in zip(cost, alive, strict=True)) - tuning
    return min(problem.rounds, int(max(0.0, share) / max(sum(cost), 1e-9)))


def _advance(alive: Sequence[Training], target: int, tell: Callable[[str], object]) -> None:
    for training in alive:
        while training.rounds < target:
            training.round()
            tell(training.first.name)


def _results(problem: Problem, training: Training, before: Mapping[str, Result]) -> list[Result]:
    per_round = training.bytes / max(1, training.rounds)
    found = []
    for each in training.candidates:
        given, fitted = training.predictions(each)
        earlier = before[each.name].seen if each.name in before else {}
        seen = {**earlier, training.rounds: given}
        found.append(Result(each, seen, problem.score(given), problem.score(fitted), per_round))
    return found


def _survivors(problem: Problem, alive: Sequence[Training], found: Mapping[str, Result]) -> list[Training]:
    """Training alone, and the best of the others as expected after all rounds."""
    guessed = dict(zip(found, expected(problem, list(found.values())), strict=True))

    def best(training: Training) -> float:
        return max(_rank(guessed[each.name]) for each in training.candidates)

    alone = [each for each in alive if each.first.method == ALONE]
    others = sorted((each for each in alive if each.first.method != ALONE), key=lambda each: -best(each))
    return [*alone, *others[:FINALISTS]]


def _rank(score: float) -> float:
    return score if isfinite(score) else -float("inf")


# Learning curves


def expected(problem: Problem, results: Sequence[Result], kept: Tensor | None = None) -> list[float]:
    """The scores after all rounds, if errors go on falling as a power of the rounds; on the samples `kept`, or all.

    Only the error that is left on training samples can still be trained away; what validation samples have above it
    stays: e(T) = e(t) − a·(1 − (T/t)^−γβ), where a is the smaller of both errors, β = log(e(s)/e(t))/log(t/s) of the
    rounds s < t that were scored, between 0 and `STEEPEST` and drawn towards the mean of all candidates, and γ is
    `FLATTER`. Without an earlier round, and for metrics without a best value, it is the score as it is.
    """
    scores = [_scored(problem, each.predictions, kept) for each in results]
    perfect = _perfect(problem)
    rounds = [sorted(each.seen)[-2:] for each in results]
    if perfect is None or any(len(each) < 2 for each in rounds):
        return scores
    least = 0.5 / max(1, len(results[0].predictions))
    late = [max(perfect - score, least) for score in scores]
    early = [
        max(perfect - _scored(problem, result.seen[pair[0]], kept), least)
        for result, pair in zip(results, rounds, strict=True)
    ]
    own = [
        log(before / after) / log(pair[1] / pair[0]) if isfinite(before) and isfinite(after) else 0.0
        for before, after, pair in zip(early, late, rounds, strict=True)
    ]
    mean = sum(own) / len(own)
    slopes = [FLATTER * min(STEEPEST, max(0.0, mean + OWN * (each - mean))) for each in own]
    left = [max(0.0, min(error, perfect - result.fitted)) for error, result in zip(late, results, strict=True)]
    return [
        perfect - error + part * (1 - (problem.rounds / pair[1]) ** -slope)
        for error, part, slope, pair in zip(late, left, slopes, rounds, strict=True)
    ]


def _scored(problem: Problem, predictions: Predictions, kept: Tensor | None) -> float:
    return problem.score(predictions if kept is None else predictions.at(kept))


def _perfect(problem: Problem) -> float | None:
    """The best score there is: 1 of a share, 0 of a loss; unknown of somebody's own metric."""
    if problem.metric.name not in METRICS and not problem.metric.name.startswith("sensitivity"):
        return None
    return 1.0 if problem.metric.larger_is_better else 0.0


# Differences


@dataclass(frozen=True)
class Difference:
    """Of two candidates on the same validation samples, with its standard error."""

    value: float
    error: float


def difference(problem: Problem, one: Result, other: Result, among: Sequence[Result], *, late: bool) -> Difference:
    """score(one) − score(other), as they are or as expected after all rounds (`late`), with its standard error.

    The error is the jackknife's over `PARTS` parts of the validation samples, each with its share of every client:
    √((G − 1)/G · Σ_g (d₋g − mean)²).
    """
    places = among.index(one), among.index(other)

    def of(kept: Tensor | None) -> float:
        scores = (
            expected(problem, among, kept) if late else [_scored(problem, each.predictions, kept) for each in among]
        )
        return scores[places[0]] - scores[places[1]]

    part = parts(one.predictions.client, min(PARTS, len(one.predictions)))
    without = [of((part != g).nonzero()[:, 0]) for g in range(int(part.max()) + 1)]
    return Difference(of(None), jackknife_error(without))


def jackknife_error(without: Sequence[float]) -> float:
    """The standard error of a number from its values without each part; infinite if they are not known."""
    known = np.array([each for each in without if isfinite(each)])
    if len(known) < 2:
        return float("inf")
    return sqrt((len(known) - 1) / len(known) * float(((known - known.mean()) ** 2).sum()))


def parts(client: Tensor, count: int) -> Tensor:
    """The part of each sample: the samples of a client are dealt out in turn, on from where the one before ended."""
    order = torch.argsort(client, stable=True)
    part = torch.empty(len(client), dtype=torch.int64)
    part[order] = torch.arange(len(client)) % count
    return part
