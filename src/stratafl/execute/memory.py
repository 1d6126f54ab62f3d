"""Devices and memory: how much a round needs, how much a limit leaves for it, and where client states are kept."""

import ctypes
import weakref
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stratafl.core.algorithm import Algorithm
from stratafl.core.footprint import Footprint
from stratafl.core.layout import Rows
from stratafl.core.machine import in_units, ram, resident
from stratafl.core.objectives import default_objective
from stratafl.core.round import Setup
from stratafl.core.state import stored_bytes
from stratafl.core.task import Inputs, Stack
from stratafl.errors import MemoryLimitError, RecordError, unknown
from stratafl.runtime.cohort_task import EVALUATION_BATCH
from stratafl.runtime.likeness import found_once
from stratafl.runtime.runtime import Runtime

ROW_COPIES = 2  # copies of a working client's row outside its step: its own, and one where lanes are joined
CAPTURED_ROW_COPIES = 6  # the same where steps are captured: rows at slots, rows that wait, results
Store = Literal["auto", "device", "ram", "disk"]
STORES: tuple[str, ...] = get_args(Store)
SHARE = 4  # client states may take a quarter of the memory
LOW_PARTICIPATION = 0.1  # where at most this share of the clients takes part in a round …
MAX_REWRITTEN_BYTES = 64 * 2**20  # … states larger than this are not written again with every checkpoint


@dataclass(frozen=True)
class Needs:
    """What a round of a cohort takes, in bytes, in addition to libraries, data and client states kept in RAM.

    Until a round is complete, memory holds both the state before it and the state after it.
    """

    cohort: int
    server: int  # the server's state
    states: int  # the cohort's client states after the round, where they are in RAM
    client: int  # one working client
    evaluated: int  # one client being evaluated
    method: Footprint
    extra: int = 0  # the state of the selected round, and the models of layer diagnostics

    def working(self, clients: int) -> int:
        """While `clients` clients work at once, or their uploads are added to the sums."""
        m = self.method
        before = (self.cohort - clients) * m.upload
        return self.server + self.states + self.extra + 2 * m.sums + m.served + before + clients * self.client

    def merging(self) -> int:
        """While the uploads of the cohort become the server's next state."""
        m = self.method
        return 2 * self.server + self.states + self.extra + m.sums + m.merge + self.cohort * (m.upload + m.absorbed)

    def evaluating(self, clients: int) -> int:
        """While `clients` clients are evaluated at once, before the round is complete."""
        return 2 * self.server + self.states + self.extra + self.method.served + clients * self.evaluated

    @property
    def least(self) -> int:
        """The most that it takes with one client at a time."""
        return max(self.working(1), self.merging(), self.evaluating(1))

    def parts(self) -> str:
        """What takes how much when it takes most, in words."""
        m = self.method
        side_by_side = self.cohort * (m.upload + m.absorbed)
        moments = {
            self.working(1): (self.server, 2 * m.sums + m.served, (self.cohort - 1) * m.upload, self.client),
            self.evaluating(1): (2 * self.server, m.served, 0, self.evaluated),
            self.merging(): (2 * self.server, m.sums + m.merge, side_by_side, 0),
        }
        names = ("the server's state", "sums on the server", "uploads of the cohort", "one client")
        always = (("client states", self.states), ("the selected round and layer diagnostics", self.extra))
        shares = (*zip(names, moments[self.least], strict=True), *always)
        return ", ".join(f"{name} {in_units(size)}" for name, size in shares if size)


def server_bytes(algorithm: Algorithm, setup: Setup) -> int:
    """What the server's state takes, without allocating it."""
    try:
        with torch.device("meta"):
            return stored_bytes(algorithm.init(setup.blank()))
    except Exception:  # a field of your own may read values, which are not there
        return stored_bytes(algorithm.init(setup))


def client_bytes(runtime: Runtime, batch: int) -> int:
    """A working client: all copies of its row, plus what a step of `batch` samples takes, measured by running one."""

    def measured() -> int:
        rows, step = _blank_rows(runtime), _stack(runtime, batch)
        trained, modes = runtime.layout.trainable(), runtime.engine.model.modes(runtime.layout.trainable())
        objective = default_objective(runtime.federation.classes)
        take = partial(runtime.engine.gradients, objective, rows, step, trained, Inputs(), modes)
        return peak_bytes(take, *rows.values(), *runtime.engine.model.frozen, step.x, step.y)

    return _held(runtime, _measured_once(runtime, ("step", batch), measured))


def evaluation_bytes(runtime: Runtime, splits: Sequence[str] = ("validation", "test")) -> int:
    """A client being evaluated: all copies of its row, plus what a forward pass takes, measured as well."""
    batch = max(1, min(EVALUATION_BATCH, max(int(runtime.federation.counts(split).max()) for split in splits)))

    def measured() -> int:
        rows, step = _blank_rows(runtime), _stack(runtime, batch)
        real = tuple(len(x) for x in step.x)
        taken = (*rows.values(), *runtime.engine.model.frozen)
        return peak_bytes(lambda: runtime.engine.outputs(rows, step.x, step.weight, real), *taken)

    return _held(runtime, _measured_once(runtime, ("forward pass", batch), measured))


