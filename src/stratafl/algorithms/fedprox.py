"""FedProx (Li et al., 2020): FedAvg whose clients are pulled to the model they received."""

from dataclasses import replace
from typing import Annotated

from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Range
from stratafl.core.layerwise import Layerwise
from stratafl.core.records import validated
from stratafl.policies import SGD, Pull, Remember, Take


@validated
def fedprox(*, strength: Annotated[float, Range(least=0)] = 0.01, train: SGD = SGD()) -> Layerwise:
    """The gradient is that of L_k + (strength/2)·‖θ_k − θ^t‖²."""
    pulled = replace(train, edits=(*train.edits, Pull(strength)))
    return replace(fedavg(), mix=(Take(), Remember()), train=(pulled,))
