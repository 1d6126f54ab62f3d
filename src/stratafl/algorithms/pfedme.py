"""pFedMe (Dinh et al., 2020): personal models near a local model that follows them; the local models are averaged.

Each client solves θ_i(w) = argmin f_i(θ) + (λ/2)·‖θ − w‖², the Moreau envelope of its loss, batch by batch.
"""

from dataclasses import replace
from typing import Annotated

from torch import Tensor

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Fixed, Range, Tune
from stratafl.core.fields import Start
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout, Rows, per_row
from stratafl.core.records import record
from stratafl.core.state import State, rows_of
from stratafl.policies import Adopt, Copy, LocalTraining, Pull, ServerOptimizer, Take
from stratafl.policies.descent import Fields


@method(
    "regularised and meta",
    paper="Dinh et al., 2020",
    title="Personalized Federated Learning with Moreau Envelopes",
    sends="the whole local model, not the personal one",
    new_client="the global model as its personal one",
)
def pfedme(
    *,
    strength: Annotated[float, Range(least=0), Tune(1.0, 20.0, log=True)] = 15.0,
    inner: Annotated[int, Range(least=1), Tune(1, 10)] = 5,
    personal_lr: Annotated[float, Range(above=0), Tune(0.01, 0.1, log=True)] = 0.05,
    beta: Annotated[float, Range(above=0), Fixed("1 except in proofs")] = 1.0,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """Algorithm 1 with λ = `strength`, K = `inner` steps on each batch at `personal_lr`, and η = `train.lr`.

    Evaluated is θ_i. The server goes `beta` of the way to the mean.
    """
    personal = replace(
        train,
        lr=personal_lr,
        row="personal",
        repeats=inner,
        edits=(*train.edits, Pull(strength, "theta")),  # ∇f_i(θ) + λ·(θ − w_i)
        follow=(*train.follow, Approach(strength, train.lr / personal_lr)),
    )
    shared = fedavg()
    return replace(
        shared,
        mix=(Take(), Adopt(("personal",))),
        train=(Copy("theta", "personal"), personal),
        merge=(ServerOptimizer(lr=beta),),  # w ← (1 − β)·w + β·mean of w_i
        client={**shared.client, "personal": Start()},
        row="personal",
        global_model="theta",
    )


@record
class Approach:
    """w_i ← w_i − η·λ·(w_i − θ) with η = `pace` times the descent's rate; statistics are those of θ."""

    strength: float
    pace: float
    reads = writes = ("theta",)

    def __call__(self, row: Rows, client: Fields, layout: Layout, rate: Tensor) -> State:
        w, share = rows_of(client, "theta"), self.pace * rate * self.strength
        followed = {n: w[n] - per_row(share, w[n]) * (w[n] - row[n]) for n in layout.trainable()}
        return {"theta": {**row, **followed}}
