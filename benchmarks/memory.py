"""Whether memory stays flat: after each of many runs in one process, and over the rounds of a long one.

    python benchmarks/memory.py runs --count 30 --model mlp,cnn
    python benchmarks/memory.py rounds --count 300 --model cnn

After each run (or every few rounds) it notes what the process holds: resident memory once the allocator has given back
what it can, the bytes of all living tensors, and on a GPU what torch has allocated, reserved and what the device has in
use. Growth is the slope of the points after the first third (the median of the slopes between all pairs), times their
number; it is flat if that is below a tolerance. What only waits for Python's garbage collector is noted before and does
not count as growth.
"""

import argparse
import ctypes
import gc
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

import recording
import worker
import workload
from recording import Result, Table, bar, row, where_of
from stratafl.config.experiment import Experiment, with_settings
from stratafl.runs import Member, Run

MIB = 2**20
SMALL = {"mlp": ["data.name=digits", "model.name=mlp"]}  # the others are given images
TOLERANCE = {"resident": 0.03, "tensors": 0.01, "allocated": 0.01, "reserved": 0.02, "used": 0.02}
LEAST = 4 * MIB  # growth that says nothing: allocators and threads come and go


def resident() -> int:
    """Bytes of the process in RAM, once free blocks have been given back to the system."""
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    status = Path("/proc/self/statm")
    if not status.exists():
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tensor_bytes() -> tuple[int, int]:
    """How many different storages living tensors have, and their bytes."""
    storages = {}
    for each in gc.get_objects():
        if issubclass(type(each), Tensor):
            try:
                storage = each.untyped_storage()
                if storage.device.type != "meta":  # tensors of a compiler have no memory
                    storages[storage.data_ptr()] = storage.nbytes()
            except (NotImplementedError, RuntimeError):  # tensors of a trace have no storage
                continue
    storages.pop(0, None)
    return len(storages), sum(storages.values())


def held(device: str) -> Table:
    """What is held now; what waited for the garbage collector is `garbage`."""
    _, before = tensor_bytes()
    found = gc.collect()
    count, bytes_now = tensor_bytes()
    table: Table = {"resident": resident(), "tensors": bytes_now, "storages": count}
    table |= {"garbage": before - bytes_now, "garbage_objects": found, "objects": len(gc.get_objects())}
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        table |= {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}
        table["used"] = total - free
    return table


