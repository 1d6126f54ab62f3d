"""The contract: what every algorithm must satisfy, ours and anybody's.

    from stratafl.testing import check_algorithm
    check_algorithm(my_algorithm())

It runs the algorithm on a small federation (convolution, BatchNorm and dropout; ragged clients, one of them smaller
than a batch), under both rules for buffers, with full and half participation, and raises a `ContractError` that names
the law that was broken.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from stratafl import records, wire
from stratafl.algorithm import Algorithm, Plan, Round, Setup, Total
from stratafl.algorithms.laws import Law
from stratafl.data import Federation, from_splits
from stratafl.errors import ContractError, StrataError
from stratafl.evaluate import deployed, received
from stratafl.execute import Debug, Executor, Matrix, Messages, Progress, Simulation, simulation
from stratafl.layout import Buffers, Rows
from stratafl.models import build
from stratafl.parcel import Parcel, count_bytes
from stratafl.state import State, Value, clone, flatten, pick
from stratafl.task import Task
from stratafl.task.engine import Stack
from stratafl.task.task import Step
from stratafl.task.workshop import EngineName

SIZES = (31, 23, 14, 12, 7, 4)  # training samples: ragged, short last batches, two clients below a batch of ten
SHAPE, CLASSES = (1, 6, 6), 3


def tiny_federation(sizes: Iterable[int] = SIZES, seed: int = 0, dtype: torch.dtype = torch.float64) -> Federation:
    """Clients of these sizes with random images of three classes, each with validation and test samples."""
    rng = np.random.default_rng(seed)

    def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, CLASSES, count)
        return rng.standard_normal((count, *SHAPE)) + y[:, None, None, None] / 2, y

    clients = [{"train": samples(n), "validation": samples(3), "test": samples(4)} for n in sizes]
    return from_splits(clients, classes=CLASSES, dtype=dtype, name="tiny")


def tiny_model(batchnorm: bool = True) -> nn.Module:
    """A model with convolution, BatchNorm and dropout, or an MLP without BatchNorm."""
    options: dict[str, object] = {"channels": 4, "dropout": 0.3} if batchnorm else {"hidden": (8,)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return build("convnorm" if batchnorm else "mlp", shape=SHAPE, classes=CLASSES, **options)


@dataclass(frozen=True, eq=False)
class Case:
    """An algorithm in one setting of the contract."""

    algorithm: Algorithm
    buffers: Buffers
    participation: float
    rounds: int

    def simulation(
        self,
        algorithm: Algorithm | None = None,
        *,
        seed: int = 0,
        engine: EngineName = "stacked",
        dtype: torch.dtype = torch.float64,
        batchnorm: bool = True,
    ) -> Simulation:
        """The case's simulation, or one that differs in some respect."""
        return simulation(
            algorithm or self.algorithm,
            tiny_federation(dtype=dtype),
            tiny_model(batchnorm),
            rounds=self.rounds,
            participation=self.participation,
            seed=seed,
            buffers=self.buffers,
            dtype=dtype,
            engine=engine,
        )

    @cached_property
    def plain(self) -> Simulation:
        """The simulation that all others are compared with."""
        return self.simulation()

    @cached_property
    def outcome(self) -> Rows:
        """What the matrix executor makes of it, in one chunk."""
        return outcome(self.plain, Matrix())

    def __str__(self) -> str:
        return f"buffers '{self.buffers}', participation {self.participation}"


def outcome(sim: Simulation, executor: Executor) -> Rows:
    """Everything a run ends with: server, memories, and every client's deployed model."""
    return everything(sim, sim.run(executor))


def everything(sim: Simulation, progress: Progress) -> Rows:
    """The tensors of a progress and every client's deployed model."""
    models = deployed(sim, progress, torch.arange(sim.setup.clients))
    return {**progress.tensors(), **flatten({"deployed": models})}


def difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """The largest difference between tensors of the same names; infinite if names, shapes or NaNs differ."""
    if set(a) != set(b):
        return float("inf")
    worst = 0.0
    for name, x in a.items():
        y = b[name]
        if x.shape != y.shape or not torch.equal(torch.isnan(x), torch.isnan(y)):
            return float("inf")
        if x.numel():
            worst = max(worst, float((x.double() - y.double()).abs().nan_to_num().max()))
    return worst


