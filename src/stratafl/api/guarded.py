"""The guard of a trained federation: each client chooses its model on its validation samples."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from stratafl.api.numbers import client_number
from stratafl.config.metric_choice import metric_for
from stratafl.config.setting_tables import EvaluateTable
from stratafl.config.trust import Trust
from stratafl.core.layout import Rows
from stratafl.core.reprs import holder
from stratafl.errors import DataError, RunError
from stratafl.evaluation.candidates import GuardCandidates, GuardedModels, alone_like, guarded, local_descent
from stratafl.evaluation.guard import SAFE, Choice
from stratafl.evaluation.metrics import Metric
from stratafl.evaluation.trial import Trial
from stratafl.execute import Progress, Simulation
from stratafl.execute.drawing import filled
from stratafl.models import own_model
from stratafl.runs.directory import GUARD, config_of
from stratafl.runs.guard_files import local_model, read_guard, run_to_end, train_alone


class Trained(Protocol):
    """What the guard needs of a fitted federation."""

    @property
    def sim(self) -> Simulation: ...
    @property
    def progress(self) -> Progress: ...
    @property
    def folder(self) -> Path | None: ...
    @property
    def evaluate(self) -> EvaluateTable: ...
    @property
    def selected_by(self) -> Metric | None: ...
    @property
    def trust(self) -> Trust | bool: ...
    @property
    def stage(self) -> str: ...


@holder
class Guarded:
    """A trained federation in which each client has chosen its model on its validation samples (`Fitted.guard`)."""

    models: GuardedModels

    def _about(self) -> str:
        counts = Counter(choice.candidate for choice in self.choices.values())
        return ", ".join(f"{count} {name}" for name, count in counts.most_common())

    @property
    def choices(self) -> Mapping[int, Choice]:
        """What each client takes, with the gain and standard error of every candidate."""
        return self.models.choices

    @property
    def accuracy(self) -> float:
        """Test accuracy of the chosen models over all samples."""
        if "test" not in self.models.all_predictions or not self.models.predictions("test").labelled:
            raise DataError("there is no test accuracy: the federation has no labelled test samples")
        return float(self.models.predictions("test").hits().double().mean())

    def model(self, client: int | str) -> nn.Module:
        """The model that a client takes, by its name or its number, in evaluation mode."""
        federation = self.models.candidates.sim.runtime.federation
        number = client_number(client, dict(enumerate(map(federation.client_name, range(federation.clients)))))
        if number not in self.choices:
            raise DataError(f"client {client!r} has no chosen model: give one of the clients {first_few(self.choices)}")
        local = self.choices[number].candidate == SAFE
        sim = self.models.candidates.alone if local else self.models.candidates.sim
        assert sim is not None  # it was trained to choose
        return own_model(module_of(sim, _only_row(self.models.rows(number))))


def choose_models(fitted: Trained, epochs: int) -> Guarded:
    """Train local models, and let each client choose."""
    sim, stored = fitted.sim, None if fitted.folder is None else config_of(fitted.folder)
    train = local_descent(sim.algorithm) if stored is None else stored.train
    alone = alone_like(sim, train)
    trial = Trial(sim)
    metric = fitted.selected_by or metric_for(fitted.evaluate, sim.runtime.federation, fitted.trust)
    best = run_to_end(train_alone(Trial(alone, metric=metric), fitted.evaluate, sim.setup.rounds))
    candidates = GuardCandidates(sim, fitted.progress, alone, best, train, fitted.stage, epochs)
    return Guarded(guarded(candidates, trial.ids, trial.splits, metric))


def stored_choice(fitted: Trained, client: int) -> nn.Module:
    """The model that a client takes in a run with `--guard`."""
    sim, folder = fitted.sim, fitted.folder
    if folder is None or not (folder / GUARD).exists():
        raise RunError("this run has no guard: load one that was started with --guard, or call guard()")
    record = read_guard(folder)
    if record.round != fitted.progress.t:
        raise RunError(
            f"the guard chose among the models of round {record.round}, but these are of round {fitted.progress.t}: "
            "load the run without round='newest'"
        )
    if client not in record.choices:
        raise DataError(f"client {client!r} has no chosen model: give one of the clients {first_few(record.choices)}")
    name, experiment = record.choices[client].candidate, config_of(folder)
    if name == SAFE:
        return own_model(module_of(alone_like(sim, experiment.train), local_model(folder, client)))
    train, stage = experiment.train, experiment.evaluate.stage
    candidates = GuardCandidates(sim, fitted.progress, train=train, stage=stage, epochs=record.epochs)
    return own_model(module_of(sim, _only_row(candidates.rows(name, torch.tensor([client])))))


def module_of(sim: Simulation, state: Mapping[str, Tensor], *, light: bool = False) -> nn.Module:
    """A copy of the simulation's model with these tensors, in evaluation mode; a light one shares frozen tensors."""
    assert sim.template is not None  # every assembled simulation has one
    return filled(sim.template, state, light=light)


def _only_row(rows: Rows) -> dict[str, Tensor]:
    return {name: block[0].clone() for name, block in rows.items()}


def first_few(ids: Iterable[int]) -> str:
    """The first of these numbers."""
    listed = sorted(ids)
    return ", ".join(map(str, listed[:8])) + (", …" if len(listed) > 8 else "")
