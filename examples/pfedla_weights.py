"""pFedLA's weights between clients (Ma et al., 2022, Fig. 5 and 6), on the digits that come with the package.

    python examples/pfedla_weights.py [SEED]

Fig. 5: eight clients with four classes each; client 0 is the target, client 1 has the same classes, client 2 three of
them, the others none. Fig. 6: a chain in which neighbours share three of four classes. Training starts from equal
weights and, for Fig. 5, also from random ones, where the paper's order appears far less often
(docs/methods/pfedla.md).
"""

import sys

import numpy as np
import torch
from torch import Tensor

from stratafl.data import Federation, digits_arrays, federate
from stratafl.execute import Matrix, simulation
from stratafl.methods import LocalTraining, pfedla
from stratafl.models import build

TARGET = ("0123", "0123", "1234", "4567", "6789", "5689", "4789", "4589")  # Fig. 5
CHAIN = tuple("".join(str((i + j) % 10) for j in range(4)) for i in range(8))  # Fig. 6
EACH = 40  # samples of each class, for every client


def federation(classes: tuple[str, ...], seed: int) -> Federation:
    """Clients with these classes; no two share a sample, and 30 % are for testing."""
    x, y = digits_arrays()
    rng = np.random.default_rng(seed)
    left = {c: list(rng.permutation(np.flatnonzero(y == int(c)))) for c in "0123456789"}
    owners = [[left[c].pop() for c in mine for _ in range(EACH)] for mine in classes]
    return federate(x, y, owners, classes=10, test=0.3, seed=seed, split="random")


def weights(
    classes: tuple[str, ...], seed: int, rounds: int = 100, hyper_lr: float = 0.05, initial: str = "uniform"
) -> dict[str, Tensor]:
    """α after training: `[N, N]` for each layer, row i for client i."""
    method = pfedla(hyper_lr=hyper_lr, initial=initial, train=LocalTraining(lr=0.05, batch=32, epochs=5))
    sim = simulation(
        method,
        federation(classes, seed),
        lambda: build("mlp", shape=(1, 8, 8), classes=10, hidden=(64, 32)),
        rounds=rounds,
        seed=seed,
    )
    progress = sim.run(Matrix())
    alpha = method.tell(sim.at(progress.t), progress.server)["alpha"]
    return dict(zip(sim.setup.layout.names, alpha, strict=True))


def ranked(alpha: Tensor) -> tuple[float, float, float, float]:
    """Weights of the target's row in Fig. 5: self, the same classes, three of four shared, the largest of the rest."""
    row = alpha[0].tolist()
    return row[0], row[1], row[2], max(row[3:])


def band(alpha: Tensor) -> list[float]:
    """Mean weight by distance along the chain of Fig. 6: 4, 3, 2, 1, 0, 0, 0, 1 shared classes."""
    apart = (torch.arange(8)[:, None] - torch.arange(8)).abs()
    return [float(alpha[apart == d].mean()) for d in range(8)]


def _printed(values: list[float] | tuple[float, ...]) -> str:
    return "  ".join(f"{value:.4f}" for value in values)


if __name__ == "__main__":
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    for hyper_lr, initial in ((0.05, "uniform"), (0.2, "uniform"), (0.05, "drawn"), (0.2, "drawn")):
        print(f"seed {seed}, hyper_lr {hyper_lr}, initial {initial}: self, same, three of four, most of the rest")
        for layer, alpha in weights(TARGET, seed, hyper_lr=hyper_lr, initial=initial).items():
            found = ranked(alpha)
            print(
                f"  {layer:4} {_printed(found)}  {'ordered' if found == tuple(sorted(found)[::-1]) else 'NOT ordered'}"
            )
    chain = weights(CHAIN, seed)
    print("the chain of Fig. 6, first layer, row i for client i:")
    print("\n".join(f"  {_printed(row)}" for row in chain["fc1"].tolist()))
    for layer, alpha in chain.items():
        print(f"  {layer:4} by distance: {_printed(band(alpha))}")
