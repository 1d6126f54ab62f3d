"""FedProx (Li et al., 2020): FedAvg whose clients are pulled to the model they received."""

from dataclasses import replace
from typing import Annotated

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Range, Tune
from stratafl.core.layerwise import Layerwise
from stratafl.policies import LocalTraining, Pull, Remember, Take


@method("global", paper="Li et al., 2020", title="Federated Optimization in Heterogeneous Networks")
def fedprox(
    *,
    strength: Annotated[float, Range(least=0), Tune(1e-4, 1.0, log=True)] = 0.01,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """The gradient is that of L_k + (strength/2)·‖θ_k − θ^t‖²; `strength` is μ."""
    pulled = replace(train, edits=(*train.edits, Pull(strength)))
    return replace(fedavg(), mix=(Take(), Remember()), train=(pulled,))
