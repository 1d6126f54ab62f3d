"""FedBN (Li et al., 2021): FedAvg, but BatchNorm layers and their statistics stay with the client.

Layers are chosen by what they are: the name test of public code (`"bn" in name`) misses the BatchNorm of a ResNet's
shortcuts and averages it.
"""

from stratafl.algorithms.fedper import fedper
from stratafl.core.layerwise import Layerwise
from stratafl.policies import SGD


def fedbn(*, train: SGD = SGD()) -> Layerwise:
    """FedPer whose personal layers are the BatchNorm layers."""
    return fedper(personal="batchnorm", train=train)
