"""A run of several processes: the first keeps the directory, the others follow it round by round and write nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from stratafl.config.assemble import simulation_of
from stratafl.config.experiment import Experiment, from_tables, to_tables
from stratafl.config.trust import NOTHING, Trust
from stratafl.core.reprs import short_repr
from stratafl.errors import RunError
from stratafl.evaluation import Lab
from stratafl.evaluation.measure import Line
from stratafl.evaluation.trial import Trial
from stratafl.execute import Distributed, Matrix, ProcessGroup, Progress, Simulation
from stratafl.execute.client_states import InMemory
from stratafl.execute.packing import sendable
from stratafl.runs import environment
from stratafl.runs.selection import Selection
from stratafl.runs.summary import stop_reason


@short_repr
@dataclass(frozen=True)
class Brief:
    """What the others need to know before the first round."""

    tables: dict[str, dict[str, Any]]
    identity: dict[str, str]
    tuning: dict[str, Any]
    history: list[Line]


@short_repr
@dataclass(frozen=True)
class Verdict:
    """What the first says after a round: its line, which decides about stopping, and whether it saves."""

    line: Line
    saved: bool


sendable(Brief, Verdict)


def trial_of(experiment: Experiment, sim: Simulation, process_group: ProcessGroup) -> Trial:
    """The trial of an experiment, by one process or several."""
    evaluate = experiment.evaluate
    executor = Matrix() if process_group.world_size == 1 else Distributed(process_group)
    return Trial(sim, evaluate.every, evaluate.clients, Lab(evaluate.lab), executor)


def refuse_disk(process_group: ProcessGroup, sim: Simulation) -> None:
    """Raise where several processes would keep memories on disk, which one alone can."""
    if process_group.world_size > 1 and sim.store == "disk":
        raise RunError(
            "clients' memories would be on disk, and several processes keep them in RAM: use one, or run.store=ram"
        )


def hand_out(
    process_group: ProcessGroup,
    experiment: Experiment,
    sim: Simulation,
    progress: Progress,
    history: list[Line],
    selected: Progress | None = None,
) -> tuple[Progress, Progress | None]:
    """Tell the others what they need; what is left to the first is its own share of the memories.

    `selected` is the state after the selected round, if it was kept, and is dealt in the same way.
    """
    if process_group.world_size == 1:
        return progress, selected
    refuse_disk(process_group, sim)
    process_group.told(Brief(to_tables(experiment), environment.identity(sim), sim.runtime.tuning, history))
    return _both_dealt(process_group, sim, progress, selected)


def _both_dealt(
    process_group: ProcessGroup, sim: Simulation, progress: Progress, selected: Progress | None
) -> tuple[Progress, Progress | None]:
    mine = _dealt(process_group, sim, progress)
    t = process_group.told(None if selected is None else selected.t)
    if t is None or t == mine.t:
        return mine, None if t is None else mine
    return mine, _dealt(process_group, sim, _nothing(sim) if selected is None else selected)


def _dealt(process_group: ProcessGroup, sim: Simulation, progress: Progress) -> Progress:
    t, server = process_group.told((progress.t, progress.server))
    return Progress(t, server, InMemory(sim.state_device, dict(process_group.deal(sim, progress.clients))))


def _nothing(sim: Simulation) -> Progress:
    """What a process has before it is told."""
    return Progress(0, {}, InMemory(sim.state_device, {}))


def collected(process_group: ProcessGroup, sim: Simulation, progress: Progress) -> Progress:
    """The progress with the memories of all clients, for the first process."""
    if process_group.world_size == 1:
        return progress
    return replace(progress, clients=InMemory(sim.state_device, dict(process_group.collect(progress.clients))))


class Follower:
    """What every process but the first makes of a run; it goes on, and ends, when the first does."""

    def __init__(self, process_group: ProcessGroup, trust: Trust | bool = NOTHING) -> None:
        brief: Brief = process_group.told(Brief({}, {}, {}, []))
        self.process_group, self.experiment = process_group, from_tables(brief.tables)
        self.history, self.notes = list(brief.history), list[str]()
        self.sim = simulation_of(self.experiment, brief.tuning, trust, begun=True)
        for what, mine in environment.identity(self.sim).items():
            if brief.identity[what] != mine:
                raise RunError(f"the {what} that it finds is not that of rank 0")
        self.trial = trial_of(self.experiment, self.sim, process_group)
        self.progress, selected = _both_dealt(process_group, self.sim, _nothing(self.sim), None)
        self._selection = Selection.of(self.history, self.experiment.evaluate, selected)
        self._saved = self.progress.t

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.progress.t >= self.trial.rounds or stop_reason(self.history, self.experiment.stop) is not None

    def rounds(self) -> Iterator[Line]:
        """Go on to the end, as the first process does."""
        while not self.finished:
            self.progress, entry = self.trial.round(self.progress)
            verdict = self.process_group.told(Verdict(entry.round, False))
            self.history.append(verdict.line)
            self._selection = self._selection.after(verdict.line, self.progress, self.experiment.evaluate)
            if verdict.saved:
                self.save()
            yield verdict.line

    def save(self) -> None:
        """Give what a checkpoint needs, unless the last one is of this round."""
        if self._saved != self.progress.t:
            self.process_group.collect(self.progress.clients)
            selected = self._selection.progress
            if selected is not None and selected.t != self.progress.t:
                self.process_group.collect(selected.clients)
            self._saved = self.progress.t

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.save()
