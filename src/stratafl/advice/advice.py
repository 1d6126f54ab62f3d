"""Advice on a federation: whether to federate, with which method, what each client can expect, and what it costs.

`advice_on` looks (`look`), makes a short list (`candidates`), tries it on validation samples (`tryout`) and decides.
All it says is in the record `Advice`; `advice_text` puts it into sentences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

import torch
from torch import Tensor

from stratafl.advice.candidate_methods import TRAINS_ALONE, Candidate, comparable, short_list
from stratafl.advice.forecast import (
    BY_ANSWERS,
    INTERVAL_ERRORS,
    SAME_SCORE,
    above_chance,
    forecast_gain,
    is_perfect,
    score_difference,
)
from stratafl.advice.look import Facts, look
from stratafl.advice.problem import Problem, Result, Tryout, configured, held_out
from stratafl.advice.tryout import Training, Watch, least_budget, try_out
from stratafl.config.assemble import federation_of, log_standardisation, model_of
from stratafl.config.experiment import Experiment
from stratafl.config.metric_choice import AUTO, metric_for, with_metric
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.core.reprs import short_repr
from stratafl.data import Federation
from stratafl.errors import DataError, RecordError, counted
from stratafl.evaluation.guard import shrink
from stratafl.evaluation.metrics import Metric
from stratafl.execute.build_simulation import ModelSource
from stratafl.report.jackknife import Difference, sample_values
from stratafl.runs.logistic import baseline_predictions, is_for

BUDGET = 0.1  # of the client-steps of trying all candidates in full
CAUTION = 0.0  # standard errors by which a method must be expected to beat training alone
EQUAL_SCORES = 0.005  # methods that differ by less, and by less than a standard error, are equally good
SAME_BYTES = 1.05  # a factor within which methods send as much as each other


@dataclass(frozen=True)
class Expectation:
    """What one client may expect of the advised method instead of training alone, on validation samples.

    `gain` is in the metric that was judged by, as expected after all rounds, and larger is better; it is shrunk towards
    the federation's mean, the more the fewer samples the client has. None without enough samples.
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
            return "unclear"
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
    tryout: Tryout
    over_local: Difference  # of the best federated candidate, so far
    expected: Difference  # of the best, whichever it is, as expected after all rounds: what decides
    best_federated: Candidate
    clients: tuple[Expectation, ...]
    federation: Federation
    learned: bool  # whether any model is clearly better than one prediction for all samples
    budget_needed: float  # the least that allows a forecast
    baselines: Mapping[str, float] = field(default_factory=dict)  # scores outside the federation, larger is better

    @property
    def metric(self) -> Metric:
        return self.tryout.problem.metric

    @property
    def doubt(self) -> str:
        """Why the answer is not to be relied on: `nothing learned`, `no forecast`, `chance`, or "" if it is."""
        if not self.learned:
            return "nothing learned"
        if not self.tryout.forecast:
            return "no forecast"
        low, high = self.interval
        return "" if low > 0 or high < 0 else "chance"

    @property
    def interval(self) -> tuple[float, float]:
        """In which the expected gain is with 90 %."""
        margin = INTERVAL_ERRORS * self.expected.error
        return self.expected.value - margin, self.expected.value + margin

    @property
    def is_conclusive(self) -> bool:
        """Whether it is an advice at all."""
        return self.doubt in ("", "chance")

    @property
    def bytes(self) -> float:
        """Both ways, of all clients, in the recommended run."""
        return self.tryout.of(self.candidate.name).bytes_per_round * self.experiment.run.rounds


