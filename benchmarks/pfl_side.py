"""FedAvg on many clients by Apple's `pfl`, run by many_clients.py in an environment that has it; needs pfl and torch.

Each client has six samples, of which four train, as a quarter and a tenth of six, rounded up, leave; 100 clients train
one epoch in one batch each round. Prints JSON: seconds, CPU seconds, MB and the accuracy of the final model.
"""

import json
import resource
import sys
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel


class Net(torch.nn.Sequential):
    """The model `mlp` of stratafl, with what pfl asks of a model."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        linear = torch.nn.Linear
        super().__init__(linear(inputs, hidden), torch.nn.ReLU(), linear(hidden, classes))

    def loss(self, x: np.ndarray, y: np.ndarray, eval: bool = False) -> torch.Tensor:
        self.train(not eval)
        return torch.nn.functional.cross_entropy(self(torch.as_tensor(x)), torch.as_tensor(y).long())

    @torch.no_grad()
    def metrics(self, x: np.ndarray, y: np.ndarray, eval: bool = True) -> dict[str, Weighted]:
        self.train(not eval)
        right = float((self(torch.as_tensor(x)).argmax(1) == torch.as_tensor(y)).sum())
        return {"accuracy": Weighted(right, len(y))}


def main(path: str, clients: int, cohort: int, rounds: int, hidden: int) -> None:
    started = time.time()
    torch.manual_seed(0)
    np.random.seed(0)
    torch.set_num_threads(1)
    arrays = np.load(path)
    x, y = arrays["x"], arrays["y"].astype(np.int64)
    order = np.random.permutation(len(x)).reshape(clients, -1)

    def make(user: int) -> Dataset:
        rows = order[user, :4]
        return Dataset(raw_data=[x[rows], y[rows]], user_id=str(user))

    sampler = get_user_sampler("minimize_reuse", list(range(clients)))
    net = Net(x.shape[1], hidden, int(y.max()) + 1)
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, rounds + 1, cohort, 0),
        SimulatedBackend(training_data=FederatedDataset(make, sampler), val_data=None),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=4),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[],
    )
    tested = order[:2000, 4:].ravel()
    with torch.no_grad():
        right = (net(torch.as_tensor(x[tested])).argmax(1) == torch.as_tensor(y[tested])).double().mean()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    facts = {"seconds": time.time() - started, "cpu": time.process_time(), "mb": usage.ru_maxrss / 1024}
    print(json.dumps({**facts, "accuracy": float(right)}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
