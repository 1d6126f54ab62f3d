"""FedAvg with fine-tuning: each client tunes a copy before use; the shared model is trained as in FedAvg."""

from dataclasses import replace
from typing import Annotated

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Range, Tune
from stratafl.core.layers import select
from stratafl.core.layerwise import Layerwise
from stratafl.policies import LocalTraining
from stratafl.policies.train import tuning

Epochs = Annotated[int, Range(least=0), Tune(1, 10)]


@method(
    "fine-tuned",
    paper="Yu et al., 2020",
    title="Salvaging Federated Learning by Local Adaptation",
    new_client="the global model, tuned on its own data",
    also=("FedAvg-FT", "FedAvg+FT", "FedAvg + fine-tuning"),
)
def fedavgft(*, tune_epochs: Epochs = 1, train: LocalTraining = LocalTraining()) -> Layerwise:
    """FedAvg-FT (Yu et al., 2020): FedAvg; before use each client trains a copy of all layers for some epochs.

    `tune_epochs` is how many.
    """
    return replace(fedavg(train=train), tune=(tuning(train, tune_epochs),), global_model="theta")


@method(
    "fine-tuned",
    paper="Kumar et al., 2022",
    title="Fine-Tuning can Distort Pretrained Features and Underperform Out-of-Distribution",
    new_client="the global model, tuned on its own data",
    also=("LP-FT", "FedAvg+LP-FT"),
)
def fedavglpft(
    *, head_epochs: Epochs = 1, tune_epochs: Epochs = 1, train: LocalTraining = LocalTraining()
) -> Layerwise:
    """FedAvg-LP-FT (Kumar et al., 2022): FedAvg; before use each client trains its head, then all layers of a copy.

    The head for `head_epochs`, all layers for `tune_epochs`.
    """
    head = tuning(train, head_epochs, select("head"), "probe")
    tuned = fedavgft(tune_epochs=tune_epochs, train=train)
    return replace(tuned, tune=(head, *tuned.tune))
