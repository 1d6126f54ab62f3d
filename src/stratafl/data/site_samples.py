"""From the samples in a site's own files to the federation of one client, numbered, ordered and split as was agreed.

What would depend on other sites' samples is taken from the format that all agree on: which class has which number, in
which order the columns come, how numbers are scaled. A split depends on the seed, the client's number and its own
samples, so that it is the split of a simulation that reads all sites' files together.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratafl.data.federation import Federation
from stratafl.data.partitions import Assignment
from stratafl.data.sample_format import SampleFormat
from stratafl.data.samples import Samples
from stratafl.data.splitting import SplitPlan, Splitter
from stratafl.errors import DataError, shown


def site_federation(
    samples: Samples, agreed: SampleFormat, plan: SplitPlan, *, client: int, trains: bool = True
) -> Federation:
    """The federation of one client; a site that does not train tests on all of its samples."""
    samples = _numbered(_ordered(samples, agreed), agreed)
    if samples.owner is not None and len(np.unique(samples.owner)) > 1:
        named = ", ".join(f"'{shown(each)}'" for each in np.unique(samples.owner)[:3])
        raise DataError(f"'{samples.name}' has samples of several clients ({named} …): give the samples of this site")
    everything = np.arange(len(samples.x))
    if not trains:
        return agreed.client({"test": (samples.x, samples.y)}, samples.name)
    splitter, tests = Splitter(samples.y, plan, samples.group, (samples.name,), first=client), samples.tests
    assignment = Assignment([everything])
    if tests is not None:
        assignment = Assignment([everything[~tests]], [everything[tests]])
    parts = splitter.split_assignment(assignment)
    return agreed.client(
        {name: (samples.x[indices], samples.y[indices]) for name, (indices,) in parts.items()}, samples.name
    )


def _ordered(samples: Samples, agreed: SampleFormat) -> Samples:
    """The samples of a table with their columns in the order that all agree on."""
    if not agreed.columns or samples.columns == agreed.columns:
        return samples
    for these, others, wrong in (
        (agreed.columns, samples.columns, "lacks the column"),
        (samples.columns, agreed.columns, "has a column that the federation has not agreed on,"),
    ):
        odd = [name for name in these if name not in others]
        if odd:
            raise DataError(f"'{samples.name}' {wrong} '{shown(odd[0])}': give {', '.join(map(shown, agreed.columns))}")
    places = [samples.columns.index(name) for name in agreed.columns]
    return replace(samples, x=samples.x[:, places], columns=agreed.columns)


def _numbered(samples: Samples, agreed: SampleFormat) -> Samples:
    """The samples with the numbers of classes, or the numbers to predict, that all agree on.

    A reader numbers the labels of one site, and takes whole numbers for classes.
    """
    y: NDArray[Any] = np.asarray(samples.y)
    if agreed.classes is None:
        return replace(samples, y=y.astype(np.float64) if samples.names is None else _values(samples)[y])
    if y.dtype.kind == "f":
        raise DataError(f"'{samples.name}' has fractions as labels, and the federation has {agreed.classes} classes")
    if samples.names is not None:
        named = bool(agreed.preprocessing.classes)
        y = agreed.labels(y, samples.names).numpy() if named else _values(samples).astype(np.int64)[y]
    return replace(samples, y=y, classes=agreed.classes, names=agreed.preprocessing.classes or None)


def _values(samples: Samples) -> NDArray[np.float64]:
    """The numbers that the names of a site's classes are."""
    try:
        return np.array([float(name) for name in samples.names or ()])
    except ValueError:
        named = ", ".join(f"'{shown(each)}'" for each in (samples.names or ())[:3])
        raise DataError(f"the labels of '{samples.name}' are names ({named} …): give numbers, as was agreed") from None
