"""pFedHN and pFedHN-PC (Shamsian et al., 2021): one hypernetwork on the server generates the model of every client.

Client i is sent θ_i = h(v_i; ψ) and trains it to θ̃_i; by Δθ_i the server moves ψ and v by the chain rule (Algorithm 1).
"""

from dataclasses import replace
from typing import Annotated, Literal

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.generating import Generate, LearnGenerator
from stratafl.algorithms.hypernetwork import Width
from stratafl.algorithms.model_generator import ModelGenerator
from stratafl.core.annotations import Fixed, Range, Tune
from stratafl.core.fields import Start, Together
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.policies import LocalTraining, Upload

Rate = Annotated[float, Range(least=0), Tune(0.01, 1.0, log=True)]
Share = Annotated[float, Range(least=0, below=1), Fixed("as in the authors' code")]
Least0 = Annotated[float, Range(least=0), Fixed("as in the authors' code")]
Above0 = Annotated[float, Range(above=0), Fixed("as in the authors' code")]
Initial = Literal["model", "drawn"]


@method(
    "hypernetwork",
    paper="Shamsian et al., 2021",
    title="Personalized Federated Learning using Hypernetworks",
    sends="the whole model, without running statistics",
    new_client="the model of the mean embedding",
)
def pfedhn(
    *,
    embedding: Width | None = None,
    hidden: Width = 100,
    depth: Width = 3,
    hyper_lr: Rate = 0.1,
    momentum: Share = 0.9,
    decay: Least0 = 1e-3,
    clip: Above0 = 50.0,
    initial: Initial = "model",
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """pFedHN (Shamsian et al., 2021): a hypernetwork on the server generates every client's model from an embedding.

    `embedding`, `hidden` and `depth` are its sizes; SGD at `hyper_lr` with `momentum` and weight `decay` trains it, on
    gradients clipped to the norm `clip`. With `initial="model"` all clients begin near the model's own initial weights.
    """
    net = ModelGenerator(select("all"), embedding, hidden, depth, initial)
    return _generating(LearnGenerator(net, hyper_lr, momentum, decay, clip), select("none"), train)


@method(
    "hypernetwork",
    paper="Shamsian et al., 2021",
    title="Personalized Federated Learning using Hypernetworks",
    sends="the base: all but the personal layers, without running statistics",
    new_client="the base of the mean embedding and the initial head",
)
def pfedhnpc(
    *,
    personal: str | Select = "head",
    embedding: Width | None = None,
    hidden: Width = 100,
    depth: Width = 3,
    hyper_lr: Rate = 0.1,
    momentum: Share = 0.9,
    decay: Least0 = 1e-3,
    clip: Above0 = 50.0,
    initial: Initial = "model",
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """pFedHN-PC (Shamsian et al., 2021): pFedHN whose clients keep their classifier, trained jointly with the base.

    `personal` are the layers that stay. `embedding`, `hidden`, `depth`, `hyper_lr`, `momentum`, `decay`, `clip` and
    `initial` are those of pFedHN.
    """
    net = ModelGenerator(~select(personal), embedding, hidden, depth, initial)
    return _generating(LearnGenerator(net, hyper_lr, momentum, decay, clip), select(personal), train)


def _generating(learn: LearnGenerator, personal: Select, train: LocalTraining) -> Layerwise:
    """Statistics cannot be generated, so they stay with the client, as personal layers do."""
    return replace(
        fedavg(train=train),
        serve=(Generate(learn.net),),
        send=(Upload(~personal, columns="trainable"),),
        merge=(learn,),
        server=learn.net.fields(),
        client={"theta": Together((Start(personal), Start(columns="statistics")))},
        welcome=(Generate(learn.net, new=True),),
    )
