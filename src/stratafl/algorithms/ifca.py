"""IFCA (Ghosh et al., 2020): several models, of which each client trains the one that fits its data best.

Algorithm 1 with model averaging. Clients choose a group in every round; so does a new client, and one that is only
evaluated.
"""

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Range, Tune
from stratafl.core.fields import Start
from stratafl.core.footprint import Footprint
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import per_row
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.core.reduce import add_group_sums
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, expand, rows_of, tensor_of
from stratafl.core.steps import MergeSums, Mix
from stratafl.core.task import Task
from stratafl.policies import Broadcast, LocalTraining, Upload


@method(
    "clustered",
    paper="Ghosh et al., 2020",
    title="An Efficient Framework for Clustered Federated Learning",
    sends="the whole model and the number of its group",
    new_client="the group model with the smallest loss on its training split",
)
def ifca(
    *, groups: Annotated[int, Range(least=1), Tune(2, 10)] = 2, train: LocalTraining = LocalTraining()
) -> Layerwise:
    """M models θ_m, drawn separately: all clients would choose the same of equal ones. A single one is FedAvg's.

    `groups` is M.
    """
    return replace(
        fedavg(train=train),
        serve=(Broadcast(field="groups"),),  # all groups, to all clients
        mix=(ChooseGroup(),),
        send=(Upload(), Upload(field="group")),
        merge=(MeanOfGroups(groups),),
        server={"groups": Start(copies=groups, own=groups > 1)},
    )


@record
class ChooseGroup(Mix):
    """m̂ = argmin_m L_k(θ_m): the mean loss on the training split, in evaluation mode; of equals the first.

    Statistics that stay with the client are the same for all groups.
    """

    reads = ("down.groups", "theta")
    writes = ("theta", "group")
    scores = True

    def footprint(self, setup: Setup) -> Footprint:
        return Footprint(client=setup.row_bytes())

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        groups, theta, count = down["groups"].rows, rows_of(client, "theta"), len(task)
        models = zip(*(x.unbind() for x in groups.values()), strict=True)
        losses = [
            task.scores({**theta, **expand(dict(zip(groups, model, strict=True)), count)}, "train").loss
            for model in models
        ]
        m = torch.stack(losses).nan_to_num(torch.inf).argmin(0)  # a loss that became NaN is no small one
        return {"theta": {**theta, **{name: x[m] for name, x in groups.items()}}, "group": m}


@record
class MeanOfGroups(MergeSums):
    """θ_m = Σ_{k∈G_m} n_k·θ_k / Σ_{k∈G_m} n_k over the clients that chose m; without any, θ_m stays."""

    groups: int
    reads = ("up.theta", "up.group", "up.samples", "groups")
    writes = ("groups",)

    def footprint(self, setup: Setup) -> Footprint:
        """A sum per group, and their quotients, one tensor at a time."""
        row, block = (f(dtype=torch.float64) for f in (setup.row_bytes, setup.block_bytes))
        return Footprint(sums=self.groups * row, client=block, merge=2 * self.groups * block)

    def fold(self, rnd: Round, server: State, sums: State, up: Parcel, ids: Tensor) -> State:
        chosen, m = up["group"].tensor, up["group"].tensor.clamp(0, self.groups - 1)
        samples = up["samples"].tensor * (chosen == m)  # an upload for a group that does not exist counts for none
        return add_group_sums(sums, m, self.groups, samples, up["theta"].rows)

    def finish(self, rnd: Round, server: State, sums: State) -> State:
        top, weight, old = rows_of(sums, "top"), tensor_of(sums, "weight"), rows_of(server, "groups")
        return {"groups": {name: _mean_or_held(top[name], weight, x) for name, x in old.items()}}


def _mean_or_held(top: Tensor, weight: Tensor, old: Tensor) -> Tensor:
    weights = per_row(weight, top)
    return torch.where(weights > 0, top / weights.clamp(min=1), old).to(old.dtype)