def _measured_once(runtime: Runtime, what: Hashable, measured: Callable[[], int]) -> int:
    """Bytes that are the same for all runs whose engines compute the same."""
    if runtime.likeness is None:
        return measured()
    return found_once((what, runtime.likeness, runtime.dtype, runtime.speed.key), measured)


class _StorageCounter(TorchDispatchMode):
    """Counts storages as operations make and release them; it does not see the workspace of libraries."""

    def __init__(self, existing: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive = existing
        self.now = self.most = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would import its compiler to keep it away from this class, which takes two seconds."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = function(*args, **(kwargs or {}))
        for x in tree_leaves(returned):
            if isinstance(x, Tensor):
                self._count(x)
        return returned

    def _count(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        if address in self._alive:
            return
        self._alive.add(address)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._release, address, size).atexit = False

    def _release(self, address: int, size: int) -> None:
        self._alive.discard(address)
        self.now -= size


def peak_bytes(compute: Callable[[], object], *inputs: Tensor) -> int:
    """The most that `compute` holds at once in addition to its `inputs`, measured by running it."""
    counter = _StorageCounter({x.untyped_storage()._cdata for x in inputs})
    with counter:
        compute()
    return counter.most


def _held(runtime: Runtime, step: int) -> int:
    row = sum(spec.size for spec in runtime.layout.specs.values()) * runtime.dtype.itemsize
    if runtime.captured is not None:
        return CAPTURED_ROW_COPIES * row + step
    return ROW_COPIES * row + max(step, ROW_COPIES * row)  # rows of lanes are joined, and sorted, after the last step


def _blank_rows(runtime: Runtime) -> Rows:
    blank = torch.zeros((), dtype=runtime.dtype, device=runtime.device)
    return {name: blank.new_zeros(1, *spec.shape) for name, spec in runtime.layout.specs.items()}


def _stack(runtime: Runtime, batch: int) -> Stack:
    """A batch of one client: the first sample, repeated."""
    x, y = runtime.federation.inputs(runtime.federation.x[:1], runtime.dtype), runtime.federation.y[:1]
    x, y = (t.repeat(batch, *(1,) * (t.ndim - 1)).unsqueeze(0) for t in (x, y))
    weight = torch.ones(1, batch, dtype=runtime.dtype, device=runtime.device)
    return Stack(x, y, weight, torch.zeros(1, dtype=torch.int64, device=runtime.device), (batch,))


def choose_store(
    store: Store, needed: int, device: torch.device, limit: int | None, *, participation: float, saved: bool
) -> Store:
    """Where client states of `needed` bytes in all are kept; `saved` says whether checkpoints are written."""
    if store not in STORES:
        raise unknown("store", str(store), STORES)
    on_device = min(device_memory(device), limit or device_memory(device)) // SHARE
    in_ram = min(ram(), limit or ram()) // SHARE
    if store == "auto":
        if saved and participation <= LOW_PARTICIPATION and needed > MAX_REWRITTEN_BYTES:
            return "disk"
        fits = needed <= on_device
        return ("ram" if device.type == "cpu" else "device") if fits else "ram" if needed <= in_ram else "disk"
    if store == "device" and device.type == "cpu":
        store = "ram"
    if limit is not None and store != "disk" and needed > limit:
        raise MemoryLimitError(
            f"the states of all clients take {in_units(needed)}, but the memory limit leaves {in_units(limit)}: "
            "keep them on disk (run.store=disk), or raise the limit"
        )
    return store


def limit_left(limit: int | None, device: torch.device) -> int | None:
    """What libraries and data leave of a limit."""
    if limit is None:
        return None
    release_freed_memory()
    taken = memory_taken(device)
    if taken >= limit:
        raise MemoryLimitError(
            f"data, model and libraries take {in_units(taken)} before the first round, but the memory limit is "
            f"{in_units(limit)}: raise it"
        )
    return limit - taken


def memory_taken(device: torch.device) -> int:
    """What libraries and data take already, in RAM or on the GPU."""
    return resident() if device.type != "cuda" else torch.cuda.memory_allocated(device)


def device_of(name: str) -> str:
    """The name, if the device is there; `auto` is a GPU where there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    available = "cpu, cuda" if torch.cuda.is_available() else "cpu"
    missing = RecordError(f"there is no device '{name}' on this machine; choose one of: auto, {available}")
    try:
        if torch.empty(0, device=name).device.type not in ("cpu", "cuda", "mps", "xpu"):
            raise missing
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # what torch raises for a missing device
        raise missing from error
    return name


def device_or_cpu(name: str) -> str:
    try:
        return device_of(name)
    except RecordError:
        return "cpu"


@cache  # else groups of clients, and the shapes of captured steps, would change with what other processes take
def device_memory(device: torch.device) -> int:
    """The memory of a device; of a GPU, what other processes had left when this was first asked."""
    if device.type != "cuda":
        return ram()
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device)


def release_freed_memory() -> None:
    """Return freed memory to the system: the C library keeps it, and a limit counts what the process holds."""
    with suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)
