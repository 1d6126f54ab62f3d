"""Local: nothing is sent; every client trains every round, whatever the participation."""

from stratafl.algorithms.declaration import method
from stratafl.core.fields import Start
from stratafl.core.layerwise import Layerwise
from stratafl.core.phased import Phase, Phased
from stratafl.policies import LocalTraining


def alone(*, train: LocalTraining = LocalTraining()) -> Layerwise:
    """θ_k ← LocalTraining(θ_k): a phase in which nothing is sent."""
    return Layerwise(serve=(), mix=(), train=(train,), send=(), merge=(), server={}, client={"theta": Start()})


@method("controls", sends="nothing", new_client="the initial model")
def local(*, train: LocalTraining = LocalTraining()) -> Phased:
    """Everybody alone, from a common start."""
    return Phased((Phase(alone(train=train), participation="all"),))
