"""Mixing by similarity.

As in pFedLA the server keeps the latest model of every client and sends each its own mixture of them. The paper says
that similarities between layers, or between models, give the weights, and not what is compared nor how it becomes a
weight. Our reading: the cosine of what clients have learned since the common initial model, through a softmax.
"""

from typing import Annotated, Literal

import torch
from torch import Tensor

from stratafl.algorithms.declaration import method
from stratafl.algorithms.pfedla import mixing
from stratafl.core.annotations import Range, Tune
from stratafl.core.footprint import Footprint
from stratafl.core.layerwise import Layerwise
from stratafl.core.records import record
from stratafl.core.reduce import cosines_between
from stratafl.core.round import Round, Setup
from stratafl.core.state import Computed, State, rows_of
from stratafl.policies import LocalTraining

Unit = Literal["layer", "model"]
Sharpness = Annotated[float, Range(least=0), Tune(0.5, 50.0, log=True)]


@method(
    "controls",
    paper="Ma et al., 2022",
    title="Layer-wised Model Aggregation for Personalized Federated Learning",
    new_client="the mean of all clients' models",
)
def simmix(*, unit: Unit = "layer", sharpness: Sharpness = 5.0, train: LocalTraining = LocalTraining()) -> Layerwise:
    """Similarity mixing (Ma et al., 2022, Fig. 1): pFedLA whose weights are cosines between models, not learned.

    θ̄_i^l = Σ_j α_i^{l,j}·θ_j^l with α from `Similarity`; the `unit` is a layer, or the whole model; `sharpness` is how
    much the most similar clients are preferred.
    """
    return mixing(Similarity(unit, sharpness), train)


@record
class Similarity:
    """α_i^{l,j} = softmax_j(sharpness·cos(u_i^l, u_j^l)), where u_j = θ_j − θ^(0) on trainable columns.

    A client that has learned nothing yet is at cosine 0 to all clients, itself included: its weights are equal.
    """

    unit: Unit = "layer"
    sharpness: Sharpness = 5.0
    names = ()

    def footprint(self, setup: Setup) -> Footprint:
        """What all clients have learned, one tensor at a time."""
        block = setup.block_bytes()
        return Footprint(client=2 * block, served=setup.clients * block)

    def weights(self, rnd: Round, server: State, ids: Tensor) -> Tensor:
        rows, start, layout = rows_of(server, "rows"), rnd.setup.start, rnd.layout
        u = Computed(layout.trainable(), lambda name: rows[name] - start[name])
        u_i = Computed(u, lambda name: rows[name][ids] - start[name])
        products, squares = layout.cross(u_i, u), layout.dot(u, u).T
        if self.unit == "model":
            products, squares = (x.sum(0, keepdim=True).expand_as(x) for x in (products, squares))
        norms = squares.sqrt()
        return torch.softmax(self.sharpness * cosines_between(products, norms[:, ids], norms), -1).transpose(0, 1)
