"""FedLAG's Figs. 12 and 13 on the digits: the share of conflicting pairs of clients, layer by layer, round by round.

    python examples/fedlag_conflicts.py --seeds 0 1 2

FedAvg with layer diagnostics in every round (a pair conflicts if the cosine of its updates is below 0), on IID data and
on Dirichlet(0.1), from the same initial model. About a minute per seed.
"""

import argparse

from stratafl.data import IID, Dirichlet, Partition, digits_federation
from stratafl.evaluation import LayerDiagnostics
from stratafl.evaluation.trial import Trial
from stratafl.execute import simulation
from stratafl.methods import LocalTraining, fedavg
from stratafl.models import build

SHOWN = (1, 2, 3, 5, 10, 20, 40, 60)
CLIENTS = 8  # 28 pairs; with many more, the clients' few samples differ even on IID data
DATA: dict[str, Partition] = {"iid": IID(), "dirichlet": Dirichlet(alpha=0.1)}


def conflicts(partition: Partition, seed: int, rounds: int = SHOWN[-1]) -> dict[str, list[float]]:
    """By layer: the share of pairs that conflict in each round."""
    sim = simulation(
        fedavg(train=LocalTraining(lr=0.05)),
        digits_federation(clients=CLIENTS, partition=partition, seed=seed, split="random"),
        lambda: build("mlp", shape=(1, 8, 8), classes=10, hidden=(64, 64, 64)),
        rounds=rounds,
        seed=seed,
    )
    trial, progress = Trial(sim, every=rounds, lab=LayerDiagnostics(every=1, samples=10)), sim.start()
    found: dict[str, list[float]] = {name: [] for name in sim.setup.layout.names}
    while progress.t < rounds:
        progress, entry = trial.round(progress)
        for line in entry.layers:
            found[line["layer"]].append(line["conflicts"])
    return found


def main() -> None:
    """Print a table for each kind of data and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    for seed in parser.parse_args().seeds:
        for kind, partition in DATA.items():
            print(f"{kind}, seed {seed}: conflicting pairs in per cent, by round")
            print(f"{'layer':>8}" + "".join(f"{t:>6}" for t in SHOWN))
            for layer, shares in conflicts(partition, seed).items():
                print(f"{layer:>8}" + "".join(f"{100 * shares[t - 1]:>6.0f}" for t in SHOWN), flush=True)


if __name__ == "__main__":
    main()
