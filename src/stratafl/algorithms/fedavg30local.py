"""FedAvg30+Local (anonymous, 2024): FedAvg, then every client alone; what the published code of FedLAG does.

The function of that code that should give clients the averaged layers after the warm-up copies nothing. During the
warm-up the code sends the model to all clients in every round; only the last time matters, so only the last round
does so here.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.local import alone
from stratafl.core.annotations import Fixed, Range
from stratafl.core.parcel import Field, LayerMask
from stratafl.core.phased import Phase, Phased, warm_up
from stratafl.core.records import record
from stratafl.core.round import Round
from stratafl.core.state import State
from stratafl.core.steps import Send
from stratafl.core.task import Task
from stratafl.policies import LocalTraining, Upload


@method(
    "controls",
    paper="anonymous, 2024",
    title="Towards Layer-Wise Personalized Federated Learning: "
    "Adaptive Layer Disentanglement via Conflicting Gradients",
    sends="the whole model during the warm-up, then nothing",
    new_client="the initial model: after the warm-up nothing is sent",
)
def fedavg30local(
    *,
    warmup: Annotated[int, Range(least=0), Fixed("a number of rounds, 30 in the published code")] | None = None,
    warmup_share: Annotated[float, Range(least=0, below=1), Fixed("that of FedLAG, whose control this is")] = 0.25,
    train: LocalTraining = LocalTraining(),
) -> Phased:
    """Clients go on from what they trained in the last round of the warm-up, or else from what they were sent in it.

    FedAvg takes `warmup` rounds, or else `warmup_share` of the run's, and one at least.
    """
    average, apart = fedavg(train=train), Phase(alone(train=train))
    if warmup == 0:
        return Phased((apart,))
    last = replace(average, send=(UploadIfSampled(),))
    everybody = Phase(last, rounds=1, participation="all", only_sampled_learn=True)
    return Phased((Phase(average, rounds=warm_up(warmup, warmup_share, less=1)), everybody, apart))


@record
class UploadIfSampled(Send):
    """The client's row and n_k in a round that asks all clients; of a client that was not sampled, no layer."""

    reads = ("theta",)
    writes = ("up.theta", "up.samples")
    masked = True

    def __call__(self, rnd: Round, client: State, task: Task) -> Mapping[str, Field]:
        sent = LayerMask(rnd.sampled(task.ids)[:, None].expand(-1, len(rnd.layout.layers)))
        fields = Upload()(rnd, client, task)
        return {**fields, "theta": replace(fields["theta"], mask=sent)}
