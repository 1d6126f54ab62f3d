"""Trials: candidates train side by side for some rounds, are scored on validation samples, and the worse ones leave.

There is no test split here: `held_out` removes it before anything is trained. What is spent is counted in client-steps:
one step of one client on one batch, of training and of tuning before use, as methods note them (`…/steps`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, isfinite, sqrt

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
from stratafl.errors import DataError, counted
from stratafl.evaluation.evaluate import client_models
from stratafl.evaluation.metrics import Metric
from stratafl.evaluation.predictions import Predictions, joined, row_predictions
from stratafl.execute import Matrix, Progress, Simulation, simulation
from stratafl.execute.build import ModelSource
from stratafl.execute.round import Report
from stratafl.runtime.speed import Speed

HELD = 0.25  # at least this share of a client's samples outside the test split is for validation
PARTS = 20  # of the validation samples, for standard errors
STAGES = 3  # after each of which candidates leave
FINALISTS = 2  # trainings that reach the last stage, besides training alone

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
        rounded = (lambda n: n // train.batch) if train.drop_last else (lambda n: ceil(n / train.batch))
        clients = self.federation.counts("train").tolist()
        taking_part = clients[: len(clients) - self.experiment.data.new_clients]
        return share * train.epochs * sum(map(rounded, taking_part))

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

    def predictions(self, candidate: Candidate) -> Predictions:
        """What the candidate's models give for validation samples; tuning them counts."""
        sim, parts = self._deployed[candidate.name], []
        with sim.arithmetic():
            for some in client_models(sim, self.progress, torch.arange(sim.setup.clients)):
                rows = some.rows("deployed")
                self.steps += steps_in(some.task.notes)  # type: ignore[attr-defined]
                parts.append(row_predictions(sim, some.rnd, rows, some.ids, "validation"))
        return joined(parts)

    def close(self) -> None:
        self.sim.runtime.close()


def steps_in(notes: State | Mapping[str, Tensor]) -> int:
    """The client-steps that notes count."""
    return sum(int(value.sum()) for name, value in notes.items() if name.endswith("steps") and isinstance(value, Tensor))


@short_repr
@dataclass(frozen=True)
class Result:
    """How far a candidate came, and how good it was on validation samples then."""

    candidate: Candidate
    rounds: int
    score: float  # larger is better
    predictions: Predictions = field(repr=False)
    bytes_per_round: float = 0.0


@short_repr
@dataclass(frozen=True)
class Outcome:
    """All results, those that came furthest first and among them the best; and what was spent of what was allowed."""

    results: tuple[Result, ...]
    steps: int
    allowed: int
    full: int
    curves: Mapping[str, Mapping[int, float]] = field(default_factory=dict)  # scores by candidate and round

    def of(self, name: str) -> Result:
        return next(each for each in self.results if each.candidate.name == name)


def try_out(
    problem: Problem, trainings: Sequence[Training], allowed: float, full: float, watch: Watch | None = None
) -> Outcome:
    """Advance all trainings in stages of equal numbers of rounds; after each the worse half leaves, never local."""
    alive, left = list(trainings), dict[str, Result]()
    curves: dict[str, dict[int, float]] = {}

    def spent() -> int:
        return sum(each.steps for each in trainings)

    for stage in range(STAGES):
        target = _target(problem, alive, (allowed - spent()) / (STAGES - stage))
        if target <= alive[0].rounds and stage:
            break
        _advance(alive, max(target, 1), lambda name: watch and watch(name, spent(), int(allowed)))
        found = [result for each in alive for result in _results(problem, each)]
        for result in found:
            left[result.candidate.name] = result
            curves.setdefault(result.candidate.name, {})[result.rounds] = result.score
        alive = _survivors(alive, found, stage)
    ordered = sorted(left.values(), key=lambda each: (-each.rounds, -_rank(each.score)))
    return Outcome(tuple(ordered), spent(), int(allowed), int(full), curves)


def _target(problem: Problem, alive: Sequence[Training], share: float) -> int:
    """The round that all of them can reach within this share of client-steps."""
    now = alive[0].rounds
    tuning = sum(problem.cost(each, 0) for training in alive for each in training.candidates)
    one = sum(problem.cost(training.first, 1) - problem.cost(training.first, 0) for training in alive)
    return min(problem.rounds, now + int(max(0.0, share - tuning) / max(one, 1)))


def _advance(alive: Sequence[Training], target: int, tell: Callable[[str], object]) -> None:
    for training in alive:
        while training.rounds < target:
            training.round()
            tell(training.first.name)


def _results(problem: Problem, training: Training) -> list[Result]:
    per_round = training.bytes / max(1, training.rounds)
    found = []
    for each in training.candidates:
        given = training.predictions(each)
        found.append(Result(each, training.rounds, problem.score(given), given, per_round))
    return found


def _survivors(alive: Sequence[Training], found: Sequence[Result], stage: int) -> list[Training]:
    """Training alone, and of the others the better half, in the end the best two."""
    best = {id(each): max(_rank(r.score) for r in found if r.candidate in each.candidates) for each in alive}
    alone = [each for each in alive if each.first.method == ALONE]
    others = sorted((each for each in alive if each.first.method != ALONE), key=lambda each: -best[id(each)])
    kept = max(FINALISTS, ceil(len(others) / 2)) if stage < STAGES - 2 else FINALISTS
    return [*alone, *others[:kept]]


def _rank(score: float) -> float:
    return score if isfinite(score) else -float("inf")


# Differences


@dataclass(frozen=True)
class Difference:
    """Of two candidates on the same validation samples, with its standard error."""

    value: float
    error: float

    @property
    def clear(self) -> bool:
        return self.value > self.error


def difference(problem: Problem, one: Predictions, other: Predictions) -> Difference:
    """score(one) − score(other), with the jackknife's standard error over `PARTS` parts of the validation samples.

    Each part has its share of every client's samples: √((G − 1)/G · Σ_g (d₋g − mean)²).
    """
    if len(one) != len(other):
        raise DataError(f"{counted(len(one), 'prediction')} cannot be compared with {len(other):,}")
    value = problem.score(one) - problem.score(other)
    part = _parts(one.client, min(PARTS, len(one)))
    without = []
    for g in range(int(part.max()) + 1):
        kept = (part != g).nonzero()[:, 0]
        without.append(problem.score(one.at(kept)) - problem.score(other.at(kept)))
    known = np.array([each for each in without if isfinite(each)])
    if len(known) < 2:
        return Difference(value, float("inf"))
    spread = (len(known) - 1) / len(known) * float(((known - known.mean()) ** 2).sum())
    return Difference(value, sqrt(spread))


def _parts(client: Tensor, count: int) -> Tensor:
    """The part of each sample: the samples of a client are dealt out in turn, on from where the one before ended."""
    order = torch.argsort(client, stable=True)
    part = torch.empty(len(client), dtype=torch.int64)
    part[order] = torch.arange(len(client)) % count
    return part
