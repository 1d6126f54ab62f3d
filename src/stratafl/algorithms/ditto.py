"""Ditto (Li et al., 2021): a personal model next to FedAvg's, pulled to the global model that the client received."""

from dataclasses import replace
from typing import Annotated

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Range, Tune
from stratafl.core.fields import Start
from stratafl.core.layerwise import Layerwise
from stratafl.policies import Adopt, LocalTraining, Pull, Take


@method(
    "regularised and meta",
    paper="Li et al., 2021",
    title="Ditto: Fair and Robust Federated Learning Through Personalization",
    sends="the whole model, not the personal one",
    new_client="the global model as its personal one",
)
def ditto(
    *,
    strength: Annotated[float, Range(least=0), Tune(0.01, 10.0, log=True)] = 1.0,
    personal_epochs: Annotated[int | None, Range(least=0), Tune(1, 10)] = None,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """Algorithm 1: w by FedAvg, and v_k on h_k(v) = F_k(v) + (strength/2)·‖v − w^t‖².

    `strength` is λ, how close v_k stays to w. `personal_epochs` are those of v_k, by default as many as those of w.
    Evaluated is v_k.
    """
    # v_k first: until its own descent, the client's θ is the w^t that it received.
    personal = replace(train, row="personal", purpose="personal", edits=(*train.edits, Pull(strength, "theta")))
    if personal_epochs is not None:
        personal = replace(personal, epochs=personal_epochs, steps=None)
    shared = fedavg(train=train)
    return replace(
        shared,
        mix=(Take(), Adopt(("personal",))),
        train=(personal, train),
        client={**shared.client, "personal": Start()},
        row="personal",
        global_model="theta",
    )
