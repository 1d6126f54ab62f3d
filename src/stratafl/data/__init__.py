"""Data: from a name to a federation, in three steps.

1. **A name becomes files** (`loading`): a name of the `catalogue` is read from `data.path`, the `cache` or the hub; any
   other name is a user's own file or folder, or `shards` that `strata data export` wrote.
2. **Files become samples** (`published_files`, `user_files`): `formats` reads files into columns, `labels` and `images`
   decode them, and `reading` has the settings. The result is `Samples` (samples.py).
3. **Samples become a federation** (`builders`): a partition from `partitions` assigns samples to clients, `splitting`
   splits each client's samples, and `federation` defines the result.

To add a data format: see `formats/__init__.py`. A partition: `partitions/__init__.py`. A data set with a name:
`catalogue.py`. `preprocessing` turns samples into a model's input, `outliers` finds clients that record in
another unit, `shift` makes clients' samples differ, `plot` draws the data distribution. This package imports `core` and
`stratafl.errors`; every package above it may import it.
"""

from stratafl.data.builders import federate, from_clients, from_samples, from_splits
from stratafl.data.cache import draw_partition
from stratafl.data.catalogue import DATASETS, Dataset
from stratafl.data.digits import digits_arrays, digits_federation
from stratafl.data.federation import Federation, Ragged
from stratafl.data.loading import load_samples
from stratafl.data.partitions import IID, PARTITIONS, Assignment, Classes, Dirichlet, Partition, PFLlibDirichlet
from stratafl.data.preprocessing import Scaling
from stratafl.data.reading import Reading
from stratafl.data.samples import Samples
from stratafl.data.shards import read_shards, write_shards
from stratafl.data.splitting import SplitPlan

__all__ = [
    "DATASETS", "IID", "PARTITIONS", "Assignment", "Classes", "Dataset", "Dirichlet", "Federation", "PFLlibDirichlet",
    "Partition", "Ragged", "Reading", "Samples", "Scaling", "SplitPlan", "digits_arrays", "digits_federation",
    "draw_partition", "federate", "from_clients", "from_samples", "from_splits", "load_samples", "read_shards",
    "write_shards",
]  # fmt: skip
