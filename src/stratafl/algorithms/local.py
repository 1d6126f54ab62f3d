"""Local training: nothing is sent; every client trains every round, whatever the participation."""

from stratafl.fields import Start
from stratafl.layerwise import Layerwise
from stratafl.phased import Phase, Phased
from stratafl.policies import SGD


def local(*, train: SGD = SGD()) -> Phased:
    """θ_k ← SGD(θ_k), from a common start."""
    alone = Layerwise(serve=(), mix=(), train=(train,), send=(), merge=(), server={}, client={"theta": Start()})
    return Phased((Phase(alone, participation="all"),))
