"""The debug executor: one client at a time, unsent columns poisoned, errors that name stage, client and layer."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from stratafl.core.layout import Layout
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.core.state import State, flatten
from stratafl.errors import StageError
from stratafl.execute.context import SimulationContext
from stratafl.execute.process_group import InOneProcess
from stratafl.execute.round import Watch


@record
class Debug(InOneProcess):
    """One client at a time, every stage checked.

    Other executors leave an upload that is not finite out of the round and go on; here it is an error that names the
    stage and the layer.
    """

    def groups(self, sim: SimulationContext, ids: Tensor) -> Iterator[Tensor]:
        yield from ids.split(1)

    def carry(self, parcel: Parcel, layout: Layout) -> Parcel:
        """With NaN where nothing was sent."""
        return parcel.poisoned(layout)

    @contextmanager
    def stage(self, name: str, ids: Tensor, layout: Layout) -> Iterator[Watch]:
        """Any error, and any value that is not finite, is raised with stage, client and layer."""
        where = f"stage '{name}', client {', '.join(map(str, ids.tolist()))}"

        def watch(state: State | Parcel) -> None:
            values = {k: f.value for k, f in state.items()} if isinstance(state, Parcel) else state
            for path, tensor in flatten(values).items():
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise StageError(f"{where}, {_layer(path, layout)}: {_bad(tensor)}")

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


def _bad(tensor: Tensor) -> str:
    wrong = int((~torch.isfinite(tensor)).sum())
    return f"{wrong} of {tensor.numel()} values are not finite: read although not sent, or diverged"
