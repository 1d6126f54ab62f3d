"""Partitions: which client gets which sample, drawn from the labels, the number of clients and a seed.

To add one: write a `@record` subclass of `Partition` (base.py) with a method `draw`, and name it in `PARTITIONS`. Most
return one sorted array of sample indices per client, from which `splitting` then splits off the test samples; some also
decide who tests on what and return an `Assignment`. This package imports `core` and `stratafl.errors`; the rest of
`data` imports it.
"""

from stratafl.data.partitions.base import IID, Assignment, Owners, Partition, Pool
from stratafl.data.partitions.classes import Classes, KClasses, OneClass, Pathological, PFedLAClasses, PFedLADominant
from stratafl.data.partitions.dirichlet import ClientDirichlet, Dirichlet, PFLlibDirichlet
from stratafl.data.partitions.quantity import UnevenSizes

PARTITIONS: dict[str, type[Partition]] = {
    "iid": IID, "dirichlet": Dirichlet, "pfllib": PFLlibDirichlet, "perclient": ClientDirichlet, "classes": Classes,
    "pathological": Pathological, "kclasses": KClasses, "oneclass": OneClass, "pfedla1": PFedLAClasses,
    "pfedla2": PFedLADominant, "quantity": UnevenSizes, "owners": Owners,
}  # fmt: skip

__all__ = [
    "IID", "PARTITIONS", "Assignment", "Classes", "ClientDirichlet", "Dirichlet", "KClasses", "OneClass", "Owners",
    "PFLlibDirichlet", "PFedLAClasses", "PFedLADominant", "Partition", "Pathological", "Pool", "UnevenSizes",
]  # fmt: skip
