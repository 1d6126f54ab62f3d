"""A simulation: an algorithm, a federation and a model put together, and the rounds one after the other."""

import copy
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from stratafl.core import keys
from stratafl.core.algorithm import Algorithm
from stratafl.core.describe import columns, describe
from stratafl.core.footprint import Footprint
from stratafl.core.layout import Buffers, Granularity, Rows
from stratafl.core.reprs import short_repr
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, flatten, join, moved, pick, unflatten
from stratafl.data import Federation
from stratafl.data.outliers import outlier_warnings
from stratafl.data.scaling import PIXELS
from stratafl.errors import DataError, MemoryLimitError, ModelError, PhaseError, RecordError
from stratafl.execute.clients import Clients, InMemory
from stratafl.execute.devices import device_of
from stratafl.execute.matrix import chunk_size
from stratafl.execute.memory import Needs, client_bytes, evaluation_bytes, room, server_bytes, taken
from stratafl.execute.records import Format, Index, OnDisk, RecordFile
from stratafl.execute.round import Examiner, Executor, Report, run_round
from stratafl.execute.store import Store, chosen
from stratafl.execute.tokens import check_tokens
from stratafl.models import load_weights
from stratafl.runtime import CohortTask, Runtime, build_runtime
from stratafl.runtime.arithmetic import precision
from stratafl.runtime.build import EngineName
from stratafl.runtime.speed import USUAL, Speed

log = logging.getLogger("stratafl")
LOOKED_AT = 8  # copies of a model that layer diagnostics take: as received, trained, joined, their differences
ModelSource = nn.Module | Callable[[], nn.Module]


@short_repr
@dataclass(frozen=True, eq=False)
class Progress:
    """Where a simulation stands: the next round, the server's state, and the memory of each client that has one."""

    t: int
    server: State
    clients: Clients

    def tensors(self) -> Rows:
        """Everything as flat names and tensors, for a file."""
        return {"t": torch.tensor(self.t), **flatten(self.server, "server/"), **self.clients.tensors()}

    @staticmethod
    def of(tensors: Mapping[str, Tensor], clients: Clients | None = None) -> "Progress":
        """The progress that `tensors` wrote; without `clients`, theirs are among the tensors."""
        clients = InMemory.of(tensors["t"].device, tensors) if clients is None else clients
        return Progress(int(tensors["t"]), unflatten(tensors, "server/"), clients)


