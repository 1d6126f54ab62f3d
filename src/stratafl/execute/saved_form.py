"""The form of a saved state: the names, types and shapes of its tensors, known before a file is read.

A state keeps the names, types and shapes that it starts with. So nothing of another shape gets from a file into a
round, and a state that could not be read again is refused before it is saved.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from stratafl.core.reprs import short_repr
from stratafl.core.state import flatten
from stratafl.errors import DamagedError, RunError
from stratafl.execute.context import SimulationContext
from stratafl.execute.disk import SLOTS, SUMS

Kind = tuple[torch.dtype, tuple[int, ...]]
_ROUND: Kind = (torch.int64, ())


@short_repr
@dataclass(frozen=True)
class SavedForm:
    """The tensors of the server and of one client, by name, and the number of clients."""

    server: Mapping[str, Kind]
    client: Mapping[str, Kind]
    clients: int

    @staticmethod
    def of(sim: SimulationContext) -> "SavedForm":
        server = flatten(sim.algorithm.init(sim.setup), "server/")
        client = {part.path: (part.dtype, part.shape) for part in sim.state_format.parts}
        return SavedForm({name: _kind(x) for name, x in server.items()}, client, sim.setup.clients)

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
        mine = {name: x for name, x in tensors.items() if not name.startswith("client/")}
        index = {SLOTS: (torch.int64, (self.clients,)), SUMS: (torch.int64, (self.clients,))}
        known = {"t": _ROUND, **self.server, **(index if SLOTS in mine or SUMS in mine else {})}
        return _difference(known, mine) or self._wrong_clients(tensors, SLOTS in mine)

    def _wrong_clients(self, tensors: Mapping[str, Tensor], indexed: bool) -> str | None:
        found: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("client/"):
                client, _, path = name.removeprefix("client/").partition("/")
                found.setdefault(client, {})[path] = tensor
        if found and indexed:
            return "it holds client states and an index of client states on disk"
        for client, mine in found.items():
            if not (client.isascii() and client.isdecimal() and str(int(client[:18])) == client):
                return f"there is no client {client[:40]!r}"
            if int(client) >= self.clients:
                return f"there is no client {client}: the {self.clients} clients are numbered from 0"
            wrong = _difference(self.client, mine)
            if wrong is not None:
                return f"client {client}: {wrong}"
        return None


def _difference(known: Mapping[str, Kind], found: Mapping[str, Tensor]) -> str | None:
    for name in known:
        if name not in found:
            return f"'{name}' is missing"
    for name, tensor in found.items():
        if name not in known:
            return f"'{name[:60]}' does not belong to it"
        if _kind(tensor) != known[name]:
            kinds = [f"{dtype} {list(shape)}" for dtype, shape in (_kind(tensor), known[name])]
            return f"'{name}' is {kinds[0]}, not {kinds[1]}"
    return None


def _kind(tensor: Tensor) -> Kind:
    return tensor.dtype, tuple(tensor.shape)
