"""A simulation: the rounds of an algorithm one after the other, and where they stand."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from stratafl.core.layout import Rows
from stratafl.core.reprs import short_repr
from stratafl.core.state import State, flatten, unflatten
from stratafl.execute.client_states import ClientStates, InMemory
from stratafl.execute.context import SimulationContext
from stratafl.execute.disk import Index, OnDisk, StateFile
from stratafl.execute.round import Examiner, Executor, Report, run_round


@short_repr
@dataclass(frozen=True, eq=False)
class Progress:
    """Where a simulation stands: the next round, the server's state, and the state of each client that has one."""

    t: int
    server: State
    clients: ClientStates

    def tensors(self) -> Rows:
        """Everything as flat names and tensors, for a file."""
        return {"t": torch.tensor(self.t), **flatten(self.server, "server/"), **self.clients.tensors()}

    @staticmethod
    def of(tensors: Mapping[str, Tensor], clients: ClientStates | None = None) -> "Progress":
        """The progress that `tensors` wrote; without `clients`, theirs are among the tensors."""
        clients = InMemory.of(tensors["t"].device, tensors) if clients is None else clients
        return Progress(int(tensors["t"]), unflatten(tensors, "server/"), clients)


@short_repr
@dataclass(frozen=True, eq=False)
class Simulation(SimulationContext):
    """An algorithm, a federation and a model, ready to run; `simulation(…)` makes it."""

    def start(self, file: StateFile | None = None) -> Progress:
        """Before the first round; clients enrol when they first take part, and are kept in `file` if on disk."""
        clients: ClientStates = InMemory(self.state_device, {})
        if self.store == "disk":
            file = file or StateFile(None, self.state_format.size)
            clients = OnDisk(file, self.state_format, Index.empty(self.setup.clients))
        return Progress(0, self.algorithm.init(self.setup), clients)

    def round(
        self,
        progress: Progress,
        executor: Executor,
        ids: Tensor | None = None,
        examine: Examiner | None = None,
        watched: bool = False,
    ) -> tuple[Progress, Report]:
        """One round; `ids` overrides the cohort, `examine` is shown models right after training.

        With `watched`, steps note what costs time to note, such as the mean learning rate of every layer.
        """
        rnd = self.at(progress.t)
        cohort = self.cohort(rnd) if ids is None else self.checked(ids)
        with self.arithmetic():
            server, clients, report = run_round(
                self, executor, rnd, progress.server, progress.clients, cohort, examine, watched
            )
        return Progress(progress.t + 1, server, clients), report

    def run(self, executor: Executor) -> Progress:
        progress = self.start()
        while progress.t < self.rounds:
            progress, _ = self.round(progress, executor)
        return progress

    def restored(self, tensors: Mapping[str, Tensor], file: StateFile) -> Progress:
        """The progress in a checkpoint; client states that it does not hold itself are in the file."""
        # Copied, so that products see memory aligned as in a run that was never interrupted.
        server = {name: x.clone().to(self.runtime.device) for name, x in tensors.items() if name.startswith("server/")}
        return Progress.of({"t": tensors["t"], **server}, self.restored_clients(tensors, file))

    def restored_clients(self, tensors: Mapping[str, Tensor], file: StateFile) -> ClientStates:
        index = Index.of(tensors)
        if index is not None:
            file.check(index)
            return OnDisk(file, self.state_format, index)
        mine = {name: x.clone() for name, x in tensors.items() if name.startswith("client/")}
        return InMemory.of(self.state_device, mine)
