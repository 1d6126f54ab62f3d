"""Trainings of candidates, as far as they have come, and the client-steps that they have taken.

A client-step is one step of one client on one batch, of training or of tuning before use, as methods note them
(`…/steps`). There is no test split here: `held_out` removes it before anything is trained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from stratafl.advice.candidate_methods import Candidate
from stratafl.advice.problem import Problem, configured
from stratafl.config.assemble import algorithm_of
from stratafl.core.state import State
from stratafl.evaluation.evaluate import client_models
from stratafl.evaluation.predictions import Predictions, join_predictions, row_predictions
from stratafl.execute import Matrix, Progress
from stratafl.execute.round_run import Report


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
