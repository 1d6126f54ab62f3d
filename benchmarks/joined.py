"""A whole comparison: its runs joined in one process, against the same runs one process each.

    python benchmarks/joined.py methods                                 six methods × 3 seeds × 40 rounds of the CNN
    python benchmarks/joined.py rates --before ../stratafl-before       8 learning rates of one method
    python benchmarks/joined.py demo --before ../stratafl-before        the demo's comparison by the command `strata`

Single runs are those of this checkout, or with `--before` those of another commit's: *before* in the table. `demo` runs
the demo's settings on the CPU; of the options it takes `--seeds`, `--jobs`, `--repeats` and `--set` alone.

Of the single runs, one per method and a second one of some (or two of the learning rates) are measured and stand for
the others, which take as many steps; the result says so. *Warm* is what single runs would take if nothing had to be
built: their rounds, each as long as the median of the last half.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import recording
import workload
from recording import ROOT, Result, Table, bar, row, where_of
from subprocesses import with_cache, with_package, work
from worker import have_joined_runs

METHODS = "local,fedavg,fedper,fedrep,lgfedavg,fedbn"
RATES = "0.001,0.002,0.004,0.008,0.016,0.032,0.064,0.128"
Words = Sequence[str]
FIFTH, WARM, DEMO = 0.2, 0.65, 1.5  # aims


def lengths(ends: Sequence[float]) -> list[float]:
    """How long each round after the first took."""
    return [b - a for a, b in pairwise(ends)]


def warm_seconds(ends: Sequence[float]) -> float:
    """All rounds of a run, each as long as the median of the last half."""
    return len(ends) * median(lengths(ends)[len(ends) // 2 - 1 :])


def single(found: Table) -> Table:
    """The figures of a process with one run."""
    (ends,) = found["rounds"].values()
    after_first = ends[-1] - ends[0]
    return {"process": found["process"], "first": ends[0], "after_first": after_first, "warm": warm_seconds(ends)}


@dataclass(frozen=True)
class Sample:
    """Single runs to measure for `count` of them: `first` of each kind, and some of the same kinds `again`.

    The compiler's files of the first run of a kind are there when the next one begins, as on anybody's machine. So a
    run that is not measured counts as the mean of `first`, times the share that `again` took of the same kinds' first.
    """

    first: Sequence[Words]
    again: Mapping[int, Words]  # by the place of that kind in `first`
    count: int

    def total(self, first: Sequence[float], again: Sequence[float]) -> float:
        same = sum(first[place] for place in self.again)
        return sum(first) + (self.count - len(first)) * sum(first) / len(first) * sum(again) / same


def measure_singles(result: Result, who: str, checkout: Path, sample: Sample, cache: Path) -> Table:
    """Single runs of a sample, each in a process of its own, and what all runs of the comparison would take."""
    found: list[Table] = []
    for words in (*sample.first, *sample.again.values()):
        raw = work(words, checkout, with_cache(cache))
        found.append({**single(raw), "raw": raw, "words": list(words)})
        result.details[who] = {"checkout": str(checkout), "commit": recording.commit(checkout), "sample": found}
        result.save()
        print(f"{who}: {' '.join(words[:4])}: {found[-1]['process']:.1f} s, warm {found[-1]['warm']:.1f} s", flush=True)
    kinds = len(sample.first)
    sums: Table = {
        key: sample.total(*([each[key] for each in part] for part in (found[:kinds], found[kinds:])))
        for key in ("process", "after_first")
    }
    sums["warm"] = sample.count * mean(each["warm"] for each in found)
    sums |= {"measured": len(found), "stands_for": sample.count}
    result.details[who]["all"] = sums
    return sums


def measure_joined(result: Result, words: Sequence[str], cache: Path, jobs: int, name: str = "joined") -> Table:
    """Processes with all runs; where runs cannot be joined, they run one after the other and the result says so."""
    together = have_joined_runs()
    each = [
        [*words, *(["--joined", "--part", f"{number}/{jobs}"] if together else [])] for number in range(1, jobs + 1)
    ]
    with ThreadPoolExecutor(jobs) as pool:
        raw = list(pool.map(lambda mine: work(mine, ROOT, with_cache(cache)), each if together else each[:1]))
    rounds = [ends for one in raw for ends in one["rounds"].values()]
    figures: Table = {"process": max(one["process"] for one in raw), "after_first": None}
    if together:
        figures["after_first"] = max(ends[-1] for ends in rounds) - max(ends[0] for ends in rounds)
    result.details[name] = {**figures, "joined": together, "jobs": jobs, "raw": raw}
    result.save()
    print(f"{name}: {figures['process']:.1f} s", flush=True)
    return figures


def rows_of(
    what: str, together: Table, again: Table, before: Table, alone: Table | None, joined: bool, aims: bool
) -> list[Table]:
    """The table; aims are those of a GPU."""
    how = "joined" if joined else "in one process (NOT joined)"
    fifth, warm = (FIFTH, WARM) if aims else (None, None)
    lines = [
        row(f"{what}: {how}, whole process", together["process"], "s"),
        row(f"{what}: one process each before ({_measured(before)})", before["process"], "s"),
        row(f"{what}: {how} / one process each before", together["process"] / before["process"], "×", fifth, "less"),
        row(f"{what}: {how}, whole process / warm before", together["process"] / before["warm"], "×"),
        row(f"{what}: {how} again, steps in the cache", again["process"], "s"),
        row(f"{what}: {how} again, whole process / warm before", again["process"] / before["warm"], "×", warm, "less"),
    ]
    if together["after_first"] is not None:
        ratio = together["after_first"] / before["after_first"]
        lines.append(row(f"{what}: {how}, after the first rounds / the same before", ratio, "×"))
    if alone is not None:
        ratio = again["process"] / alone["warm"]
        lines.append(
            row(f"{what}: {how} again, whole process / warm now ({_measured(alone)})", ratio, "×", warm, "less")
        )
    return lines


def _measured(sums: Table) -> str:
    return f"{sums['measured']} measured for {sums['stands_for']}"


def compare(given: argparse.Namespace) -> None:
    """Methods × seeds, or learning rates of one method."""
    device = recording.device_named(given.device)
    result = Result("joined", given, device, f"joined-{given.what}-{device}")
    methods = given.methods.split(",") if given.what == "methods" else [given.methods.split(",")[0]]
    rates = given.rates.split(",")
    with tempfile.TemporaryDirectory(prefix="joined-") as name:
        folder = Path(name)
        data = workload.data_file(given, folder)
        typed = [*workload.settings(given, data, given.model, device, given.rounds), *given.set]
        common = _words(typed)
        if given.what == "methods":
            what = f"{len(methods)} methods × {given.seeds} seeds"
            sample, all_runs = _methods(methods, given, common)
        else:
            what = f"{len(rates)} learning rates, {methods[0]}"
            sample, all_runs = _rates(methods[0], rates, given, common)
        together = measure_joined(result, all_runs, folder / "cache-joined", given.jobs)
        again = measure_joined(result, all_runs, folder / "cache-joined", given.jobs, "joined again")
        before = measure_singles(result, "before", given.before, sample, folder / "cache-before")
        alone = measure_singles(result, "now", ROOT, sample, folder / "cache-now") if given.alone else None
    joined = result.details["joined"]["joined"]
    what = f"{what} × {given.rounds} rounds, {given.model}, {where_of(result.table['environment'])}"
    bars = [bar(what, "joined" if joined else "one process, not joined", together["process"], "s")]
    bars += [bar(what, "one process each", before["process"], "s"), bar(what, "… warm", before["warm"], "s")]
    result.show(rows_of(what, together, again, before, alone, joined, device.startswith("cuda")), bars)
    result.save()
    print(f"written to {result.path}")


def _words(settings: Sequence[str]) -> list[str]:
    return [word for each in settings for word in ("--set", each)]


def _methods(methods: Sequence[str], given: argparse.Namespace, common: Words) -> tuple[Sample, Words]:
    """What to measure of methods × seeds: each method once, some of them with another seed; and all of it."""
    first = [["--methods", method, *common, *_words(given.single_set)] for method in methods]
    others = range(min(given.again, len(methods)))
    again = {at: [*first[at], "--set", f"run.seed={given.seed + 1}"] for at in others}
    all_runs = ["--methods", ",".join(methods), "--seeds", str(given.seeds), *common]
    return Sample(first, again, len(methods) * given.seeds), all_runs


def _rates(method: str, rates: Sequence[str], given: argparse.Namespace, common: Words) -> tuple[Sample, Words]:
    """What to measure of learning rates: the first two; and all of them."""
    single = [*common, *_words(given.single_set)]
    first, again = (["--methods", method, "--vary", f"train.lr={rate}", *single] for rate in rates[:2])
    all_runs = ["--methods", method, "--vary", f"train.lr={','.join(rates)}", *common]
    return Sample([first], {0: again}, len(rates)), all_runs


def demo(given: argparse.Namespace) -> None:
    """The demo's comparison by `strata compare`, of both checkouts in turns; the best of each counts."""
    result = Result("joined", given, "cpu", f"joined-demo-{given.jobs}-jobs")
    seconds: dict[str, list[float]] = {"before": [], "now": []}
    for _ in range(given.repeats):
        for who, checkout in (("before", given.before), ("now", ROOT)):
            with tempfile.TemporaryDirectory(prefix="demo-") as name:
                command = [sys.executable, "-m", "stratafl", "compare", "--out", str(Path(name) / "demo")]
                command += ["--jobs", str(given.jobs), "--seeds", str(given.seeds), "--device", "cpu"]
                command += _words(given.set)
                begin = time.perf_counter()
                done = subprocess.run(command, env=with_package(checkout), capture_output=True, text=True, check=False)
                seconds[who].append(time.perf_counter() - begin)
                if done.returncode:
                    raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
        result.details.update(seconds=seconds, before_commit=recording.commit(given.before))
        result.save()
    best = {who: min(each) for who, each in seconds.items()}
    what = f"the demo's comparison, {given.jobs} jobs, {where_of(result.table['environment'])}"
    lines = [row(f"{what}: {who}", value, "s") for who, value in best.items()]
    lines.append(row(f"{what}: times as fast as before", best["before"] / best["now"], "×", DEMO, "more"))
    result.show(lines, [bar(what, who, value, "s") for who, value in best.items()])
    result.save()
    print(f"written to {result.path}")


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.before is None and given.what == "demo":
        raise SystemExit("`demo` compares two versions: give --before DIR (`git worktree add DIR COMMIT` makes one)")
    given.before = given.before or ROOT
    if not (given.before / "src" / "stratafl").is_dir():
        raise SystemExit(f"'{given.before}' is not a checkout of stratafl: it has no folder src/stratafl")
    (demo if given.what == "demo" else compare)(given)
    return 0


def _parser() -> argparse.ArgumentParser:
    made = recording.parser(__doc__)
    made.add_argument("what", choices=("methods", "rates", "demo"))
    made.add_argument("--before", type=Path, metavar="DIR", help="checkout with the single runs; by default this one")
    made.add_argument("--methods", default=METHODS, help=f"of `methods` ({METHODS}); the first is that of `rates`")
    made.add_argument("--rates", default=RATES, help=f"learning rates ({RATES})")
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--rounds", type=int, default=40)
    made.add_argument("--model", default="cnn")
    made.add_argument("--again", type=int, default=2, help="methods of which a second single run is measured (2)")
    made.add_argument("--alone", action="store_true", help="also measure single runs of this checkout")
    made.add_argument("--jobs", type=int, default=1, help="processes that share the runs (1)")
    made.add_argument("--repeats", type=int, default=3, help="of `demo` (3)")
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further settings of all runs")
    made.add_argument("--single-set", action="append", default=[], metavar="KEY=VALUE", help="… of single runs alone")
    workload.add_options(made)
    return made


if __name__ == "__main__":
    sys.exit(main())
