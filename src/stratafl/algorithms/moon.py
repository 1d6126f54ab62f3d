"""MOON (Li et al., 2021): FedAvg whose features stay near the global model's and away from the client's previous ones.

The features are what the head is given; there is no projection head.
"""

from dataclasses import replace
from typing import Annotated

from torch.nn.functional import cosine_similarity, softplus

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Range, Tune
from stratafl.core.fields import Start
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Rows
from stratafl.core.objectives import Batch, Frozen, Loss, Net, losses
from stratafl.core.records import record
from stratafl.policies import Adopt, Copy, LocalTraining, Remember, Take


@method("global", paper="Li et al., 2021", title="Model-Contrastive Federated Learning")
def moon(
    *,
    strength: Annotated[float, Range(least=0), Tune(0.01, 10.0, log=True)] = 1.0,
    temperature: Annotated[float, Range(above=0), Tune(0.1, 1.0)] = 0.5,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """Algorithm 1: ℓ = ℓ_sup + μ·ℓ_con (Eq. 4) with μ = `strength` and τ = `temperature`.

    A client keeps its model after training for the next time; before the first time it is the received one.
    """
    contrasted = replace(train, objective=Contrast(strength, temperature))
    return replace(
        fedavg(),
        mix=(Take(), Remember(), Adopt(("previous",))),
        train=(contrasted, Copy("theta", "previous")),
        client={**fedavg().client, "previous": Start()},
    )


@record
class Contrast:
    """ℓ_sup + μ·ℓ_con, ℓ_con = −log(e^(cos(z, z_glob)/τ) / (e^(cos(z, z_glob)/τ) + e^(cos(z, z_prev)/τ))) (Eq. 3)."""

    strength: float
    temperature: float
    frozen = ("anchor", "previous")
    constants = carries = ()

    def __call__(self, net: Net, row: Rows, frozen: Frozen, batch: Batch, constants: Rows, carry: Rows) -> Loss:
        outputs, z = net.both(row, batch.x)
        others = (net.features(frozen[name], batch.x) for name in self.frozen)
        near, far = (cosine_similarity(z.flatten(1), other.flatten(1)) for other in others)
        contrast = softplus((far - near) / self.temperature)
        return batch.mean(losses(outputs, batch.y) + self.strength * contrast), carry, {}
