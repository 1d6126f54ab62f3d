"""APPLE (Luo and Wu, 2022): each client learns how to mix the core models of all clients into its own."""

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from stratafl.algorithms.declaration import method
from stratafl.core.annotations import Range, Tune
from stratafl.core.fields import Number, Start
from stratafl.core.footprint import Footprint
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout, Rows, per_row
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, common, rows_of, tensor_of
from stratafl.core.steps import Mix, Train, field_names
from stratafl.core.task import Gradients, Task
from stratafl.policies import Broadcast, Cosine, LocalTraining, Prepare, StoreRows, Take, Upload
from stratafl.policies.descent import Fields, GradientAt


@method(
    "mixtures",
    paper="Luo and Wu, 2022",
    title="Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning",
    sends="the core model",
    new_client="all cores, weighted by their numbers of samples; it trains these weights only",
)
def apple(
    *,
    weights_lr: Annotated[float, Range(least=0), Tune(1e-6, 1e-3, log=True)] = 1e-5,
    strength: Annotated[float, Range(least=0), Tune(1e-3, 1.0, log=True)] = 0.1,
    until: Annotated[float, Range(least=0, most=1), Tune(0.0, 0.5)] = 0.1,
    own: Annotated[float, Range(above=0, most=1), Tune(0.2, 0.8)] | None = 0.5,
    scaled: bool = True,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """w_i = Σ_j p_ij·w_j; core w_i and weights p_i move batch by batch, the cores of all others are constants.

    p_i learns at `weights_lr`; for the share `until` of the rounds it is pulled to p_0, at first with `strength`. p_ii
    starts at `own` (None: at 1/N, like all others), and a `scaled` core learns 1/own times as fast.
    """
    serve = (Broadcast(field="cores"), Broadcast(field="sizes"))
    descent = replace(train, row="core", gradient=AtMixture(), follow=(Downhill("p", "slope", weights_lr),))
    return Layerwise(
        serve=serve,
        mix=(Take("cores"), Take("sizes"), Weigh(strength, until, own, scaled), Prepare(Personalise())),
        train=(descent, Personalise()),
        send=(Upload(field="core", columns="trainable"),),
        merge=(StoreRows("cores", "core"), StoreRows("sizes", "samples")),
        server={"cores": Start(per_client=True, columns="trainable"), "sizes": Number(1.0, per_client=True)},
        client={"core": Start(), "p": Number(width="clients"), "met": Number()},  # met: 1 once the client took part
        welcome=serve,
    )


@record
class Downhill:
    """x ← x − lr·slope, where the gradient rule leaves the slope: a tensor that is learned along with the row."""

    field: str
    slope: str
    lr: float
    reads = field_names("{field}", "{slope}")
    writes = field_names("{field}")

    def __call__(self, row: Rows, client: Fields, layout: Layout, rate: Tensor) -> State:
        return {self.field: tensor_of(client, self.field) - self.lr * tensor_of(client, self.slope)}


@record
class Weigh(Mix):
    """The weights p_i, their prior p_0j = n_j/Σn, the pull to it (λ(r): see Cosine), and which core is the own one.

    The first weights are `own` for the own core (None: 1/N) and equal for the others. A new client has no core and
    starts at p_0. A `scaled` core learns 1/own times as fast.
    """

    strength: float
    until: float
    own: float | None
    scaled: bool
    reads = ("sizes", "p", "met")
    writes = ("p", "p_0", "pull", "is_own", "core_speed", "met")

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        n, p, met = (tensor_of(client, name) for name in self.reads)
        N = rnd.setup.clients
        p_0 = n / n.sum(1, keepdim=True)
        is_own = task.ids[:, None] == torch.arange(N, device=p.device)
        own_weight = 1 / N if self.own is None or N == 1 else self.own
        others = torch.full_like(p, (1 - own_weight) / max(N - 1, 1))
        # A new client has no core.
        start = torch.where(is_own.any(1, keepdim=True), others.masked_fill(is_own, own_weight), p_0)
        p = torch.where(met[:, None] > 0, p, start)

        pull = 2 * self.strength * self.pace(*rnd.schedule)  # ∂/∂p of λ(r)·μ·‖p − p_0‖²
        ones = torch.ones_like(met)
        numbers = {"pull": pull * ones[:, None], "core_speed": ones / own_weight if self.scaled else ones, "met": ones}
        return {"p": p, "p_0": p_0, "is_own": is_own.to(p.dtype), **numbers}

    def pace(self, t: int, rounds: int) -> float:
        """λ(r), which depends on the number of rounds."""
        until = self.until * rounds
        return Cosine()(t, until) if t < until else 0.0


@record
class AtMixture:
    """The gradient g at w_i = Σ_j p_ij·w_j: p_ii·g for the core, ⟨g, w_j⟩ + 2λ(r)μ(p_ij − p_0j) for each weight."""

    reads = ("p", "p_0", "pull", "is_own", "core_speed", "cores")
    gives = ("slope",)
    draws = 1

    def __call__(self, gradient: GradientAt, row: Rows, client: Fields, layout: Layout) -> tuple[Gradients, State]:
        p, p_0, pull, is_own, core_speed = (tensor_of(client, n) for n in ("p", "p_0", "pull", "is_own", "core_speed"))
        cores = common(rows_of(client, "cores"))
        out = gradient({**row, **mixture(p, is_own, cores, row, layout)})
        by_layer = layout.cross(out.rows, cores, row_by_row=True).movedim(0, 2)
        others = by_layer.contiguous().sum(2)  # contiguous: the bits do not depend on the number of clients
        own_slope = layout.dot(out.rows, row).sum(1, keepdim=True)
        moved = {n: g * per_row(core_speed * (p * is_own).sum(1), g) for n, g in out.rows.items()}
        return replace(out, rows=moved), {"slope": torch.where(is_own > 0, own_slope, others) + pull * (p - p_0)}


@record
class Personalise(Train):
    """The client's model: the mixture of the cores, with its own statistics."""

    reads = ("p", "is_own", "cores", "core")
    writes = ("theta",)

    def footprint(self, setup: Setup) -> Footprint:
        return Footprint(client=setup.row_bytes(), served=setup.clients * setup.row_bytes())  # captured cores too

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        p, is_own, core = tensor_of(client, "p"), tensor_of(client, "is_own"), rows_of(client, "core")
        return {"theta": {**core, **mixture(p, is_own, common(rows_of(client, "cores")), core, rnd.layout)}}


def mixture(p: Tensor, is_own: Tensor, cores: Rows, core: Rows, layout: Layout) -> Rows:
    """Σ_j p_ij·w_j, where w_i is the client's own core as it is now: one product for all others and all clients."""
    own_weight, others = (p * is_own).sum(1), layout.blend(p * (1 - is_own), cores, row_by_row=True)
    return {n: x.addcmul_(core[n], per_row(own_weight, x)) for n, x in others.items()}
