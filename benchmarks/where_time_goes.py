"""Where the time of a warm round goes: kernels on the GPU, gaps between them, and functions of Python.

    python benchmarks/where_time_goes.py --model cnn --set run.compile=on

Rounds of one run are first timed as they are, then looked at by torch's profiler and by Python's, which slow them down:
only their shares count. A gap is time in which the GPU has nothing to do although a round is under way. Without a GPU
there are no kernels, and operations of torch take their place.
"""

import argparse
import cProfile
import pstats
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import recording
import workload
from recording import Result, Table, bar, row, where_of
from stratafl.config.experiment import Experiment, with_settings
from stratafl.runs import Run

PARTS = ("train", "server", "evaluate")
Span = tuple[float, float]  # begin and end in µs


def busy(spans: Sequence[Span]) -> float:
    """µs in which at least one of the spans is under way."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def gaps(spans: Sequence[Span], least: float) -> list[float]:
    """µs between spans in which none is under way, where that lasts at least so long; the longest first."""
    found, until = list[float](), None
    for begin, end in sorted(spans):
        if until is not None and begin - until >= least:
            found.append(begin - until)
        until = end if until is None else max(until, end)
    return sorted(found, reverse=True)


def by_name(events: Sequence[tuple[str, float]], rounds: int) -> list[Table]:
    """How often each name occurs in a round, and how many µs it takes; what takes longest comes first."""
    micros, counts = Counter[str](), Counter[str]()
    for name, each in events:
        micros[name] += each  # type: ignore[assignment]  # a Counter of floats
        counts[name] += 1
    return [{"name": name, "times": counts[name] / rounds, "us": us / rounds} for name, us in micros.most_common()]


def timed(rounds: Iterator[object], count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        next(rounds)
        seconds.append(time.perf_counter() - begin)
    return seconds


def kernels(take: Callable[[], object], rounds: int, on_gpu: bool) -> Table:
    """What the device does in these rounds."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as seen:
        begin = time.perf_counter()
        take()
        seconds = time.perf_counter() - begin
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    mine = [each for each in seen.events() or [] if each.device_type == kind and each.name != "Activity Buffer Request"]
    spans = [(each.time_range.start, each.time_range.end) for each in mine]
    took = [(each.name, each.time_range.elapsed_us() if on_gpu else each.self_cpu_time_total) for each in mine]
    idle = gaps(spans, 20.0)
    return {
        **{"seconds": seconds / rounds, "busy": busy(spans) / 1e6 / rounds, "launched": len(mine) / rounds},
        **{"gaps": len(idle) / rounds, "gap_seconds": sum(idle) / 1e6 / rounds, "longest_gaps_us": idle[:20]},
        "kernels": by_name(took, rounds)[:40],
    }


def functions(take: Callable[[], object], rounds: int) -> list[Table]:
    """Functions of Python by their own time; those that wait for the GPU have its time."""
    profiler = cProfile.Profile()
    profiler.runcall(take)
    found = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    lines = sorted(found.items(), key=lambda item: -item[1][2])[:40]
    return [
        {"name": f"{Path(file).name}:{line} {name}", "times": calls / rounds, "us": 1e6 * own / rounds}
        for (file, line, name), (_, calls, own, _, _) in lines
    ]


def measure(run: Run, given: argparse.Namespace, on_gpu: bool, details: Table) -> None:
    rounds, looked = run.rounds(), given.looked
    details["first_rounds"] = timed(rounds, given.warm)
    details["rounds"] = timed(rounds, given.timed)
    for part in PARTS:
        details[f"seconds.{part}"] = median(line[f"seconds.{part}"] for line in run.history[-given.timed :])
    take = lambda: list(islice(rounds, looked))  # noqa: E731
    details["device"] = kernels(take, looked, on_gpu)
    details["python"] = functions(take, looked)
    details["tuning"] = run.sim.runtime.tuning


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    device = recording.device_named(given.device)
    result = Result("where_time_goes", given, device, f"where-time-goes-{given.model}-{device}")
    count = given.warm + given.timed + 2 * given.looked
    with tempfile.TemporaryDirectory(prefix="where-time-goes-") as name:
        data = workload.data_file(given, Path(name))
        typed = workload.settings(given, data, given.model, device, count + 1)
        found = with_settings(Experiment(), [*typed, f"algorithm.name={given.method}", *given.set])
        with Run.create(found, Path(name) / "run") as run:
            measure(run, given, device.startswith("cuda"), result.details)
    details, seen = result.details, result.details["device"]
    what = f"{given.method}, {given.model}, {where_of(result.table['environment'])}"
    lines = [row(f"a round, {what}", 1e3 * median(details["rounds"]), "ms")]
    lines += [row(f"of which {part}", 1e3 * details[f"seconds.{part}"], "ms") for part in PARTS]
    lines += [row("the device is busy, while looked at", 1e3 * seen["busy"], "ms")]
    lines += [row(f"gaps of 20 µs or more, while looked at ({seen['gaps']:.0f})", 1e3 * seen["gap_seconds"], "ms")]
    result.show(lines, [bar(f"kernels, {what}", each["name"][:60], each["us"], "µs") for each in seen["kernels"][:12]])
    result.save()
    for title, each in (("kernels", seen["kernels"]), ("functions of Python", details["python"])):
        print(f"\n{title}: µs and times per round")
        for line in each[: given.lines]:
            print(f"{line['us']:10,.0f} {line['times']:8,.0f}  {line['name'][:110]}")
    print(f"written to {result.path}")
    return 0


def _parser() -> argparse.ArgumentParser:
    made = recording.parser(__doc__)
    made.add_argument("--model", default="cnn")
    made.add_argument("--method", default="fedavg")
    made.add_argument("--warm", type=int, default=10, help="rounds before any is timed (10)")
    made.add_argument("--timed", type=int, default=20, help="rounds that are timed as they are (20)")
    made.add_argument("--looked", type=int, default=5, help="rounds that each profiler looks at (5)")
    made.add_argument("--lines", type=int, default=25, help="of each table that is printed (25)")
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further settings of the run")
    workload.add_options(made)
    return made


if __name__ == "__main__":
    sys.exit(main())
