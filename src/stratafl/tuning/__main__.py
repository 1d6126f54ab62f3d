"""`python -m stratafl.tuning DIR`: a tuning without the command line's packages, by one process or several.

A new DIR needs `--algorithms`; a DIR that holds a tuning is continued. Any number of processes may work on one DIR,
on one machine or on several that share it.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from stratafl.config.experiment import Experiment, load_experiment, paths_in
from stratafl.config.settings import parse_settings
from stratafl.config.trust import typed
from stratafl.errors import StrataError
from stratafl.evaluation.measure import Line
from stratafl.tuning.result import text_table, write_results
from stratafl.tuning.search import Plan, Work
from stratafl.tuning.space import parse_grids
from stratafl.tuning.tuning import Tuning, is_tuning
from stratafl.tuning.worker import advance

STOPPED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Begin or continue, and print a line for each run that was advanced."""
    given = _parser().parse_args(arguments)
    try:
        tuning = _opened(given)
        if given.jobs > 1:
            return _shared(tuning, given.jobs)
        done = advance(tuning, _Progress(), _print_note, jobs=given.of)
    except StrataError as error:
        print(f"strata: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:  # everything up to the last checkpoint is kept
        return STOPPED
    if done and given.table:
        write_results(tuning)
        print(text_table(tuning))
    return 0 if done else STOPPED


def _opened(given: argparse.Namespace) -> Tuning:
    methods = [name.strip() for name in given.algorithms.split(",") if name.strip()]
    settings = parse_settings(given.set)
    trust = typed([*methods, *paths_in(settings), *given.typed], given.trust)
    if is_tuning(given.folder):
        return Tuning.open(given.folder, trust)
    grids, only = parse_grids(given.grid), tuple(name for name in given.only.split(",") if name)
    plan = Plan(given.trials, given.eta, only, grids, given.sampler, given.budget, not given.no_widen)
    base = Experiment() if given.config is None else load_experiment(given.config)
    return Tuning.create(given.folder, base, methods, settings, plan, given.seeds, trust)


def _shared(tuning: Tuning, jobs: int) -> int:
    """The work of several processes; if one ends early the others go on."""
    command = [sys.executable, "-P", "-m", "stratafl.tuning", str(tuning.folder), f"--of={jobs}"]
    command += [f"--typed={name}" for name in sorted(tuning.trust.names)]
    command += ["--trust"] if tuning.trust.everything else []
    workers = [subprocess.Popen([*command, *(["--table"] if number == 0 else [])]) for number in range(jobs)]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while any(worker.poll() is None for worker in workers):
            time.sleep(0.2)
    except KeyboardInterrupt:
        for worker in workers:
            worker.send_signal(signal.SIGINT)
        for worker in workers:
            worker.wait()
        return STOPPED
    return max(abs(int(worker.returncode)) for worker in workers)


def _print_note(work: Work, said: str) -> None:
    print(f"{work.title}: {said}", flush=True)


class _Progress:
    """Prints a line when a run begins and when it has come as far as it is to go."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    def __call__(self, work: Work, rounds: int, history: Sequence[Line]) -> None:
        if rounds >= work.rounds:
            print(f"{time.monotonic() - self._begin:7.0f} s  {work.title}: {rounds} rounds", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stratafl.tuning", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--algorithms", default="", help="names, separated by commas")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3, help="fresh seeds of what was chosen")
    parser.add_argument("--eta", type=int, default=2, help="1: every trial runs all rounds")
    parser.add_argument("--only", default="", help="tune these settings alone, such as train.lr")
    parser.add_argument("--grid", action="append", default=[], help="such as train.lr=0.001,0.01,0.1")
    parser.add_argument("--sampler", default="grid", choices=("grid", "tpe"))
    parser.add_argument("--budget", default="trials", choices=("trials", "steps"))
    parser.add_argument("--no-widen", action="store_true")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--of", type=int, default=1, help=argparse.SUPPRESS)  # processes that share the folder
    parser.add_argument("--trust", action="store_true")
    parser.add_argument("--typed", action="append", default=[], help=argparse.SUPPRESS)  # of processes it starts
    parser.add_argument("--table", action="store_true", help="print the table at the end")
    return parser


if __name__ == "__main__":
    sys.exit(main())
