"""Against FedAvg as one writes it in plain PyTorch: a loop over tensors, and one over DataLoaders; the same batches.

    python benchmarks/loops.py --device cpu                  every model of the catalogue
    python benchmarks/loops.py --device cpu --busy 1         while another process keeps a core busy
    python benchmarks/loops.py --models mlp,cnn,resnet18

The figures are those of `strata bench`: engine and loops take turns in one process, the best round of each counts, and
the ratio is to the better loop with its better number of threads.
"""

import argparse
import sys
from collections.abc import Sequence

import recording
from recording import Result, Table, bar, row, where_of
from stratafl.bench.measurement import bench_rows
from stratafl.bench.options import BenchOptions
from stratafl.bench.request import request_of
from stratafl.bench.timing import busy
from stratafl.models import MODELS

AIMS = {"mlp": 7.0, "cnn": 1.3, "resnet18": 1.1}  # on a CPU; no other model is slower than the loop
NEVER_SLOWER, CLIENTS = 1.0, 20
USUAL = ",".join(["mlp", "mlp784", *(name for name in MODELS if name != "mlp")])


def ratio(found: Table) -> float | None:
    """How many times as long the better loop takes."""
    ratios = [each["round"] for each in found.get("ratios", {}).values()]
    return min(ratios) if ratios else None


def company(given: argparse.Namespace) -> str:
    """What the machine does besides."""
    return f", {given.busy} others at work" if given.busy else ""


def line(found: Table, given: argparse.Namespace, environment: Table) -> Table:
    """A line of the table; aims are those of the usual load on a CPU."""
    name, where = found["model"], where_of(environment)
    usual = environment["gpu"] is None and given.clients == CLIENTS and given.steps is None
    aim = None if not usual else NEVER_SLOWER if given.busy else AIMS.get(name, NEVER_SLOWER)
    return row(f"times the better loop: {name}, {where}{company(given)}", ratio(found), "×", aim, "more")


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    device = recording.device_named(given.device)
    result = Result("loops", given, device, f"loops-{device}" + (f"-busy-{given.busy}" if given.busy else ""))
    environment = result.table["environment"]
    found = result.details["rows"] = []
    lines, bars = list[Table](), list[Table]()
    precision = "tf32" if device.startswith("cuda") else "fp32"
    with busy(given.busy):
        for model in given.models.split(","):
            options = BenchOptions(models=model, methods="fedavg", device=device, clients=given.clients,
                                   steps=given.steps, repeats=given.repeats, precision=precision)  # fmt: skip
            found += bench_rows(request_of(options))
            lines.append(line(found[-1], given, environment))
            print(recording.sentence(lines[-1]), flush=True)
            if lines[-1]["value"] is not None:
                panel = f"times the better loop, {where_of(environment)}{company(given)}"
                bars.append(bar(panel, model, lines[-1]["value"], "×"))
            result.table["rows"], result.table["bars"] = lines, bars
            result.save()
    print(f"written to {result.path}")
    return 0


def _parser() -> argparse.ArgumentParser:
    made = recording.parser(__doc__)
    made.add_argument("--models", default=USUAL, help="names, separated by commas; by default all of the catalogue")
    made.add_argument("--clients", type=int, default=CLIENTS)
    made.add_argument("--steps", type=int, help="per client and round; by default as `strata bench` has it")
    made.add_argument("--repeats", type=int, default=3, help="timed rounds (3)")
    made.add_argument("--busy", type=int, default=0, help="so many other processes keep a core busy")
    return made


if __name__ == "__main__":
    sys.exit(main())
