"""Samples as a source gives them, before they belong to clients."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratafl.core.reprs import short_repr
from stratafl.data.scaling import Scaling
from stratafl.errors import DataError


@short_repr
@dataclass(frozen=True, eq=False)
class Samples:
    """What a source knows: samples and targets, and perhaps whose they are and which the publishers test on."""

    x: NDArray[Any]
    y: NDArray[Any]
    classes: int | None = None  # None: found out from the labels, or the targets are numbers
    names: tuple[str, ...] | None = None  # of the classes, in their order
    tests: NDArray[np.bool_] | None = None  # which samples are the publishers' test set
    owner: NDArray[Any] | None = None  # whose each sample is, by name or number
    scaling: Scaling | None = None
    name: str = "arrays"
    columns: tuple[str, ...] = ()  # what the numbers of a sample are called, where it is a row of a table
    standardise: tuple[str, ...] = ()  # "x", "y": what is standardised as soon as it is known who trains on what
    mode: str = ""  # of the images, as their files say it
    remark: str = ""  # what a person has to know of how they were read
    group: NDArray[Any] | None = None  # which samples belong together, so that they stay on one side of a split
    group_name: str | None = None  # the column that says so
    elsewhere: bool = False  # whether some of it was in files that a table names, whose changes nobody would notice

    def __post_init__(self) -> None:
        for what in ("y", "tests", "owner", "group"):
            given = getattr(self, what)
            if given is not None and len(given) != len(self.x):
                raise DataError(f"'{self.name}' has {len(self.x)} samples, but '{what}' tells of {len(given)}")