@short_repr
@dataclass(frozen=True, eq=False)
class Simulation:
    """What does not change from round to round."""

    algorithm: Algorithm
    runtime: Runtime
    setup: Setup
    round_limit: int | None = None  # bytes that a round may take
    memory_limit: int | None = None  # bytes that all of it may take
    store: Store = "device"  # where clients' memories are kept
    template: nn.Module | None = None  # the model as drawn, with stock modules; rows fit into a copy of it
    looked_at: int = 0  # clients whose models the layer diagnostics keep for a round

    @cached_property
    def client_bytes(self) -> int:
        """About what one client at work takes."""
        runtime, requires = self.runtime, self.algorithm.requires
        training = client_bytes(runtime, runtime.cut(requires.batch))
        scoring = evaluation_bytes(runtime, requires.splits) if requires.scores else 0
        return max(training, scoring) + self.footprint.client

    @cached_property
    def footprint(self) -> Footprint:
        """What the method says that it takes."""
        return self.algorithm.footprint(self.setup)

    @cached_property
    def server_bytes(self) -> int:
        """What the server's state takes."""
        return server_bytes(self.algorithm, self.setup)

    @property
    def rounds(self) -> int:
        """How many rounds it takes: those that were asked for, and those that the algorithm adds."""
        return self.setup.rounds + self.algorithm.requires.extra_rounds

    @property
    def largest_cohort(self) -> int:
        """How many clients take part in the largest round."""
        return self.setup.clients if self.algorithm.requires.participation == "all" else self.setup.cohort

    def needs(self, cohort: int) -> Needs:
        """What a round of so many clients takes."""
        held = 0 if self.store == "disk" or self.kept_on != self.runtime.device else self.format.size
        looked_at = min(self.looked_at, cohort) * LOOKED_AT * self.setup.row_bytes()
        selected = self.server_bytes + held * self.setup.clients + looked_at
        one, seen = self.client_bytes, self.evaluation_bytes
        return Needs(cohort, self.server_bytes, held * cohort, one, seen, self.footprint, selected)

    @cached_property
    def evaluation_bytes(self) -> int:
        """About what one client takes while it is evaluated, which may include tuning a copy."""
        return max(self.client_bytes, evaluation_bytes(self.runtime) + self.footprint.client)

    def arithmetic(self) -> AbstractContextManager[None]:
        """With as many digits as this simulation multiplies."""
        return precision(self.runtime.speed.precision)

    @property
    def new_clients(self) -> Tensor:
        """The clients that never take part in training."""
        return torch.arange(self.setup.clients, self.runtime.federation.clients)

    @cached_property
    def format(self) -> Format:
        """What one client's memory consists of."""
        return client_state_format(self.algorithm, self.setup)

    def start(self, file: RecordFile | None = None) -> Progress:
        """Before the first round; clients enrol when they are first touched, and are kept in `file` if on disk."""
        clients: Clients = InMemory(self.kept_on, {})
        if self.store == "disk":
            file = file or RecordFile(None, self.format.size)
            clients = OnDisk(file, self.format, Index.empty(self.setup.clients))
        return Progress(0, self.algorithm.init(self.setup), clients)

    def restored(self, tensors: Mapping[str, Tensor], file: RecordFile) -> Progress:
        """The progress in a checkpoint; memories that it does not hold itself are in the file."""
        clients = self.restored_clients(tensors, file)
        # Copied out of the file, so that products see memory aligned as in a run that was never interrupted.
        server = {name: x.clone().to(self.runtime.device) for name, x in tensors.items() if name.startswith("server/")}
        return Progress.of({"t": tensors["t"], **server}, clients)

    def restored_clients(self, tensors: Mapping[str, Tensor], file: RecordFile) -> Clients:
        """The clients' memories in a checkpoint."""
        index = Index.of(tensors)
        if index is not None:
            file.check(index)
            return OnDisk(file, self.format, index)
        return InMemory.of(self.kept_on, {name: x.clone() for name, x in tensors.items() if name.startswith("client/")})

    @property
    def kept_on(self) -> torch.device:
        """The device on which memories are kept, where they are not on disk."""
        return self.runtime.device if self.store == "device" else torch.device("cpu")

    def at(self, t: int) -> Round:
        """Round t."""
        return Round(self.setup, t, self.algorithm.plan(t, self.setup.rounds))

    def cohort(self, rnd: Round) -> Tensor:
        """Who takes part, the same for every algorithm, in the order in which rows are summed up."""
        everybody = torch.arange(self.setup.clients)
        return self.ordered(everybody if rnd.plan.participation == "all" else self.setup.sampled(rnd.t))

    def checked(self, ids: Tensor) -> Tensor:
        """The ids, if each is a client and none comes twice."""
        given = torch.as_tensor(ids).tolist()
        wrong = [i for i in given if not 0 <= i < self.setup.clients]
        if wrong:
            raise DataError(f"there is no client {wrong[0]}: the {self.setup.clients} clients are numbered from 0")
        twice = next(((i, count) for i, count in Counter(given).items() if count > 1), None)
        if twice is not None:
            raise DataError(f"a client takes part once, and client {twice[0]} comes {twice[1]} times")
        return torch.as_tensor(ids, dtype=torch.int64)

    def ordered(self, ids: Tensor) -> Tensor:
        """Larger clients first, so that a chunk holds clients of like size; equal ones by id."""
        ids = ids.sort().values
        sizes = self.runtime.federation.counts("train")[ids]
        return ids[torch.argsort(sizes, descending=True, stable=True)]

    @cached_property
    def by_size(self) -> Tensor:
        """All clients, new clients too, in the order in which they are dealt to several processes."""
        return self.ordered(torch.arange(self.runtime.federation.clients))

    def task(self, ids: Tensor, rnd: Round, watched: bool = False) -> CohortTask:
        """The task of these clients, with the splits that the algorithm declares."""
        return self.runtime.task(ids, rnd, self.algorithm.requires.splits, watched)

    def client_states(self, clients: Mapping[int, State], ids: Tensor) -> State:
        """The memories of these clients, side by side; who has none enrols."""
        return moved(join([self._memory(clients, client) for client in ids.tolist()]), self.runtime.device)

    def _memory(self, clients: Mapping[int, State], client: int) -> State:
        if client in clients:
            return pick(clients[client], None)
        return self.algorithm.enrol(self.setup, torch.tensor([client]))

    def round(
        self,
        progress: Progress,
        executor: Executor,
        ids: Tensor | None = None,
        examine: Examiner | None = None,
        watched: bool = False,
    ) -> tuple[Progress, Report]:
        """One round; `ids` overrides the cohort, `examine` is shown models right after training.

        `watched` has steps note what costs time to note, such as the mean rate of every layer.
        """
        rnd = self.at(progress.t)
        cohort = self.cohort(rnd) if ids is None else self.checked(ids)
        with self.arithmetic():
            server, clients, report = run_round(
                self, executor, rnd, progress.server, progress.clients, cohort, examine, watched
            )
        return Progress(progress.t + 1, server, clients), report

    def run(self, executor: Executor) -> Progress:
        """All rounds."""
        progress = self.start()
        while progress.t < self.rounds:
            progress, _ = self.round(progress, executor)
        return progress


