"""A row: engine and baselines in turns, best and median of some rounds of each."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from stratafl.bench.baselines import BASELINES, Loop
from stratafl.bench.clocks import Seconds, best, forget_peak, median, now, peak
from stratafl.bench.engine import EngineRun
from stratafl.bench.request import Cell, Request
from stratafl.bench.workload import subject
from stratafl.data import Federation
from stratafl.runtime.precision import precision

Table = dict[str, Any]
TRIALS = 3
MOST = 32  # clients of a baseline: it takes them one by one, so that more only take longer, each as long as the others
CLOSE = 1.3  # numbers of threads whose times are this close are both measured in full


class Timed:
    """A baseline with a number of threads, and its rounds.

    It runs in a Python thread of its own: libraries that torch calls remember how many threads the first one had, so
    that in the main thread of a process with two, "one" takes up to three times as long as with OMP_NUM_THREADS=1.
    """

    def __init__(self, loop: Loop, count: int) -> None:
        self.loop, self.threads, self.rounds = loop, count, list[Seconds]()
        self._own = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(count,))

    def once(self) -> None:
        """One more round."""
        self.rounds.append(self._own.submit(self.loop.once).result())

    def trial(self) -> float:
        """A client or two, some times: the first time everything is slower."""
        return min(self._own.submit(self.loop.once, clients=2).result().round for _ in range(TRIALS))


def engine_of(cell: Cell, request: Request, federation: Federation) -> tuple[EngineRun, Table]:
    """The engine, warm, and what that took."""
    device = torch.device(request.device)
    forget_peak(device)
    run = EngineRun(cell.method, subject(cell.model), cell.workload, federation, request.device, request.speed)
    begin = now(device)
    rounds = run.warm_up()
    seconds = now(device) - begin
    return run, {"first_round": run.first, "warm_up": {"rounds": rounds, "seconds": seconds}}


def baselines_of(run: EngineRun, cell: Cell, request: Request, federation: Federation) -> list[Timed]:
    """Each baseline with the number of threads that suits it, or with both where that is not clear."""
    ids = run.cohort.tolist() if cell.workload.paper else run.cohort.tolist()[:MOST]
    module, smallest = run.sim.template, run.sim.runtime.smallest_batch
    assert module is not None
    found = []
    for kind in BASELINES:
        loop = kind(module, federation, ids, cell.workload.batch, smallest, request.device)
        counts = sorted({1, torch.get_num_threads()}) if request.device == "cpu" else [torch.get_num_threads()]
        timed = [Timed(loop, count) for count in counts]
        trials = [each.trial() for each in timed]
        found += [each for each, trial in zip(timed, trials, strict=True) if trial <= CLOSE * min(trials)]
    return found


def measured(run: EngineRun, baselines: Sequence[Timed], request: Request) -> list[Seconds]:
    """Rounds of the engine, each followed by one of every baseline, so that all meet the same noise."""
    rounds = []
    for _ in range(request.repeats):
        rounds.append(run.once())
        with precision(request.speed.precision):
            for baseline in baselines:
                baseline.once()
    return rounds


def engine_table(run: EngineRun, rounds: Sequence[Seconds], client_steps: int) -> Table:
    """The engine's figures."""
    kind = type(run.sim.runtime.engine).__name__
    return {**_figures(rounds, client_steps), "kept_steps": run.kept, "compiled": run.compiled, "engine": kind}


def baseline_tables(baselines: Sequence[Timed], cell: Cell, client_steps: int) -> dict[str, Table]:
    """The baselines' figures at their better number of threads, for the whole cohort and for all evaluated clients."""
    tables: dict[str, Table] = {}
    for each in baselines:
        cohort, everybody = (n / len(each.loop.ids) for n in (cell.workload.cohort, cell.workload.clients))
        rounds = [Seconds(r.train * cohort, r.server * cohort, r.evaluate * everybody) for r in each.rounds]
        table = _figures(rounds, client_steps) | {"threads": each.threads, "clients_timed": len(each.loop.ids)}
        known = tables.get(each.loop.name)
        if known is None or table["best"]["round"] < known["best"]["round"]:
            tables[each.loop.name] = table
    return tables


def _figures(rounds: Sequence[Seconds], client_steps: int) -> Table:
    fastest = best(rounds)
    return {
        "median": median(rounds).table(),
        "best": fastest.table(),
        "rounds": [r.table() for r in rounds],
        "ms_per_client_step": 1e3 * fastest.round / client_steps,
    }


def ratios(engine: Table, baselines: dict[str, Table]) -> Table:
    """How many times as long the baselines take: best against best, of a round and of an evaluation."""
    return {
        name: {part: table["best"][part] / engine["best"][part] for part in ("round", "train", "evaluate")}
        for name, table in baselines.items()
    }


def peak_of(run: EngineRun) -> int:
    """The most memory since the engine was made; to be read before anything else is."""
    return peak(run.device)
