"""One of ten clients is wrong: six attacks against the defences of a server, on the digits.

    python examples/wrong_clients.py --to wrong_clients.csv
    python examples/wrong_clients.py --ratios --to update_lengths.csv
    python examples/wrong_clients.py --clean --to shortened.csv

Every line of the first file is a run: the accuracy of the nine others' deployed models on their own test samples, and
for the backdoor the share of their test samples of other classes that the trigger turns to class 0. The wrong client
knows the method and sees what the others send. Defences are a limit to the length of updates, updates that are
shortened, and robust merges. `--choose` takes validation samples, a quarter of each client's, in place of test samples.

The second file has no wrong client. Each line is a federation, a method and a part of uploads: the largest of all its
lengths, as multiples of the median of their round, and how many there are. A limit below the largest leaves an honest
client out. The third has none either: how often an honest update was shortened to a multiple of the median, how often
one was left out, and the accuracy then; with 0 none is shortened. `--federation TITLE SETTING ...` adds a federation to
both, and `--synthetic FILE` writes the data of one.
"""

import argparse
import csv
import logging
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from stratafl.config.assemble import simulation_of
from stratafl.config.experiment import Experiment, with_settings
from stratafl.data import digits_federation
from stratafl.data.partitions import Dirichlet
from stratafl.errors import RecordError
from stratafl.evaluation.evaluate import deployed
from stratafl.execute import Matrix, round_run, simulation
from stratafl.methods import LocalTraining, Parcel, algorithm
from stratafl.models import build
from stratafl.testing.watch import Watched

METHODS = ("fedavg", "fedper", "flayer", "pfedla")
ATTACKS = ("none", "sign x 10", "sign x 1", "random", "labels", "little is enough", "backdoor")
CLIPS, CLIP, LIMIT = (2.0, 3.0, 5.0, 10.0), 5.0, 20.0  # multiples of the median; the defaults
DEFENCES = ("none", "limit 5", "limit 20", *(f"shorten {clip:g}" for clip in CLIPS), "median", "trimmed", "clipped")
CLIENTS, ROUNDS, FIRST_ROUNDS, TRAIN, LIMITLESS = 10, 15, 3, LocalTraining(lr=0.2, batch=40), 1e300
SHIFT, BOOST, STAMP = 1.5, 10.0, (slice(0, 2), slice(0, 2))  # deviations, times the update, pixels of the trigger


class Attacked(Watched):
    """A method in which one client changes the model that it sends."""

    def __init__(self, inner: Any, wrong: int, attack: str) -> None:
        super().__init__(inner)
        self.wrong, self.attack = wrong, attack

    def work(self, rnd: Any, client: Any, task: Any) -> Any:
        done, start = super().work(rnd, client, task), client["theta"]
        theta, wrong = done.upload["theta"], task.ids == self.wrong
        draws = torch.Generator().manual_seed(rnd.t)
        updates = {name: x - start[name] for name, x in theta.rows.items()}
        noise = {name: torch.randn(x.shape[1:], generator=draws) for name, x in updates.items()}
        length = sum(x[wrong].square().sum() for x in updates.values()) ** 0.5
        unit = sum(x.square().sum() for x in noise.values()) ** 0.5

        def sent(name: str, x: Any) -> Any:
            update, others = updates[name], x[~wrong]
            changed = {
                "sign x 10": lambda: start[name] - 10 * update,
                "sign x 1": lambda: start[name] - update,
                "random": lambda: start[name] + 10 * length / unit * noise[name],
                "little is enough": lambda: little_is_enough(others).expand_as(x),
                "backdoor": lambda: start[name] + BOOST * update,
            }
            if self.attack not in changed:
                return x
            return torch.where(wrong.reshape(-1, *(1,) * (x.ndim - 1)), changed[self.attack](), x)

        value = {name: sent(name, x) for name, x in theta.rows.items()}
        return done._replace(upload=Parcel({**done.upload, "theta": replace(theta, value=value)}))


def little_is_enough(others: Any) -> Any:
    """The others' mean less some deviations of theirs, column by column (Baruch et al., 2019)."""
    return others.mean(0) - SHIFT * others.std(0)


