"""Krum and Multi-Krum (Blanchard et al., 2017): the server takes the uploads that lie nearest to others.

Which they are follows from whole models, not column by column, so that a model which is usual in every column and
unusual as a whole is found. The price is that most clients are not heard.
"""

import logging
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from stratafl.core.annotations import Range
from stratafl.core.footprint import Footprint
from stratafl.core.layout import Layout
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import Computed, State
from stratafl.errors import RecordError
from stratafl.policies.clip import trainable
from stratafl.policies.robust_merge import RobustMerge, Uploads

log = logging.getLogger("stratafl")
Wrong = Annotated[int, Range(least=0)]
Keep = Annotated[int, Range(least=1)]


@record
class Krum(RobustMerge):
    """The mean of the `keep` uploads with the smallest scores, of which 1 is Krum and more are Multi-Krum.

    An upload's score is Σ ‖θ_i − θ_j‖² over the n − f − 2 uploads nearest to it; f of n ≥ 2f + 3 clients may be wrong.
    Distances are over the trainable columns that all n sent. What the chosen ones sent is averaged as `Mean` does, with
    their statistics; never more than n − f of them. If fewer than 2f + 3 uploads arrive, or no column was sent by all,
    the server keeps its state and says so.
    """

    f: Wrong = 1
    keep: Keep = 1

    def check(self, setup: Setup) -> None:
        least, most = 2 * self.f + 3, setup.cohort - self.f
        if setup.cohort < least:
            raise RecordError(
                f"krum with f={self.f} needs {least} clients a round (2f + 3), but there are {setup.cohort}: choose "
                f"f of at most {max(0, (setup.cohort - 3) // 2)}, or let more clients take part"
            )
        if self.f and self.keep > most:
            raise RecordError(f"krum keeps at most n - f = {most} of {setup.cohort} clients, not keep={self.keep}")

    def footprint(self, setup: Setup) -> Footprint:
        """The memory of every robust merge, and the chosen rows of one tensor."""
        usual = super().footprint(setup)
        return replace(usual, absorbed=usual.absorbed + setup.block_bytes())

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        uploads = Uploads(up[self.field], server[self.field], torch.ones_like(ids), rnd.layout)
        weights = {} if self.weights == "uniform" else {self.weights: up[self.weights]}
        if len(ids) < 2 * self.f + 3:
            return _held(rnd, f"{len(ids)} uploads, but krum with f={self.f} needs {2 * self.f + 3} (2f + 3)")
        squares = _squared_distances(uploads, rnd.layout)
        if squares is None:
            return _held(rnd, "no trainable columns that all clients sent, so krum cannot compare them")
        chosen = nearest(squares, ids.to(squares.device), self.f, self.keep)
        rows = Computed(uploads.names, lambda name: uploads.rows[name][chosen])
        mask = up[self.field].mask
        sent = replace(up[self.field], mask=mask and mask.apply(lambda x: x[chosen]))  # its blocks come from `rows`
        chosen_uploads = Parcel({self.field: sent, **Parcel(weights).pick(chosen)})
        return self._mean(rnd, server, chosen_uploads, ids[chosen.to(ids.device)], rows)


def nearest(squares: Tensor, ids: Tensor, f: int, keep: int) -> Tensor:
    """The places of the `keep` clients with the smallest scores, from squared distances `[C, C]`, in their order.

    Two clients that are nearest to each other have one score, so that among equals the smaller id comes first.
    """
    by_id = ids.argsort()
    order = by_id[scores(squares, f)[by_id].argsort(stable=True)]
    return order[: min(keep, len(ids) - f)].sort().values


def scores(squares: Tensor, f: int) -> Tensor:
    """`[C]`: the sum of each client's n − f − 2 smallest squared distances from others."""
    others = squares.clone().fill_diagonal_(torch.inf)  # sorted last, and n − f − 2 are fewer than the others
    return others.sort(1).values[:, : len(squares) - f - 2].sum(1)


def _squared_distances(uploads: Uploads, layout: Layout) -> Tensor | None:
    """`[C, C]` over the trainable columns that all clients sent; None if there are none."""
    total, columns = None, 0
    for name, counts in trainable(uploads.rows, layout).items():
        for _, x, weights, _ in uploads.pieces(name) if counts else ():
            common = (weights > 0).all(0)
            columns += int(common.sum())
            # Differences, not products: where clients agree, ‖a‖² + ‖b‖² − 2ab would be rounding.
            part = torch.pdist(torch.where(common, x, 0).contiguous()).square()
            total = part if total is None else total + part
    if total is None or not columns:
        return None
    clients = len(next(iter(uploads.rows.values())))
    above = torch.zeros(clients, clients, dtype=total.dtype, device=total.device)
    above[tuple(torch.triu_indices(clients, clients, 1, device=total.device))] = total
    return above + above.T


def _held(rnd: Round, reason: str) -> State:
    log.warning("round %d: there are %s; the server keeps its last state", rnd.t + 1, reason)
    return {}
