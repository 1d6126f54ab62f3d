"""Who holds which sample, as a partition says it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Division:
    """One array of sample indices per client to train on and, where the partition decides that too, to test on.

    Without `test`, the usual share of what a client holds is cut off. Only with `overlap` may a sample belong to
    several clients, or to one of them several times; but nobody tests on what they train on themselves.
    """

    train: list[Indices]
    test: list[Indices] | None = None
    overlap: bool = False
