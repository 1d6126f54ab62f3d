"""Data: samples by name or from a person's own files, partitions that divide them, and federations of them."""

from stratafl.data.cutting import Division
from stratafl.data.digits import digits, digits_arrays
from stratafl.data.division import divided
from stratafl.data.federation import Federation, Ragged, federate, from_clients, from_splits
from stratafl.data.loading import load_samples
from stratafl.data.partitions import IID, PARTITIONS, Classes, Dirichlet, Partition, PFLlibDirichlet, drawn
from stratafl.data.published import DATASETS, Published
from stratafl.data.reading import Reading
from stratafl.data.samples import Samples
from stratafl.data.scaling import Scaling
from stratafl.data.shards import read_shards, write_shards

__all__ = [
    "DATASETS",
    "IID",
    "PARTITIONS",
    "Classes",
    "Dirichlet",
    "Division",
    "Federation",
    "PFLlibDirichlet",
    "Partition",
    "Published",
    "Ragged",
    "Reading",
    "Samples",
    "Scaling",
    "digits",
    "digits_arrays",
    "divided",
    "drawn",
    "federate",
    "from_clients",
    "from_splits",
    "load_samples",
    "read_shards",
    "write_shards",
]
