"""APPLE (Luo and Wu, 2022): each client learns how to mix the core models of all clients into its own."""

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from stratafl.algorithms.methods import method
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
    new_client="a mixture of all cores by their numbers of samples, whose weights alone it trains",
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
        client={"core": Start(), "p": Number(width="clients"), "met": Number()},
        welcome=serve,
    )


@record
class Downhill:
    """x ← x − lr·slope, where the gradient rule leaves the slope: a tensor that is learned beside the row."""

    field: str
    slope: str
    lr: float
    reads = field_names("{field}", "{slope}")
    writes = field_names("{field}")

    def __call__(self, row: Rows, client: Fields, layout: Layout, rate: Tensor) -> State:
        return {self.field: tensor_of(client, self.field) - self.lr * tensor_of(client, self.slope)}


@record
class Weigh(Mix):
    """p_0j = n_j/Σn, how strongly p_i is pulled to it, and where a client's own core is, which a new client lacks.

    p_ii starts at `own` (None: 1/N), a new client at p_0; `scaled` cores learn 1/own times as fast. λ(r): see Cosine.
    """

    strength: float
    until: float
    own: float | None
    scaled: bool
    reads = ("sizes", "p", "met")
    writes = ("p", "p_0", "pull", "place", "pace", "met")

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        n, p, met = (tensor_of(client, name) for name in self.reads)
        r, L, N = rnd.schedule[0], self.until * rnd.schedule[1], rnd.setup.clients
        p_0, place = n / n.sum(1, keepdim=True), task.ids[:, None] == torch.arange(N, device=p.device)
        own_weight = 1 / N if self.own is None or N == 1 else self.own
        mixed = torch.full_like(p, (1 - own_weight) / max(N - 1, 1)).masked_fill(place, own_weight)
        start = torch.where(place.any(1, keepdim=True), mixed, p_0)
        pull = 2 * self.strength * (Cosine()(r, L) if r < L else 0.0)  # ∂/∂p of λ(r)·μ·‖p − p_0‖²
        ones, p = torch.ones_like(met), torch.where(met[:, None] > 0, p, start)
        numbers = {"pull": pull * ones[:, None], "pace": ones / own_weight if self.scaled else ones, "met": ones}
        return {"p": p, "p_0": p_0, "place": place.to(p.dtype), **numbers}


@record
class AtMixture:
    """The gradient g at w_i = Σ_j p_ij·w_j: p_ii·g for the core, ⟨g, w_j⟩ + 2λ(r)μ(p_ij − p_0j) for each weight."""

    reads = ("p", "p_0", "pull", "place", "pace", "cores")
    gives = ("slope",)
    draws = 1

    def __call__(self, gradient: GradientAt, row: Rows, client: Fields, layout: Layout) -> tuple[Gradients, State]:
        p, p_0, pull, place, pace = (tensor_of(client, name) for name in self.reads[:5])
        cores = common(rows_of(client, "cores"))
        out = gradient({**row, **mixture(p, place, cores, row, layout)})
        others = layout.cross(out.rows, cores, row_by_row=True).movedim(0, 2).contiguous().sum(2)  # each as if alone
        own_slope = layout.dot(out.rows, row).sum(1, keepdim=True)
        moved = {n: g * per_row(pace * (p * place).sum(1), g) for n, g in out.rows.items()}
        return replace(out, rows=moved), {"slope": torch.where(place > 0, own_slope, others) + pull * (p - p_0)}


@record
class Personalise(Train):
    """The client's model: the mixture of the cores, with its own statistics."""

    reads = ("p", "place", "cores", "core")
    writes = ("theta",)

    def footprint(self, setup: Setup) -> Footprint:
        return Footprint(client=setup.row_bytes(), served=setup.clients * setup.row_bytes())  # captured cores too

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        p, place, core = tensor_of(client, "p"), tensor_of(client, "place"), rows_of(client, "core")
        return {"theta": {**core, **mixture(p, place, common(rows_of(client, "cores")), core, rnd.layout)}}


def mixture(p: Tensor, place: Tensor, cores: Rows, core: Rows, layout: Layout) -> Rows:
    """Σ_j p_ij·w_j, where w_i is the client's own core as it is now: one product for all others and all clients."""
    own_weight, others = (p * place).sum(1), layout.blend(p * (1 - place), cores, row_by_row=True)
    return {n: x.addcmul_(core[n], per_row(own_weight, x)) for n, x in others.items()}
