"""Time and memory of runs with many clients, beside Apple's `pfl` if an environment has it.

    python benchmarks/many_clients.py                                  # 1,000 to 1,000,000 clients, FedAvg
    python benchmarks/many_clients.py --clients 100000 --methods fedavg,fedper,flayer
    python benchmarks/many_clients.py --pfl ENVIRONMENT/bin/python     # with pfl 0.6 and torch

Each client has six samples; 100 clients train in each of 20 rounds; everything from the start of the process to its end
counts, with data, evaluation, checkpoints and the ranking. pfl evaluates once, at the end, and writes no file.
Processes have one thread. CPU seconds depend less than seconds on what else the machine does.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import recording
from recording import Result, Table, row

SAMPLES, COHORT, ROUNDS, HIDDEN, INPUTS, CLASSES = 6, 100, 20, 32, 8, 10


class Measured(NamedTuple):
    """What a process took, and the accuracy of its models."""

    seconds: float
    cpu: float
    mb: float
    accuracy: float

    def rows(self, clients: int, who: str) -> list[Table]:
        units = {"CPU time": (self.cpu, "s"), "memory": (self.mb, "MB"), "accuracy": (100 * self.accuracy, "%")}
        return [row(f"{what} with {clients:,} clients, {who}", *value) for what, value in units.items()]


def write_samples(path: Path, clients: int) -> None:
    """Samples whose classes a linear model partly explains."""
    rng, count = np.random.default_rng(0), SAMPLES * clients
    weights = rng.normal(size=(INPUTS, CLASSES)).astype(np.float32)
    x = rng.normal(size=(count, INPUTS)).astype(np.float32)
    y = (x @ weights + rng.gumbel(size=(count, CLASSES)).astype(np.float32)).argmax(1)
    np.savez(path, x=x, y=y.astype(np.uint8))


def measured(command: list[str]) -> tuple[float, float, float, str]:
    """Seconds, CPU seconds and MB of a process, and what it printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    begin = time.time()
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(command, stdout=printed, stderr=complaints, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.time() - begin
        printed.seek(0)
        complaints.seek(0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{complaints.read()[-2000:]}")
        return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, printed.read()


def our_run(method: str, data: Path, clients: int, folder: Path, evaluated: int | None) -> Measured:
    """What a run of `strata` takes, and its accuracy."""
    settings = {
        "data.clients": clients,
        "data.partition": "iid",
        "data.normalise": "none",
        "run.participation": COHORT / clients,
        "run.device": "cpu",
        "train.batch": SAMPLES,
        "train.lr": 0.1,
        "model.hidden": [HIDDEN],
        **({} if evaluated is None else {"evaluate.clients": evaluated}),
    }
    words = ["run", "--data", data, "--algorithm", method, "--model", "mlp", "--rounds", ROUNDS, "--out", folder]
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    seconds, cpu, mb, _ = measured([sys.executable, "-m", "stratafl", *map(str, words), *options])
    last = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
    return Measured(seconds, cpu, mb, float(last["test.deployed.accuracy"]))


def pfl_run(python: str, data: Path, clients: int) -> Measured:
    side = Path(__file__).with_name("pfl_side.py")
    sizes = map(str, (clients, COHORT, ROUNDS, HIDDEN))
    seconds, cpu, mb, printed = measured([python, str(side), str(data), *sizes])
    return Measured(seconds, cpu, mb, float(json.loads(printed.splitlines()[-1])["accuracy"]))


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    result, rows = Result("many_clients", options, "cpu", "many-clients"), list[Table]()
    for clients in map(int, options.clients.split(",")):
        with tempfile.TemporaryDirectory() as place:
            data = Path(place, "samples.npz")
            write_samples(data, clients)
            runs = {
                method: our_run(method, data, clients, Path(place, method), options.evaluated)
                for method in options.methods.split(",")
            }
            if options.pfl:
                runs["pfl"] = pfl_run(options.pfl, data, clients)
        for who, measurement in runs.items():
            result.details[f"{clients} {who}"] = measurement._asdict()
            result.show(measurement.rows(clients, who))
            rows += measurement.rows(clients, who)
        result.table["rows"] = rows
        result.save()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = recording.parser(__doc__, device="cpu")
    parser.add_argument("--clients", default="1000,10000,100000,1000000")
    parser.add_argument("--methods", default="fedavg")
    parser.add_argument("--evaluated", type=int, help="number of clients to evaluate; 0: all")
    parser.add_argument("--pfl", help="the Python of an environment with pfl")
    return parser


if __name__ == "__main__":
    sys.exit(main())
