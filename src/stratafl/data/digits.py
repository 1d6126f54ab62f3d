"""The 1,797 handwritten digits of 8 × 8 pixels that come with the package (see DIGITS_LICENSE.txt)."""

from importlib.resources import files

import numpy as np
import torch
from numpy.typing import NDArray

from stratafl.data.builders import federate
from stratafl.data.cache import draw_partition
from stratafl.data.federation import Federation
from stratafl.data.partitions import Dirichlet, Partition

_SKEWED = Dirichlet(alpha=0.1, minimum=10)


def digits_arrays() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The images, float32 [1797, 1, 8, 8] from 0 to 1, and the digit that each one shows."""
    with files("stratafl.data").joinpath("digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return stored["x"][:, None].astype(np.float32) / 16, stored["y"].astype(np.int64)


def digits_federation(
    *,
    clients: int = 20,
    partition: Partition = _SKEWED,
    validation: float = 0.0,
    test: float = 0.25,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    split: str = "stratified",
) -> Federation:
    """The digits, partitioned among clients; each has at least two test samples if there is a test part.

    By default these are Dirichlet shares with α = 0.1. Commands use α = 0.3 and a validation part
    (docs/reference/data-sets.md).
    """
    x, y = digits_arrays()
    return federate(
        x,
        y,
        draw_partition(partition, y, clients, seed),
        classes=10,
        validation=validation,
        test=test,
        minimum_test=2,
        seed=seed,
        name="digits",
        dtype=dtype,
        split=split,
    )
