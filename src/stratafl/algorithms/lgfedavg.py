"""LG-FedAvg (Liang et al., 2020): local representation, global head; the mirror of FedPer."""

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedper import fedper
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.policies import LocalTraining


@method(
    "personal parts",
    paper="Liang et al., 2020",
    title="Think Locally, Act Globally: Federated Learning with Local and Global Representations",
    sends="the head",
    new_client="the shared head and the initial base",
)
def lgfedavg(*, shared: str | Select = "head", train: LocalTraining = LocalTraining()) -> Layerwise:
    """FedPer whose personal layers are all but the `shared` ones."""
    return fedper(personal=~select(shared), train=train)
