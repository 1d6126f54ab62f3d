"""FedBias: FedAvg whose only personal numbers are the biases of the output layer, one per class."""

from dataclasses import replace

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedper import fedper
from stratafl.core.layerwise import Layerwise
from stratafl.models.heads import HeadExtension
from stratafl.policies import LocalTraining


@method(
    "smallest personal part",
    sends="all but the biases of the output layer",
    new_client="the global model with the initial biases",
)
def fedbias(*, train: LocalTraining = LocalTraining()) -> Layerwise:
    """FedPer with W_P = the bias b_k of the head, which carries a client's class frequencies and little else."""
    return replace(fedper(personal="head.bias", train=train), extension=HeadExtension("bias"))
