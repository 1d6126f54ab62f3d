"""`Problem` is what candidates are tried on; `Result` is how far a candidate came and how well it scored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import torch
from torch import Tensor

from stratafl.advice.candidate_methods import TRAINS_ALONE, Candidate
from stratafl.config.assemble import algorithm_of, simulation_with
from stratafl.config.experiment import Experiment
from stratafl.config.setting_tables import AlgorithmTable
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.core.reprs import holder, short_repr
from stratafl.data import Federation
from stratafl.data.federation import Ragged
from stratafl.evaluation.metrics import Metric
from stratafl.evaluation.predictions import Predictions
from stratafl.execute import Simulation
from stratafl.execute.build_simulation import ModelSource
from stratafl.runtime.speed import Speed

MIN_VALIDATION = 0.25  # at least this share of a client's samples outside the test split is for validation
UNKNOWN = float("nan")


@holder
class Problem:
    """What candidates are tried on: settings, a federation without test samples, a model, and what counts as good."""

    experiment: Experiment
    federation: Federation
    model: ModelSource
    metric: Metric
    over: str  # `samples` or `clients`
    trust: Trust | bool = NO_TRUST

    @property
    def rounds(self) -> int:
        return self.experiment.run.rounds

    def simulation(self, candidate: Candidate) -> Simulation:
        run = self.experiment.run
        algorithm = algorithm_of(configured(self.experiment, candidate), self.trust)
        speed = Speed(run.precision, "off", "off", run.convolutions, None)  # too short for either to pay
        return simulation_with(self.experiment, algorithm, self.federation, self.model, speed=speed)

    def score(self, predictions: Predictions, samples: Tensor | None = None) -> float:
        """How good, larger is better; on these samples, or all."""
        chosen = predictions if samples is None else predictions.at(samples)
        return self.metric.sign * chosen.average(self.metric, self.over)

    def epoch_steps(self, share: float = 1.0) -> float:
        """Client-steps of `train.epochs` epochs of all clients, or of the share that takes part."""
        train = self.experiment.train
        clients = self.federation.counts("train").tolist()
        taking_part = clients[: len(clients) - self.experiment.data.new_clients]
        batches = [n // train.batch if train.drop_last else ceil(n / train.batch) for n in taking_part]
        return float(share * train.epochs * sum(batches))

    def cost(self, candidate: Candidate, rounds: int) -> float:
        """Client-steps of so many rounds of a candidate; who trains alone trains in every round."""
        share = 1.0 if candidate.method == TRAINS_ALONE else self.experiment.run.participation
        return self.epoch_steps(share) * candidate.epochs * rounds + self.epoch_steps() * candidate.tuning

    def round_cost(self, trainings: Sequence[Sequence[Candidate]], rounds: int, looks: int = 1) -> float:
        """Client-steps of so many rounds of trainings that candidates share, scored so often."""
        return sum(
            self.cost(candidates[0], rounds)
            - self.cost(candidates[0], 0)
            + looks * sum(self.cost(candidate, 0) for candidate in candidates)
            for candidates in trainings
        )

    def full_cost(self, candidates: Sequence[Candidate]) -> float:
        """Client-steps of running all of them for all rounds, each for itself."""
        return sum(self.cost(each, self.rounds) for each in candidates)


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


def configured(experiment: Experiment, candidate: Candidate) -> Experiment:
    return replace(experiment, algorithm=AlgorithmTable(candidate.method, dict(candidate.options)))


def held_out(federation: Federation) -> Federation:
    """The federation without test samples, and with enough validation samples to tell candidates apart.

    Where validation samples are fewer than `MIN_VALIDATION`, some training samples become validation samples, the same
    share of each class; not if samples belong to groups, which must stay on one side.
    """
    empty = Ragged.from_lists([[] for _ in range(federation.clients)])
    without = replace(federation, splits={**federation.splits, "test": empty})
    if federation.group is not None:
        return without
    train, validation = [], []
    for client in range(federation.clients):
        train_samples, seen = federation.split("train").of(client), federation.split("validation").of(client)
        wanted = min(int(MIN_VALIDATION * (len(train_samples) + len(seen))) - len(seen), len(train_samples) - 1)
        moved = _evenly(train_samples, federation.y.cpu(), max(0, wanted))
        train.append(train_samples[~moved])
        validation.append(torch.cat([seen, train_samples[moved]]))
    splits = {"train": Ragged.from_lists(train), "validation": Ragged.from_lists(validation), "test": empty}
    return replace(federation, splits=splits)


def _evenly(samples: Tensor, y: Tensor, count: int) -> Tensor:
    """Which of the samples to take: so many of them, evenly over the order of their targets."""
    chosen = torch.zeros(len(samples), dtype=torch.bool)
    if count:
        order = torch.argsort(y[samples].reshape(len(samples), -1)[:, 0], stable=True)
        chosen[order[((torch.arange(count) + 0.5) * len(samples) / count).long()]] = True
    return chosen
