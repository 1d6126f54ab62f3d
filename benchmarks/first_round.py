"""Seconds from the start of a process to the end of round 1: the first run with an empty cache, then a second one.

    python benchmarks/first_round.py --model cnn

Each run is a process of its own with `--rounds` rounds, so that whatever is compiled beside the rounds is kept. The
cache is a new folder for this package, torch's compiler, Triton and CUDA. The result also has every round, and what
each run decided about compiling.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import recording
import workload
from joined import lengths
from recording import ROOT, Result, Table, bar, row, where_of
from subprocesses import with_cache, work

AIMS = {"cnn": 5.0, "resnet18": 10.0}  # of a second run on a GPU


def measure(words: Sequence[str], checkout: Path, cache: Path) -> Table:
    """One run: when it had imported, when each round ended, and how long the later ones took."""
    found = work(words, checkout, with_cache(cache))
    (ends,) = found["rounds"].values()
    rounds = {"first_round": ends[0], "second_round": ends[1] if len(ends) > 1 else None, "rounds": lengths(ends)}
    return {**rounds, "imported": found["reached"]["imported"], "process": found["process"], "tuning": found["tuning"]}


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    device = recording.device_named(given.device)
    result = Result("first_round", given, device, f"first-round-{given.model}-{device}")
    with tempfile.TemporaryDirectory(prefix="first-round-") as name:
        folder = Path(name)
        typed = workload.settings(given, workload.data_file(given, folder), given.model, device, given.rounds)
        words = ["--methods", given.method, *(word for each in [*typed, *given.set] for word in ("--set", each))]
        runs = result.details["runs"] = []
        for number in range(given.runs):
            runs.append(measure(words, given.checkout, folder / "cache"))
            result.save()
            print(f"run {number + 1}: {runs[-1]['first_round']:.1f} s to the end of round 1", flush=True)
    environment = result.table["environment"]
    what = f"start to end of round 1, {given.model}, {where_of(environment)}"
    aim = AIMS.get(given.model) if environment["gpu"] else None
    lines = [row(f"{what}: empty cache", runs[0]["first_round"], "s")]
    lines += [row(f"{what}: run {n}, warm cache", each["first_round"], "s", aim, "less") for n, each in _later(runs)]
    lines += [row(f"of which importing: run {n}", each["imported"], "s") for n, each in _later(runs)]
    result.show(lines, [bar(what, f"run {n}", each["first_round"], "s") for n, each in enumerate(runs, 1)])
    result.save()
    print(f"written to {result.path}")
    return 0


def _later(runs: Sequence[Table]) -> list[tuple[int, Table]]:
    return list(enumerate(runs, 1))[1:]


def _parser() -> argparse.ArgumentParser:
    made = recording.parser(__doc__)
    made.add_argument("--model", default="cnn")
    made.add_argument("--method", default="fedavg")
    made.add_argument("--rounds", type=int, default=40, help="of each run (40)")
    made.add_argument("--runs", type=int, default=2, help="processes one after the other with one cache (2)")
    made.add_argument("--checkout", type=Path, default=ROOT, metavar="DIR", help="of the package; by default this one")
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further settings of all runs")
    workload.add_options(made)
    return made


if __name__ == "__main__":
    sys.exit(main())
