"""FedBN (Li et al., 2021): FedAvg, but BatchNorm layers and their statistics stay with the client.

Layers are chosen by what they are: the name test of public code (`"bn" in name`) misses the BatchNorm of a ResNet's
shortcuts and averages it.
"""

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedper import fedper
from stratafl.core.layerwise import Layerwise
from stratafl.policies import LocalTraining


@method(
    "personal parts",
    paper="Li et al., 2021",
    title="FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
    sends="all but the BatchNorm layers",
    new_client="the shared layers and initial BatchNorm layers",
)
def fedbn(*, train: LocalTraining = LocalTraining()) -> Layerwise:
    """FedPer whose personal layers are the BatchNorm layers."""
    return fedper(personal="batchnorm", train=train)
