"""Samples as a source gives them, before a partition assigns them to clients, and how they are stored.

The cache and the shards store the arrays of `arrays` and the JSON of `facts`; `samples_from` puts them together again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratafl.core.reprs import short_repr
from stratafl.data.scaling import Scaling
from stratafl.errors import DataError

FORMAT = 1
ARRAYS = ("x", "y", "tests", "owner", "group")


@short_repr
@dataclass(frozen=True, eq=False)
class Samples:
    """Samples and targets and, if the source knows it, the owner of each sample and whether it is for testing."""

    x: NDArray[Any]
    y: NDArray[Any]
    classes: int | None = None  # None: counted from the labels, or the targets are numbers
    names: tuple[str, ...] | None = None  # of the classes, in their order
    tests: NDArray[np.bool_] | None = None  # which samples are in the publishers' test set
    owner: NDArray[Any] | None = None  # the person or site that each sample belongs to, by name or number
    scaling: Scaling | None = None
    name: str = "arrays"
    columns: tuple[str, ...] = ()  # names of the numbers of a sample, if it is a row of a table
    standardise: tuple[str, ...] = ()  # "x", "y": standardised once the training samples are known
    mode: str = ""  # of the images, as in their files
    remark: str = ""  # a warning about how they were read
    group: NDArray[Any] | None = None  # samples with the same value stay in one part of a split
    group_name: str | None = None  # the column of these values
    elsewhere: bool = False  # in files that a table names outside of its folder, so changes would go unnoticed

    def __post_init__(self) -> None:
        for what in ("y", "tests", "owner", "group"):
            given = getattr(self, what)
            if given is not None and len(given) != len(self.x):
                raise DataError(f"'{self.name}' has {len(self.x)} samples, but '{what}' has {len(given)} values")


def facts(samples: Samples) -> dict[str, Any]:
    """Everything but the arrays, for JSON."""
    scaling = samples.scaling
    return {
        "format": FORMAT,
        "name": samples.name,
        "samples": len(samples.x),
        "classes": samples.classes,
        "names": samples.names,
        "columns": samples.columns,
        "standardise": samples.standardise,
        "group": samples.group_name,
        "scaling": scaling and {name: getattr(scaling, name) for name in ("mean", "deviation", "maximum")},
        "mode": samples.mode,
        "remark": samples.remark,
    }


def arrays(samples: Samples) -> dict[str, NDArray[Any]]:
    found = {name: getattr(samples, name) for name in ARRAYS}
    return {name: np.asarray(array) for name, array in found.items() if array is not None}


def samples_from(told: Mapping[str, Any], held: Mapping[str, NDArray[Any]]) -> Samples:
    """The samples that were written; a LookupError, TypeError or ValueError if the facts or arrays do not fit."""
    scaling = told["scaling"]
    made = scaling and Scaling(tuple(scaling["mean"]), tuple(scaling["deviation"]), scaling.get("maximum", 255))
    unknown = set(held) - set(ARRAYS)
    if told["format"] != FORMAT or unknown or len(held["x"]) != told["samples"]:
        raise ValueError("the arrays do not fit the manifest")
    names = told.get("names")  # what `get` reads below is missing in files of older versions
    return Samples(
        held["x"],
        held["y"],
        tests=held.get("tests"),
        owner=held.get("owner"),
        classes=told["classes"],
        names=None if names is None else tuple(names),
        scaling=made or None,
        name=told["name"],
        columns=tuple(told.get("columns", ())),
        standardise=tuple(told.get("standardise", ())),
        mode=str(told.get("mode", "")),
        remark=str(told.get("remark", "")),
        group=held.get("group"),
        group_name=told.get("group"),
    )
