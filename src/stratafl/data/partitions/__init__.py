"""Partitions: which client gets which sample, drawn from the labels, the number of clients and a seed.

Every partition is a record that is called as `partition(labels, clients, seed)`. Most return one sorted array of sample
indices per client, of which a share is then cut off for testing; some look at more than labels, or say who tests on
what, and return a `Division`.
"""

from stratafl.data.cutting import Division
from stratafl.data.partitions.base import Partition, Pool
from stratafl.data.partitions.cache import drawn
from stratafl.data.partitions.classes import Classes, KClasses, OneClass, Pathological
from stratafl.data.partitions.dirichlet import Dirichlet, PFLlibDirichlet
from stratafl.data.partitions.even import IID
from stratafl.data.partitions.owners import Owners
from stratafl.data.partitions.perclient import ClientDirichlet
from stratafl.data.partitions.pfedla import PFedLAClasses, PFedLADominant

PARTITIONS: dict[str, type[Partition]] = {
    "iid": IID,
    "dirichlet": Dirichlet,
    "pfllib": PFLlibDirichlet,
    "perclient": ClientDirichlet,
    "classes": Classes,
    "pathological": Pathological,
    "kclasses": KClasses,
    "oneclass": OneClass,
    "pfedla1": PFedLAClasses,
    "pfedla2": PFedLADominant,
    "owners": Owners,
}

__all__ = [
    "IID",
    "PARTITIONS",
    "Classes",
    "ClientDirichlet",
    "Dirichlet",
    "Division",
    "KClasses",
    "OneClass",
    "Owners",
    "PFLlibDirichlet",
    "PFedLAClasses",
    "PFedLADominant",
    "Partition",
    "Pathological",
    "Pool",
    "drawn",
]