def advice_on(
    experiment: Experiment,
    *,
    federation: Federation | None = None,
    model: ModelSource | None = None,
    budget: float = BUDGET,
    caution: float = CAUTION,
    trust: Trust | bool = NO_TRUST,
    watch: Watch | None = None,
) -> Advice:
    """Look at the experiment's federation, try a short list of methods, and say what to run.

    The experiment says how long and with what learning rate the run would be trained; its method has no effect.
    `federation` and `model` take the place of its data and model. `budget` is the share of the client-steps of running
    every comparable method in full, once. A method is advised if its expected gain over training alone is more than
    `caution` standard errors; with 0 the best expectation decides, and `Advice.doubt` says if it may be chance. Test
    samples are removed before anything is trained. `watch` is told what is running, and how many client-steps of how
    many are spent.
    """
    if not caution >= 0:
        raise RecordError(f"caution must be a number of standard errors of at least 0, such as 1, not {caution}")
    if not 0 < budget <= 1:
        raise RecordError(f"budget must be a share of a full comparison above 0 and up to 1, such as 0.1, not {budget}")
    if federation is None:
        federation = federation_of(experiment)
        log_standardisation(federation)
    _check(federation, experiment)
    if model is None:
        model = model_of(experiment.model, tuple(federation.x.shape[1:]), federation.classes, trust)
    problem = _problem(experiment, held_out(federation), model, trust)
    if not int(problem.federation.counts("validation").sum()):
        raise DataError(f"'{federation.name}' has no validation samples: set data.validation, such as 0.2")
    first = Training(problem, [Candidate("fedavg")])
    facts, looked, report = look(problem.federation, first.sim, first.progress)
    every = comparable(first.sim.setup.layout, federation.classes, first.sim.setup.clients, experiment.train.epochs)
    first.close()
    full, wanted = problem.full_cost(every), short_list(facts, every)
    tried = affordable(problem, wanted, budget * full)
    trainings = [Training(problem, candidates) for candidates in _shared(tried)]
    next(training for training in trainings if training.first.method == "fedavg").count(looked, report)
    instead = None
    if experiment.evaluate.metric == AUTO and problem.metric.name in BY_ANSWERS:
        ranked = replace(experiment, evaluate=replace(experiment.evaluate, metric="auroc"))
        instead = _problem(ranked, problem.federation, model, trust)
    try:
        tryout = try_out(problem, trainings, budget * full, full, watch, instead)
    finally:
        for training in trainings:
            training.close()
    needed = least_budget(problem, _shared(wanted), full)
    return _decided(tryout, facts, every, tried, federation, caution, needed)


def _problem(experiment: Experiment, federation: Federation, model: ModelSource, trust: Trust | bool) -> Problem:
    chosen = with_metric(experiment, federation, trust)  # by the class frequencies of training and validation samples
    return Problem(
        chosen, federation, model, metric_for(chosen.evaluate, federation, trust), chosen.evaluate.average, trust
    )


def _check(federation: Federation, experiment: Experiment) -> None:
    clients = federation.clients - experiment.data.new_clients
    if clients < 2:
        raise DataError(
            f"'{federation.name}' has {counted(clients, 'client')} to train, but federating needs two: name "
            "the column that identifies the clients (data.client), or train alone with --algorithm local"
        )
    if federation.classes == 1:
        raise DataError(f"all labels of '{federation.name}' are the same, so there is nothing to learn: check them")


def affordable(problem: Problem, tried: Sequence[Candidate], allowed: float) -> list[Candidate]:
    """Those of which the budget allows a round each: fine-tuned variants leave first, then the last of the list."""
    candidates = list(tried)
    while problem.round_cost(_shared(candidates), rounds=1) > allowed:
        spare = [candidate for candidate in candidates if candidate.tuning] or [
            candidate for candidate in candidates if candidate.method not in (TRAINS_ALONE, "fedavg")
        ]
        if not spare:
            raise RecordError(
                f"run.rounds = {problem.rounds} is too few for advice: the budget does not cover one round each of "
                "local and fedavg; use more rounds, or a larger budget such as 0.3"
            )
        candidates.remove(spare[-1])
    return candidates


def _shared(tried: Sequence[Candidate]) -> list[list[Candidate]]:
    """The candidates that share a training, together; the plain one first."""
    shared: dict[str, list[Candidate]] = {}
    for candidate in tried:
        shared.setdefault(candidate.trunk, []).append(candidate)
    return list(shared.values())


def _decided(
    tryout: Tryout,
    facts: Facts,
    every: Sequence[Candidate],
    tried: Sequence[Candidate],
    federation: Federation,
    caution: float,
    needed: float,
) -> Advice:
    problem, among, alone = tryout.problem, tryout.finalists, tryout.of(TRAINS_ALONE)
    best = simplest(problem, among, tried)
    so_far, expected = score_difference(problem, best, alone, among, late=False), forecast_gain(problem, among, alone)
    federate = expected.value > max(caution * expected.error, SAME_SCORE) and not is_perfect(problem, alone)
    chosen = best if federate else alone
    return Advice(
        configured(problem.experiment, chosen.candidate),
        federate,
        chosen.candidate,
        facts,
        tuple(every),
        tuple(tried),
        tryout,
        so_far,
        expected,
        best.candidate,
        _expectations(problem, best, alone, so_far, expected),
        federation,
        above_chance(problem, among),
        needed,
        _baselines(problem),
    )


