"""FedALP's Fig. 4 on the digits: accuracy of local and global models for β from 0 to 1.

    python examples/fedalp_beta.py --seeds 0 1 2

`classes` is the paper's kind of data: one digit per client and as many groups as digits. `dirichlet` is milder: clients
of one group hold different digits. About a minute per seed and kind.
"""

import argparse

from stratafl import fit
from stratafl.data import Classes, Dirichlet, digits_federation
from stratafl.methods import LocalTraining, fedalp
from stratafl.models import build

BETAS = (0.0, 0.3, 0.6, 0.9, 1.0)
DATA = {"classes": (Classes(per_client=1), 10), "dirichlet": (Dirichlet(alpha=0.1), 5)}  # and how many groups
ROUNDS = 30


def accuracies(kind: str, beta: float, seed: int) -> tuple[float, float]:
    """Test accuracy of what clients are sent, and of w_g, after the last round; half of the rounds are warm-up."""
    partition, groups = DATA[kind]
    fitted = fit(
        fedalp(beta=beta, groups=groups, warmup=ROUNDS // 2, train=LocalTraining(lr=0.05)),
        digits_federation(partition=partition, seed=seed, split="random"),
        lambda: build("mlp", shape=(1, 8, 8), classes=10),
        rounds=ROUNDS,
        evaluate_every=ROUNDS,
        seed=seed,
    )
    last = fitted.history[-1]
    return last["test.received.accuracy"], last["test.global.accuracy"]


def main() -> None:
    """Print a table for each kind of data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--data", choices=DATA, nargs="+", default=list(DATA))
    given = parser.parse_args()
    for kind in given.data:
        print(f"{kind}: test accuracy in per cent, local / global")
        print(f"{'seed':>6}" + "".join(f"{f'β={beta}':>15}" for beta in BETAS))
        for seed in given.seeds:
            found = [accuracies(kind, beta, seed) for beta in BETAS]
            cells = [f"{100 * own:.1f} / {100 * global_model:.1f}" for own, global_model in found]
            print(f"{seed:>6}" + "".join(f"{cell:>15}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
