"""FedALA (Zhang et al., 2023): each client learns, element by element, how much of the received head to take."""

from dataclasses import replace
from typing import Annotated

import torch

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Fixed, Range, Tune
from stratafl.core.fields import Filled, Number, Start
from stratafl.core.footprint import Footprint
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout, Rows, per_row
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, rows_of, tensor_of
from stratafl.core.steps import Mix
from stratafl.core.task import Gradients, Task
from stratafl.policies import Clamp, Copy, LocalTraining, Prepare, Take
from stratafl.policies.descent import Fields, GradientAt


@method(
    "mixtures",
    paper="Zhang et al., 2023",
    title="FedALA: Adaptive Local Aggregation for Personalized Federated Learning",
)
def fedala(
    *,
    layers: str | Select = "last:1",
    weights_lr: Annotated[float, Range(least=0), Tune(0.1, 10.0, log=True)] = 1.0,
    share: Annotated[float, Range(above=0, most=1), Fixed("a cost: the share of the data that trains W")] = 0.8,
    first_passes: Annotated[int, Range(least=1), Tune(1, 20)] = 10,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """θ̂ = own + (received − own)⊙W in `layers`, where W ∈ [0, 1] is learned before each round.

    W is learned at `weights_lr` on a `share` of the batches: in `first_passes` epochs the first time, in one
    afterwards.
    """
    top = select(layers)
    learn = LocalTraining(
        lr=weights_lr, batch=train.batch, drop_last=train.drop_last, layers=top, row="W", purpose="ala"
    )
    learn = replace(learn, gradient=ThroughWeights(), project=Clamp(), share=share, epochs_from="passes")
    return replace(
        fedavg(),
        mix=(Take(), CountPasses(first_passes), Prepare(learn), Combine(top)),
        train=(train, Copy("theta", "own")),
        client={
            "theta": Start(select("none")),
            "own": Start(top, columns="trainable"),  # Θ_i of the last round
            "W": Filled(1.0, top),
            "rounds": Number(),
        },
        global_model="theta",
    )


@record
class CountPasses(Mix):
    """Over how many epochs W is learned: none before a client took part, many the first time, then one."""

    first: int
    reads = ("rounds",)
    writes = ("passes",)

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        rounds = tensor_of(client, "rounds")
        return {"passes": torch.where(rounds == 1, self.first, rounds.clamp(max=1))}


@record
class ThroughWeights:
    """∇_W L = ∇_θ̂ L ⊙ (received − own), with θ̂ = own + (received − own)⊙W."""

    reads = ("theta", "own")
    gives = ()
    draws = 1

    def __call__(self, gradient: GradientAt, row: Rows, client: Fields, layout: Layout) -> tuple[Gradients, State]:
        received, previous = rows_of(client, "theta"), rows_of(client, "own")
        out = gradient({**received, **combined(row, received, previous)})
        return replace(out, rows={n: g * (received[n] - previous[n]) for n, g in out.rows.items()}), {}


@record
class Combine(Mix):
    """θ̂ in these layers, all others as received; a client that never took part has no model of its own."""

    layers: Select = select("last:1")
    reads = ("theta", "own", "W", "rounds")
    writes = ("theta", "rounds")

    def footprint(self, setup: Setup) -> Footprint:
        return Footprint(client=2 * setup.row_bytes(setup.layout.trainable(self.layers)))

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        received, rounds = rows_of(client, "theta"), tensor_of(client, "rounds")
        mixed = combined(rows_of(client, "W"), received, rows_of(client, "own"))
        met = {n: per_row(rounds > 0, x) for n, x in mixed.items()}
        return {"theta": {**received, **rnd.layout.mask(met, mixed, received)}, "rounds": rounds + 1}


def combined(W: Rows, received: Rows, previous: Rows) -> Rows:
    """Own + (received − own)⊙W, of the layers that have weights."""
    return {n: torch.lerp(previous[n], received[n], w) for n, w in W.items()}
