"""FedBABU (Oh et al., 2022): only the body is trained, under a head that stays fixed; then clients tune all layers."""

from dataclasses import replace
from typing import Annotated

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedper import fedper
from stratafl.core.annotations import Range, Tune
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.policies import LocalTraining
from stratafl.policies.train import tuning


@method(
    "personal parts",
    paper="Oh et al., 2022",
    title="FedBABU: Toward Enhanced Representation for Federated Image Classification",
    sends="the body",
    new_client="the shared body and the common head, tuned on its own data",
)
def fedbabu(
    *,
    fixed: str | Select = "head",
    tune_epochs: Annotated[int, Range(least=0), Tune(1, 10)] = 5,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """Clients train φ_k with the common random head frozen; the deployed model is tuned on everything.

    `fixed` are the layers that stay as drawn, `tune_epochs` those of the tuning before use.
    """
    body = ~select(fixed)
    return replace(
        fedper(personal=fixed),
        train=(replace(train, layers=body),),
        tune=(tuning(train, tune_epochs),),
    )
