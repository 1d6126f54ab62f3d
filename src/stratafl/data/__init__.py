"""Data: federations of samples, partitions that divide them, and a small real data set that needs no download."""

from stratafl.data.digits import digits, digits_arrays
from stratafl.data.federation import Federation, Ragged, federate, from_clients, from_splits
from stratafl.data.partitions import IID, PARTITIONS, Classes, Dirichlet, Partition, PFLlibDirichlet

__all__ = [
    "IID",
    "PARTITIONS",
    "Classes",
    "Dirichlet",
    "Federation",
    "PFLlibDirichlet",
    "Partition",
    "Ragged",
    "digits",
    "digits_arrays",
    "federate",
    "from_clients",
    "from_splits",
]
