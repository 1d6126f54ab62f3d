"""Embedding tables: a step reads and moves only the rows that its tokens name, a few of a hundred thousand.

Where numbers without a gradient stay where they are, a step is computed with a short table: the rows of its tokens,
which are taken out before it and put back after it. The sums are the same in the same order, and so are the bits.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from stratafl.core.layout import Rows
from stratafl.core.reprs import short_repr
from stratafl.core.state import State, rows_of
from stratafl.core.task import ScanStep, Stack

WORTH = 4  # times as long as the short table the whole one must be


@dataclass(frozen=True)
class Table:
    """The tensor whose rows a model looks up for its tokens, and does nothing else with either."""

    name: str
    padding: int | None  # a token whose row gets no gradient

    def rows_in_use(self, tokens: Tensor, whole: Tensor) -> "RowsInUse | None":
        """The rows of one batch for each client; None if they are not few."""
        first = 0 if self.padding is None else self.padding + 1
        clients, length = len(tokens), first + tokens[0].numel()
        if length * WORTH > whole.shape[1] or tokens.device.type != "cpu":
            return None
        # The rows up to that of the padding are always there: sorted, they are where the model looks for them.
        fixed = torch.arange(first, dtype=tokens.dtype).expand(clients, -1)
        found, order = torch.cat([fixed, tokens.flatten(1)], 1).sort(1)
        begins = torch.ones_like(found, dtype=torch.bool)
        begins[:, 1:] = found[:, 1:] != found[:, :-1]
        places = begins.cumsum(1) - 1
        short = torch.empty_like(places).scatter_(1, order, places)[:, first:].reshape(tokens.shape)
        return RowsInUse(short.to(tokens.dtype), found.long(), places)


@short_repr
@dataclass(frozen=True, eq=False)
class RowsInUse:
    """The rows of a table that some clients' batches name, and the batches with places in the short table."""

    tokens: Tensor  # [C, B, …]
    found: Tensor  # [C, n]: which row, sorted; some come more than once
    places: Tensor  # [C, n]: where each is in the short table

    def taken(self, whole: Tensor) -> Tensor:
        """The short table, as long for every batch of this size, so that steps can be traced; its end may be unused."""
        clients, length = self.found.shape
        rows = torch.zeros_like(self.found).scatter_(1, self.places, self.found)
        return whole[torch.arange(clients)[:, None], rows].reshape(clients, length, *whole.shape[2:])

    def put_back(self, whole: Tensor, short: Tensor) -> None:
        """Write the rows into the table. Those that come more than once are written with the same numbers."""
        client = torch.arange(len(whole))[:, None]
        whole[client, self.found] = short[client, self.places]


def table_of(module: nn.Module) -> Table | None:
    """The table of a model that says that it `looks_up` its samples in an embedding, and nothing else."""
    name = getattr(module, "looks_up", None)
    if not isinstance(name, str):
        return None
    table = module.get_submodule(name)
    plain = type(table) is nn.Embedding and table.max_norm is None and not table.scale_grad_by_freq
    return Table(f"{name}.weight", table.padding_idx) if plain else None  # type: ignore[arg-type]


def with_short_table(step: ScanStep, table: Table) -> Callable[[State, State, Stack], State]:
    """The step of a descent that leaves numbers without a gradient alone, on the rows in use."""

    def short(carry: State, held: State, stack: Stack) -> State:
        rows: Rows = rows_of(carry, "row")
        whole = rows[table.name]
        used = table.rows_in_use(stack.x, whole)
        if used is None:
            return step(carry, held, stack)
        given = {**carry, "row": {**rows, table.name: used.taken(whole)}}
        after = step(given, held, replace(stack, x=used.tokens))
        moved = rows_of(after, "row")
        used.put_back(whole, moved[table.name])
        return {**after, "row": {**moved, table.name: whole}}

    return short