def _same(law: str, case: Case, other: Rows, what: str, tolerance: float = 1e-12) -> None:
    gap = difference(case.outcome, other)
    if not gap <= tolerance:
        raise ContractError(law, f"{what} differs by {gap:.1e} ({case})")


# The laws


def messages(case: Case) -> None:
    """The matrix executor and messages of one client each give the same."""
    _same("messages", case, outcome(case.plain, Messages()), "a run over messages")


def order(case: Case) -> None:
    """The order of clients within the cohort does not matter."""
    sim = case.plain
    progress = sim.start()
    while progress.t < sim.algorithm.rounds(case.rounds):
        ids = sim.cohort(sim.at(progress.t))
        progress, _ = sim.round(progress, Matrix(), ids.flip(0))
    _same("order", case, everything(sim, progress), "a cohort in another order")


def outsiders(case: Case) -> None:
    """Clients outside the cohort are untouched, also by being evaluated."""
    sim = case.plain
    before, _ = sim.round(sim.start(), Matrix(), torch.arange(sim.setup.clients))
    kept = {i: clone(memory) for i, memory in before.clients.items()}
    ids = torch.tensor([1, 3])
    after, _ = sim.round(before, Matrix(), ids)
    received(sim, after, torch.arange(sim.setup.clients))
    deployed(sim, after, torch.arange(sim.setup.clients))
    for i in set(kept) - set(ids.tolist()):
        if difference(flatten(kept[i]), flatten(after.clients[i])) != 0:
            raise ContractError("outsiders", f"client {i} took no part and changed ({case})")


def chunks(case: Case) -> None:
    """Cutting the cohort into chunks changes nothing."""
    for size in (1, 4):
        _same("chunks", case, outcome(case.plain, Matrix(chunk=size)), f"chunks of {size}")


def poison(case: Case) -> None:
    """With every unsent column poisoned, everything stays finite and as it was."""
    try:
        _same("poison", case, outcome(case.plain, Debug()), "a run with unsent columns poisoned")
    except ContractError:
        raise
    except StrataError as error:
        raise ContractError("poison", f"{error} ({case})") from error


def purity(case: Case) -> None:
    """No function of the waist writes into what it is given."""
    sim = replace(case.plain, algorithm=_Watched(case.algorithm))
    _same("purity", case, outcome(sim, Matrix(chunk=4)), "a run whose inputs are watched")


def record(case: Case) -> None:
    """The record prints, compares, and goes to TOML and back."""
    try:
        again = records.from_toml(records.to_toml(case.algorithm))
    except StrataError as error:
        raise ContractError("record", str(error)) from error
    if again != case.algorithm or repr(again) != repr(case.algorithm):
        raise ContractError("record", f"read back from TOML it is {again!r}, not {case.algorithm!r}")


def bytes_counted(case: Case) -> None:
    """Counted bytes are those of the encoded values and masks; what is stored is what is declared."""
    sim = case.plain
    rnd, alg = sim.at(0), case.algorithm
    server = alg.init(sim.setup)
    for ids in torch.arange(sim.setup.clients).split(1):
        task = sim.task(ids, rnd)
        enrolled = alg.enrol(sim.setup, ids)
        down = alg.download(rnd, server, ids)
        memory, up = alg.work(rnd, alg.receive(rnd, enrolled, down, task), task)
        for way, parcel in (("download", down), ("upload", up)):
            _check_bytes(case, sim, way, parcel)
        _check_shape(case, "a client's memory", enrolled, memory)
    total = alg.fold(rnd, server, Total(), up, ids)
    _check_shape(case, "the server's state", server, alg.absorb(rnd, server, total))


def _check_bytes(case: Case, sim: Simulation, way: str, parcel: Parcel) -> None:
    layout = sim.setup.layout
    counted = count_bytes(parcel, layout, 1).total
    encoded = wire.body_bytes(wire.encode(parcel, layout))
    if counted != encoded:
        raise ContractError("bytes", f"a {way} counts {counted} bytes and encodes to {encoded} ({case})")


