"""`run`, `compare` and `resume`."""

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path

from rich.console import Console

from stratafl.cli import INTERRUPTED, comparing, reporting
from stratafl.cli.consoles import remarks, warnings_on
from stratafl.cli.driving import advance, interrupted
from stratafl.cli.live import Display, interruptible, with_notices
from stratafl.cli.together import together
from stratafl.config.experiment import Experiment, load, names_code, paths_in, with_values
from stratafl.config.settings import Settings
from stratafl.config.trust import NOTHING, Trust, typed
from stratafl.errors import RunError
from stratafl.execute import ProcessGroup
from stratafl.runs import Comparison, Follower, Run, is_comparison, refuse_existing

RUNS = Path("runs")


def start(config: Path | None, settings: Settings, out: Path | None, trust: bool = False) -> int:
    """A new run, to its end or until it is interrupted."""
    trusted = _trusted(config, paths_in(settings), trust)

    def create(process_group: ProcessGroup) -> Run:
        experiment = with_values(_base(config), settings)
        data = Path(experiment.data.name).stem
        folder = out or _free(f"{experiment.algorithm.name}-{data}-s{experiment.run.seed}")
        return Run.create(experiment, folder, process_group, trusted)

    with together() as process_group:
        return _led(process_group, create, trusted)


def compare(
    config: Path | None,
    settings: Settings,
    methods: Sequence[str],
    seeds: int,
    out: Path | None,
    jobs: int,
    trust: bool = False,
) -> int:
    """A new comparison."""
    trusted = _trusted(config, [*methods, *paths_in(settings)], trust)
    with together() as process_group, warnings_on(remarks()) as settled:
        _refuse_ranks(process_group)
        if out is not None:
            refuse_existing(out)
        made = Comparison.create(out or _free("compare"), _base(config), methods, seeds, settings, trusted)
        settled()
        return comparing.drive(made, jobs)


def resume(folder: Path, jobs: int, worker: bool, trust: Trust = NOTHING) -> int:
    """Whatever is there, from where it was left."""
    if worker:
        with warnings_on(Console(quiet=True)):  # whoever started it has said them
            return comparing.work(Comparison.open(folder, trust))

    def reopen(process_group: ProcessGroup) -> Run:
        if not folder.is_dir():
            raise RunError(f"there is no folder '{folder}'")
        if is_comparison(folder):
            _refuse_ranks(process_group)
        run = Run.open(folder, process_group, trust)
        if run.finished:
            run.notes.append("this run is finished: nothing was left to do")
        return run

    with together() as process_group:
        if process_group.world_size > 1 or not is_comparison(folder):
            return _led(process_group, reopen, trust)
        with warnings_on(remarks()) as settled:
            comparison = Comparison.open(folder, trust)
            settled()
            return comparing.drive(comparison, jobs)


def _led(process_group: ProcessGroup, begin: Callable[[ProcessGroup], Run], trust: Trust) -> int:
    """A run that the first process of a process group keeps, and the others follow."""
    with warnings_on(remarks()) as settled:
        run = begin(process_group) if process_group.rank == 0 else Follower(process_group, trust)
        settled()
        return _drive(run)


def _trusted(config: Path | None, names: Iterable[str], everything: bool) -> Trust:
    """Trust in the code that was named on the command line, or in all that the configuration names."""
    trust = typed(names, everything)
    return trust if config is None else trust.asked_by(config)


def _refuse_ranks(process_group: ProcessGroup) -> None:
    if process_group.world_size > 1:
        raise RunError(
            f"a comparison is not for {process_group.world_size} ranks of torchrun: start it without, with --jobs"
        )


def _base(config: Path | None) -> Experiment:
    return Experiment() if config is None else load(config)


def _free(name: str) -> Path:
    """A directory of this name in runs/ that is not there yet."""
    plain = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    first = RUNS / plain
    return first if not first.exists() else next(p for n in count(2) if not (p := RUNS / f"{plain}-{n}").exists())


def _drive(run: Run | Follower) -> int:
    name, console = run.experiment.algorithm.name, remarks()
    display = Display(console, {name: run.trial.rounds}, {name: run.progress.t})
    with interruptible(console, patient=run.process_group.world_size > 1) as interrupt, run, display:
        for note in run.notes:
            console.print(f"note: {note}", markup=False)
        watch = with_notices(lambda rounds, history: display.show(name, rounds, history), console, run.progress.t)
        done = advance(run, interrupt, watch)
    if isinstance(run, Follower):
        return 0 if done else INTERRUPTED
    if not done:
        return interrupted(run.folder, names_code(run.experiment))
    if run.stopped:
        console.print(f"stopped after round {run.progress.t}: {run.stopped}")
    reporting.show([run.folder])
    return 0
