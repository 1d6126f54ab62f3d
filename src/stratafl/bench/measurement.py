"""A row of the bench: engine and baselines take turns; of each, the best and the median of several rounds are kept."""

import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stratafl.bench.baselines import BASELINES, Loop
from stratafl.bench.engine_run import EngineRun
from stratafl.bench.request import BenchCell, BenchRequest
from stratafl.bench.timing import Seconds, busy, fastest, median, now, peak, reset_peak
from stratafl.bench.workload import bench_model
from stratafl.data import Federation
from stratafl.errors import MemoryLimitError, first_line
from stratafl.files import write_atomically
from stratafl.runtime.batches import plan_batches
from stratafl.runtime.lanes import use_threads
from stratafl.runtime.speed import precision
from stratafl.version import VERSION

Table = dict[str, Any]
MIB = 2**20
TRIALS = 3
MAX_BASELINE_CLIENTS = 32  # a baseline takes clients one by one, and more of them only take longer
SIMILAR_TIMES = 1.3  # numbers of threads whose times are this close are both measured in full


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


def bench_rows(request: BenchRequest) -> Iterator[Table]:
    """The rows one after the other; baselines are timed beside the first method of a model and size."""
    here: Any = None
    for cell in request.cells:
        if (cell.model, cell.workload) != here:
            here, baselines = (cell.model, cell.workload), dict[str, Table]()
            federation = cell.workload.federation(bench_model(cell.model))
        try:
            with busy(request.busy):
                row = _row(cell, request, federation, baselines)
        except (MemoryLimitError, MemoryError, torch.OutOfMemoryError) as error:
            row = {**_sizes(cell), "refused": first_line(error)}
        baselines = baselines or row.get("baselines", {})
        yield row


def _row(cell: BenchCell, request: BenchRequest, federation: Federation, earlier_baselines: dict[str, Table]) -> Table:
    device = torch.device(request.device)
    reset_peak(device)
    model, how = bench_model(cell.model), (request.device, request.speed, request.engine)
    run = EngineRun(cell.method, model, cell.workload, federation, *how)
    begin = now(device)
    warm_up = {"rounds": run.warm_up(), "seconds": now(device) - begin}
    memory = peak(device)  # before the baselines add theirs
    counts = federation.counts("train")[run.cohort.tolist()].tolist()
    steps = sum(plan_batches(counts, batch=cell.workload.batch, smallest=run.sim.runtime.smallest_batch).steps)
    beside = _baselines(run, cell, request, federation) if request.baselines and not earlier_baselines else []
    rounds = _measured(run, beside, request)
    engine = {
        **{"first_round": run.first, "warm_up": warm_up, "peak_memory": memory},
        **_figures(rounds, steps),
        **{"kept_steps": run.kept, "compiled": run.compiled, "engine": type(run.sim.runtime.engine).__name__},
    }
    baselines = _baseline_figures(beside, cell, steps) or earlier_baselines
    samples = {f"{split}_samples": int(federation.counts(split).sum()) for split in ("train", "test")}
    ratios = {name: _ratios(engine, table) for name, table in baselines.items()}
    least = min((each["round"] for each in ratios.values()), default=None)  # against the better baseline
    beside_it = bool(beside)  # or from the first method of this model and size
    figures = {"engine": engine, "baselines": baselines, "baselines_beside": beside_it, "ratios": ratios}
    return {**_sizes(cell), "client_steps": steps, **samples, **figures, "least_ratio": least, "busy": request.busy}


def _sizes(cell: BenchCell) -> Table:
    work = cell.workload
    return {"model": cell.model, "method": cell.method, **{k: getattr(work, k) for k in ("clients", "cohort", "batch")}}


def _baselines(run: EngineRun, cell: BenchCell, request: BenchRequest, federation: Federation) -> list[TimedLoop]:
    """Each baseline with its best number of threads, or with both where that is not clear."""
    ids = run.cohort.tolist() if cell.workload.paper else run.cohort.tolist()[:MAX_BASELINE_CLIENTS]
    module, smallest = run.sim.template, run.sim.runtime.smallest_batch
    assert module is not None
    chosen = []
    for kind in BASELINES:
        loop = kind(module, federation, ids, cell.workload.batch, smallest, request.device)
        counts = sorted({1, torch.get_num_threads()}) if request.device == "cpu" else [torch.get_num_threads()]
        timed = [TimedLoop(loop, count) for count in counts]
        trials = [each.trial() for each in timed]
        chosen += [each for each, trial in zip(timed, trials, strict=True) if trial <= SIMILAR_TIMES * min(trials)]
    return chosen


def _measured(run: EngineRun, baselines: Sequence[TimedLoop], request: BenchRequest) -> list[Seconds]:
    """Rounds of the engine, each followed by one of every baseline, so that all meet the same noise."""
    rounds = []
    for _ in range(request.repeats):
        rounds.append(run.once())
        with precision(request.speed.precision):
            for baseline in baselines:
                baseline.once()
    return rounds


def _baseline_figures(baselines: Sequence[TimedLoop], cell: BenchCell, client_steps: int) -> dict[str, Table]:
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


def machine_facts(request: BenchRequest) -> Table:
    """What the rows are measured on, with what, by which command."""
    device, speed = torch.device(request.device), request.speed
    named = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None  # how busy the machine is
    return {
        **{"device": named, "machine": platform.machine(), "cores": os.cpu_count()},
        **{"threads": torch.get_num_threads(), "load": load, "torch": torch.__version__, "numpy": np.__version__},
        **{"python": platform.python_version(), "stratafl": VERSION, "precision": speed.precision},
        **{"compile": speed.compile, "busy": request.busy, "command": sys.argv},
        **{"started": datetime.now(UTC).isoformat(timespec="seconds")},
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()


class ResultFile:
    """A JSON file of all rows, complete after each of them, so that stopping the bench loses nothing."""

    def __init__(self, path: Path | None, machine: Table) -> None:
        self._path, self._machine, self._rows = path, machine, list[Table]()

    def add(self, row: Table) -> None:
        self._rows.append(row)
        if self._path is not None:
            text = json.dumps({"machine": self._machine, "rows": self._rows}, indent=2)
            write_atomically(self._path, text.encode())


def describe_machine(machine: Table) -> str:
    names = ("device", "machine", "cores", "threads", "load", "busy", "torch", "python", "precision", "compile")
    return ", ".join(f"{name} {machine[name]}" for name in names if machine[name] is not None)


def describe_row(row: Table) -> str:
    what = f"{row['model']:9} {row['method']:9} N {row['clients']} C {row['cohort']} B {row['batch']}:"
    if "refused" in row:
        return f"{what} not measured: {row['refused']}"
    engine = row["engine"]
    middle = engine["median"]
    parts = [
        f"first {engine['first_round']:.2f} s",
        f"round {middle['round']:.3f} s (train {middle['train']:.3f} server {middle['server']:.3f})"
        f" best {engine['best']['round']:.3f}",
        f"evaluate {middle['evaluate']:.3f} s",
        f"{engine['ms_per_client_step']:.3f} ms per client-step",
        f"peak {engine['peak_memory'] / MIB:.0f} MiB",
        *(f"{ratio['round']:.2f}x {name}" for name, ratio in row["ratios"].items()),
        engine["engine"],
    ]
    return f"{what} " + " | ".join(parts)
