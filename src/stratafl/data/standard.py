"""Numbers of one size: columns of a table, or targets, with mean 0 and deviation 1 over what all clients train on."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from stratafl.data.federation import Federation
from stratafl.data.preprocessing import Standardisation


def standardised(federation: Federation, what: Sequence[str]) -> Federation:
    """The federation with its `x` or its `y` or both standardised, each column by itself, and how it was done."""
    training = federation.splits["train"].indices
    if "x" in what:
        columns, x = _standardised(federation.x, training)
        federation = replace(federation, columns=columns, x=x, raw=federation.x.dtype)
    if "y" in what:
        targets, y = _standardised(federation.y, training)
        federation = replace(federation, targets=targets, y=y)
    return federation


def _standardised(values: Tensor, rows: Tensor) -> tuple[Standardisation, Tensor]:
    """Every column less its mean, over its deviation in these rows; one that is the same in all of them is 0."""
    seen = values[rows].double()
    differs = seen.amax(0) > seen.amin(0)  # the deviation of equal numbers may be a rounding error, and not 0
    deviation = torch.where(differs, seen.std(0, correction=0), 0.0)
    found = Standardisation(*(tuple(each.reshape(-1).tolist()) for each in (seen.mean(0), deviation)))
    return found, found.applied(values, values.dtype if values.is_floating_point() else torch.get_default_dtype())
