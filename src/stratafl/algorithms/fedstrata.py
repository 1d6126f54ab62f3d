"""FedStrata: a shared model with each client's own class prior, larger steps near the output, and sparse uploads.

The prior leaves nothing about class frequencies to be learned, so the model can stay shared up to its last layer. Each
part is a step of another method: the prior of FedPrior, rates and uploads of FLAYER. The combination is ours. Equation
numbers are those of docs/methods/fedstrata.md.
"""

from dataclasses import replace
from typing import Annotated

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedprior import OwnPrior, Smoothing
from stratafl.algorithms.flayer import LayerRate, Share, TopChange
from stratafl.core.annotations import Tune
from stratafl.core.fields import Start
from stratafl.core.layers import select
from stratafl.core.layerwise import Layerwise
from stratafl.models.heads import HeadExtension
from stratafl.policies import Broadcast, LocalTraining, Mean, Remember, Take, Upload


@method(
    "smallest personal part",
    sends="the most changed parameters of each layer, without class frequencies",
    new_client="the global model with its own class frequencies",
)
def fedstrata(
    *,
    smoothing: Smoothing = 1.0,
    rates: bool = True,
    mask: bool = True,
    least: Annotated[Share, Tune(0.05, 0.5)] = 0.1,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """Logits + log π_k (Eq. 1), a rate for each layer (Eq. 3), a mean over those who changed a parameter most (Eq. 5).

    `rates` and `mask` switch parts: without both it is FedPrior. `least` is the smallest share of a layer that is sent.
    With a very large `smoothing` the priors are equal.
    """
    return Layerwise(
        serve=(Broadcast(),),
        mix=(Take(), OwnPrior(smoothing), Remember()),  # Eq. 1
        train=(replace(train, rates=(*train.rates, LayerRate())) if rates else train,),  # Eq. 2 and 3
        send=(TopChange(least) if mask else Upload(),),  # Eq. 4
        merge=(Mean(),),  # Eq. 5
        server={"theta": Start()},
        client={"theta": Start(select("none"))},
        global_model="theta",
        extension=HeadExtension("prior"),
    )
