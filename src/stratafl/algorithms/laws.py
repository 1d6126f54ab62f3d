"""Degenerate laws: for each algorithm, special cases that must equal a simpler one."""

from dataclasses import dataclass

from stratafl.algorithm import Algorithm
from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.fedbn import fedbn
from stratafl.algorithms.fedper import fedper
from stratafl.algorithms.fedprox import fedprox
from stratafl.algorithms.fedrep import fedrep
from stratafl.algorithms.lgfedavg import lgfedavg
from stratafl.algorithms.local import local


@dataclass(frozen=True)
class Law:
    """`special` gives every client the same model as `simple`, on the contract's model or on one without BatchNorm."""

    says: str
    special: Algorithm
    simple: Algorithm
    batchnorm: bool = True
    full_participation_only: bool = False
    clients: int | None = None  # only so many clients


LAWS: dict[str, tuple[Law, ...]] = {
    "fedavg": (Law("with one client, FedAvg is Local", fedavg(), local(), clients=1),),
    "fedbn": (Law("without BatchNorm, FedBN is FedAvg", fedbn(), fedavg(), batchnorm=False),),
    "fedper": (
        Law("with one client, FedPer is Local", fedper(), local(), clients=1),
        Law("FedPer with every layer personal is Local", fedper(personal="all"), local(), full_participation_only=True),
        Law("FedPer with every layer shared is FedAvg", fedper(personal="not head+base"), fedavg()),
    ),
    "fedprox": (Law("FedProx without a pull is FedAvg", fedprox(strength=0.0), fedavg()),),
    "fedrep": (Law("FedRep without personal layers is FedAvg", fedrep(personal="none"), fedavg()),),
    "lgfedavg": (
        Law("LG-FedAvg with every layer shared is FedAvg", lgfedavg(shared="head+base"), fedavg()),
        Law("LG-FedAvg that shares nothing is Local", lgfedavg(shared="none"), local(), full_participation_only=True),
    ),
    "local": (
        Law("Local is FedPer that shares nothing", local(), fedper(personal="all"), full_participation_only=True),
    ),
}
