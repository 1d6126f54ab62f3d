"""A simulation: it runs the rounds of an algorithm in order, keeps their state, and defines its saved form."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stratafl.core.layout import Rows
from stratafl.core.reprs import holder, short_repr
from stratafl.core.state import Kind, State, flatten, form_difference, kind, unflatten
from stratafl.errors import DamagedError, RunError
from stratafl.execute.client_states import ClientStates, InMemory
from stratafl.execute.context import SimulationContext
from stratafl.execute.disk import SLOTS, SUMS, Index, OnDisk, StateFile
from stratafl.execute.round_run import Examine, Examiner, Executor, Report, RoundRun

TRAINED = "trained/"  # how the names of `Progress.trained` begin in a file
_PER_CLIENT: dict[str, torch.dtype | None]  # parts of `Progress.trained` for each split: of each client …
_PER_CLIENT = {"hits": torch.float64, "loss": torch.float64, "count": torch.int64, "finite": torch.bool}
_PER_SAMPLE: dict[str, torch.dtype | None]  # … or of each sample, where a metric needs predictions
_PER_SAMPLE = {"client": torch.int64, "y": None, "scores": torch.float32, "loss": torch.float64}


def is_trained(name: str) -> bool:
    """Whether a tensor of a file is one of `Progress.trained`."""
    return name.startswith(TRAINED)


@holder
class Progress:
    """Where a simulation stands: the next round, the server's state, and the state of each client that has one.

    `trained` are scores of clients' models right after they last trained, which no round reads: an evaluation keeps
    them here (`evaluation/last_trained.py`), so that a resumed run has them.
    """

    t: int
    server: State
    clients: ClientStates
    trained: Rows = field(default_factory=dict)

    def tensors(self) -> Rows:
        """Everything as flat names and tensors, for a file."""
        trained = {f"{TRAINED}{name}": x for name, x in self.trained.items()}
        return {"t": torch.tensor(self.t), **flatten(self.server, "server/"), **self.clients.tensors(), **trained}

    @staticmethod
    def of(tensors: Mapping[str, Tensor], clients: ClientStates | None = None) -> "Progress":
        """The progress that `tensors` wrote; without `clients`, theirs are among the tensors."""
        clients = InMemory.of(tensors["t"].device, tensors) if clients is None else clients
        trained = {name.removeprefix(TRAINED): x for name, x in tensors.items() if is_trained(name)}
        return Progress(int(tensors["t"]), unflatten(tensors, "server/"), clients, trained)


@holder
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
        examine: Examine | Examiner | None = None,
        watched: bool = False,
    ) -> tuple[Progress, Report]:
        """One round; `ids` overrides the cohort, `examine` is shown models right after training.

        With `watched`, steps note what costs time to note, such as the mean learning rate of every layer.
        """
        rnd = self.at(progress.t)
        cohort = self.cohort(rnd) if ids is None else self.checked(ids)
        with self.arithmetic():
            run = RoundRun(self, executor, rnd, progress.server, progress.clients, cohort, examine, watched)
            server, clients, report = run.run()
        return Progress(progress.t + 1, server, clients, progress.trained), report

    def run(self, executor: Executor) -> Progress:
        progress = self.start()
        while progress.t < self.rounds:
            progress, _ = self.round(progress, executor)
        return progress

    def restored(self, tensors: Mapping[str, Tensor], file: StateFile) -> Progress:
        """The progress in a checkpoint; client states that it does not hold itself are in the file."""
        # Copied, so that products see memory aligned as in a run that was never interrupted.
        server = {name: x.clone().to(self.runtime.device) for name, x in tensors.items() if name.startswith("server/")}
        trained = {name: x.clone() for name, x in tensors.items() if is_trained(name)}
        return Progress.of({"t": tensors["t"], **server, **trained}, self.restored_clients(tensors, file))

    def restored_clients(self, tensors: Mapping[str, Tensor], file: StateFile) -> ClientStates:
        index = Index.of(tensors)
        if index is not None:
            file.check(index)
            return OnDisk(file, self.state_format, index)
        states = {name: x.clone() for name, x in tensors.items() if name.startswith("client/")}
        return InMemory.of(self.state_device, states)


@short_repr
@dataclass(frozen=True)
class SavedForm:
    """The names, types and shapes of the tensors of the server and of one client, and the number of clients.

    A state keeps those that it starts with. So nothing of another shape gets from a file into a round, and a state that
    could not be read again is refused before it is saved.
    """

    server: Mapping[str, Kind]
    client: Mapping[str, Kind]
    clients: int
    former: frozenset[str] = frozenset()  # of the server before format 8: clients' own tensors

    @staticmethod
    def of(sim: SimulationContext) -> "SavedForm":
        server = flatten(sim.algorithm.init(sim.setup), "server/")
        client = {part.path: (part.dtype, part.shape) for part in sim.state_format.parts}
        former = {
            f"server/{field}/{name}" for field in sim.algorithm.init(sim.setup) for name in sim.setup.layout.own()
        }
        return SavedForm({n: kind(x) for n, x in server.items()}, client, sim.setup.clients, frozenset(former))

    def check(self, t: int, tensors: Mapping[str, Tensor]) -> None:
        """Raise unless this is a state after round t."""
        wrong = self._wrong(tensors)
        if wrong is not None:
            raise DamagedError(f"the saved state does not belong to this run: {wrong}")
        if int(tensors["t"]) != t:
            raise DamagedError(f"the saved state is from round {int(tensors['t'])}, not from round {t}")

    def check_before_saving(self, tensors: Mapping[str, Tensor]) -> None:
        wrong = self._wrong(tensors)
        if wrong is not None:
            raise RunError(f"the state cannot be saved, because its shapes have changed: {wrong}")

    def _wrong(self, tensors: Mapping[str, Tensor]) -> str | None:
        others = {name: x for name, x in tensors.items() if not name.startswith("client/") and not is_trained(name)}
        others = {name: x for name, x in others.items() if name not in self.former}
        index = {SLOTS: (torch.int64, (self.clients,)), SUMS: (torch.int64, (self.clients,))}
        expected = {"t": (torch.int64, ()), **self.server, **(index if SLOTS in others or SUMS in others else {})}
        wrong = form_difference(expected, others) or self._wrong_clients(tensors, SLOTS in others)
        return wrong or self._wrong_scores({n.removeprefix(TRAINED): x for n, x in tensors.items() if is_trained(n)})

    def _wrong_scores(self, trained: Rows) -> str | None:
        """What is wrong with the scores of trained models: one of each part per client, or per sample."""
        clients = trained.get("clients", torch.empty(0, dtype=torch.int64))
        if not bool(((clients >= 0) & (clients < self.clients)).all()):
            return "its scores of trained models are of other clients"
        expected: dict[str, Kind] = {"clients": (torch.int64, (clients.numel(),))} if trained else {}
        for split in {name.rpartition(".")[0] for name in trained if "." in name}:
            of_samples = f"{split}.client" in trained
            rows = trained.get(f"{split}.client", clients).numel()
            for part, dtype in (_PER_SAMPLE if of_samples else _PER_CLIENT).items():
                tensor = trained.get(f"{split}.{part}", clients)
                columns = tensor.shape[1:] if part == "scores" else ()
                expected[f"{split}.{part}"] = (dtype or tensor.dtype, (rows, *columns))
        return form_difference(expected, trained)

    def _wrong_clients(self, tensors: Mapping[str, Tensor], indexed: bool) -> str | None:
        states: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("client/"):
                client, _, path = name.removeprefix("client/").partition("/")
                states.setdefault(client, {})[path] = tensor
        if states and indexed:
            return "it holds both client states and an index of client states on disk"
        for client, state in states.items():
            if not (client.isascii() and client.isdecimal() and str(int(client[:18])) == client):
                return f"there is no client {client[:40]!r}"
            if int(client) >= self.clients:
                return f"there is no client {client}: the {self.clients} clients are numbered from 0"
            wrong = form_difference(self.client, state)
            if wrong is not None:
                return f"client {client}: {wrong}"
        return None
