"""FedRep (Collins et al., 2021): FedPer that trains the head first, with the base frozen, then the base."""

from dataclasses import replace
from typing import Annotated

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedper import fedper
from stratafl.core.annotations import Range, Tune
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.policies import LocalTraining


@method(
    "personal parts",
    paper="Collins et al., 2021",
    title="Exploiting Shared Representations for Personalized Federated Learning",
    sends="the base",
    new_client="the shared base and the initial head",
)
def fedrep(
    *,
    personal: str | Select = "head",
    head_epochs: Annotated[int, Range(least=0), Tune(1, 10)] = 1,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """τ_h epochs on h_k with φ frozen, then τ_b (= train.epochs) epochs on φ_k with h_k frozen.

    `personal` are the layers of h_k, `head_epochs` is τ_h.
    """
    head = select(personal)
    return replace(
        fedper(personal=head),
        train=(
            replace(train, layers=head, epochs=head_epochs, steps=None, purpose="head"),
            replace(train, layers=~head),
        ),
    )
