"""The tryout: candidates train for some rounds, are scored on validation samples, and the worst are dropped.

This is not `tuning`, which also advances, scores and thins out. A tuning gives every method the same trials, each a run
of its own on disk that can be resumed and reported. Advice has a tenth of one run per method: fine-tuned variants share
a training, the scores expected after all rounds decide who goes on, and nothing is kept but the answer.

A client-step is one step of one client on one batch, of training or of tuning before use, as methods note them
(`…/steps`). There is no test split here: `held_out` removes it before anything is trained.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite

import torch
from torch import Tensor

from stratafl.advice.candidate_methods import TRAINS_ALONE, Candidate
from stratafl.advice.forecast import above_chance, expected, halves, is_perfect
from stratafl.advice.problem import Problem, Result, Tryout, configured
from stratafl.config.assemble import algorithm_of
from stratafl.core.state import State
from stratafl.evaluation.evaluate import client_models
from stratafl.evaluation.predictions import Predictions, join_predictions, row_predictions
from stratafl.execute import Matrix, Progress
from stratafl.execute.round_run import Report

FIRST = 0.55  # share of the budget of the first stage, in which all take part
FINALISTS = 2  # trainings that reach the second stage, besides training alone

Watch = Callable[[str, int, int], None]  # what is running, client-steps spent, client-steps allowed


class Training:
    """One training, which several candidates may share, as far as it has come."""

    def __init__(self, problem: Problem, candidates: Sequence[Candidate]) -> None:
        self.candidates = list(candidates)
        self.problem = problem
        self.sim = problem.simulation(candidates[0])
        self.progress: Progress = self.sim.start()
        self.steps, self.bytes = 0, 0
        self._deployed = {
            candidate.name: replace(
                self.sim, algorithm=algorithm_of(configured(problem.experiment, candidate), problem.trust)
            )
            for candidate in self.candidates
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
        """Go on from a round that was trained elsewhere."""
        self.progress = progress
        self.steps += steps_in(report.notes)
        self.bytes += report.down.total + report.up.total

    def predictions(self, candidate: Candidate) -> tuple[Predictions, Predictions]:
        """What the candidate's models give for validation and for training samples; tuning them counts."""
        sim, by_chunk = self._deployed[candidate.name], list[tuple[Predictions, Predictions]]()
        with sim.arithmetic():
            for some in client_models(sim, self.progress, torch.arange(sim.setup.clients)):
                rows = some.rows("deployed")
                self.steps += steps_in(some.task.notes)  # type: ignore[attr-defined]
                of = partial(row_predictions, sim, some.rnd, rows, some.ids)
                by_chunk.append((of("validation"), of("train")))
        return join_predictions([each[0] for each in by_chunk]), join_predictions([each[1] for each in by_chunk])

    def close(self) -> None:
        self.sim.runtime.close()


def steps_in(notes: State | Mapping[str, Tensor]) -> int:
    """The client-steps that notes count."""
    return sum(
        int(value.sum()) for name, value in notes.items() if name.endswith("steps") and isinstance(value, Tensor)
    )


