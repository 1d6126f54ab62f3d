"""PFLlib and this package side by side: FedAvg on the same images in the same shares, from the same initial weights.

    python benchmarks/against_pfllib.py --pfllib ../PFLlib --model cnn

PFLlib is a checkout of https://github.com/TsingZ0/PFLlib; its own training loop runs unchanged, in a process of its own
between two halves of our rounds. A round is training, averaging and evaluation on both sides. PFLlib also computes the
loss of the global model on all training samples in every round, and reads its files again; the ratio is given with all
of that and without.

Before the race both sides train on the same batches, and their models must be the same (`same_models.py`). In the race
they draw their own: they count their steps and samples, begin with the same accuracy, and both losses must fall. With
even shares (`--alpha 100`) accuracies must also be alike; with uneven ones they jump from round to round.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import recording
import workload
from pfllib_side import DATA_NAME, tensors_of, write_model
from recording import Table, bar, row, where_of
from same_models import TOLERANCES, differences, exact_simulation, our_round
from stratafl.config.experiment import Experiment, with_settings
from stratafl.data import Federation
from stratafl.evaluation.evaluate import score_stages
from stratafl.runs import Run

AIMS = {"cnn": 100.0, "resnet18": 80.0}  # of a GPU
CHECKS = ("one step", "one round")
EQUAL = 0.002  # the same initial weights on the same test samples, but for rounding
SAME_WORK = ("same_start", "same_steps", "same_samples", "accuracies_alike", "losses_fall")
EVEN = 1.0  # the least alpha with which accuracies are compared: of uneven shares they jump from round to round
ALIKE = 0.1  # they may differ by this and by chance, since batches are drawn differently


def write_pfllib_files(federation: Federation, folder: Path, dtype: torch.dtype) -> None:
    """Each client's samples in the files that PFLlib reads: a pickled dictionary in a compressed npz."""
    for split in ("train", "test"):
        place = folder / "dataset" / DATA_NAME / split
        place.mkdir(parents=True)
        for client in range(federation.clients):
            mine = federation.split(split).of(client)
            x = federation.inputs(federation.x[mine], dtype).cpu().numpy()
            held: Any = {"x": x, "y": federation.y[mine].cpu().numpy()}
            np.savez_compressed(place / f"{client}.npz", data=held)
    (folder / "system").mkdir()


def run_pfllib(given: argparse.Namespace, folder: Path, device: str, to: Path, more: Sequence[str] = ()) -> None:
    """PFLlib in a process of its own; its output goes to a file that is shown if it fails."""
    log = folder / "pfllib.log"
    command = [sys.executable, str(Path(__file__).with_name("pfllib_side.py")), "--pfllib", str(given.pfllib)]
    command += ["--folder", str(folder), "--weights", str(folder / "weights.npz"), "--to", str(to), *more]
    command += ["--model", given.model, "--device", device, "--rounds", str(given.pfllib_rounds)]
    for name in ("batch", "clients", "seed", "lr", "threads"):
        command += [f"--{name}", str(getattr(given, name))]
    with log.open("w") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise SystemExit(f"PFLlib failed:\n{log.read_text()[-3000:]}")


def timed_pfllib(given: argparse.Namespace, folder: Path, device: str) -> Table:
    run_pfllib(given, folder, device, folder / "pfllib.json")
    found: Table = json.loads((folder / "pfllib.json").read_text())
    return found


def check(given: argparse.Namespace, found: Experiment, folder: Path, device: str, dtype: torch.dtype) -> Table:
    """How far apart both sides are after the first round of this experiment, where both take the same batches.

    Steps are captured as in the race; whether they are compiled is an option, since the compiler would work once more.
    """
    sim = exact_simulation(with_settings(found, [f"run.compile={given.check_compile}"]), dtype)
    assert sim.template is not None
    write_pfllib_files(sim.runtime.federation, folder, dtype)
    write_model(folder / "weights.npz", [*sim.template.parameters()])
    start = [x.detach().clone() for x in tensors_of(sim.template).values()]
    ours, tuning, classes = our_round(sim, folder / "orders.npz"), sim.runtime.tuning, sim.runtime.federation.classes
    sim.runtime.close()
    models = folder / "models"
    models.mkdir()
    run_pfllib(given, folder, device, models, ["--orders", str(folder / "orders.npz"), "--classes", str(classes)])
    about = {"type": str(dtype).removeprefix("torch."), "tolerance": TOLERANCES[dtype], "tuning": tuning}
    return {**differences(ours, models, start), **about}