def simulation(
    algorithm: Algorithm,
    federation: Federation,
    model: ModelSource,
    *,
    rounds: int,
    participation: float = 1.0,
    seed: int = 0,
    granularity: Granularity = "module",
    buffers: Buffers = "follow",
    head: str | None = None,
    weights: str | Path | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    engine: EngineName = "auto",
    speed: Speed = USUAL,
    memory_limit: int | None = None,
    store: Store = "auto",
    saved: bool = False,
    new_clients: int = 0,
    looked_at: int = 0,
    begun: bool = False,
) -> Simulation:
    """Put a simulation together, refusing what does not fit.

    `model` is a module (its weights are the common start) or a function that makes one (drawn from the seed); `weights`
    is a file with the initial weights; `buffers` says whether BatchNorm statistics follow their layer or stay local;
    `memory_limit` is what all of it may take, in bytes, and `store` where client states are kept between rounds (on the
    `device`, in `ram`, on `disk`; `auto`: by size, and by whether checkpoints are `saved`); the last `new_clients`
    clients of the federation never take part in training; a run that has `begun` may go on although its rounds never
    reach a phase of the algorithm, which is refused otherwise.
    """
    device = device_of(device)
    if not 0 < participation <= 1:
        raise DataError(f"participation is a share of the clients above 0 and up to 1, not {participation}")
    if not 0 <= new_clients < federation.clients:
        raise DataError(f"{new_clients} of {federation.clients} clients cannot be new clients: somebody must train")
    if not isinstance(rounds, int) or rounds < 0:
        raise DataError(f"the number of rounds cannot be {rounds}")
    if not isinstance(algorithm, Algorithm):
        raise RecordError(f"an algorithm is a record such as fedavg(), not {algorithm!r}")
    _check_splits(algorithm, federation)
    _check_batches(algorithm, federation, new_clients)
    for line in outlier_warnings(federation):
        log.warning("%s", line)

    def draw(number: int, purpose: str) -> nn.Module:
        return _drawn(model, algorithm, federation, seed, number, purpose).to(dtype)

    module = draw(0, "model")
    if weights is not None:
        load_weights(module, Path(weights))
    check_tokens(module, federation)
    layout = describe(module, granularity=granularity, buffers=buffers, head=head)

    def fresh(ids: Tensor) -> Rows:
        each = [columns(draw(i, "own model")) for i in ids.tolist()]
        return {name: torch.stack([one[name] for one in each]).to(device) for name in layout.specs}

    start = {name: tensor.clone().to(device) for name, tensor in columns(module).items()}
    runtime = build_runtime(
        federation, module, layout, head=head, device=device, engine=engine, speed=speed, batch=algorithm.requires.batch
    )
    clients, classes = federation.clients - new_clients, federation.classes
    setup = Setup(layout, start, fresh, clients, rounds, seed, classes, runtime.features, participation)
    _check(algorithm, setup, begun)
    left = (
        None
        if begun and memory_limit is not None and taken(runtime.device) >= memory_limit
        else room(memory_limit, runtime.device)
    )
    needed = client_state_format(algorithm, setup).size * clients
    kept = chosen(store, needed, runtime.device, left, participation=participation, saved=saved)
    rest = left
    if left is not None and (kept == "device" or (kept == "ram" and runtime.device.type == "cpu")):
        rest = left - needed
    made = Simulation(algorithm, runtime, setup, rest, memory_limit, kept, module.cpu(), looked_at)
    return _within_memory(made, left if store == "auto" else None, begun)


