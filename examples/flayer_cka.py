"""FLAYER's Fig. 2 on the digits: how similar the same layer is in different clients' models after local training.

    python examples/flayer_cka.py

Mean linear CKA over pairs of 20 clients on 100 common test samples, in the first and in the last round.
"""

from statistics import mean

from stratafl.data import digits_federation
from stratafl.evaluation import LayerDiagnostics
from stratafl.evaluation.trial import Trial
from stratafl.execute import simulation
from stratafl.methods import LocalTraining, fedavg, fedrep, flayer
from stratafl.models import build

ROUNDS, SEEDS, TRAIN = 20, (0, 1, 2), LocalTraining(lr=0.05)
METHODS = {"FedAvg": fedavg(train=TRAIN), "FedRep": fedrep(train=TRAIN), "FLAYER": flayer(train=TRAIN)}


def similarities(algorithm, seed, rounds=ROUNDS):
    """CKA by layer, after the first and after the last round."""
    sim = simulation(
        algorithm,
        digits_federation(seed=seed, split="random"),
        lambda: build("mlp", shape=(1, 8, 8), classes=10, hidden=(64, 32)),
        rounds=rounds,
        seed=seed,
    )
    trial, progress, seen = Trial(sim, every=rounds, lab=LayerDiagnostics(rounds)), sim.start(), []
    while progress.t < rounds:
        progress, entry = trial.round(progress)
        if "cka" in entry.layers[0]:
            seen.append({line["layer"]: line["cka"] for line in entry.layers})
    return seen[0], seen[-1]


def main():
    """Print the table."""
    for name, algorithm in METHODS.items():
        runs = [similarities(algorithm, seed) for seed in SEEDS]
        for when, each in zip(("first round", "last round"), zip(*runs, strict=True), strict=True):
            values = {layer: [one[layer] for one in each] for layer in each[0]}
            cells = [f"{layer} {mean(v):.3f} ({min(v):.3f}–{max(v):.3f})" for layer, v in values.items()]
            print(f"{name:8}{when:14}{'   '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