def _check_shape(case: Case, what: str, declared: State, found: State) -> None:
    shapes = [{k: (tuple(x.shape), x.dtype) for k, x in flatten(s).items()} for s in (declared, found)]
    if shapes[0] != shapes[1]:
        odd = sorted(set(shapes[0].items()) ^ set(shapes[1].items()), key=str)
        raise ContractError("bytes", f"{what} is not what was declared, see {odd[0][0]} ({case})")


def cohort_sizes(case: Case) -> None:
    """One client works; none is a clear error."""
    sim = case.plain
    sim.round(sim.start(), Matrix(), torch.tensor([2]))
    try:
        sim.round(sim.start(), Matrix(), torch.tensor([], dtype=torch.int64))
    except StrataError as error:
        if "empty" in str(error):
            return
        raise ContractError("cohort sizes", f"an empty cohort says: {error}") from error
    raise ContractError("cohort sizes", "an empty cohort is not refused")


def resume(case: Case) -> None:
    """State saved and restored between rounds changes nothing, not a bit."""
    sim = case.plain
    progress = sim.start()
    while progress.t < sim.algorithm.rounds(case.rounds):
        progress, _ = sim.round(progress, Matrix())
        progress = Progress.of(load(save({k: x.contiguous() for k, x in progress.tensors().items()})))
    _same("resume", case, everything(sim, progress), "a run that was saved and restored", tolerance=0.0)


def seeds(case: Case) -> None:
    """The same seed gives the same bits, another seed does not."""
    _same("seeds", case, outcome(case.simulation(), Matrix()), "a second run", tolerance=0.0)
    if difference(case.outcome, outcome(case.simulation(seed=1), Matrix())) == 0:
        raise ContractError("seeds", f"another seed gives the same ({case})")


def padding(case: Case) -> None:
    """Padding and stacking change nothing: client by client, with exact batches and stock modules, it is the same."""
    _same("padding", case, outcome(case.simulation(engine="loop"), Matrix()), "the loop engine", tolerance=1e-9)


def trace(case: Case) -> None:
    """A training step traces without reading a value back to the host."""
    sim = case.plain
    rnd, ids = sim.at(0), torch.arange(sim.setup.clients)
    alg, task = case.algorithm, _TracingTask(sim, ids, rnd)
    parcel = alg.download(rnd, alg.init(sim.setup), ids)
    try:
        alg.work(rnd, alg.receive(rnd, alg.enrol(sim.setup, ids), parcel, task), task)
    except Exception as error:
        raise ContractError("trace", f"{type(error).__name__}: {str(error).splitlines()[0]} ({case})") from error


LAWS: tuple[Callable[[Case], None], ...] = (
    messages,
    order,
    outsiders,
    chunks,
    poison,
    purity,
    record,
    bytes_counted,
    cohort_sizes,
    resume,
    seeds,
    padding,
    trace,
)
SETTINGS: tuple[tuple[Buffers, float], ...] = (("follow", 1.0), ("follow", 0.5), ("local", 1.0), ("local", 0.5))


def check_law(law: Law, rounds: int = 2, participation: float = 1.0, buffers: Buffers = "follow") -> None:
    """A degenerate law: after some rounds, both algorithms give every client the same model."""
    case = Case(law.special, buffers, participation, rounds)
    ids = torch.arange(len(SIZES))
    models = []
    for algorithm in (law.special, law.simple):
        sim = case.simulation(algorithm, batchnorm=law.batchnorm)
        models.append(received(sim, sim.run(Matrix()), ids))
    gap = difference(*models)
    if not gap <= 1e-12:
        raise ContractError("degenerate", f"{law.says}, but models differ by {gap:.1e} ({case})")