def federation(alpha: float, seed: int, wrong: int, attack: str, validation: float) -> Any:
    """The digits over ten clients, of whom one may have wrong labels or a trigger on half of its samples."""
    partition = Dirichlet(alpha=alpha, minimum=20)
    honest = digits_federation(clients=CLIENTS, partition=partition, validation=validation, seed=seed)
    x, y, own = honest.x.clone(), honest.y.clone(), honest.split("train").of(wrong)
    if attack == "labels":
        y[own] = 9 - y[own]
    if attack == "backdoor":
        half = own[::2]
        x[half], y[half] = stamped(x[half]), 0
    return replace(honest, x=x, y=y)


def stamped(x: Any) -> Any:
    """Images with the trigger in a corner."""
    x = x.clone()
    x[(..., *STAMP)] = x.max()
    return x


def defended(name: str, defence: str) -> tuple[Any, dict[str, float]]:
    """The method with its defence, and limits to the length of updates."""
    if defence.startswith("limit"):
        return algorithm(name, train=TRAIN), {"norm_limit": float(defence.split()[1])}
    if defence.startswith("shorten"):
        return algorithm(name, train=TRAIN), {"norm_limit": 20.0, "norm_clip": float(defence.split()[1])}
    return algorithm(name if defence == "none" else f"{name}+{defence}", train=TRAIN), {}


def attacked(
    name: str, attack: str, defence: str, alpha: float, seed: int, split: str
) -> tuple[float, float | None, int]:
    """The accuracy of the others in per cent, how often the trigger works, and how many honest clients were left out.

    The first, second, ... client is wrong by the seed, so that it has few samples in one federation, many in another.
    """
    wrong = seed % CLIENTS
    method, limits = defended(name, defence)
    data = federation(alpha, seed, wrong, attack, 0.25 if split == "validation" else 0)
    sim = simulation(
        method,
        data,
        lambda: build("mlp", shape=(1, 8, 8), classes=10, hidden=(32,)),
        rounds=ROUNDS,
        seed=seed,
        **limits,
    )
    sim = replace(sim, algorithm=Attacked(method, wrong, attack))
    progress, left_out = sim.start(), 0
    while progress.t < sim.rounds:
        progress, report = sim.round(progress, Matrix())
        left_out += sum(each.client != wrong or attack == "none" for each in report.left_out)
    others = torch.tensor([client for client in range(CLIENTS) if client != wrong])
    rnd, models = sim.at(sim.rounds - 1), deployed(sim, progress, others)
    share = triggered(sim, models, data, others, split) if attack == "backdoor" else None
    return accuracy(sim, rnd, models, others, split), share, left_out


def accuracy(sim: Any, rnd: Any, models: Any, clients: Any, split: str) -> float:
    """The accuracy on the clients' samples of a split in per cent."""
    scores = sim.task(clients, rnd, splits=("train", "validation", "test")).scores(models, split)
    return 100 * float(scores.hits.sum() / scores.count.sum())


def triggered(sim: Any, models: Any, data: Any, others: Any, split: str) -> float:
    """The share of the others' samples of a split that are not of class 0 and that the trigger turns to class 0."""
    hits = count = 0
    for place, client in enumerate(others.tolist()):
        own = data.split(split).of(client)
        own = own[data.y[own] != 0]
        model = {name: x[place] for name, x in models.items()}
        logits = torch.func.functional_call(sim.template, model, (stamped(data.x[own]),))
        hits, count = hits + int((logits.argmax(1) == 0).sum()), count + len(own)
    return 100 * hits / count


# Without a wrong client: how much longer than the median is the longest update, and what does shortening cost?

FEDERATIONS = {
    "digits, Dirichlet 0.05, 12 clients": ["data.alpha=0.05", "data.clients=12", "data.minimum=5"],
    "digits, Dirichlet 0.05, 20 clients": ["data.alpha=0.05", "data.minimum=5"],
    "digits, Dirichlet 0.1, 12 clients": ["data.alpha=0.1", "data.clients=12"],
    "digits, Dirichlet 0.3, 20 clients": ["data.alpha=0.3"],
    "digits, Dirichlet 1, 10 clients": ["data.alpha=1", "data.clients=10"],
    "digits, 2 classes, 20 clients": ["data.partition=classes"],
    "digits, sizes differ (1.5), 20 clients": ["data.partition=quantity", "data.spread=1.5", "data.minimum=5"],
    "digits, Dirichlet 0.1, 20 clients, a third each round": ["data.alpha=0.1", "run.participation=0.3"],
    "digits, Dirichlet 0.1, 12 clients, 5 epochs": ["data.alpha=0.1", "data.clients=12", "train.epochs=5"],
    "digits, Dirichlet 0.05, 20 clients, Adam": [
        *("data.alpha=0.05", "data.minimum=5", "train.optimizer=adam", "train.lr=0.001"),
    ],
    "digits, Dirichlet 0.1, 12 clients, CNN": [
        *("data.alpha=0.1", "data.clients=12", "model.name=convnorm", "train.lr=0.05"),
    ],
    "digits, Dirichlet 0.1, 12 clients, batch norm": ["data.alpha=0.1", "data.clients=12", "model.norm=true"],
}


