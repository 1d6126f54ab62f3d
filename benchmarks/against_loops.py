"""Rounds of models and methods against plain PyTorch loops on the same batches, in one process.

    python benchmarks/against_loops.py --device cpu --models mlp --methods fedavg
    python benchmarks/against_loops.py --models mlp --clients 20 --batch 5,10,20,50       sizes, one after the other
    python benchmarks/against_loops.py --paper --device cuda --models cnn --methods fedavg,flayer --no-baselines

Engine and loops take turns; the ratio is that of their best rounds, to the better of two loops: one over tensors, one
with a DataLoader per client, each with one thread and with all. Times of a shared machine are noise, so compare ratios.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, get_args

import torch

import recording
from bench_models import BENCH_MODELS, Workload, bench_model
from engine_rounds import EngineRun
from plain_loops import BASELINES, Loop
from recording import Result, Table, bar, row, where_of
from stratafl.algorithms import ALGORITHMS
from stratafl.core.lanes import use_threads
from stratafl.data import Federation
from stratafl.errors import MemoryLimitError, StrataError, first_line, unknown
from stratafl.runtime.batches import plan_batches
from stratafl.runtime.build import EngineName
from stratafl.runtime.speed import DEFAULT_SPEED, Speed, check_precision, precision
from timing import Seconds, busy, fastest, median, now, peak, reset_peak

MIB = 2**20
TRIALS = 3
MAX_BASELINE_CLIENTS = 32  # a baseline takes clients one by one, and more of them only take longer
SIMILAR_TIMES = 1.3  # numbers of threads whose times are this close are both measured in full


class Cell(NamedTuple):
    """One row to measure."""

    model: str
    method: str
    workload: Workload


class Ways(NamedTuple):
    """How every row is measured."""

    device: str
    speed: Speed = DEFAULT_SPEED
    repeats: int = 3
    baselines: bool = True
    engine: EngineName = "auto"
    busy: int = 0


class TimedLoop:
    """A baseline with a number of threads, and its rounds.

    It runs in a Python thread of its own: libraries that torch calls remember how many threads the first one had, so
    in the main thread of a process with two, "one" takes up to three times as long as with OMP_NUM_THREADS=1.
    """

    def __init__(self, loop: Loop, count: int) -> None:
        self.loop, self.threads, self.rounds = loop, count, list[Seconds]()
        self._own = ThreadPoolExecutor(1, initializer=use_threads, initargs=(count,))

    def once(self) -> None:
        self.rounds.append(self._own.submit(self.loop.once).result())

    def trial(self) -> float:
        """The seconds of a round of two clients; the best of several, since the first one is always slower."""
        return min(self._own.submit(self.loop.once, clients=2).result().round for _ in range(TRIALS))


def measured_rows(cells: Sequence[Cell], ways: Ways) -> Iterator[Table]:
    """The rows one after the other; baselines are timed beside the first method of a model and size."""
    for _, alike in itertools.groupby(cells, key=lambda cell: (cell.model, cell.workload)):
        federation, baselines = None, dict[str, Table]()
        for cell in alike:
            federation = federation or cell.workload.federation(bench_model(cell.model))
            try:
                with busy(ways.busy):
                    measured = _row(cell, ways, federation, baselines)
            except (MemoryLimitError, MemoryError, torch.OutOfMemoryError) as error:
                measured = {**_sizes(cell), "refused": first_line(error)}
            baselines = baselines or measured.get("baselines", {})
            yield measured


def _row(cell: Cell, ways: Ways, federation: Federation, earlier_baselines: dict[str, Table]) -> Table:
    device = torch.device(ways.device)
    reset_peak(device)
    model, how = bench_model(cell.model), (ways.device, ways.speed, ways.engine)
    run = EngineRun(cell.method, model, cell.workload, federation, *how)
    begin = now(device)
    warm_up = {"rounds": run.warm_up(), "seconds": now(device) - begin}
    memory = peak(device)  # before the baselines add theirs
    counts = federation.counts("train")[run.cohort.tolist()].tolist()
    steps = sum(plan_batches(counts, batch=cell.workload.batch, smallest=run.sim.runtime.smallest_batch).steps)
    beside = _baselines(run, cell, ways, federation) if ways.baselines and not earlier_baselines else []
    engine = {
        **{"first_round": run.first, "warm_up": warm_up, "peak_memory": memory},
        **_figures(_rounds(run, beside, ways), steps),
        **{"kept_steps": run.kept, "compiled": run.compiled, "engine": type(run.sim.runtime.engine).__name__},
    }
    baselines = _baseline_figures(beside, cell, steps) or earlier_baselines
    samples = {f"{split}_samples": int(federation.counts(split).sum()) for split in ("train", "test")}
    ratios = {name: _ratios(engine, table) for name, table in baselines.items()}
    least = min((each["round"] for each in ratios.values()), default=None)  # against the better baseline
    beside_it = bool(beside)  # or from the first method of this model and size
    figures = {"engine": engine, "baselines": baselines, "baselines_beside": beside_it, "ratios": ratios}
    return {**_sizes(cell), **samples, "client_steps": steps, **figures, "least_ratio": least}


def _sizes(cell: Cell) -> Table:
    work = cell.workload
    return {"model": cell.model, "method": cell.method, **{k: getattr(work, k) for k in ("clients", "cohort", "batch")}}


def _baselines(run: EngineRun, cell: Cell, ways: Ways, federation: Federation) -> list[TimedLoop]:
    """Each baseline with its best number of threads, or with both where that is not clear."""
    ids = run.cohort.tolist() if cell.workload.paper else run.cohort.tolist()[:MAX_BASELINE_CLIENTS]
    module, smallest = run.sim.template, run.sim.runtime.smallest_batch
    assert module is not None
    chosen = []
    for kind in BASELINES:
        loop = kind(module, federation, ids, cell.workload.batch, smallest, ways.device)
        counts = sorted({1, torch.get_num_threads()}) if ways.device == "cpu" else [torch.get_num_threads()]
        timed = [TimedLoop(loop, count) for count in counts]
        trials = [each.trial() for each in timed]
        chosen += [each for each, trial in zip(timed, trials, strict=True) if trial <= SIMILAR_TIMES * min(trials)]
    return chosen


def _rounds(run: EngineRun, baselines: Sequence[TimedLoop], ways: Ways) -> list[Seconds]:
    """Rounds of the engine, each followed by one of every baseline, so that all meet the same noise."""
    rounds = []
    for _ in range(ways.repeats):
        rounds.append(run.once())
        with precision(ways.speed.precision):
            for baseline in baselines:
                baseline.once()
    return rounds


def _baseline_figures(baselines: Sequence[TimedLoop], cell: Cell, client_steps: int) -> dict[str, Table]:
    """The baselines' figures at their better number of threads, scaled to the whole cohort and all clients."""
    tables: dict[str, Table] = {}
    for timed in baselines:
        cohort, everybody = (n / len(timed.loop.ids) for n in (cell.workload.cohort, cell.workload.clients))
        rounds = [
            Seconds(r.train * cohort, r.server * cohort, r.evaluate * everybody, r.cpu * cohort) for r in timed.rounds
        ]
        table = _figures(rounds, client_steps) | {"threads": timed.threads, "clients_timed": len(timed.loop.ids)}
        better = tables.get(timed.loop.name)
        if better is None or table["best"]["round"] < better["best"]["round"]:
            tables[timed.loop.name] = table
    return tables


