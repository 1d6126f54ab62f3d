"""Data: federations of samples, partitions that divide them, and a small real data set that needs no download."""

from collections.abc import Callable

from stratafl.data.cutting import Division
from stratafl.data.digits import digits, digits_arrays
from stratafl.data.federation import Federation, Ragged, federate, from_clients, from_splits
from stratafl.data.npz import from_npz
from stratafl.data.partitions import IID, PARTITIONS, Classes, Dirichlet, Partition, PFLlibDirichlet, drawn
from stratafl.data.scaling import Scaling

DATASETS: dict[str, Callable[..., Federation]] = {"digits": digits}

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
    "Ragged",
    "Scaling",
    "digits",
    "digits_arrays",
    "drawn",
    "federate",
    "from_clients",
    "from_npz",
    "from_splits",
]