def ratios(name: str, settings: list[str], seed: int) -> dict[str, tuple[float, int, float, int, int, int]]:
    """For each part of uploads its lengths, as multiples of the median of their round.

    The largest, in which round that was, the largest of the first rounds, how many are above `CLIP` and above `LIMIT`,
    and how many there are.
    """
    rounds = list[list[Mapping[str, float]]]()
    flagged = round_run.flagged

    def seen(inspections: Any, cohort: Any, *limits: Any) -> Any:
        inspections = list(inspections)
        rounds.append([parts for _, inspection in inspections for parts in inspection.parts])
        return flagged(inspections, cohort, None)

    usual = ["train.lr=0.1", "data.clients=20", f"run.rounds={ROUNDS}", f"run.seed={seed}"]
    typed = [f"algorithm.name={name}", *usual, *settings, f"server.norm_limit={LIMITLESS}", "server.norm_clip=0"]
    sim = simulation_of(with_settings(Experiment(), typed))
    with patch.object(round_run, "flagged", seen):
        sim.run(Matrix())
    lengths = dict[str, list[tuple[float, int]]]()
    for t, of_round in enumerate(rounds):
        for part in dict.fromkeys(part for parts in of_round for part in parts):
            moved = [parts[part] for parts in of_round if parts.get(part, 0) > 0]
            if len(moved) >= 3:
                lengths.setdefault(part, []).extend((x / median(moved), t + 1) for x in moved)
    return {
        part: (
            *max(of_part),
            max((ratio for ratio, t in of_part if t <= FIRST_ROUNDS), default=0.0),
            sum(ratio > CLIP for ratio, _ in of_part),
            sum(ratio > LIMIT for ratio, _ in of_part),
            len(of_part),
        )
        for part, of_part in lengths.items()
    }


def clean(name: str, settings: list[str], seed: int, clip: float) -> tuple[int, int, list[float]]:
    """How often an update was shortened, and left out; accuracies.

    They are on validation samples after 3 rounds, and on validation and test samples at the end.
    """
    usual = ["train.lr=0.1", "data.clients=20", f"run.rounds={ROUNDS}", f"run.seed={seed}"]
    sim = simulation_of(with_settings(Experiment(), [f"algorithm.name={name}", *usual, *settings]))
    sim, shortened, left_out, scores = replace(sim, norm_clip=clip or None), 0, 0, list[float]()
    clients, progress = torch.arange(sim.setup.clients), sim.start()
    while progress.t < sim.rounds:
        progress, report = sim.round(progress, Matrix())
        shortened += len(report.shortened)
        left_out += len(report.left_out)
        if progress.t in (FIRST_ROUNDS, sim.rounds):
            rnd, models = sim.at(progress.t - 1), deployed(sim, progress, clients)
            splits = ("validation", "test") if progress.t == sim.rounds else ("validation",)
            scores += [accuracy(sim, rnd, models, clients, split) for split in splits]
    return shortened, left_out, scores


def write_clean(path: Path, methods: list[str], seeds: int) -> None:
    """A line for each federation, method, seed and multiple, from small to large, and at the end without (0).

    A multiple that shortens nobody has the bits of a run without, and so have all larger ones.
    """
    done = lines_of(path, "federation,method,seed,clip,shortened,left_out,validation in round 3,validation,test")
    with path.open("a", newline="") as file:
        for seed, (title, settings), name in product(range(seeds), FEDERATIONS.items(), methods):
            plain = list[str]()
            for clip in (*CLIPS, 0.0):
                before = [line for line in done if line[:4] == [title, name, str(seed), f"{clip:g}"]]
                count, *shown = before[0][4:] if before else ("0", *plain)
                if not shown:
                    shortened, left_out, scores = clean(name, settings, seed, clip)
                    count, shown = str(shortened), [str(left_out), *(f"{x:.1f}" for x in scores)]
                plain = shown if count == "0" else plain
                if not before:
                    csv.writer(file).writerow((title, name, seed, f"{clip:g}", count, *shown))
                    file.flush()


