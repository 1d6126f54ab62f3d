"""FedLAG's Fig. 4 on the digits: which layers should be personal? And its two-dimensional toy set of appendix G.

    python examples/fedlag_layers.py --seeds 0 1 2

Compares adaptive personal layers with the first, middle or last K layers (FedPer's; the paper has FedBABU's, and K = 4
too), with the layers that FedLAG chose most often, with FedAvg, and with the control: FedAvg for the warm-up, then
local training alone. All get the same rounds and steps. About a minute and a half per seed on a free core.
"""

import argparse
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from torch import nn

from stratafl import fit
from stratafl.data import Federation, digits_federation, from_splits
from stratafl.evaluation import LayerDiagnostics
from stratafl.evaluation.trial import Trial
from stratafl.execute import Matrix, simulation
from stratafl.methods import Algorithm, LocalTraining, fedavg, fedavg30local, fedlag, fedper
from stratafl.models import build

ROUNDS, WARMUP, TRAIN = 30, 10, LocalTraining(lr=0.1)


def methods(k: int) -> Mapping[str, Algorithm]:
    """The methods with k personal layers."""
    fixed = {f"{place} {k}": fedper(personal=f"{place}:{k}", train=TRAIN) for place in ("first", "middle", "last")}
    return {f"adaptive {k}": fedlag(k=k, xi=-0.1, warmup=WARMUP, train=TRAIN), **fixed}


def controls() -> Mapping[str, Algorithm]:
    """No personal layer, and local training alone after the warm-up."""
    return {"FedAvg": fedavg(train=TRAIN), "then alone": fedavg30local(warmup=WARMUP, train=TRAIN)}


def model() -> nn.Module:
    """Four linear layers."""
    return build("mlp", shape=(1, 8, 8), classes=10, hidden=(100, 100, 100))


def accuracy(algorithm: Algorithm, seed: int) -> tuple[float, float]:
    """Test accuracy as received and right after local training, after the last round."""
    fitted = fit(
        algorithm, digits_federation(seed=seed, split="random"), model, rounds=ROUNDS, evaluate_every=ROUNDS, seed=seed
    )
    last = fitted.history[-1]
    return last["test.received.accuracy"], last["test.trained.accuracy"]


def chosen(k: int, seed: int) -> list[str]:
    """The layers that FedLAG makes personal after each round that follows the warm-up; nothing is evaluated."""
    method = fedlag(k=k, xi=-0.1, warmup=WARMUP, train=TRAIN)
    sim = simulation(method, digits_federation(seed=seed, split="random"), model, rounds=ROUNDS, seed=seed)
    progress, sets = sim.start(), []
    while progress.t < ROUNDS:
        progress, _ = sim.round(progress, Matrix())
        personal = sim.algorithm.tell(sim.at(progress.t), progress.server)["personal"]
        sets.append("+".join(name for name, own in zip(sim.setup.layout.names, personal, strict=True) if own))
    return sets[WARMUP:]


def often(k: int, seed: int) -> tuple[float, float]:
    """Accuracy with the layers that FedLAG chose most often, personal from the first round to the last."""
    sets = chosen(k, seed)
    changes = sum(a != b for a, b in pairwise(sets))
    most, times = Counter(sets).most_common(1)[0]
    print(f"  seed {seed}: {most} in {times} of {len(sets)} rounds, {changes} changes", flush=True)
    return accuracy(fedper(personal=most, train=TRAIN), seed)


def toy(different: bool, samples: int = 200, seed: int = 0) -> Federation:
    """Four users in the plane, y > 0 is class 1 for all; in `different` domains classes also differ by x.

    Class 1 is then right of x = 0 for the first two users and left of it for the others, so that the boundary that is
    easiest to see is orthogonal to the common one.
    """
    rng = np.random.default_rng(seed)
    users = []
    for side in (1, 1, -1, -1):
        label = rng.integers(0, 2, samples)
        y = rng.uniform(0, 1, samples) * np.where(label == 1, 1, -1)
        x = rng.uniform(-1, 1, samples) + (2 * side * (2 * label - 1) if different else 0)
        points = np.stack([x, y], 1).astype(np.float32)
        users.append({"train": (points, label), "test": (points[:20], label[:20])})
    return from_splits(users, classes=2)


def toy_conflicts(different: bool) -> list[float]:
    """The share of conflicting pairs of a linear model in each of ten rounds."""
    linear = build("mlp", shape=(2,), classes=2, hidden=())
    sim = simulation(fedavg(train=LocalTraining(lr=0.05, batch=50)), toy(different), linear, rounds=10)
    trial, progress, found = Trial(sim, every=10, lab=LayerDiagnostics(every=1, samples=2)), sim.start(), []
    while progress.t < 10:
        progress, entry = trial.round(progress)
        found += [line["conflicts"] for line in entry.layers]
    return found


def show(name: str, found: list[tuple[float, float]]) -> None:
    """A row of the table; last the mean as received."""
    cells = "".join(f"{f'{100 * before:.1f} / {100 * after:.1f}':>15}" for before, after in found)
    print(f"{name:>12}{cells}{100 * sum(before for before, _ in found) / len(found):>10.1f}", flush=True)


def main() -> None:
    """Print the toy's conflicts and a table of accuracies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--k", type=int, nargs="+", default=[2])
    given = parser.parse_args()
    for different in (False, True):
        shares = ", ".join(f"{100 * share:.0f}" for share in toy_conflicts(different))
        print(f"toy set, {'different' if different else 'same'} domains: conflicting pairs in per cent: {shares}")
    print(f"\ndigits, Dirichlet(0.1): test accuracy in per cent, as received / after training, by seed {given.seeds}")
    compared = dict(controls())
    for k in given.k:
        compared |= methods(k)
    for name, algorithm in compared.items():
        show(name, [accuracy(algorithm, seed) for seed in given.seeds])
    for k in given.k:
        show(f"often {k}", [often(k, seed) for seed in given.seeds])


if __name__ == "__main__":
    main()
