"""Clipping: updates are scaled down to a maximum norm before they are averaged.

An update is the difference of what a client sent from what the server holds, which is what it sent to the clients.
Norms are over the trainable columns that a client sent; BatchNorm statistics have a norm of their own, since they are
in another unit than weights. An update that is short enough stays as it is, to the bit.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from stratafl.core.layout import Layout, Rows, row_dot
from stratafl.core.state import Computed

MIN_NORM = 1e-300  # replaces a norm of 0 in a division


def clipped(
    rows: Rows, sent: Rows | None, server_rows: Mapping[str, Tensor], layout: Layout, norm: float
) -> Mapping[str, Tensor]:
    """The blocks `[C, …]` of some clients, with every update scaled to at most this norm; one block at a time."""
    kinds, factors = trainable(rows, layout), {}
    for kind in sorted(set(kinds.values())):
        names = [name for name in rows if kinds[name] is kind]
        squares = [_squares(rows[name], None if sent is None else sent[name], server_rows[name]) for name in names]
        factors[kind] = scale(torch.stack(squares).sum(0).sqrt(), norm)
    return scaled(rows, server_rows, {name: factors[kind] for name, kind in kinds.items()})


def trainable(names: Mapping[str, Tensor], layout: Layout) -> dict[str, bool]:
    """Which blocks are weights and which are statistics; a field that is a tensor counts as weights."""
    return {name: name not in layout.specs or layout.specs[name].trainable for name in names}


def scale(norms: Tensor, most: float | Tensor) -> Tensor:
    """`[C]`: what updates of these norms are multiplied by, 1 where they are short enough."""
    return (most / norms.clamp(min=MIN_NORM)).clamp(max=1)


def scaled(
    rows: Mapping[str, Tensor], server_rows: Mapping[str, Tensor], scales: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """θ + s_k·(θ_k − θ) in float64, and θ_k itself where s_k = 1; computed whenever a block is asked for."""

    def block(name: str) -> Tensor:
        x = rows[name].double()
        factor = scales[name].to(x.device).reshape(-1, *(1,) * (x.ndim - 1))
        return torch.where(factor < 1, (x - server_rows[name]).mul_(factor).add_(server_rows[name]), x)

    return Computed(rows, block)


def _squares(block: Tensor, sent: Tensor | None, server_block: Tensor) -> Tensor:
    update = block.to(torch.float64, copy=True).sub_(server_block)  # squares of float32 overflow at 1e19
    if sent is not None:
        update.masked_fill_(~sent, 0)
    return row_dot(update, update)