def write_synthetic(path: Path, clients: int = 20, seed: int = 0) -> None:
    """Synthetic(1, 1) of Li et al. (2020): each client has its own inputs and its own labels; sizes are lognormal."""
    rng, columns, classes = np.random.default_rng(seed), 60, 10
    with path.open("w", newline="") as file:
        csv.writer(file).writerow(("client", "label", *(f"x{column}" for column in range(columns))))
        for client in range(clients):
            weight = rng.normal(rng.normal(), 1, (columns, classes))
            bias, centre = rng.normal(rng.normal(), 1, classes), rng.normal(rng.normal(), 1, columns)
            count = min(1000, 30 + int(rng.lognormal(4, 1.5)))
            x = rng.normal(centre, np.arange(1, columns + 1) ** -0.6, (count, columns))
            labels = (x @ weight + bias).argmax(1)
            csv.writer(file).writerows(
                (f"c{client}", label, *(f"{value:.4f}" for value in row)) for label, row in zip(labels, x, strict=True)
            )


def lines_of(path: Path, head: str) -> list[list[str]]:
    """The lines that a file has already; a new one gets its head."""
    if not path.exists():
        path.write_text(head + "\n")
    with path.open(newline="") as file:
        return list(csv.reader(file))


def write_ratios(path: Path, methods: list[str], seeds: int) -> None:
    """One line for each federation, method, seed and part of uploads."""
    head = f"federation,method,seed,part,ratio,round,in rounds 1-{FIRST_ROUNDS},above {CLIP:g},above {LIMIT:g},lengths"
    done = {tuple(line[:3]) for line in lines_of(path, head)}
    with path.open("a", newline="") as file:
        for seed, (title, settings), name in product(range(seeds), FEDERATIONS.items(), methods):
            if (title, name, str(seed)) in done:
                continue
            try:
                of_parts = sorted(ratios(name, settings, seed).items())
            except RecordError:  # this method refuses this federation
                continue
            for part, (ratio, t, first, *counts) in of_parts:
                csv.writer(file).writerow((title, name, seed, part, f"{ratio:.2f}", t, f"{first:.2f}", *counts))
            file.flush()


def write_attacks(
    path: Path, methods: list[str], attacks: list[str], defences: list[str], seeds: int, alpha: float, split: str
) -> None:
    """One line for each run."""
    head = "alpha,method,attack,defence,seed,accuracy,triggered,left_out"
    done = {tuple(line[:5]) for line in lines_of(path, head)}
    with path.open("a", newline="") as file:
        for seed, name, attack, defence in product(range(seeds), methods, attacks, defences):
            key = (f"{alpha:g}", name, attack, defence, str(seed))
            if key in done:
                continue
            try:
                score, share, left_out = attacked(name, attack, defence, alpha, seed, split)
            except RecordError:  # this method refuses this defence
                continue
            shown = "" if share is None else f"{share:.1f}"
            csv.writer(file).writerow((*key, f"{score:.1f}", shown, left_out))
            file.flush()


def main() -> None:
    """Write one of the tables; lines that the file has already are not repeated."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--alpha", type=float, default=0.3)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--defences", default=",".join(DEFENCES))
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--ratios", action="store_true")
    parser.add_argument("--clean", action="store_true")
    parser.add_argument("--synthetic", type=Path)
    parser.add_argument("--federation", nargs="+", action="append", default=[], metavar=("TITLE", "SETTING"))
    parser.add_argument("--to", type=Path, required=True)
    args = parser.parse_args()
    logging.getLogger("stratafl").setLevel(logging.ERROR)
    FEDERATIONS.update((title, settings) for title, *settings in args.federation)
    if args.synthetic:
        write_synthetic(args.synthetic)
    if args.ratios:
        write_ratios(args.to, args.methods.split(","), args.seeds)
    elif args.clean:
        write_clean(args.to, args.methods.split(","), args.seeds)
    else:
        split = "validation" if args.choose else "test"
        names = (chosen.split(",") for chosen in (args.methods, args.attacks, args.defences))
        write_attacks(args.to, *names, args.seeds, args.alpha, split)


if __name__ == "__main__":
    main()
