"""The message executor: one client at a time (C = 1), every parcel encoded to bytes and decoded, as in a deployment."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from stratafl.core.form import form_of
from stratafl.core.layout import Layout
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.core.state import tensors
from stratafl.execute.context import SimulationContext
from stratafl.execute.process_group import InOneProcess
from stratafl.execute.round import Watch, unwatched


@record
class Messages(InOneProcess):
    """One client at a time; parcels travel as bytes."""

    def groups(self, sim: SimulationContext, ids: Tensor) -> Iterator[Tensor]:
        yield from ids.split(1)

    def carry(self, parcel: Parcel, layout: Layout) -> Parcel:
        """Encoded, decoded, and back on the device it came from."""
        from stratafl.core import wire  # needs safetensors, which is not needed elsewhere

        arrived = wire.decode(wire.encode(parcel, layout), layout, form_of(parcel, layout))
        device = next((x.device for f in parcel.values() for x in tensors({"": f.value})), torch.device("cpu"))
        return arrived.to(device)

    def stage(self, name: str, ids: Tensor, layout: Layout) -> AbstractContextManager[Watch]:
        return nullcontext(unwatched)
