"""FedProx (Li et al., 2020): FedAvg whose clients are pulled to the model they received."""

from dataclasses import replace

from stratafl.algorithms.fedavg import fedavg
from stratafl.core.layerwise import Layerwise
from stratafl.errors import RecordError
from stratafl.policies import SGD, Pull, Remember, Take


def fedprox(*, strength: float = 0.01, train: SGD = SGD()) -> Layerwise:
    """The gradient plus strength·(θ_k − θ^t): that of L_k + (strength/2)·‖θ_k − θ^t‖²."""
    if strength < 0:
        raise RecordError(f"fedprox: strength must be at least 0, not {strength}")
    pulled = replace(train, edits=(*train.edits, Pull(strength)))
    return replace(fedavg(), mix=(Take(), Remember()), train=(pulled,))