def try_out(
    problem: Problem,
    trainings: Sequence[Training],
    allowed: float,
    full: float,
    watch: Watch | None = None,
    instead: Problem | None = None,
) -> Tryout:
    """Advance all trainings to one round, then the best of them, and training alone, to a later one.

    Both rounds are as late as the budget allows: `FIRST` of it is for the first stage. Who goes on is decided by what
    is expected after all rounds, because methods that share a model start slowly. If the metric shows nothing but
    chance, all are judged by `instead`, unless training alone is perfect by it.
    """
    results: dict[str, Result] = {}
    asked = problem

    def spent() -> int:
        return sum(each.steps for each in trainings)

    def score(alive: Sequence[Training], target: int) -> None:
        """Advance all of them to a round, and score them there."""
        for training in alive:
            while training.rounds < target:
                training.round()
                if watch is not None:
                    watch(training.first.name, spent(), int(allowed))
            results.update({each.candidate.name: each.judged(problem) for each in _results(training, results)})

    def judged_by() -> Problem:
        """The problem with the metric that shows something, by which all are scored anew."""
        if instead is None or (problem is asked and above_chance(asked, _furthest(results.values()))):
            return problem
        perfect_alone = is_perfect(instead, results[TRAINS_ALONE].judged(instead))
        shows_more = asked if perfect_alone else instead
        results.update({name: each.judged(shows_more) for name, each in results.items()})
        return shows_more

    target = max(1, _target(problem, trainings, FIRST * allowed - spent(), looks=2))
    if target > 1:
        score(trainings, target // 2)
    score(trainings, target)
    problem = judged_by()
    alive = _survivors(problem, trainings, results)
    later = _target(problem, alive, allowed - spent(), looks=1)
    if later > target:
        score(alive, later)
        problem = judged_by()
    ordered = _ordered(problem, list(results.values()))
    return Tryout(problem, tuple(ordered), spent(), int(allowed), int(full), problem is instead)


def least_budget(problem: Problem, shared: Sequence[Sequence[Candidate]], full: float) -> float:
    """The share of a full comparison at which these trainings are scored in two rounds."""
    return problem.round_cost(shared, rounds=2, looks=2) / FIRST / full


def _target(problem: Problem, alive: Sequence[Training], share: float, looks: int) -> int:
    """The round that all of them can reach within so many client-steps, if they are scored so often."""
    shared = [training.candidates for training in alive]
    cost = [problem.round_cost([each], 1, looks=0) for each in shared]
    share += sum(round_cost * training.rounds for round_cost, training in zip(cost, alive, strict=True))
    share -= problem.round_cost(shared, 0, looks)
    return min(problem.rounds, int(max(0.0, share) / max(sum(cost), 1e-9)))


def _results(training: Training, before: Mapping[str, Result]) -> list[Result]:
    per_round = training.bytes / max(1, training.rounds)
    results = []
    for candidate in training.candidates:
        validated, trained = training.predictions(candidate)
        earlier = before[candidate.name].seen if candidate.name in before else {}
        results.append(Result(candidate, {**earlier, training.rounds: validated}, trained, per_round))
    return results


def _survivors(problem: Problem, alive: Sequence[Training], results: Mapping[str, Result]) -> list[Training]:
    """Training alone, and of the others the best as expected after all rounds: by either half of the samples, by all.

    So what one half chooses in the end was not there because of the other half, on which it is measured.
    """
    alone = [each for each in alive if each.first.method == TRAINS_ALONE]
    others = [each for each in alive if each.first.method != TRAINS_ALONE]
    client = next(iter(results.values())).predictions.client

    def by(samples: Tensor | None) -> list[Training]:
        guessed = dict(zip(results, expected(problem, list(results.values()), samples), strict=True))
        return sorted(others, key=lambda each: -max(_rank(guessed[candidate.name]) for candidate in each.candidates))

    ranked = [*(by(half)[0] for half in halves(client) if len(half) and others), *by(None)]
    distinct = {training.first.name: training for training in ranked}
    return [*alone, *list(distinct.values())[:FINALISTS]]


def _ordered(problem: Problem, results: Sequence[Result]) -> list[Result]:
    """Those that came furthest first, with the scores that they let expect, the best of them first."""
    finalists = _furthest(results)
    guessed = {each.candidate.name: value for each, value in zip(finalists, expected(problem, finalists), strict=True)}
    judged = [replace(each, expected=guessed.get(each.candidate.name, each.expected)) for each in results]
    return sorted(judged, key=lambda each: (-each.rounds, -_rank(each.expected), -_rank(each.score)))


def _furthest(results: Iterable[Result]) -> list[Result]:
    candidates = list(results)
    return [each for each in candidates if each.rounds == max(candidate.rounds for candidate in candidates)]


def _rank(score: float) -> float:
    return score if isfinite(score) else -float("inf")
