"""FedPrior: FedAvg whose logits are shifted by the log of each client's own class frequencies.

Training and prediction add log π_k; what is shared learns p(x|y) and not how often a class occurs at a client. The
frequencies never leave the client. `with_prior` adds the shift to other methods:

    with_prior(fedala())                     # fedala+prior
"""

from dataclasses import replace
from typing import Annotated

from torch.nn.functional import pad

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.fedlc import Calibrated
from stratafl.algorithms.prototypes import NeedsClasses
from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import Range, Tune
from stratafl.core.fields import FieldSpec, Start, Together
from stratafl.core.layers import select
from stratafl.core.layerwise import Layerwise
from stratafl.core.parcel import Parcel
from stratafl.core.phased import records_of, with_records
from stratafl.core.records import record, validated
from stratafl.core.round import Round
from stratafl.core.state import State, rows_of
from stratafl.core.steps import Mix, field_names
from stratafl.core.task import Task
from stratafl.errors import RecordError
from stratafl.models.heads import HeadExtension
from stratafl.policies import LocalTraining, Take

Smoothing = Annotated[float, Range(above=0), Tune(0.1, 10.0, log=True)]


@method(
    "smallest personal part",
    sends="the whole model, without class frequencies",
    new_client="the global model with its own class frequencies",
)
def fedprior(*, smoothing: Smoothing = 1.0, train: LocalTraining = LocalTraining()) -> Layerwise:
    """Logits + log π_k(c), π_k(c) = (n_{k,c} + s)/(n_k + s·C), with s the `smoothing` and C the number of classes."""
    return _with_prior(fedavg(train=train), smoothing)


@validated
def with_prior(host: Algorithm, *, smoothing: Smoothing = 1.0) -> Algorithm:
    """Logits + log π_k(c), π_k(c) = (n_{k,c} + s)/(n_k + s·C): what is shared no longer learns class frequencies.

    A global model has no prior.
    """
    if not records_of(host):
        raise RecordError("it is no record of steps: choose a method of the catalogue")
    if not any(record.send for record in records_of(host)):
        raise RecordError("nothing is sent: choose a method whose clients upload what they trained")
    return with_records(host, lambda record: _with_prior(record, smoothing))


def _with_prior(host: Layerwise, smoothing: float) -> Layerwise:
    if any(isinstance(step, OwnPrior) for step in host.mix):
        raise RecordError("it already has a class prior: leave out +prior")
    if host.extension is not None:
        raise RecordError("it changes the head of the model itself: choose another method")
    if any(isinstance(getattr(step, "objective", None), Calibrated) for step in host.train):
        raise RecordError("its loss corrects for class counts itself: leave out +prior, or take fedprior")
    keeps_none = host.client_fields.get(host.row) == Start(select("none"))
    shared = host.row if keeps_none and host.server_fields.get(host.row) == Start() else None
    return replace(
        host,
        mix=_with_own_priors(host, smoothing),
        global_model=host.global_model or shared,
        extension=HeadExtension("prior"),
    )


def _with_own_priors(host: Layerwise, smoothing: float) -> tuple[Mix, ...]:
    """Mix with a prior in every model of the client: in a received one as soon as it is, in all others first.

    A step that scores models or builds one from another, as IFCA and APPLE do, then finds it in all of them.
    """
    models = {name for name, spec in host.client_fields.items() if _keeps_own(spec)}
    mix, ready = list[Mix](), set[str]()
    for step in host.mix:
        mix.append(step)
        received = models.intersection(step.writes) - ready if isinstance(step, Take) else set()
        mix += [OwnPrior(smoothing, field) for field in sorted(received)]
        ready |= received
    return (*(OwnPrior(smoothing, field) for field in sorted(models - ready)), *mix)


def _keeps_own(spec: FieldSpec) -> bool:
    """Whether a field of the client has the tensors that it computes from its own data."""
    if isinstance(spec, Together):
        return any(map(_keeps_own, spec.parts))
    return isinstance(spec, Start) and spec.columns == "all"


@record
class OwnPrior(NeedsClasses, Mix):
    """The client's own log π_k in a model."""

    smoothing: float = 1.0
    field: str = "theta"
    reads = field_names("{field}")
    writes = field_names("{field}")

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        theta, counts = rows_of(client, self.field), task.class_counts()
        (name,) = rnd.layout.own("head.prior")
        without_class = theta[name].shape[1] - counts.shape[1]  # outputs that stand for no class
        smoothed = pad(counts.to(theta[name].dtype), (0, without_class)) + self.smoothing
        return {self.field: {**theta, name: (smoothed / smoothed.sum(1, keepdim=True)).log()}}
