"""LG-FedAvg (Liang et al., 2020): local representation, global head; the mirror of FedPer."""

from stratafl.algorithms.fedper import fedper
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.core.records import validated
from stratafl.policies import SGD


@validated
def lgfedavg(*, shared: str | Select = "head", train: SGD = SGD()) -> Layerwise:
    """FedPer whose personal layers are all but the shared ones."""
    return fedper(personal=~select(shared), train=train)
