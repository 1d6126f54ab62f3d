"""Per-FedAvg (Fallah et al., 2020): a global model that is good after one gradient step on a client's own data."""

from dataclasses import replace
from typing import Annotated, Literal

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Fixed, Range, Tune
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout, Rows
from stratafl.core.records import record
from stratafl.core.state import State
from stratafl.core.task import Gradients
from stratafl.policies import LocalTraining
from stratafl.policies.descent import Fields, GradientAt

Version = Literal["fo", "hf"]


@method(
    "regularised and meta",
    paper="Fallah et al., 2020",
    title="Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach",
    new_client="the global model after one step on its own data",
)
def perfedavg(
    *,
    version: Version = "fo",
    alpha: Annotated[float | None, Range(least=0), Tune(1e-3, 0.5, log=True)] = None,
    delta: Annotated[float, Range(above=0), Fixed("small; only `hf` uses it")] = 1e-3,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """Algorithm 1 with β = `train.lr`; the step that it prepares for is one at `alpha`, by default `train.lr`.

    The `version` `fo` leaves second derivatives out, `hf` takes their product with the gradient from a difference of
    width `delta`. Deployed is the model after one step on one batch.
    """
    step = train.lr if alpha is None else alpha
    return replace(
        fedavg(train=replace(train, gradient=Meta(version, step, delta))),
        tune=(LocalTraining(lr=step, steps=1, batch=train.batch, objective=train.objective, purpose="tune"),),
    )


@record
class Meta:
    """g = ∇L(w − α·∇L(w; D); D′); `hf` subtracts α·∇²L(w; D″)·g, with (∇L(w + δg) − ∇L(w − δg))/(2δ) for ∇²L·g."""

    version: Version
    alpha: float
    delta: float
    reads = gives = ()

    @property
    def draws(self) -> int:
        return 2 if self.version == "fo" else 3

    def __call__(self, gradient: GradientAt, row: Rows, client: Fields, layout: Layout) -> tuple[Gradients, State]:
        ahead = gradient(displaced(row, gradient(row, draw=0).rows, -self.alpha), draw=1)
        if self.version == "fo":
            return ahead, {}
        g = ahead.rows
        above, below = (gradient(displaced(row, g, way), draw=2).rows for way in (self.delta, -self.delta))
        factor = self.alpha / (2 * self.delta)
        return replace(ahead, rows={n: g[n] - factor * (above[n] - below[n]) for n in g}), {}


def displaced(row: Rows, direction: Rows, length: float) -> Rows:
    """The row, some way in a direction."""
    return {**row, **{n: row[n] + length * d for n, d in direction.items()}}
