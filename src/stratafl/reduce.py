"""Weighted sums of rows, folded client by client in float64.

A fold in a fixed order gives the same bits for one chunk of twenty clients, seven chunks, or twenty messages; a sum
over the client axis would not, and would need a float64 copy of the whole cohort. (On a GPU it is that sum.)
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from stratafl.layout import Rows


def add_rows(total: Mapping[str, Tensor], weights: Tensor, rows: Mapping[str, Tensor], sent: Rows | None) -> Rows:
    """The total with Σ_k w_k·x_k more, over what was sent; a new dictionary of new tensors."""
    return {**total, **{n: _add(total.get(n), weights, _cleared(rows[n], sent, n)) for n in rows}}


def add_rows_by_group(
    total: Mapping[str, Tensor], places: Tensor, groups: int, weights: Tensor, rows: Mapping[str, Tensor]
) -> Rows:
    """The total `[M, …]` with Σ_{k∈G_m} w_k·x_k more for each of M groups; `places` `[C]` are the clients' groups."""
    return {**total, **{n: _add_by_group(total.get(n), places, groups, weights, rows[n]) for n in rows}}


def add_weights(total: Mapping[str, Tensor], weights: Tensor, rows: Mapping[str, Tensor], sent: Rows | None) -> Rows:
    """The total with Σ_k w_k more, for each block over the clients (or columns) that sent it."""
    if sent is not None:
        return {**total, **{n: _add(total.get(n), weights, sent[n].to(rows[n].dtype)) for n in rows}}
    sums: dict[int, Tensor] = {}  # everybody sent every block, so that blocks with one total have one sum
    for name, block in rows.items():
        if id(total.get(name)) not in sums:
            sums[id(total.get(name))] = _add(total.get(name), weights, block.new_ones(len(block)))
    return {**total, **{n: sums[id(total.get(n))] for n in rows}}


def mean_or_hold(sums: Rows, weights: Rows, held: Mapping[str, Tensor]) -> Rows:
    """Σ w·x / Σ w where anybody sent something, else what the server holds; blocks nobody sent are held too."""
    means = {
        name: torch.where(weights[name] > 0, total / weights[name].clamp(min=1e-300), held[name]).to(held[name].dtype)
        for name, total in sums.items()
    }
    return {**held, **means}


def _cleared(block: Tensor, sent: Rows | None, name: str) -> Tensor:
    # Not a product: what was not sent is NaN on the server's side.
    return block if sent is None else torch.where(sent[name], block, 0)


def _add(total: Tensor | None, weights: Tensor, rows: Tensor) -> Tensor:
    if total is None:
        total = rows.new_zeros(rows.shape[1:], dtype=torch.float64)
    else:
        total = total.clone()
    weights = weights.to(rows.device, torch.float64)
    if rows.device.type != "cpu":  # a launch for every client and block would take longer than the sums
        return total.add_(torch.tensordot(weights, rows.to(torch.float64), 1))
    for weight, row in zip(weights, rows, strict=True):
        total.addcmul_(row, weight)
    return total


def _add_by_group(total: Tensor | None, places: Tensor, groups: int, weights: Tensor, rows: Tensor) -> Tensor:
    if total is None:
        total = rows.new_zeros(groups, *rows.shape[1:], dtype=torch.float64)
    else:
        total = total.clone()
    weights = weights.to(torch.float64)
    if rows.device.type != "cpu":
        member = (places == torch.arange(groups, device=places.device)[:, None]) * weights
        return total.add_(torch.tensordot(member, rows.to(torch.float64), 1))
    for place, weight, row in zip(places.split(1), weights, rows, strict=True):
        total.index_add_(0, place, (row.double() * weight).unsqueeze(0))
    return total
