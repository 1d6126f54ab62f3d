"""Merge: the server's next state from the uploads."""

from typing import Literal

import torch
from torch import Tensor

from stratafl.core.footprint import Footprint
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.core.reduce import add_rows, add_weights, mean_or_hold
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, rows_of
from stratafl.core.steps import MergeSums, Names


@record
class Mean(MergeSums):
    """Σ w_k·θ_k / Σ w_k, column by column over those who sent it; what nobody sent is held.

    With `unsent="zero"` a column that a client did not send counts as 0 in the mean over all.
    """

    field: str = "theta"
    weights: Literal["samples", "uniform"] = "samples"
    unsent: Literal["held", "zero"] = "held"

    @property
    def reads(self) -> Names:
        counts = ("up.samples",) if self.weights == "samples" else ()
        return (f"up.{self.field}", *counts, self.field)

    @property
    def writes(self) -> Names:
        return (self.field,)

    def footprint(self, setup: Setup) -> Footprint:
        """The numerator; the denominator is as large only where columns are masked, which their sender says."""
        return Footprint(sums=setup.row_bytes(dtype=torch.float64))

    def fold(self, rnd: Round, server: State, sums: State, up: Parcel, ids: Tensor) -> State:
        """Numerator and denominator, client by client."""
        field = up[self.field]
        weights = up["samples"].tensor if self.weights == "samples" else torch.ones_like(ids)
        sent = field.sent(rnd.layout)
        top, bottom = (rows_of(sums, name) if sums else {} for name in ("top", "bottom"))
        return {
            "top": add_rows(top, weights, field.rows, sent),
            "bottom": add_weights(bottom, weights, field.rows, sent if self.unsent == "held" else None),
        }

    def finish(self, rnd: Round, server: State, sums: State) -> State:
        return {self.field: mean_or_hold(rows_of(sums, "top"), rows_of(sums, "bottom"), rows_of(server, self.field))}
