"""Embedding tables: a step reads and changes only the embeddings of its tokens, a few of a hundred thousand.

Where entries without a gradient stay as they are, a step is computed with a short table: the embeddings of its tokens,
which are taken out before it and put back after it. The sums are the same in the same order, and so are the bits.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from stratafl.core.reprs import holder
from stratafl.core.state import State, rows_of
from stratafl.core.task import ScanStep, Stack

WORTH = 16  # times as long as the short table the whole one must be: tokens are sorted at every step


@dataclass(frozen=True)
class Table:
    """The tensor in which a model looks up its tokens; it does nothing else with either."""

    name: str
    padding: int | None  # a token whose embedding gets no gradient

    def in_use(self, tokens: Tensor, whole: Tensor) -> "EmbeddingsInUse | None":
        """The embeddings of one batch for each client; None if they are not few."""
        first = 0 if self.padding is None else self.padding + 1
        clients, length = len(tokens), first + tokens[0].numel()
        if length * WORTH > whole.shape[1] or tokens.device.type != "cpu":
            return None
        # Those up to the padding's are always there: sorted, they are where the model looks for them.
        fixed = torch.arange(first, dtype=tokens.dtype).expand(clients, -1)
        sorted_tokens, order = torch.cat([fixed, tokens.flatten(1)], 1).sort(1)
        begins = torch.ones_like(sorted_tokens, dtype=torch.bool)
        begins[:, 1:] = sorted_tokens[:, 1:] != sorted_tokens[:, :-1]
        places = begins.cumsum(1) - 1
        short = torch.empty_like(places).scatter_(1, order, places)[:, first:].reshape(tokens.shape)
        return EmbeddingsInUse(short.to(tokens.dtype), sorted_tokens.long(), places)


@holder
class EmbeddingsInUse:
    """The embeddings of some clients' batches, and the batches with places in the short table."""

    tokens: Tensor  # [C, B, …]
    sorted_tokens: Tensor  # [C, n]: tokens, sorted; some come more than once
    places: Tensor  # [C, n]: where each is in the short table

    def taken(self, whole: Tensor) -> Tensor:
        """The short table, as long for every batch of this size, so that steps can be traced; its end may be unused."""
        clients, length = self.sorted_tokens.shape
        tokens = torch.zeros_like(self.sorted_tokens).scatter_(1, self.places, self.sorted_tokens)
        return whole[torch.arange(clients)[:, None], tokens].reshape(clients, length, *whole.shape[2:])

    def put_back(self, whole: Tensor, short: Tensor) -> None:
        """Write the embeddings into the table. Those that come more than once are written with the same numbers."""
        client = torch.arange(len(whole))[:, None]
        whole[client, self.sorted_tokens] = short[client, self.places]


def table_of(module: nn.Module) -> Table | None:
    """The table of a model whose class says that it `looks_up` its samples in an embedding, and nothing else.

    A class that inherits from it, or a hook, may do more with them.
    """
    name = vars(type(module)).get("looks_up")
    if not isinstance(name, str):
        return None
    table = module.get_submodule(name)
    if not isinstance(table, nn.Embedding) or not table.weight.requires_grad:  # frozen: no column
        return None
    plain = type(table) is nn.Embedding and table.max_norm is None and not table.scale_grad_by_freq
    hooked = any(each._forward_hooks or each._forward_pre_hooks for each in (module, table))
    return Table(f"{name}.weight", table.padding_idx) if plain and not hooked else None


def with_short_table(step: ScanStep, table: Table) -> Callable[[State, State, Stack], State]:
    """The step of a descent with sparse updates, on the embeddings in use."""

    def short(carry: State, constants: State, stack: Stack) -> State:
        row = rows_of(carry, "row")
        whole = row[table.name]
        used = table.in_use(stack.x, whole)
        if used is None:
            return step(carry, constants, stack)
        shortened = {**carry, "row": {**row, table.name: used.taken(whole)}}
        after = step(shortened, constants, replace(stack, x=used.tokens))
        moved = rows_of(after, "row")
        used.put_back(whole, moved[table.name])
        return {**after, "row": {**moved, table.name: whole}}

    return short