def _baselines(problem: Problem) -> dict[str, float]:
    """The validation scores of logistic regressions, if the data is a table with classes."""
    federation, data = problem.federation, problem.experiment.data
    if not is_for(federation):
        return {}
    predicted = baseline_predictions(federation, federation.clients - data.new_clients, "validation")
    return {name: problem.score(predictions) for name, predictions in predicted.items()}


def simplest(problem: Problem, among: Sequence[Result], order: Sequence[Candidate]) -> Result:
    """Of the federated candidates that are as good as the best, the one that sends least, then trains least.

    As good: less than half a point and less than a standard error behind, and not behind training alone if the best is
    not. Of those that are still alike it is the first in the `order` of the short list, where plain ones come first.
    """
    federated = [result for result in among if result.candidate.method != TRAINS_ALONE]
    best, alone = federated[0], next(result for result in among if result.candidate.method == TRAINS_ALONE)
    near = EQUAL_SCORES * (1 if problem.metric.percent else abs(best.expected))
    equals = [best]
    for result in federated[1:]:
        behind = score_difference(problem, best, result, among, late=True)
        if behind.value <= min(near, behind.error) and not result.expected <= alone.expected < best.expected:
            equals.append(result)
    least = SAME_BYTES * min(result.bytes_per_round for result in equals)
    frugal = [result.candidate for result in equals if result.bytes_per_round <= least]
    chosen = min(frugal, key=lambda result: (problem.cost(result, problem.rounds), order.index(result)))
    return next(result for result in equals if result.candidate is chosen)


def _expectations(
    problem: Problem, best: Result, alone: Result, so_far: Difference, expected: Difference
) -> tuple[Expectation, ...]:
    """Each client's gain so far, shrunk towards the federation's mean, as much smaller as the mean gain will be.

    If that will be larger, it is larger by the same for every client; nothing tells more about one of them.
    """
    federation, metric = problem.federation, problem.metric
    gained = metric.sign * (sample_values(metric, best.predictions) - sample_values(metric, alone.predictions))
    # A client whose model is not finite would shift what all others are to expect: it takes their mean.
    gained = gained.masked_fill(best.predictions.guesses | alone.predictions.guesses, torch.nan)
    clients = federation.clients - problem.experiment.data.new_clients
    left = min(1.0, max(0.0, expected.value / so_far.value)) if so_far.value > 0 else 1.0
    later, noise = expected.value - left * so_far.value, max(0.0, expected.error**2 - (left * so_far.error) ** 2)
    shrunk, error = shrink(*_means(gained, alone.predictions.client, clients))
    gains, errors = (left * shrunk + later).tolist(), ((left * error).square() + noise).sqrt().tolist()
    sizes = [federation.counts(split).tolist()[:clients] for split in ("train", "validation")]
    return tuple(
        Expectation(i, federation.client_name(i), *samples, *(estimate if isfinite(sum(estimate)) else (None, None)))
        for i, (*samples, estimate) in enumerate(zip(*sizes, zip(gains, errors, strict=True), strict=True))
    )


def _means(gained: Tensor, client: Tensor, clients: int) -> tuple[Tensor, Tensor]:
    """The mean of each client's samples, and its standard error, which is infinite if it has none.

    All clients have the same variance per sample: that of their own few samples says too little, and is 0 where both
    models are right everywhere, which would count for more than all others.
    """
    usable = gained.isfinite() & (client < clients)
    gained, client = gained[usable], client[usable]
    count = torch.bincount(client, minlength=clients).double()
    mean = torch.bincount(client, gained, minlength=clients) / count.clamp(min=1)
    freedom = (count - 1).clamp(min=0).sum()
    return mean, ((gained - mean[client]).square().sum() / freedom / count).sqrt().nan_to_num(torch.inf, torch.inf)
