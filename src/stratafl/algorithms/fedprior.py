"""FedPrior: FedAvg whose logits are shifted by the log of each client's own class frequencies.

Training and prediction add log π_k; what is shared learns p(x|y) and not how often a class occurs at a client. The
frequencies never leave the client.
"""

from dataclasses import replace
from typing import Annotated

from torch.nn.functional import pad

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedper import fedper
from stratafl.algorithms.prototypes import NeedsClasses
from stratafl.core.annotations import Range, Tune
from stratafl.core.fields import Filled, Start, Together
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.core.round import Round
from stratafl.core.state import State, rows_of
from stratafl.core.steps import Mix
from stratafl.core.task import Task
from stratafl.models.heads import HeadExtension
from stratafl.policies import LocalTraining, Take

PRIOR = select("head.prior")


@method(
    "smallest personal part",
    sends="the whole model, without class frequencies",
    new_client="the global model with its own class frequencies",
)
def fedprior(
    *,
    smoothing: Annotated[float, Range(above=0), Tune(0.1, 10.0, log=True)] = 1.0,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """Logits + log π_k(c), π_k(c) = (n_{k,c} + s)/(n_k + s·C), with s the `smoothing` and C the number of classes."""
    return replace(
        fedper(personal=PRIOR, train=replace(train, layers=~PRIOR)),
        mix=(Take(), OwnPrior(smoothing)),
        server={"theta": Together((Start(~PRIOR), Filled(0.0, PRIOR)))},  # the global model has no prior
        global_model="theta",
        extension=HeadExtension("prior"),
    )


@record
class OwnPrior(NeedsClasses, Mix):
    """The client's own log π_k in its model."""

    smoothing: float = 1.0
    prior: Select = PRIOR
    reads = ("theta",)
    writes = ("theta",)

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        theta, counts = rows_of(client, "theta"), task.class_counts()
        (name,) = rnd.layout.trainable(self.prior)
        without_class = theta[name].shape[1] - counts.shape[1]  # outputs that stand for no class
        smoothed = pad(counts.to(theta[name].dtype), (0, without_class)) + self.smoothing
        return {"theta": {**theta, name: (smoothed / smoothed.sum(1, keepdim=True)).log()}}
