"""One of ten clients is wrong: what robust merges save of the other nine, on the digits.

    python examples/robust_merges.py

Six methods, four merges, three ways to be wrong: data in another unit (times 100), labels turned around (9 − y), an
update a hundred times as long. Numbers are the accuracy of the nine others' deployed models on their own test samples,
in per cent, mean over the seeds; `without` is the federation of the nine alone, `honest` all ten with nothing wrong.
"""

import argparse
import logging
from dataclasses import replace
from itertools import product
from statistics import mean

import torch

from stratafl.data import digits_federation
from stratafl.data.partitions import Dirichlet
from stratafl.evaluation.evaluate import deployed
from stratafl.execute import Matrix, simulation
from stratafl.methods import LocalTraining, Parcel, algorithm
from stratafl.models import build
from stratafl.policies.robust import robust
from stratafl.testing.watch import Watched

METHODS = ("fedavg", "fedprox", "fedper", "fedrep", "lgfedavg", "flayer")
WAYS = ("", "unit", "labels", "update")  # to be wrong; "": not at all
MERGES = ("mean", "median", "trimmed", "clipped")
CLIENTS, WRONG, ROUNDS, TRAIN = 10, 9, 15, LocalTraining(lr=0.2, batch=40)


logging.getLogger("stratafl").setLevel(logging.ERROR)  # that a client's data is in another unit is what we want


class ScaledUpdate(Watched):
    """A method in which one client sends a hundred times what it has learned."""

    def work(self, rnd, client, task):
        done = super().work(rnd, client, task)
        theta, factor = done.upload["theta"], torch.where(task.ids == WRONG, 100.0, 1.0)
        start = client["theta"]
        value = {n: start[n] + factor.reshape(-1, *(1,) * (x.ndim - 1)) * (x - start[n]) for n, x in theta.rows.items()}
        return done._replace(upload=Parcel({**done.upload, "theta": replace(theta, value=value)}))


def federation(seed, wrong=""):
    """The digits over ten clients, Dirichlet(1), of whom the last may be wrong."""
    made = digits_federation(clients=CLIENTS, partition=Dirichlet(alpha=1.0, minimum=20), seed=seed)
    x, y, own = made.x.clone(), made.y.clone(), made.split("train").of(WRONG)
    if wrong == "unit":
        x[own] *= 100
    if wrong == "labels":
        y[own] = 9 - y[own]
    return replace(made, x=x, y=y)


def accuracy(name, merge, seed, wrong="", without=False):
    """Of the nine others, in per cent."""
    method = algorithm(name, train=TRAIN)
    method = method if merge == "mean" else robust(method, merge)
    sim = simulation(
        method,
        federation(seed, wrong),
        lambda: build("mlp", shape=(1, 8, 8), classes=10, hidden=(32,)),
        rounds=ROUNDS,
        seed=seed,
    )
    if wrong == "update":
        sim = replace(sim, algorithm=ScaledUpdate(method))
    others, progress = torch.arange(WRONG), sim.start()
    for _ in range(ROUNDS):
        progress, _ = sim.round(progress, Matrix(), others if without else None)
    rnd = sim.at(ROUNDS - 1)
    scores = sim.task(others, rnd, splits=("train", "test")).scores(deployed(sim, progress, others), "test")
    return 100 * float(scores.hits.sum() / scores.count.sum())


def main():
    """Print the table; each seed is a federation, an initial model and batches of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default=",".join(METHODS))
    given = parser.parse_args()
    found = {}
    for seed in range(given.seeds):
        for name in given.methods.split(","):
            found.setdefault((name, "mean", "without"), []).append(accuracy(name, "mean", seed, without=True))
            for merge, wrong in product(MERGES, WAYS):
                found.setdefault((name, merge, wrong), []).append(accuracy(name, merge, seed, wrong))
        print(f"\n{seed + 1} of {given.seeds} seeds\n")
        print("| method | merge | without | honest | unit | labels | update |\n|---|---|---|---|---|---|---|")
        for name, merge in product(given.methods.split(","), MERGES):
            cells = [found.get((name, merge, column)) for column in ("without", *WAYS)]
            print(f"| {name} | {merge} | {' | '.join(f'{mean(c):.1f}' if c else '' for c in cells)} |", flush=True)


if __name__ == "__main__":
    main()
