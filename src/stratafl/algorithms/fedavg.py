"""FedAvg (McMahan et al., 2017): one model for all clients, the weighted mean of the models that they trained."""

from stratafl.algorithms.declaration import method
from stratafl.core.fields import Start
from stratafl.core.layers import select
from stratafl.core.layerwise import Layerwise
from stratafl.policies import Broadcast, LocalTraining, Mean, Take, Upload


@method(
    "global",
    paper="McMahan et al., 2017",
    title="Communication-Efficient Learning of Deep Networks from Decentralized Data",
)
def fedavg(*, train: LocalTraining = LocalTraining()) -> Layerwise:
    """θ ← Σ_k n_k·θ_k / Σ_k n_k; a client keeps no layer."""
    return Layerwise(
        serve=(Broadcast(),),
        mix=(Take(),),
        train=(train,),
        send=(Upload(),),
        merge=(Mean(),),
        server={"theta": Start()},
        client={"theta": Start(select("none"))},
    )
