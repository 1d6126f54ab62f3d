"""FedRoD (Chen and Chao, 2022): a generic head by balanced softmax, shared as in FedAvg, and a personal one on top."""

from dataclasses import replace

import torch
from torch.nn.functional import pad

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedper import fedper
from stratafl.algorithms.prototypes import NeedsClasses
from stratafl.core.fields import Filled, Start, Together
from stratafl.core.layers import select
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Rows
from stratafl.core.objectives import Batch, Frozen, Loss, Net, cross_entropies
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.core.round import Round
from stratafl.core.state import State, rows_of
from stratafl.core.steps import Mix
from stratafl.core.task import Task
from stratafl.models import HeadExtension
from stratafl.policies import LocalTraining, Take

ABSENT = 1e-8  # added to class counts: log 0 of a class that a client does not have would be −∞
PERSONAL = select("head.personal")


@method(
    "personal parts",
    paper="Chen and Chao, 2022",
    title="On Bridging Generic and Personalized Federated Learning for Image Classification",
    sends="the base and the generic head",
    new_client="the generic model: its personal head starts at zero",
)
def fedrod(*, balanced: bool = True, train: LocalTraining = LocalTraining()) -> Layerwise:
    """Clients predict with h_g(z) + h_p(z), the global model with h_g(z); `balanced=False` trains h_g on plain CE."""
    return replace(
        fedper(personal=PERSONAL),
        mix=(Take(), ClassPrior()),
        train=(replace(train, objective=TwoLosses(balanced)),),
        server={"theta": Together((Start(~PERSONAL), Filled(0.0, PERSONAL)))},
        global_model="theta",
        extension=HeadExtension("two"),
    )


@record
class ClassPrior(NeedsClasses, Mix):
    """log n_{k,c} of each client, for the rest of the round; outputs that are no class count as classes it has not."""

    reads = ("theta",)
    writes = ("class_prior",)

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        counts, bias = task.class_counts("train"), rows_of(client, "theta")[rnd.layout.trainable(PERSONAL)[-1]]
        class_counts = pad(counts.to(bias.dtype), (0, bias.shape[1] - counts.shape[1]))
        return {"class_prior": torch.log(class_counts + ABSENT)}


@record
class TwoLosses:
    """CE(h_g(z) + log n_k, y), which trains φ and h_g, and CE(sg(h_g(z)) + h_p(sg(z)), y), which trains h_p alone."""

    balanced: bool = True
    frozen = carries = ()

    @property
    def constants(self) -> tuple[str, ...]:
        return ("class_prior",) if self.balanced else ()

    def __call__(self, net: Net, row: Rows, frozen: Frozen, batch: Batch, constants: Rows, carry: Rows) -> Loss:
        z = net.features(row, batch.x)
        generic = net.part("head.generic", row, z)
        personal = generic.detach() + net.part("head.personal", row, z.detach())
        balanced = generic + constants["class_prior"] if self.balanced else generic  # balanced softmax
        return batch.mean(cross_entropies(balanced, batch.y) + cross_entropies(personal, batch.y)), carry, {}
