"""FedAvg for some rounds, then everybody alone: what the published code of FedLAG amounts to, as a control.

Its function that should give clients the averaged layers after the warm-up copies nothing. During the warm-up it sends
the model to everybody, whoever trains it then; as only the last time matters later, only the last round does so here.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.local import alone
from stratafl.core.annotations import Range
from stratafl.core.parcel import Field, LayerMask
from stratafl.core.phased import Phase, Phased
from stratafl.core.records import record, validated
from stratafl.core.round import Round
from stratafl.core.state import State
from stratafl.core.steps import Send
from stratafl.core.task import Task
from stratafl.policies import SGD, Upload


@validated
def fedavg30local(*, warmup: Annotated[int, Range(least=0)] = 30, train: SGD = SGD()) -> Phased:
    """Clients go on from what they trained in the last round of the warm-up, or else from what they were sent in it."""
    average, apart = fedavg(train=train), Phase(alone(train=train))
    if warmup == 0:
        return Phased((apart,))
    last = replace(average, send=(UploadIfSampled(),))
    everybody = Phase(last, rounds=1, participation="all", only_sampled_learn=True)
    return Phased((Phase(average, rounds=warmup - 1), everybody, apart))


@record
class UploadIfSampled(Send):
    """The client's row and n_k, where everybody takes part: no layer of those whom the round did not sample."""

    reads = ("theta",)
    writes = ("up.theta", "up.samples")

    def __call__(self, rnd: Round, client: State, task: Task) -> Mapping[str, Field]:
        sent = LayerMask(rnd.sampled(task.ids)[:, None].expand(-1, len(rnd.layout.layers)))
        fields = Upload()(rnd, client, task)
        return {**fields, "theta": replace(fields["theta"], mask=sent)}
