"""Advice on a federation: whether to federate, with which method, what each client may expect, and what it costs.

`advise` looks (`look`), makes a short list (`candidates`), tries it on validation samples (`trial`) and decides. All it
says is in the record `Advice`; `words` puts it into sentences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stratafl.advice.candidates import ALONE, Candidate, comparable, short_list
from stratafl.advice.look import Facts, look
from stratafl.advice.trial import (
    Difference,
    Outcome,
    Problem,
    Training,
    Watch,
    configured,
    difference,
    held_out,
    try_out,
)
from stratafl.config.assemble import federation_of, model_of
from stratafl.config.experiment import Experiment
from stratafl.config.metrics import metric_for, with_metric
from stratafl.config.trust import NOTHING, Trust
from stratafl.core.reprs import short_repr
from stratafl.data import Federation
from stratafl.errors import DataError, RecordError, counted
from stratafl.evaluation.guard import shrunk_gains, utility
from stratafl.evaluation.metrics import Metric
from stratafl.evaluation.predictions import Predictions
from stratafl.execute.build import ModelSource

BUDGET = 0.1  # of the client-steps of trying all candidates in full
CAUTION = 1.0  # standard errors by which a method must be expected to beat training alone


@dataclass(frozen=True)
class Expectation:
    """What one client may expect of the advised method instead of training alone, on validation samples.

    `gain` is shrunk towards the federation's mean, the more the fewer samples the client has; None if nobody can tell.
    """

    client: int
    name: str
    train_samples: int
    validation_samples: int
    gain: float | None
    error: float | None

    @property
    def verdict(self) -> str:
        if self.gain is None or self.error is None:
            return "cannot be told"
        return "gains" if self.gain > self.error else "better alone" if self.gain < -self.error else "unclear"


@short_repr
@dataclass(frozen=True)
class Advice:
    """The answer with its evidence."""

    experiment: Experiment  # the run that is recommended
    federate: bool
    candidate: Candidate
    facts: Facts
    comparable: tuple[Candidate, ...]
    tried: tuple[Candidate, ...]
    outcome: Outcome
    over_local: Difference  # of the best federated candidate, so far
    expected: Difference  # the same, as expected after all rounds: what decides
    best_federated: Candidate
    clients: tuple[Expectation, ...]
    metric: Metric
    federation: Federation

    @property
    def bytes(self) -> float:
        """Both ways, of all clients, in the recommended run."""
        return self.outcome.of(self.candidate.name).bytes_per_round * self.experiment.run.rounds


def advise(
    experiment: Experiment,
    *,
    federation: Federation | None = None,
    model: ModelSource | None = None,
    budget: float = BUDGET,
    caution: float = CAUTION,
    trust: Trust | bool = NOTHING,
    watch: Watch | None = None,
) -> Advice:
    """Look at the experiment's federation, try a short list of methods, and say what to run.

    The experiment says how long and with what learning rate the run would be trained; its method has no effect.
    `federation` and `model` take the place of its data and model. `budget` is the share of the client-steps of running
    every comparable method in full, once. A method is advised if its expected gain over training alone is more than
    `caution` standard errors; with 0 the best expectation decides. Test samples are removed before anything is trained.
    `watch` is told what is running, and how many client-steps of how many are spent.
    """
    if not caution >= 0:
        raise RecordError(f"caution is {caution}: choose a number of standard errors of at least 0, such as 1")
    if not 0 < budget <= 1:
        raise RecordError(f"budget is {budget}: choose a share of a full comparison above 0 and up to 1, such as 0.1")
    federation = federation_of(experiment) if federation is None else federation
    _check(federation, experiment)
    if model is None:
        model = model_of(experiment.model, tuple(federation.x.shape[1:]), federation.classes, trust)
    held = held_out(federation)
    chosen = with_metric(experiment, held, trust)  # by the class frequencies of training and validation samples
    metric = metric_for(chosen.evaluate, held, trust)
    problem = Problem(chosen, held, model, metric, chosen.evaluate.average, trust)
    if not int(problem.federation.counts("validation").sum()):
        raise DataError(f"'{federation.name}' has no validation samples to judge by: set data.validation, such as 0.2")
    first = Training(problem, [Candidate("fedavg")])
    facts, looked, report = look(problem.federation, first.sim, first.progress)
    every = comparable(first.sim.setup.layout, federation.classes, first.sim.setup.clients, experiment.train.epochs)
    first.close()
    full = problem.full_cost(every)
    tried = affordable(problem, short_list(facts, every), budget * full)
    trainings = _trainings(problem, tried)
    next(each for each in trainings if each.first.method == "fedavg").count(looked, report)
    try:
        outcome = try_out(problem, trainings, budget * full, full, watch)
    finally:
        for each in trainings:
            each.close()
    return _decided(problem, facts, every, tried, outcome, federation, caution)


def _check(federation: Federation, experiment: Experiment) -> None:
    clients = federation.clients - experiment.data.new_clients
    if clients < 2:
        raise DataError(
            f"'{federation.name}' has {counted(clients, 'client')} that trains, and nobody to federate with: name the "
            "column that tells clients apart (data.client), or train alone with --algorithm local"
        )
    if federation.classes == 1:
        raise DataError(f"all labels of '{federation.name}' are the same: there is nothing to learn, alone or together")


def affordable(problem: Problem, tried: Sequence[Candidate], allowed: float) -> list[Candidate]:
    """Those of which the budget allows a round each: fine-tuned variants leave first, then the last of the list."""
    kept = list(tried)
    while sum(problem.cost(each[0], 1) + sum(problem.cost(one, 0) for one in each) for each in _shared(kept)) > allowed:
        spare = [each for each in kept if each.tuning] or [
            each for each in kept if each.method not in (ALONE, "fedavg")
        ]
        if not spare:
            raise RecordError(
                f"run.rounds = {problem.rounds} is too few for advice: its share of a full comparison is less than "
                "a round of local and fedavg each; ask for more rounds, or for a larger budget such as 0.3"
            )
        kept.remove(spare[-1])
    return kept


def _trainings(problem: Problem, tried: Sequence[Candidate]) -> list[Training]:
    return [Training(problem, candidates) for candidates in _shared(tried)]


def _shared(tried: Sequence[Candidate]) -> list[list[Candidate]]:
    """The candidates that share a training, together; the plain one first."""
    shared: dict[str, list[Candidate]] = {}
    for each in tried:
        shared.setdefault(each.trunk, []).append(each)
    return list(shared.values())


def _decided(
    problem: Problem,
    facts: Facts,
    every: Sequence[Candidate],
    tried: Sequence[Candidate],
    outcome: Outcome,
    federation: Federation,
    caution: float,
) -> Advice:
    among = outcome.finalists
    alone = outcome.of(ALONE)
    best = next(each for each in among if each.candidate.method != ALONE)  # they are in order
    so_far, expected = (difference(problem, best, alone, among, late=late) for late in (False, True))
    federate = expected.value > caution * expected.error
    chosen = best if federate else alone
    return Advice(
        configured(problem.experiment, chosen.candidate),
        federate,
        chosen.candidate,
        facts,
        tuple(every),
        tuple(tried),
        outcome,
        so_far,
        expected,
        best.candidate,
        _expectations(problem, best.predictions, alone.predictions),
        problem.metric,
        federation,
    )


def _expectations(problem: Problem, best: Predictions, alone: Predictions) -> tuple[Expectation, ...]:
    federation, metric = problem.federation, problem.metric
    ids = range(federation.clients - problem.experiment.data.new_clients)
    gains = shrunk_gains(utility(best, metric) - utility(alone, metric), alone.client, list(ids))
    sizes = {split: federation.counts(split).tolist() for split in ("train", "validation")}
    return tuple(
        Expectation(i, federation.client_name(i), sizes["train"][i], sizes["validation"][i], g.shrunk, g.shrunk_error)
        for i, g in zip(ids, gains, strict=True)
    )
