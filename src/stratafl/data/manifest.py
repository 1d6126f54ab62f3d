"""What is written beside the arrays of samples, so that they can be put together again."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratafl.data.samples import Samples
from stratafl.data.scaling import Scaling

FORMAT = 1
ARRAYS = ("x", "y", "tests", "owner", "group")


def facts(samples: Samples) -> dict[str, Any]:
    """All but the arrays, as JSON can hold it."""
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
    """The arrays that there are."""
    found = {name: getattr(samples, name) for name in ARRAYS}
    return {name: np.asarray(array) for name, array in found.items() if array is not None}


def samples_from(told: Mapping[str, Any], held: Mapping[str, NDArray[Any]]) -> Samples:
    """The samples that were written; a LookupError, TypeError or ValueError if this is not what was."""
    scaling = told["scaling"]
    made = scaling and Scaling(tuple(scaling["mean"]), tuple(scaling["deviation"]), scaling.get("maximum", 255))
    unknown = set(held) - set(ARRAYS)
    if told["format"] != FORMAT or unknown or len(held["x"]) != told["samples"]:
        raise ValueError("it is not what was written")
    names = told.get("names")  # of what was written before there were any, neither these nor the last ones are there
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
