"""Local: nothing is sent; every client trains every round, whatever the participation."""

from stratafl.algorithms.catalogue import method
from stratafl.core.fields import Start
from stratafl.core.layerwise import Layerwise
from stratafl.core.phased import Phase, Phased
from stratafl.policies import SGD


def alone(*, train: SGD = SGD()) -> Layerwise:
    """θ_k ← SGD(θ_k): a phase in which nothing is sent."""
    return Layerwise(serve=(), mix=(), train=(train,), send=(), merge=(), server={}, client={"theta": Start()})


@method(
    "controls",
    paper=None,
    title=None,
    sends="nothing",
    new_client="the initial model",
)
def local(*, train: SGD = SGD()) -> Phased:
    """Everybody alone, from a common start."""
    return Phased((Phase(alone(train=train), participation="all"),))
