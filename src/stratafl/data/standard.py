"""Numbers of one size: columns of a table, or targets, with mean 0 and deviation 1 over what all clients train on."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from stratafl.data.federation import Federation


def standardised(federation: Federation, what: Sequence[str]) -> Federation:
    """The federation with its `x` or its `y` or both standardised, each column by itself."""
    training = federation.splits["train"].indices
    x, y = (
        _standardised(values, training) if name in what else values
        for name, values in (("x", federation.x), ("y", federation.y))
    )
    return replace(federation, x=x, y=y)


def _standardised(values: Tensor, rows: Tensor) -> Tensor:
    """Every column less its mean, over its deviation in these rows; one that is the same in all of them is 0."""
    seen = values[rows].double()
    differs = seen.amax(0) > seen.amin(0)  # the deviation of equal numbers may be a rounding error, and not 0
    factor = torch.where(differs, 1 / seen.std(0, correction=0), 0.0)
    dtype = values.dtype if values.is_floating_point() else torch.get_default_dtype()
    return ((values.double() - seen.mean(0)) * factor).to(dtype)
