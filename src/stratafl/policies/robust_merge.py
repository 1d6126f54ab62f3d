"""The base of robust merges: all uploads of a round side by side, processed a few columns at a time."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from stratafl.core.footprint import Footprint
from stratafl.core.layout import Layout, Rows
from stratafl.core.parcel import Field, Parcel
from stratafl.core.records import record
from stratafl.core.reduce import pieces
from stratafl.core.round import Round, Setup
from stratafl.core.state import Computed, State, Value
from stratafl.core.steps import MergeRows
from stratafl.policies.merge import Averaged, Mean, as_field, blocks, broadcast

PIECE = 2**16  # columns of all clients that are in float64 at a time
NUMBERS = 8  # float64 numbers per column while a piece is sorted and averaged: values, places, weights


@record
class RobustMerge(Averaged, MergeRows):
    """A field of the server from the same field of all uploads, piece by piece.

    Weights are those of `Mean`: n_k, equal, or a field with a number for each client, or for each entry of the leading
    axes of a tensor. What has weight 0 counts as not sent.
    """

    def footprint(self, setup: Setup) -> Footprint:
        """The uploads of one tensor and their weights, some columns in float64, and the server's new row."""
        largest = max(setup.start[name].numel() for name in setup.layout.specs)
        piece = NUMBERS * torch.float64.itemsize * min(largest, PIECE)
        return Footprint(
            absorbed=setup.block_bytes() + setup.block_bytes(torch.float64) + piece, merge=setup.row_bytes()
        )

    def _mean(self, rnd: Round, server: State, up: Parcel, ids: Tensor, rows: Mapping[str, Tensor]) -> State:
        """The mean of these blocks, which are computed one at a time, to the bit as `Mean` has it."""
        mean, server_value = Mean(self.field, self.weights), server[self.field]
        new: Rows = {}
        for name in rows:
            field = replace(up[self.field], value=as_field({name: rows[name]}, server_value))
            sums = mean.fold(rnd, server, {}, Parcel({**up, self.field: field}), ids)
            new[name] = mean.mean(server, sums)[name]
        return {self.field: as_field({**blocks(server_value), **new}, server_value)}


class Uploads:
    """What all clients sent of the blocks that the server keeps, some columns at a time."""

    def __init__(self, field: Field, server_value: Value, weights: Tensor, layout: Layout) -> None:
        self._value, self.held = blocks(field.value), blocks(server_value)  # blocks may be joined lazily
        self._sent: Rows | None = field.sent(layout)
        self.names = tuple(name for name in self._value if name in self.held)
        self.rows = Computed(self.names, self._value.__getitem__)
        device = next((x.device for x in self.held.values()), weights.device)
        self._weights = weights.to(device, torch.float64)

    def pieces(self, name: str) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Places, values and weights `[C, P]` in float64, 0 of what was not sent, and what the server holds `[P]`."""
        block, server_row, weights = self._value[name], self.held[name].reshape(-1), self._weights
        spread = broadcast(weights, block)
        masked = spread if self._sent is None else torch.where(self._sent[name], spread, 0)
        flat, flat_weights = (x.reshape(len(block), -1) for x in (block, masked))
        for some in pieces(flat.shape[1], PIECE):
            yield some, flat[:, some].double(), flat_weights[:, some], server_row[some].double()

    def squares(self, name: str) -> Tensor:
        """`[C]`: the squared norm of what each client sent, from what the server holds."""
        none = torch.zeros(len(self._weights), dtype=torch.float64, device=self._weights.device)
        parts = (torch.where(w > 0, x - old, 0).square().sum(1) for _, x, w, old in self.pieces(name))
        return sum(parts, none)

    def gram(self, names: Iterable[str]) -> Tensor:
        """`[C, C]`: the inner products of updates, what clients sent less what the server holds, over some tensors."""
        clients = len(self._weights)
        none = torch.zeros(clients, clients, dtype=torch.float64, device=self._weights.device)
        updates = (torch.where(w > 0, x - old, 0) for name in names for _, x, w, old in self.pieces(name))
        return sum((update @ update.T for update in updates), none)
