"""FedDBE (Zhang et al., 2023): a personal shift of the features; their mean is pulled to the mean of all clients.

The domain bias eliminator on FedAvg: what is particular to a client goes into a personal vector (its representation
bias memory), and mean regularisation keeps it out of the shared base.
"""

from dataclasses import replace
from typing import Annotated

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedper import fedper
from stratafl.algorithms.prototypes import FromFeatures
from stratafl.core.annotations import Range, Tune
from stratafl.core.fields import Filled, Number, Start, Together
from stratafl.core.layers import select
from stratafl.core.layout import Rows
from stratafl.core.objectives import Batch, Frozen, Loss, Net, cross_entropies
from stratafl.core.phased import Phase, Phased
from stratafl.core.records import record
from stratafl.core.round import Round
from stratafl.core.state import State, rows_of
from stratafl.core.steps import field_names
from stratafl.core.task import Task
from stratafl.models import HeadExtension
from stratafl.policies import Broadcast, Copy, Fresh, LocalTraining, Mean, Take, Upload

SHIFT = select("head.shift")
FEATURES = Number(width="features")


@method(
    "personal parts",
    paper="Zhang et al., 2023",
    title="Eliminating Domain Bias for Federated Learning in Representation Space",
    sends="all but the shift; in the first round only the mean of its features",
    new_client="the global model: its shift starts at zero",
)
def feddbe(
    *,
    strength: Annotated[float, Range(least=0), Tune(0.01, 100.0, log=True)] = 1.0,
    momentum: Annotated[float, Range(above=0, most=1), Tune(0.1, 1.0)] = 1.0,
    train: LocalTraining = LocalTraining(),
) -> Phased:
    """Clients predict with h(φ(x) + p_k) and minimise L + strength·mean_d(0.5·(m − z̄)²), m the running mean of φ(x).

    In the first round all clients train as in FedAvg, and only the mean z̄ of what their features then are is kept.
    `strength` is how much m is held at z̄, `momentum` the weight of a new batch in m.
    """
    shared = replace(
        fedper(personal=SHIFT),
        server={"theta": Together((Start(~SHIFT), Filled(0.0, SHIFT))), "feature_mean": FEATURES},
        global_model="theta",
        extension=HeadExtension("shift"),
    )
    usual = replace(train, layers=~SHIFT, row="trial", optimizer_state="dropped")
    first = replace(
        shared,
        train=(Copy("theta", "trial"), usual, FeatureMean("trial")),
        send=(Upload(field="feature_mean"),),
        merge=(Mean("feature_mean"),),
    )
    rest = replace(
        shared,
        serve=(*shared.serve, Broadcast(field="feature_mean")),
        mix=(Take(), Take("feature_mean"), Fresh("running_mean", FEATURES)),
        train=(replace(train, objective=MeanRegularized(strength, momentum)),),
    )
    return Phased((Phase(first, rounds=1, participation="all", evaluated=False), Phase(rest)))


@record
class FeatureMean(FromFeatures):
    """The mean of what the head is given, over the training samples."""

    row: str = "theta"
    writes = ("feature_mean",)
    reads = field_names("{row}")

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        z, _, weight = task.features(rows_of(client, self.row), "train")
        total = (weight[:, None] @ z.double().flatten(2)).squeeze(1)
        return {"feature_mean": (total / weight.sum(1, keepdim=True)).to(z.dtype)}


@record
class MeanRegularized:
    """CE + strength·mean_d(0.5·(m − z̄)²), m ← (1 − μ)·sg(m) + μ·mean(z) over the batch; z is taken before the shift."""

    strength: float = 1.0
    momentum: float = 1.0
    frozen = ()
    constants = ("feature_mean",)
    carries = ("running_mean",)

    def __call__(self, net: Net, row: Rows, frozen: Frozen, batch: Batch, constants: Rows, carry: Rows) -> Loss:
        logits, z = net.both(row, batch.x)
        mean = (1 - self.momentum) * carry["running_mean"].detach() + self.momentum * batch.average(z.flatten(1))
        pull = 0.5 * (mean - constants["feature_mean"]).square().mean()
        loss = batch.mean(cross_entropies(logits, batch.y)) + self.strength * pull
        return loss, {"running_mean": mean.detach()}, {}
