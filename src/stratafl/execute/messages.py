"""The message executor: one client at a time (C = 1), every parcel encoded to bytes and decoded, as in a deployment."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stratafl.core.form import form_of
from stratafl.core.layout import Layout
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.core.state import tensors
from stratafl.execute.process_group import InOneProcess
from stratafl.execute.round import Watch, unwatched

if TYPE_CHECKING:
    from stratafl.execute.simulation import Simulation


@record
class Messages(InOneProcess):
    """Every client on its own, over bytes."""

    def groups(self, sim: "Simulation", ids: Tensor) -> Iterator[Tensor]:
        """One client at a time."""
        yield from ids.split(1)

    def carry(self, parcel: Parcel, layout: Layout) -> Parcel:
        """Through bytes, and back to the device it came from."""
        from stratafl.core import wire  # needs safetensors, which whoever sends no bytes may do without

        arrived = wire.decode(wire.encode(parcel, layout), layout, form_of(parcel, layout))
        device = next((x.device for f in parcel.values() for x in tensors({"": f.value})), torch.device("cpu"))
        return arrived.to(device)

    def stage(self, name: str, ids: Tensor, layout: Layout) -> AbstractContextManager[Watch]:
        """Unwatched."""
        return nullcontext(unwatched)
