"""Mixing layers or whole models by similarity (Ma et al., 2022, Fig. 1), and pFedLA's weights of own layers (Fig. 7).

    python examples/pfedla_toy.py [SEED]

Six clients with three of nine classes each, few samples, the digits that come with the package, and pFedHN's LeNet.
"""

import sys

import numpy as np
import torch

from stratafl.data import Classes, Federation, digits_arrays, federate
from stratafl.evaluation.evaluate import score_stages
from stratafl.execute import Matrix, simulation
from stratafl.methods import Algorithm, LocalTraining, fedavg, local, pfedla, simmix
from stratafl.models import build

CLIENTS, CLASSES, SAMPLES = 6, 9, 540
TRAIN = LocalTraining(lr=0.1, batch=32, epochs=5)


def federation(seed: int) -> Federation:
    """60 samples of each of nine digits over six clients, half of them for testing."""
    x, y = digits_arrays()
    rng = np.random.default_rng(seed)
    kept = np.concatenate([rng.permutation(np.flatnonzero(y == c))[: SAMPLES // CLASSES] for c in range(CLASSES)])
    x, y = x[kept], y[kept]
    return federate(x, y, Classes(per_client=3)(y, CLIENTS, seed), classes=CLASSES, test=0.5, seed=seed, split="random")


def outcome(method: Algorithm, seed: int, rounds: int) -> tuple[list[float], dict[str, float]]:
    """Test accuracy of each client's received model, and the self weight of client 0 in every layer."""
    sim = simulation(
        method,
        federation(seed),
        lambda: build("lenet", shape=(1, 8, 8), classes=CLASSES),
        rounds=rounds,
        seed=seed,
    )
    progress = sim.run(Matrix())
    scores = score_stages(sim, progress, torch.arange(CLIENTS), ("test",), ("received",))["test.received"]
    alpha = method.tell(sim.at(progress.t), progress.server).get("alpha")
    names = sim.setup.layout.names
    own = {} if alpha is None else {name: float(alpha[i, 0, 0]) for i, name in enumerate(names)}
    return (scores.hits / scores.count).tolist(), own


METHODS: dict[str, Algorithm] = {
    "local": local(train=TRAIN),
    "fedavg": fedavg(train=TRAIN),
    "by similarity of models": simmix(unit="model", train=TRAIN),
    "by similarity of layers": simmix(unit="layer", train=TRAIN),
    "pfedla": pfedla(hyper_lr=0.05, initial="uniform", train=TRAIN),
}


if __name__ == "__main__":
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    print(f"seed {seed}, 30 rounds: accuracy of client 0, mean over clients; self weights of client 0, layer by layer")
    for name, method in METHODS.items():
        accuracy, own = outcome(method, seed, rounds=30)
        told = "  ".join(f"{layer} {weight:.3f}" for layer, weight in own.items())
        print(f"  {name:24} {accuracy[0]:.3f}  {sum(accuracy) / CLIENTS:.3f}  {told}")
