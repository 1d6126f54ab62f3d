"""FedAvg for some rounds, then everybody alone: what the published code of FedLAG amounts to, as a control.

Its function that should give clients the averaged layers after the warm-up copies nothing.
"""

from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.local import alone
from stratafl.errors import RecordError
from stratafl.phased import Phase, Phased
from stratafl.policies import SGD


def fedavg30local(*, warmup: int = 30, train: SGD = SGD()) -> Phased:
    """Clients go on from the model that they last trained in the warm-up."""
    if warmup < 0:
        raise RecordError(f"fedavg30local: warmup is a number of rounds from 0, not {warmup}")
    return Phased((Phase(fedavg(train=train), rounds=warmup), Phase(alone(train=train))))
