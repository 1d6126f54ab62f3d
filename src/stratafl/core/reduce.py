"""Weighted sums of rows, folded client by client in float64.

A fold in a fixed order gives the same bits for one chunk of twenty clients, seven chunks, or twenty messages; a sum
over the client axis would not, and would need a float64 copy of the whole cohort. (On a GPU it is that sum.)
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from stratafl.core.lanes import in_lanes
from stratafl.core.layout import Rows
from stratafl.core.state import State, rows_of, tensor_of

R = TypeVar("R")
PIECE = 2**18
FOLDED = 2**16  # columns; on x86 a fold of these takes 0.8 of the time of four times as many


def add_rows(total: Mapping[str, Tensor], weights: Tensor, rows: Mapping[str, Tensor], sent: Rows | None) -> Rows:
    """The total with Σ_k w_k·x_k more, over what was sent; a new dictionary of new tensors."""
    return {**total, **{n: _add(total.get(n), weights, rows[n], None if sent is None else sent[n]) for n in rows}}


def add_rows_by_group(
    total: Mapping[str, Tensor], places: Tensor, groups: int, weights: Tensor, rows: Mapping[str, Tensor]
) -> Rows:
    """The total `[M, …]` with Σ_{k∈G_m} w_k·x_k more for each of M groups; `places` `[C]` are the clients' groups."""
    return {**total, **{n: _add_by_group(total.get(n), places, groups, weights, rows[n]) for n in rows}}


def add_group_sums(sums: State, places: Tensor, groups: int, weights: Tensor, rows: Mapping[str, Tensor]) -> State:
    """Σ w_k·x_k and Σ w_k of each group, in `top` and `weight`, with these clients in them; `{}` is nothing yet."""
    weight = tensor_of(sums, "weight") if sums else weights.new_zeros(groups, dtype=torch.float64)
    return {
        "top": add_rows_by_group(rows_of(sums, "top") if sums else {}, places, groups, weights, rows),
        "weight": weight.index_add(0, places, weights.double()),  # whole numbers: their order changes no bit
    }


def add_weights(total: Mapping[str, Tensor], weights: Tensor, rows: Mapping[str, Tensor], sent: Rows | None) -> Rows:
    """The total with Σ_k w_k more, for each block over the clients (or columns) that sent it."""
    if sent is not None:
        return {**total, **{n: _add(total.get(n), weights, sent[n]) for n in rows}}
    sums: dict[int, Tensor] = {}  # every client sent every block, so blocks with one total have one sum
    for name in rows:
        if id(total.get(name)) not in sums:
            sums[id(total.get(name))] = _add(total.get(name), weights, torch.ones_like(weights, dtype=torch.bool))
    return {**total, **{n: sums[id(total.get(n))] for n in rows}}


def mean_or_hold(sums: Rows, weights: Rows, server_rows: Mapping[str, Tensor]) -> Rows:
    """Σ w·x / Σ w where a client sent something, else what the server holds."""
    return {**server_rows, **{name: _mean_or_held(x, weights[name], server_rows[name]) for name, x in sums.items()}}


def pieces(columns: int, size: int = PIECE) -> Iterator[slice]:
    """Columns some at a time, where several numbers in float64 are computed from each of them."""
    yield from (slice(at, at + size) for at in range(0, columns, size))


def in_pieces(run: Callable[[slice], R], columns: int, size: int, device: torch.device) -> list[R]:
    """`run` for some columns at a time, which stay in the cache; on a CPU in lanes, since these passes are short."""
    parts = list(pieces(columns, size))
    return in_lanes(run, parts, threads=1) if len(parts) > 1 and device.type == "cpu" else [*map(run, parts)]


def _mean_or_held(total: Tensor, weight: Tensor, server_block: Tensor) -> Tensor:
    def mean(x: Tensor, w: Tensor, h: Tensor) -> Tensor:
        return torch.where(w > 0, x / w.clamp(min=1e-300), h).to(h.dtype)

    if total.numel() <= PIECE or total.shape != server_block.shape or not server_block.is_contiguous():
        return mean(total, weight, server_block)
    new, dense = torch.empty_like(server_block), weight.shape == total.shape

    def fill(some: slice) -> None:
        w = weight.reshape(-1)[some] if dense else weight.reshape(())
        new.view(-1)[some] = mean(total.reshape(-1)[some], w, server_block.view(-1)[some])

    in_pieces(fill, total.numel(), PIECE, total.device)
    return new


def _add(total: Tensor | None, weights: Tensor, rows: Tensor, sent: Tensor | None = None) -> Tensor:
    """What was not sent counts as 0: not by a product, because on the server's side it is NaN."""
    total = rows.new_zeros(rows.shape[1:], dtype=torch.float64) if total is None else total.clone()
    weights = weights.to(rows.device, torch.float64)
    if rows.device.type != "cpu":  # a launch for every client and block would take longer than the sums
        cleared = rows if sent is None else torch.where(sent, rows, 0)
        return total.add_(torch.tensordot(weights, cleared.to(torch.float64), 1))
    if sent is None:
        return _fold(total, weights, rows)
    for weight, row, sent_columns in zip(weights.split(1), rows, sent, strict=True):
        _fold(total, weight, torch.where(sent_columns, row, 0)[None])
    return total


def _fold(total: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
    """Some columns at a time: every product needs a copy of its row in float64, and a small one stays in the cache."""
    rows = (rows.to(torch.uint8) if rows.dtype == torch.bool else rows).reshape(len(rows), total.numel())

    def fold(some: slice) -> None:
        part = total.view(-1)[some]
        for weight, row in zip(weights, rows[:, some], strict=True):
            part.addcmul_(row, weight)

    in_pieces(fold, rows.shape[1], FOLDED, rows.device)
    return total


def _add_by_group(total: Tensor | None, places: Tensor, groups: int, weights: Tensor, rows: Tensor) -> Tensor:
    total = rows.new_zeros(groups, *rows.shape[1:], dtype=torch.float64) if total is None else total.clone()
    weights = weights.to(torch.float64)
    if rows.device.type != "cpu":
        member = (places == torch.arange(groups, device=places.device)[:, None]) * weights
        return total.add_(torch.tensordot(member, rows.to(torch.float64), 1))
    for place, weight, row in zip(places.split(1), weights, rows, strict=True):
        total.index_add_(0, place, row.to(torch.float64, copy=True).mul_(weight).unsqueeze(0))
    return total


def cosines(gram: Tensor) -> Tensor:
    """`[L, C, C]` cosines from inner products; 0 with an update of norm 0."""
    norms = gram.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    return cosines_between(gram, norms, norms)


def cosines_between(products: Tensor, norms: Tensor, others: Tensor) -> Tensor:
    """`[L, C, N]` cosines from the inner products of C rows with N others, and the norms `[L, C]` and `[L, N]`."""
    scale = norms[:, :, None] * others[:, None, :]
    return torch.where(scale > 0, products / scale.clamp(min=torch.finfo(products.dtype).tiny), 0)


def conflicting_pairs(gram: Tensor, xi: float) -> Tensor:
    """GC_ξ(l) = #{u < v : cos(h_{l,u}, h_{l,v}) < ξ} (FedLAG, Eq. 3), from Gram matrices `[L, C, C]`."""
    return (cosines(gram) < xi).triu(1).sum((1, 2))
