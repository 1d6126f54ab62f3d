"""FLAYER's Fig. 3 on the digits: FedAvg, each of the three parts alone, and all together, over three seeds.

    python examples/flayer_parts.py

Accuracies are those of the last round, as received (the model that Algorithm 1 returns) and right after local training;
`round` is the first one whose mean validation accuracy is within half a point of the best.
"""

from statistics import mean, stdev

from stratafl.data import digits_federation
from stratafl.evaluation.trial import Trial
from stratafl.execute import simulation
from stratafl.methods import LocalTraining, flayer
from stratafl.models import build

ROUNDS, SEEDS, TRAIN = 30, (0, 1, 2), LocalTraining(lr=0.05)
OFF = {"guide": False, "rates": False, "mask": False}
PARTS = {
    "FedAvg": flayer(**OFF, train=TRAIN),
    "aggregation only": flayer(**OFF | {"guide": True}, train=TRAIN),
    "learning rate only": flayer(**OFF | {"rates": True}, train=TRAIN),
    "masking only": flayer(**OFF | {"mask": True}, train=TRAIN),
    "FLAYER": flayer(train=TRAIN),
}


def history(algorithm, seed, rounds=ROUNDS, every=1):
    """One line per round, of 20 clients with Dirichlet(0.1) shares of the digits and an MLP of three layers."""
    sim = simulation(
        algorithm,
        digits_federation(validation=0.1, seed=seed, split="random"),
        lambda: build("mlp", shape=(1, 8, 8), classes=10, hidden=(64, 32)),
        rounds=rounds,
        seed=seed,
    )
    trial, progress, lines = Trial(sim, every), sim.start(), []
    while progress.t < rounds:
        progress, entry = trial.round(progress)
        lines.append(entry.round)
    return lines


def converged(lines):
    """The first round within half a point of the best validation accuracy."""
    reached = [line["validation.received.accuracy"] for line in lines]
    return next(t for t, value in enumerate(reached, 1) if value >= max(reached) - 0.005)


def main():
    """Print the table."""
    print(f"{'':20}{'as received':>16}{'after training':>18}{'round':>8}{'MB up':>8}")
    for name, algorithm in PARTS.items():
        runs = [history(algorithm, seed) for seed in SEEDS]
        cells = []
        for stage in ("received", "trained"):
            values = [100 * lines[-1][f"test.{stage}.accuracy"] for lines in runs]
            cells.append(f"{mean(values):.1f} ± {stdev(values):.1f}")
        rounds = mean(converged(lines) for lines in runs)
        megabytes = mean(sum(line["bytes.up"] for line in lines) for lines in runs) / 1e6
        print(f"{name:20}{cells[0]:>16}{cells[1]:>18}{rounds:>8.1f}{megabytes:>8.1f}", flush=True)


if __name__ == "__main__":
    main()