def check_algorithm(
    algorithm: Algorithm,
    laws: Iterable[Law] = (),
    *,
    rounds: int = 2,
    settings: Iterable[tuple[Buffers, float]] = SETTINGS,
) -> None:
    """Raise a `ContractError` if the algorithm breaks the contract, or one of its own degenerate laws."""
    for buffers, participation in settings:
        case = Case(algorithm, buffers, participation, rounds)
        for law in LAWS:
            law(case)
        for own in laws:
            if participation == 1.0 or not own.full_participation_only:
                check_law(own, rounds, participation, buffers)


class _Watched(Algorithm):
    """An algorithm whose inputs are compared with copies of them after every call."""

    def __init__(self, inner: Algorithm) -> None:
        self.inner = inner
        self.row, self.splits, self.keeps_rows = inner.row, inner.splits, inner.keeps_rows

    def rounds(self, requested: int) -> int:
        return self.inner.rounds(requested)

    def plan(self, t: int, rounds: int) -> Plan:
        return self.inner.plan(t, rounds)

    def init(self, setup: Setup) -> State:
        with _unchanged("init", {"start": setup.start}):
            return self.inner.init(setup)

    def enrol(self, setup: Setup, ids: Tensor) -> State:
        with _unchanged("enrol", {"start": setup.start, "ids": ids}):
            return self.inner.enrol(setup, ids)

    def download(self, rnd: Round, server: State, ids: Tensor) -> Parcel:
        with _unchanged("download", server, {"ids": ids}):
            return self.inner.download(rnd, server, ids)

    def receive(self, rnd: Round, memory: State, parcel: Parcel, task: Task) -> State:
        with _unchanged("receive", memory, _values(parcel)):
            return self.inner.receive(rnd, memory, parcel, task)

    def work(self, rnd: Round, memory: State, task: Task) -> tuple[State, Parcel]:
        with _unchanged("work", memory):
            return self.inner.work(rnd, memory, task)

    def fold(self, rnd: Round, server: State, total: Total, uploads: Parcel, ids: Tensor) -> Total:
        with _unchanged("fold", server, total.sums, _values(uploads)):
            return self.inner.fold(rnd, server, total, uploads, ids)

    def absorb(self, rnd: Round, server: State, total: Total) -> State:
        with _unchanged("absorb", server, total.sums):
            return self.inner.absorb(rnd, server, total)

    def deploy(self, rnd: Round, memory: State, task: Task) -> Rows:
        with _unchanged("deploy", memory):
            return self.inner.deploy(rnd, memory, task)


class _unchanged:  # noqa: N801 - reads as a statement
    """Raises if any of the states changed inside."""

    def __init__(self, where: str, *states: Mapping[str, Value]) -> None:
        self.where, self.states = where, states

    def __enter__(self) -> None:
        self.copies = [clone(state) for state in self.states]

    def __exit__(self, *failure: object) -> None:
        for state, copy in zip(self.states, self.copies, strict=True):
            if failure[0] is None and difference(flatten(state), flatten(copy)) != 0:
                raise ContractError("purity", f"'{self.where}' writes into what it is given")


def _values(parcel: Parcel) -> State:
    return {name: field.value for name, field in parcel.items()}


class _TracingTask(Task):
    """A task that traces the first step of every scan before it runs."""

    def __init__(self, sim: Simulation, ids: Tensor, rnd: Round) -> None:
        super().__init__(sim.workshop, ids, rnd, sim.algorithm.splits)

    def _lanes(self) -> int:
        return 1  # tracing patches torch for all threads

    def _lockstep(self, step: Step, carry: State, held: State, steps: list[int], reels: list) -> State:  # type: ignore[type-arg]
        if steps[0] > 0:
            active = sum(count > 0 for count in steps)
            stacks = [self._stack(reel, 0, active) for reel in reels]
            tensors = [(s.x, s.y, s.weight, s.keys) for s in stacks]
            here = slice(0, active)

            def traced(carry: State, held: State, tensors: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> State:
                return step(carry, held, *(Stack(*t, s.sizes) for t, s in zip(tensors, stacks, strict=True)))

            make_fx(traced, tracing_mode="fake", _allow_non_fake_inputs=True)(
                clone(pick(carry, here)), pick(held, here), tensors
            )
        return super()._lockstep(step, carry, held, steps, reels)