def growth(values: Sequence[float]) -> float:
    """What was added from the end of the first third to the last point: the median slope times the number of steps."""
    later = list(values)[len(values) // 3 :]
    pairs = [(b - a) / (j - i) for i, a in enumerate(later) for j, b in enumerate(later[i + 1 :], i + 1)]
    return median(pairs) * (len(later) - 1) if pairs else 0.0


def verdicts(points: Sequence[Table]) -> Table:
    """For each kind of memory its growth, what is tolerated, and whether it is flat."""
    found = {}
    for name, share in TOLERANCE.items():
        values = [each[name] for each in points if name in each]
        if values:
            allowed = max(LEAST, share * median(values))
            grown = growth(values)
            found[name] = {"growth": grown, "allowed": allowed, "flat": grown <= allowed, "last": values[-1]}
    return found


def experiment(given: argparse.Namespace, data: Path, model: str, method: str, device: str, rounds: int) -> Experiment:
    typed = workload.settings(given, data, model, device, rounds)
    typed = [*typed, *SMALL.get(model, []), f"algorithm.name={method}", "run.compile=" + given.compile, *given.set]
    return with_settings(Experiment(), typed)


def after_runs(given: argparse.Namespace, data: Path, device: str) -> Iterator[Table]:
    """Points after each run, or after so many joined runs; methods and models in turns."""
    models, methods = given.model.split(","), given.methods.split(",")
    advance = worker.joined if given.joined > 1 else worker.one_after_the_other
    for first in range(0, given.count, given.joined):
        numbers = range(first, min(first + given.joined, given.count))
        kinds = [(models[n % len(models)], methods[n // len(models) % len(methods)]) for n in numbers]
        with tempfile.TemporaryDirectory(prefix="memory-") as name:
            made = [experiment(given, data, *kind, device, given.rounds) for kind in kinds]
            place = Path(name) / "runs"
            advance([Member("", n, one, place / f"{n}") for n, one in enumerate(made)], lambda member, number: None)
        yield {"run": numbers[-1], "model": kinds[-1][0], "method": kinds[-1][1], **held(device)}


def after_rounds(given: argparse.Namespace, data: Path, device: str) -> Iterator[Table]:
    """Points during one run."""
    every = max(1, given.count // 60)
    with tempfile.TemporaryDirectory(prefix="memory-") as name:
        made = experiment(given, data, given.model.split(",")[0], given.methods.split(",")[0], device, given.count)
        with Run.create(made, Path(name) / "run") as run:
            for line in run.rounds():
                if line["round"] % every == 0:
                    yield {"round": line["round"], **held(device)}


def same_kind(points: Sequence[Table], given: argparse.Namespace) -> list[Table]:
    """Sums over one turn of the models, so that a large model after a small one is not taken for growth."""
    width = len(given.model.split(",")) if given.what == "runs" and given.joined == 1 else 1
    turns = [points[at : at + width] for at in range(0, len(points) - width + 1, width)]
    names = [name for name in TOLERANCE if name in points[0]]
    return [{name: sum(each[name] for each in turn) / width for name in names} for turn in turns]


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    device = recording.device_named(given.device)
    given.count = given.count or (30 if given.what == "runs" else 300)
    kind = f"{given.what}-joined-{given.joined}" if given.joined > 1 else given.what
    result = Result("memory", given, device, f"memory-{kind}-{given.model.replace(',', '-')}-{device}")
    points: list[Table] = []
    with tempfile.TemporaryDirectory(prefix="memory-") as name:
        data = workload.data_file(given, Path(name))
        for point in (after_runs if given.what == "runs" else after_rounds)(given, data, device):
            points.append(point)
            result.details["points"] = points
            result.save()
            shown = {key: round(point[key] / MIB, 1) for key in (*TOLERANCE, "garbage") if key in point}
            print(*(point[key] for key in ("run", "round", "model", "method") if key in point), shown, flush=True)
    found = result.details["verdicts"] = verdicts(same_kind(points, given))
    environment = result.table["environment"]
    what = f"{given.count} {kind}, {given.model}, {where_of(environment)}"
    lines = [
        row(f"{what}: growth of {name} memory", each["growth"] / MIB, "MiB", each["allowed"] / MIB, "less")
        for name, each in found.items()
    ]
    first = same_kind(points, given)[0]
    bars = [bar(f"{what}: {n}", label, value / MIB, "MiB") for n, each in found.items()
            for label, value in (("first", first[n]), ("last", each["last"]))]  # fmt: skip
    result.show(lines, bars)
    result.save()
    print(f"written to {result.path}")
    return 0 if all(each["flat"] for each in found.values()) else 1


def _parser() -> argparse.ArgumentParser:
    made = recording.parser(__doc__)
    made.add_argument("what", choices=("runs", "rounds"))
    made.add_argument("--count", type=int, default=0, help="of runs (30) or rounds (300)")
    made.add_argument("--joined", type=int, default=1, help="so many runs at a time are joined, for `runs`")
    made.add_argument("--rounds", type=int, default=5, help="of each run, for `runs` (5)")
    made.add_argument("--model", default="cnn", help="names, which take turns for `runs`; mlp is given the digits")
    made.add_argument("--methods", default="fedavg,fedper,local", help="names, which take turns for `runs`")
    made.add_argument("--compile", choices=("auto", "on", "off"), default="auto")
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further settings of all runs")
    workload.add_options(made)
    return made


if __name__ == "__main__":
    sys.exit(main())