def check_both(given: argparse.Namespace, data: Path, folder: Path, device: str, result: recording.Result) -> None:
    """A step in float32, then a round in float64; ends with the result written if models differ by more than rounding.

    For the step, each client has images for one batch beside its test samples, a quarter.
    """
    counts = given.clients * (4 * given.batch // 3 + 2), given.check_images
    for name, count, dtype in zip(CHECKS, counts, (torch.float32, torch.float64), strict=True):
        place = folder / name.replace(" ", "-")
        place.mkdir()
        found = experiment(given, first_images(data, place / "images.npz", count), device)
        found = found if name == "one round" else with_settings(found, ["data.partition=iid"])
        apart = result.details[name] = {"images": count, **check(given, found, place, device, dtype)}
        what = f"after {name} in {apart['type']} models differ by {apart['largest']:.1e} of what training changed"
        print(what, flush=True)
        if not apart["beyond_storing"] <= apart["tolerance"]:
            result.save()
            raise SystemExit(
                f"PFLlib and this package do not compute the same: {what}, and rounding is at most "
                f"{apart['tolerance']:.0e}; nothing was timed, and {result.path} has each client's difference"
            )


def first_images(data: Path, to: Path, count: int) -> Path:
    with np.load(data) as file:
        np.savez(to, x=file["x"][:count], y=file["y"][:count])
    return to


class OurRounds:
    """Rounds of a run in its directory, journal and evaluation included, with the time at which each has ended."""

    def __init__(self, run: Run) -> None:
        self.run, self.seconds, self._rounds = run, list[float](), run.rounds()
        clients = torch.arange(run.sim.setup.clients)
        scores = score_stages(run.sim, run.progress, clients, ("test",), ("received",))["test.received"]
        self.initial = float(scores.hits.sum() / scores.count.sum())
        self.tested = int(scores.count.sum())

    def take(self, count: int) -> None:
        begin = time.perf_counter()
        for _ in islice(self._rounds, count):
            now = time.perf_counter()
            self.seconds.append(now - begin)
            begin = now

    def figures(self) -> Table:
        history, counts = self.run.history, self.run.sim.runtime.federation.counts("train")
        first = history[0]
        return {
            "rounds": self.seconds,
            "steps": first["train.steps"],
            "samples": int(counts.sum()) - int(first.get("dropped_samples", 0)),
            "accuracy": [self.initial, *(line["test.deployed.accuracy"] for line in history)],
            "train_loss": [line["train.loss"] for line in history],
            "evaluate": [line["seconds.evaluate"] for line in history],
            "test_samples": self.tested,
            "tuning": self.run.sim.runtime.tuning,
        }


def experiment(given: argparse.Namespace, data: Path, device: str) -> Experiment:
    typed = workload.settings(given, data, given.model, device, given.rounds)
    return with_settings(Experiment(), [*typed, "algorithm.name=fedavg", f"run.compile={given.compile}", *given.set])


def compare(ours: Table, theirs: Table, alpha: float) -> Table:
    """Medians of the rounds after the first, ratios, and whether both did the same work."""
    later = slice(1, None)
    parts = {name: median(theirs[name][later]) for name in ("rounds", "train_loss", "reading", "train_loss_reading")}
    our_round, warm = median(ours["rounds"][later]), median(ours["rounds"][len(ours["rounds"]) // 2 :])
    lean = parts["rounds"] - parts["train_loss"]
    unread = lean - (parts["reading"] - parts["train_loss_reading"])
    same = min(len(theirs["accuracy"]), len(ours["accuracy"])) - 1  # both lists begin before the first round
    gaps = [abs(a - b) for a, b in zip(theirs["accuracy"], ours["accuracy"], strict=False)]
    chance = 1 / sqrt(ours["test_samples"])  # two standard errors of a share, or less
    loss = theirs["train_loss_of_global_model"]
    return {
        "pfllib_round": parts["rounds"],
        "our_round": our_round,
        "our_round_last_half": warm,
        "ratio": parts["rounds"] / our_round,
        "ratio_last_half": parts["rounds"] / warm,
        "pfllib_round_without_train_loss": lean,
        "ratio_without_train_loss": lean / our_round,
        "ratio_without_train_loss_and_reading": unread / our_round,
        "same_steps": ours["steps"] == theirs["steps"],
        "same_samples": ours["samples"] == theirs["samples"],
        "accuracy_after": same,
        "accuracies": {"pfllib": theirs["accuracy"][same], "ours": ours["accuracy"][same]},
        "same_start": gaps[0] <= EQUAL,
        "accuracies_alike": None if alpha < EVEN else gaps[same] <= ALIKE + chance,
        "losses_fall": loss[-1] < loss[0] and ours["train_loss"][-1] < ours["train_loss"][0],
    }


def rows(found: Table, given: argparse.Namespace, environment: Table) -> list[Table]:
    name = f"{given.model}, {where_of(environment)}"
    aim = AIMS[given.model] if environment["gpu"] else None
    same = all(found[key] is not False for key in SAME_WORK)
    apart = [
        row(
            f"difference after {each['after']} in {each['type']}, of what training changed: {name}", each["largest"], ""
        )
        for each in found["apart"]
    ]
    after = f"test accuracy after {found['accuracy_after']} rounds"
    return [
        *apart,
        row(f"PFLlib, seconds a round: {name}", found["pfllib_round"], "s"),
        row(f"stratafl, seconds a round: {name}", found["our_round"], "s"),
        row(f"PFLlib / stratafl, rounds after the first: {name}", found["ratio"], "×", aim, "more"),
        row(f"… PFLlib without its pass over training samples: {name}", found["ratio_without_train_loss"], "×"),
        row(f"… and without reading its files again: {name}", found["ratio_without_train_loss_and_reading"], "×"),
        row(f"PFLlib, {after}: {name}", found["accuracies"]["pfllib"], ""),
        row(f"stratafl, {after}: {name}", found["accuracies"]["ours"], ""),
        row(f"same start, steps and samples, losses fall: {name}", float(same), "yes", 1.0, "more"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    device = recording.device_named(given.device)
    given.compile = given.compile or ("on" if device.startswith("cuda") else "auto")
    if given.threads:
        torch.set_num_threads(given.threads)
    result = recording.Result("pfllib", given, device, f"pfllib-{given.model}-{device}")
    result.details["pfllib_commit"] = recording.commit(given.pfllib)
    with tempfile.TemporaryDirectory(prefix="against-pfllib-") as name:
        folder = Path(name)
        data = workload.data_file(given, folder)
        check_both(given, data, folder, device, result)
        with Run.create(experiment(given, data, device), folder / "run") as run:
            assert run.sim.template is not None
            write_pfllib_files(run.sim.runtime.federation, folder, torch.float32)
            write_model(folder / "weights.npz", [*run.sim.template.parameters()])
            ours = OurRounds(run)
            ours.take((given.rounds + 1) // 2)
            theirs = timed_pfllib(given, folder, device)
            ours.take(given.rounds)
            result.details.update(ours=ours.figures(), pfllib=theirs)
    summary = compare(result.details["ours"], theirs, given.alpha)
    summary["apart"] = [{"after": name, **result.details[name]} for name in CHECKS]
    result.details["summary"] = summary
    panel = f"{given.model}, seconds a round"
    result.show(
        rows(summary, given, result.table["environment"]),
        [bar(panel, "PFLlib", summary["pfllib_round"], "s"), bar(panel, "stratafl", summary["our_round"], "s")],
    )
    print(f"PFLlib's model: {theirs['model']}; stand-ins for packages: {', '.join(theirs['stand_ins']) or 'none'}")
    result.save()
    print(f"written to {result.path}")
    return 0


def _parser() -> argparse.ArgumentParser:
    made = recording.parser(__doc__)
    made.add_argument("--pfllib", type=Path, required=True, metavar="DIR", help="a checkout of PFLlib")
    made.add_argument("--model", choices=sorted(AIMS), default="cnn")
    made.add_argument("--rounds", type=int, default=30, help="of ours (30)")
    made.add_argument("--pfllib-rounds", type=int, default=5, help="of PFLlib, after its first (5)")
    made.add_argument("--compile", choices=("auto", "on", "off"), help="run.compile; by default on for a GPU")
    made.add_argument("--check-images", type=int, default=2000, help="of the round that is compared, at most (2,000)")
    made.add_argument("--check-compile", choices=("on", "off"), default="off", help="in these checks (off)")
    made.add_argument("--threads", type=int, default=0, help="of both sides; 0: as torch has it")
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further settings of our run")
    workload.add_options(made)
    return made


if __name__ == "__main__":
    sys.exit(main())
