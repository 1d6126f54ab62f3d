"""A run of several processes: rank 0 writes the run directory, the others follow it round by round."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from stratafl.config.assemble import simulation_of
from stratafl.config.experiment import Experiment, from_tables, to_tables
from stratafl.config.metric_choice import metric_for
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.core.reprs import short_repr
from stratafl.errors import RecordError, RunError
from stratafl.evaluation import LayerDiagnostics
from stratafl.evaluation.evaluate import global_field
from stratafl.evaluation.measure import Line
from stratafl.evaluation.predictions import Predictions, predict_in_shares, stage_predictions
from stratafl.evaluation.trial import Trial, evaluated_clients
from stratafl.execute import Distributed, Matrix, ProcessGroup, Progress, Simulation
from stratafl.execute.client_states import InMemory
from stratafl.execute.packing import sendable
from stratafl.runs import environment
from stratafl.runs.summary import Selection, stop_reason


@short_repr
@dataclass(frozen=True)
class StartMessage:
    """What rank 0 tells the others before the first round."""

    tables: dict[str, dict[str, Any]]
    identity: dict[str, str]
    tuning: dict[str, Any]
    history: list[Line]


@short_repr
@dataclass(frozen=True)
class RoundMessage:
    """What rank 0 tells the others after a round: its line, which decides about stopping, and whether it saves."""

    line: Line
    saved: bool


sendable(StartMessage, RoundMessage)


def trial_of(
    experiment: Experiment, sim: Simulation, process_group: ProcessGroup, trust: Trust | bool = NO_TRUST
) -> Trial:
    """The trial of an experiment; refused if its metric does not fit the data, or its stage the method."""
    evaluate = experiment.evaluate
    executor = Matrix() if process_group.world_size == 1 else Distributed(process_group)
    lab = LayerDiagnostics(evaluate.lab)
    metric = metric_for(evaluate, sim.runtime.federation, trust)
    sample = evaluated_clients(evaluate.clients, sim.setup.clients)
    return Trial(sim, evaluate.every, sample, lab, executor, metric, evaluate.stage, evaluate.test)


def check_stage(stage: str, sim: Simulation) -> None:
    """Raise if the models that should count do not exist."""
    if stage == "global" and global_field(sim, sim.start().server) is None:
        raise RecordError(
            "evaluate.stage = 'global' has no effect with this method, which has no global model; "
            "choose one of: received, trained, deployed"
        )


def refuse_disk(process_group: ProcessGroup, sim: Simulation) -> None:
    """Raise if several processes would keep client states on disk, which only one can."""
    if process_group.world_size > 1 and sim.store == "disk":
        raise RunError("several processes cannot keep client states on disk: use one process, or set run.store=ram")


def hand_out(
    process_group: ProcessGroup,
    experiment: Experiment,
    sim: Simulation,
    progress: Progress,
    history: list[Line],
    selected: Progress | None = None,
) -> tuple[Progress, Progress | None]:
    """Tell the other ranks what they need, and return rank 0's own share of the state.

    `selected` is the state after the selected round, if it was kept; it is shared in the same way.
    """
    if process_group.world_size == 1:
        return progress, selected
    refuse_disk(process_group, sim)
    process_group.told(StartMessage(to_tables(experiment), environment.identity(sim), sim.runtime.tuning, history))
    return _both_dealt(process_group, sim, progress, selected)


def _both_dealt(
    process_group: ProcessGroup, sim: Simulation, progress: Progress | None, selected: Progress | None
) -> tuple[Progress, Progress | None]:
    share = _dealt(process_group, sim, progress)
    t = process_group.told(None if selected is None else selected.t)
    if t is None or t == share.t:
        return share, None if t is None else share
    return share, _dealt(process_group, sim, selected)


def _dealt(process_group: ProcessGroup, sim: Simulation, progress: Progress | None) -> Progress:
    """A rank's share of what rank 0 has; the others have nothing before."""
    progress = Progress(0, {}, InMemory(sim.state_device, {})) if progress is None else progress
    t, server, trained = process_group.told((progress.t, progress.server, progress.trained))
    return Progress(t, server, InMemory(sim.state_device, dict(process_group.deal(sim, progress.clients))), trained)


def collected(process_group: ProcessGroup, sim: Simulation, progress: Progress) -> Progress:
    """The progress with the states of all clients, on rank 0."""
    if process_group.world_size == 1:
        return progress
    return replace(progress, clients=InMemory(sim.state_device, dict(process_group.collect(progress.clients))))


def final_predictions(trial: Trial, selection: Selection, stage: str) -> dict[str, Predictions]:
    """By split, what the models of the selected round give for every sample; every rank calls it.

    Empty where that round's state was not kept, and of models right after training, which no state holds.
    """
    progress = selection.progress
    if progress is None or stage == "trained" or not trial.splits:
        return {}
    predictions = predict_in_shares(
        trial.executor.process_group,
        trial.sim,
        trial.ids,
        lambda ids: stage_predictions(trial.sim, progress, ids, trial.splits, (stage,)),
    )
    return {key.partition(".")[0]: each for key, each in predictions.items()}


class FollowerRun:
    """A run as every rank but 0 sees it: it goes on, and ends, when rank 0 does, and writes nothing."""

    def __init__(self, process_group: ProcessGroup, trust: Trust | bool = NO_TRUST) -> None:
        start: StartMessage = process_group.told(StartMessage({}, {}, {}, []))
        self.process_group, self.experiment = process_group, from_tables(start.tables)
        self.history, self.notes = list(start.history), list[str]()
        self.sim = simulation_of(self.experiment, start.tuning, trust, begun=True)
        for what, digest in environment.identity(self.sim).items():
            if start.identity[what] != digest:
                raise RunError(
                    f"the {what} of rank {process_group.rank} differs from that of rank 0: use the same files"
                )
        self.trial = trial_of(self.experiment, self.sim, process_group, trust)
        self.progress, selected = _both_dealt(process_group, self.sim, None, None)
        self._selection = Selection.of(self.history, self.experiment.evaluate, selected)
        self._saved = self.progress.t

    @property
    def finished(self) -> bool:
        stop, evaluate = self.experiment.stop, self.experiment.evaluate
        return self.progress.t >= self.trial.rounds or stop_reason(self.history, stop, evaluate) is not None

    def rounds(self) -> Iterator[Line]:
        while not self.finished:
            self.progress, entry = self.trial.round(self.progress)
            message = self.process_group.told(RoundMessage(entry.round, False))
            self.history.append(message.line)
            self._selection = self._selection.after(message.line, self.progress, self.experiment.evaluate)
            if message.saved:
                self.save()
            yield message.line

    def save(self) -> None:
        """Send rank 0 what a checkpoint needs, unless the last one is of this round."""
        if self._saved != self.progress.t:
            self.process_group.collect(self.progress.clients)
            selected = self._selection.progress
            if selected is not None and selected.t != self.progress.t:
                self.process_group.collect(selected.clients)
            self._saved = self.progress.t

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.save()
            if self.process_group.told(False):
                final_predictions(self.trial, self._selection, self.experiment.evaluate.stage)
