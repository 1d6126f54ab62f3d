"""FedAvg, FedProx and everybody alone: what other methods are variants of, or are compared with."""

from dataclasses import replace
from typing import Annotated

from stratafl.core.annotations import Range
from stratafl.core.fields import Start
from stratafl.core.layers import select
from stratafl.core.layerwise import Layerwise
from stratafl.core.phased import Phase, Phased
from stratafl.core.records import validated
from stratafl.policies import SGD, Broadcast, Mean, Pull, Remember, Take, Upload


def fedavg(*, train: SGD = SGD()) -> Layerwise:
    """FedAvg (McMahan et al., 2017): one model for everybody, θ ← Σ_k n_k·θ_k / Σ_k n_k; a client keeps no layer."""
    return Layerwise(
        serve=(Broadcast(),),
        mix=(Take(),),
        train=(train,),
        send=(Upload(),),
        merge=(Mean(),),
        server={"theta": Start()},
        client={"theta": Start(select("none"))},
    )


@validated
def fedprox(*, strength: Annotated[float, Range(least=0)] = 0.01, train: SGD = SGD()) -> Layerwise:
    """FedProx (Li et al., 2020): FedAvg whose clients are pulled to the model they received.

    The gradient is that of L_k + (strength/2)·‖θ_k − θ^t‖².
    """
    pulled = replace(train, edits=(*train.edits, Pull(strength)))
    return replace(fedavg(), mix=(Take(), Remember()), train=(pulled,))


def alone(*, train: SGD = SGD()) -> Layerwise:
    """θ_k ← SGD(θ_k): a phase in which nothing is sent."""
    return Layerwise(serve=(), mix=(), train=(train,), send=(), merge=(), server={}, client={"theta": Start()})


def local(*, train: SGD = SGD()) -> Phased:
    """Local training: nothing is sent; every client trains every round, whatever the participation."""
    return Phased((Phase(alone(train=train), participation="all"),))