def _within_memory(made: Simulation, left: int | None, begun: bool) -> Simulation:
    """The simulation, if a round of it fits; with client states on disk, if so much is left then and that helps."""
    try:
        chunk_size(made, made.largest_cohort)  # what does not fit is refused here, before anything is computed
    except MemoryLimitError as error:
        if made.store != "disk" and left is not None:
            return _within_memory(replace(made, round_limit=left, store="disk"), left, begun)
        if not begun:
            raise
        log.warning("%s; this run has begun, and goes on with one client at a time", error)
        return replace(made, round_limit=made.needs(made.largest_cohort).least)
    return made


def _check(algorithm: Algorithm, setup: Setup, begun: bool) -> None:
    try:
        algorithm.check(setup)
    except PhaseError as error:
        if not begun:  # a run of an earlier version, which was not refused, can still be read and finished
            raise
        log.warning("%s", error)


def client_state_format(algorithm: Algorithm, setup: Setup) -> Format:
    """How the memory of a client looks that has just enrolled, and ever after."""
    return Format(pick(algorithm.enrol(setup, torch.tensor([0])), 0))


def _check_splits(algorithm: Algorithm, federation: Federation) -> None:
    if algorithm.leaks is not None:
        log.warning("%s: its numbers are not comparable with any other", algorithm.leaks)
    elif "test" in algorithm.requires.splits:
        raise DataError("the algorithm asks for the test split, which no algorithm is given")
    for split in algorithm.requires.splits:
        if int(federation.counts(split).min()) == 0:
            raise DataError(f"the algorithm needs the split '{split}', which some clients do not have: make it larger")


def _check_batches(algorithm: Algorithm, federation: Federation, new_clients: int) -> None:
    largest = int(federation.counts("train")[: federation.clients - new_clients].max())
    for each in algorithm.requires.batchings:
        if each.drop_last and each.size > largest:
            raise DataError(
                f"drop_last with batches of {each.size} leaves nothing to train on: the largest client has {largest}"
            )


def _drawn(
    model: ModelSource, algorithm: Algorithm, federation: Federation, seed: int, number: int, purpose: str
) -> nn.Module:
    """A model drawn on the CPU from its own generator; the ambient one is left as it was."""
    state = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(keys.generator(seed, number, purpose).initial_seed())
        if not isinstance(model, nn.Module):
            module = model()
        else:
            module = copy.deepcopy(model)
            if purpose != "model":
                _reset(module)
        example = torch.zeros(1, *federation.x.shape[1:], dtype=_input_type(federation.x))
        with torch.no_grad():  # in evaluation mode, so that an extension may probe the model without moving statistics
            return algorithm.extend(module.eval(), example, federation.classes)
    finally:
        torch.set_rng_state(state)


def _input_type(x: Tensor) -> torch.dtype:
    return torch.get_default_dtype() if x.is_floating_point() or x.dtype in PIXELS else x.dtype


def _reset(module: nn.Module) -> None:
    for path, sub in module.named_modules():
        reset = getattr(sub, "reset_parameters", None)
        if callable(reset):
            reset()
        elif next(sub.parameters(recurse=False), None) is not None:
            raise ModelError(f"'{path}' cannot draw new weights for each client: give a function that makes the model")


__all__ = ["Progress", "Simulation", "simulation"]