def _figures(rounds: Sequence[Seconds], client_steps: int) -> Table:
    best = fastest(rounds)
    tables = {"median": median(rounds).table(), "best": best.table(), "rounds": [r.table() for r in rounds]}
    return {**tables, "ms_per_client_step": 1e3 * best.round / client_steps}


def _ratios(engine: Table, baseline: Table) -> Table:
    """How many times as long the baseline takes, best against best."""
    return {part: baseline["best"][part] / engine["best"][part] for part in ("round", "train", "evaluate", "cpu")}


def name_of(measured: Table) -> str:
    return "{model}, {method}, {clients} clients, {cohort} per round, batches of {batch}".format_map(measured)


def described(measured: Table) -> str:
    """A row as one line of text."""
    if "refused" in measured:
        return f"{name_of(measured)}: not measured: {measured['refused']}"
    engine = measured["engine"]
    middle = engine["median"]
    parts = [
        f"first {engine['first_round']:.2f} s",
        f"round {middle['round']:.3f} s (train {middle['train']:.3f} server {middle['server']:.3f})",
        f"best {engine['best']['round']:.3f} s",
        f"evaluate {middle['evaluate']:.3f} s",
        f"{engine['ms_per_client_step']:.3f} ms per client-step",
        f"peak {engine['peak_memory'] / MIB:.0f} MiB",
        *(f"{ratio['round']:.2f}x {name}" for name, ratio in measured["ratios"].items()),
        engine["engine"],
    ]
    return f"{name_of(measured)}: " + " | ".join(parts)


