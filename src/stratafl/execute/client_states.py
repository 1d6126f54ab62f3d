"""Client states between rounds: a mapping that never changes; an update returns its next version."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from stratafl.core.layout import Rows
from stratafl.core.state import State, Value, flatten, moved, unflatten

_MERGED = 8  # layers become one when the upper one has an eighth of the lower one's clients


class ClientStates(Mapping[int, State]):
    """The state of each client that has one."""

    @abstractmethod
    def updated(self, ids: Sequence[int], state: State) -> Self:
        """The next version, with the rows of `state` for these clients; this version stays what it is."""

    @abstractmethod
    def tensors(self) -> Rows:
        """What a checkpoint has to hold, as flat names and tensors."""

    def has(self, ids: Tensor) -> Tensor:
        """Whether each of these clients has a state."""
        return torch.tensor([client in self for client in ids.tolist()], dtype=torch.bool)

    def settle(self) -> None:
        """Make sure that everything a checkpoint refers to is on the disk."""
        return

    def check(self) -> None:
        """Raise if any of it is damaged."""
        return

    def lease(self) -> object:
        """An object to hold for as long as a checkpoint of this version is kept."""
        return None


class InMemory(ClientStates):
    """Kept on a device or in RAM: two layers of a dict, so that a round does not copy an entry per client."""

    def __init__(self, device: torch.device, below: dict[int, State], above: dict[int, State] | None = None) -> None:
        self._device, self._below, self._above = device, below, above or {}
        self._count = len(below) + sum(client not in below for client in self._above)

    @classmethod
    def of(cls, device: torch.device, tensors: Mapping[str, Tensor]) -> "InMemory":
        flat: dict[int, dict[str, Tensor]] = {}
        for path, tensor in tensors.items():
            if path.startswith("client/"):
                _, client, name = path.split("/", 2)
                flat.setdefault(int(client), {})[name] = tensor.to(device)
        return cls(device, {client: unflatten(flat[client]) for client in sorted(flat)})

    def updated(self, ids: Sequence[int], state: State) -> "InMemory":
        state = moved(state, self._device)
        above = self._above | dict(zip(ids, _rows(state, len(ids)), strict=True))
        if len(above) * _MERGED > len(self._below):
            return InMemory(self._device, self._below | above)
        return InMemory(self._device, self._below, above)

    def tensors(self) -> Rows:
        flat: Rows = {}
        for client, state in self.items():
            flat |= flatten(state, f"client/{client}/")
        return flat

    def __getitem__(self, client: int) -> State:
        return self._above[client] if client in self._above else self._below[client]

    def __contains__(self, client: object) -> bool:
        return client in self._above or client in self._below

    def __iter__(self) -> Iterator[int]:
        yield from self._below
        yield from (client for client in self._above if client not in self._below)

    def __len__(self) -> int:
        return self._count


def _rows(state: State, clients: int) -> list[State]:
    """The state of each client, copied: a view would keep the rows of the whole group alive."""
    rows: list[State] = [{} for _ in range(clients)]
    for name, value in state.items():
        copies: Sequence[Value] = _copies(value) if isinstance(value, Tensor) else _copied_blocks(value, clients)
        for row, part in zip(rows, copies, strict=True):
            row[name] = part
    return rows


def _copied_blocks(blocks: Rows, clients: int) -> list[Rows]:
    copied = {name: _copies(block) for name, block in blocks.items()}
    return [{name: copies[c] for name, copies in copied.items()} for c in range(clients)]


def _copies(x: Tensor) -> list[Tensor]:
    """A copy of each row, by one launch on a GPU."""
    rows = list(x.unbind())
    copies = [torch.empty_like(row) for row in rows]
    if rows:
        torch._foreach_copy_(copies, rows)
    return copies
