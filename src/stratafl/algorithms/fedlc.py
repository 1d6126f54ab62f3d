"""FedLC (Zhang et al., 2022): FedAvg whose loss takes a margin from every logit, the larger the rarer the class."""

from dataclasses import replace
from typing import Annotated

from torch.nn.functional import pad

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.prototypes import NeedsClasses
from stratafl.core.annotations import Range, Tune
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Rows
from stratafl.core.objectives import Batch, Frozen, Loss, Net, cross_entropies
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.core.round import Round
from stratafl.core.state import State
from stratafl.core.steps import Mix
from stratafl.core.task import Task
from stratafl.policies import LocalTraining, Take

ABSENT = 1e-16  # samples of a class without any: a margin of 10⁴·τ takes it out of the softmax, and stays finite


@method(
    "global",
    paper="Zhang et al., 2022",
    title="Federated Learning with Label Distribution Skew via Logits Calibration",
)
def fedlc(
    *, tau: Annotated[float, Range(least=0), Tune(0.1, 10.0, log=True)] = 1.0, train: LocalTraining = LocalTraining()
) -> Layerwise:
    """L = −log softmax(f(x) − τ·n_k^(−1/4))_y, with n_{k,c} samples of class c at client k; predictions take no margin.

    `tau` is τ; 0 gives FedAvg.
    """
    return replace(fedavg(), mix=(Take(), CountClasses()), train=(replace(train, objective=Calibrated(tau)),))


@record
class CountClasses(NeedsClasses, Mix):
    """n_{k,c}, for the rest of the round."""

    writes = ("counts",)

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        return {"counts": task.class_counts("train")}


@record
class Calibrated:
    """The cross-entropy of logits less their margins; an output that is no class counts as an absent one."""

    tau: float = 1.0
    frozen = carries = ()
    constants = ("counts",)

    def __call__(self, net: Net, row: Rows, frozen: Frozen, batch: Batch, constants: Rows, carry: Rows) -> Loss:
        logits, counts = net(row, batch.x), constants["counts"]
        samples = pad(counts.to(logits.dtype), (0, logits.shape[-1] - counts.shape[-1])).clamp(min=ABSENT)
        return batch.mean(cross_entropies(logits - self.tau * samples**-0.25, batch.y)), carry, {}