def summarised(result: Result) -> None:
    """Lines and bars for `summarise.py`: ratios, or without baselines the milliseconds of a client's step."""
    where, lines, bars = where_of(result.table["environment"]), list[Table](), list[Table]()
    for measured in result.details["rows"]:
        ratio = measured.get("least_ratio")
        if "refused" in measured:
            what, value, unit = "times the better loop", None, "×"
        elif ratio is None:
            what, value, unit = "a step of a client", measured["engine"]["ms_per_client_step"], "ms"
        else:
            what, value, unit = "times the better loop", ratio, "×"
        lines.append(row(f"{what}: {name_of(measured)}, {where}", value, unit))
        bars += [] if value is None else [bar(f"{what}, {where}", name_of(measured), value, unit)]
    result.table["rows"], result.table["bars"] = lines, bars


def cells_of(given: argparse.Namespace) -> list[Cell]:
    """Methods of one model and size follow each other; what cannot be measured is refused before the first one runs."""
    models, methods = given.models.split(","), given.methods.split(",")
    for name in methods:
        if name not in ALGORITHMS:
            raise unknown("method", name, sorted(ALGORITHMS))
    cells = []
    for name in BENCH_MODELS if models == ["all"] else models:
        steps = given.steps or bench_model(name).steps  # raises if there is none
        for clients, batch in itertools.product(given.clients, given.batch):
            for cohort in given.cohort or [clients]:
                work = Workload(clients, min(cohort, clients), batch, steps * batch, given.paper)
                cells += [Cell(name, method, work) for method in methods]
    return cells


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    device = recording.device_named(given.device)
    speed = Speed(precision=given.precision, compile=given.compile)
    try:
        check_precision(speed.precision, torch.device(device))
        cells = cells_of(given)
    except StrataError as error:
        print(f"against_loops.py: {error}", file=sys.stderr)
        return error.exit_code
    result = Result("against_loops", given, device, f"loops-{given.models.replace(',', '-')}-{device}")
    result.details["rows"] = []
    for measured in measured_rows(cells, Ways(device, speed, given.repeats, given.baselines, given.engine, given.busy)):
        result.details["rows"].append(measured)
        summarised(result)
        result.save()
        print(described(measured), flush=True)
    print(f"written to {result.path}")
    return 0


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return int(text)


def _counts(text: str) -> list[int]:
    return [_count(each) for each in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = recording.parser(__doc__)
    add: Any = parser.add_argument
    add("--models", default="mlp,cnn,resnet18,embedding", help="names, separated by commas, or all")
    add("--methods", default="fedavg", help="names, separated by commas (fedavg)")
    add("--clients", type=_counts, default=[20], help="one number or several (20)")
    add("--cohort", type=_counts, help="clients per round, one number or several; by default all")
    add("--batch", type=_counts, default=[10], help="samples per step, one number or several (10)")
    add("--steps", type=_count, help="per client and round; by default by model")
    add("--paper", action="store_true", help="share 60,000 samples as FLAYER does, whatever --steps says")
    add("--precision", choices=("fp32", "tf32", "bf16"), default="fp32", help="of products (fp32)")
    add("--compile", choices=("auto", "on", "off"), default="auto", help="run.compile (auto)")
    add("--engine", choices=get_args(EngineName), default="auto", help="run.engine (auto)")
    add("--repeats", type=_count, default=3, help="timed rounds (3)")
    add("--busy", type=int, default=0, help="so many other processes keep a core busy meanwhile (0)")
    add("--baselines", action=argparse.BooleanOptionalAction, default=True, help="also time plain loops")
    return parser


if __name__ == "__main__":
    sys.exit(main())
