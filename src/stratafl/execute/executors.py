"""The executors: how a round is executed, by which processes, in which groups, and how parcels travel."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor

from stratafl.core.form import Form, form_of
from stratafl.core.layout import Layout
from stratafl.core.machine import in_units
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.core.state import State, flatten, tensors
from stratafl.errors import MemoryLimitError, RecordError, StageError
from stratafl.execute.context import SimulationContext
from stratafl.execute.memory import Needs, device_memory
from stratafl.execute.process_group import SINGLE_PROCESS, ProcessGroup
from stratafl.execute.round_run import Executor, Watch, unwatched


class InOneProcess:
    """One client at a time in one process; parcels are not encoded, and nothing is checked."""

    process_group: ClassVar[ProcessGroup] = SINGLE_PROCESS

    def groups(self, sim: SimulationContext, ids: Tensor) -> Iterator[Tensor]:
        yield from ids.split(1)

    def carry(self, parcel: Parcel, layout: Layout, form: Form | None = None) -> Parcel:
        return parcel

    def stage(self, name: str, ids: Tensor, layout: Layout) -> AbstractContextManager[Watch]:
        return nullcontext(unwatched)


@record
class Matrix(InOneProcess):
    """Groups of `chunk` clients; without it, as many as the simulation's memory limit allows."""

    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise RecordError(f"chunk is {self.chunk}: choose at least 1 client")

    def groups(self, sim: SimulationContext, ids: Tensor) -> Iterator[Tensor]:
        yield from ids.split(self.chunk or chunk_size(sim, len(ids)))


@record
class Messages(InOneProcess):
    """One client at a time (C = 1); every parcel is encoded to bytes and decoded, as in a deployment."""

    def carry(self, parcel: Parcel, layout: Layout, form: Form | None = None) -> Parcel:
        """Encoded, decoded, and back on the device it came from."""
        from stratafl.core import wire  # needs safetensors, which is not needed elsewhere

        arrived = wire.decode(wire.encode(parcel, layout), layout, form or form_of(parcel, layout))
        device = next((x.device for f in parcel.values() for x in tensors({"": f.value})), torch.device("cpu"))
        return arrived.to(device)


@record
class Debug(InOneProcess):
    """One client at a time, every stage checked, NaN where nothing was sent.

    Other executors leave an upload that is not finite out of the round and go on; here it is an error that names the
    stage, the client and the layer.
    """

    def carry(self, parcel: Parcel, layout: Layout, form: Form | None = None) -> Parcel:
        return parcel.poisoned(layout)

    @contextmanager
    def stage(self, name: str, ids: Tensor, layout: Layout) -> Iterator[Watch]:
        where = f"stage '{name}', client {', '.join(map(str, ids.tolist()))}"

        def watch(state: State | Parcel) -> None:
            values = {k: f.value for k, f in state.items()} if isinstance(state, Parcel) else state
            for path, tensor in flatten(values).items():
                wrong = int((~torch.isfinite(tensor)).sum())
                if wrong:
                    bad = f"{wrong} of {tensor.numel()} values are not finite: they were not sent, or training diverged"
                    raise StageError(f"{where}, {_layer(path, layout)}: {bad}")

        try:
            yield watch
        except StageError:
            raise
        except Exception as error:
            raise StageError(f"{where}: {type(error).__name__}: {error}") from error


def _layer(path: str, layout: Layout) -> str:
    field, _, tensor = path.partition("/")
    if tensor not in layout.specs:
        return f"field '{field}'"
    return f"layer '{layout.layers[layout.specs[tensor].layer].name}' of field '{field}'"


@record
class Distributed:
    """The cohort over the processes of a group; `inner` executes each share."""

    process_group: ProcessGroup
    inner: Executor = Matrix()

    def groups(self, sim: SimulationContext, ids: Tensor) -> Iterator[Tensor]:
        share = self.process_group.share(sim, ids)
        if len(share):
            yield from self.inner.groups(sim, share)

    def carry(self, parcel: Parcel, layout: Layout, form: Form | None = None) -> Parcel:
        return self.inner.carry(parcel, layout, form)

    def stage(self, name: str, ids: Tensor, layout: Layout) -> AbstractContextManager[Watch]:
        return self.inner.stage(name, ids, layout)


# Groups within the memory limit


def chunk_size(sim: SimulationContext, cohort: int) -> int:
    """How many clients may work at once under the memory limit; without one, in half of the device's memory."""
    needs, limit = sim.needs(cohort), _allowed(sim)
    if needs.least > limit:
        raise MemoryLimitError(_too_large(sim, needs, limit))
    per_client = max(1, needs.working(2) - needs.working(1))  # each further client
    return max(1, min(cohort, 1 + (limit - needs.working(1)) // per_client))


def evaluation_size(sim: SimulationContext, clients: int) -> int:
    """How many clients are evaluated at once, at least one."""
    needs = sim.needs(min(clients, sim.largest_cohort))
    return max(1, min(clients, (_allowed(sim) - needs.evaluating(0)) // needs.evaluated))


def _allowed(sim: SimulationContext) -> int:
    return device_memory(sim.runtime.device) // 2 if sim.round_limit is None else sim.round_limit


def _too_large(sim: SimulationContext, needs: Needs, limit: int) -> str:
    least = in_units(needs.least)
    needed = f"a round needs about {least} ({needs.parts()})"
    smaller = "let fewer clients take part or use a smaller model"
    if sim.round_limit is None:
        memory = in_units(device_memory(sim.runtime.device))
        return f"{needed}, more than half of the {memory} here: {smaller}, or set a memory limit well above {least}"
    taken = 0 if sim.memory_limit is None else sim.memory_limit - limit
    enough = in_units(needs.least + taken)
    return f"{needed}, but the memory limit leaves {in_units(limit)}: raise it to {enough}, {smaller}"
