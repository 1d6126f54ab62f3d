"""`compare` and `tune`: the commands of these names for samples and models in Python, continued by the same call."""

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from stratafl.api.requests import PythonRequest, SharedOptions, Source, each_warning_once, method_names, requested
from stratafl.api.results import ComparisonResult, TuningResult
from stratafl.config.experiment import Experiment
from stratafl.config.setting_tables import Settings
from stratafl.evaluation.flags import Notices
from stratafl.evaluation.measure import Line
from stratafl.execute.build_simulation import ModelSource
from stratafl.runs.advancing import DisplayedRun, Watch, advance_comparison, displayed_runs
from stratafl.runs.comparison import Comparison, is_comparison
from stratafl.runs.directory import TUNING
from stratafl.runs.logistic import write_baselines
from stratafl.runs.workers import Crew, share
from stratafl.tuning import Tuning, TuningPlan, advance, is_tuning
from stratafl.tuning.reuse import with_tuned
from stratafl.tuning.worker import by_folder, displayed_trials, never

SECONDS = 0.2  # between two updates of a line that is written over itself
log = logging.getLogger("stratafl")


@each_warning_once()
def compare(
    methods: str | Sequence[str],
    clients: Source,
    model: ModelSource | str = "mlp",
    *,
    seeds: int = 5,
    folder: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    vary: str = "all",
    tuned: "TuningResult | str | Path | None" = None,
    jobs: int | None = None,
    progress: bool = True,
    trust: bool = False,
    **options: Unpack[SharedOptions],
) -> ComparisonResult:
    """Run several methods and seeds on the same clients, and rank them, as `strata compare` does.

    To continue after Ctrl-C or a crash, make the same call with the same `folder`. If the comparison in it is finished,
    the call only reads it.

    Example:
        ```python
        result = stratafl.compare("local,fedavg,fedper", clients, "mlp", rounds=20, lr=0.1, folder="runs/mine")
        print(result.best)
        result.report("report.html")
        ```

    Args:
        methods: Names from `strata list`, in a list or with commas; also your own as `package.module:builder`.
        clients: Samples as `fit` takes them, or the name of a data set, file or folder.
        model: A name, a module or a function that makes one.
        seeds: The number of seeds. Each method runs once with each of them.
        folder: The folder of the runs, by default a new one in `runs/`.
        settings: Settings as the command has them: `{"train.epochs": 2, "fedper.personal": "last:2"}`.
        vary: What a seed varies: `"all"`, `"partition"`, `"weights"` or `"batches"`.
        tuned: What `tune` returned, or its folder: each method runs with the settings chosen for it.
        jobs: The number of processes that share the runs. A model that is an object allows only one.
        progress: Show how many rounds are done.
        trust: Allow files to import code of your own.
        options: Common settings as arguments: `label`, `client`, `rounds`, `lr`, `seed`, `validation`, `test`, `split`,
            `normalise`, `metric`, `evaluate_every`, `participation`, `guard`, `cross_site` and `device`.

    Returns:
        The ranking, the recommended method, tables and a report.

    Raises:
        StrataError: If something does not fit, or `folder` holds another comparison.
    """
    names = method_names(methods)
    asked = requested("compare", clients, model, folder, settings, options, names, trust)
    asked.check_jobs(jobs)

    def plan(base: Experiment, chosen: Settings) -> Comparison:
        planned = Comparison.planned(asked.folder, base, names, seeds, chosen, asked.trust, vary)
        stored = planned.continued() if is_comparison(asked.folder) else None
        asked.store()
        return stored or Comparison.create(asked.folder, base, names, seeds, chosen, asked.trust, vary)

    place = tuned.folder if isinstance(tuned, TuningResult) else tuned
    if place is None:
        comparison = plan(asked.base, asked.settings)
    else:
        comparison = with_tuned(Path(place), names, asked.settings, None, plan)
    runs = displayed_runs(comparison)

    def alone(watches: Mapping[Path, Watch]) -> bool:
        return advance_comparison(comparison, watches, log.warning, never)

    _drive(asked, runs, alone, asked.jobs(jobs, len(runs), comparison.base.run.device), progress)
    write_baselines(comparison)
    return ComparisonResult(comparison.folder, comparison.trust)


@each_warning_once()
def tune(
    methods: str | Sequence[str],
    clients: Source,
    model: ModelSource | str = "mlp",
    *,
    trials: int = 12,
    seeds: int = 3,
    folder: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    grid: Mapping[str, Sequence[Any]] | None = None,
    eta: int = 2,
    sampler: str = "grid",
    budget: str = "trials",
    widen: bool = True,
    jobs: int | None = None,
    progress: bool = True,
    trust: bool = False,
    **options: Unpack[SharedOptions],
) -> TuningResult:
    """Tune several methods alike on validation samples, then run what was chosen on fresh seeds, as `strata tune` does.

    To continue after Ctrl-C or a crash, make the same call with the same `folder`.

    Example:
        ```python
        tuned = stratafl.tune("fedavg,fedper", clients, "mlp", trials=12, rounds=20)
        print(tuned.best.settings)
        stratafl.compare("fedavg,fedper", clients, "mlp", tuned=tuned)
        ```

    Args:
        methods: Names from `strata list`, in a list or with commas; also your own as `package.module:builder`.
        clients: Samples as `fit` takes them, or the name of a data set, file or folder.
        model: A name, a module or a function that makes one.
        trials: The number of trials of each method.
        seeds: The number of fresh seeds that the chosen settings run on.
        folder: The folder of the runs, by default a new one in `runs/`.
        settings: Settings as the command has them, which hold for all trials.
        only: The settings to tune, such as `["train.lr"]`. By default all that a method declares.
        grid: The values to try of some settings: `{"train.lr": [0.01, 0.1]}`.
        eta: Successive halving continues one of `eta` trials.
        sampler: `"grid"`, or `"tpe"` with the extra `tune`.
        budget: What every method gets alike: `"trials"` or `"steps"`.
        widen: Add a trial if the best learning rate is at the edge of its range.
        jobs: The number of processes that share the runs. A model that is an object allows only one.
        progress: Show how many rounds are done.
        trust: Allow files to import code of your own.
        options: Common settings as arguments, as in `compare`.

    Returns:
        What was chosen for each method, and how that scored on fresh seeds.

    Raises:
        StrataError: If something does not fit, or `folder` holds another tuning.
    """
    names = method_names(methods)
    grids = {path: tuple(values) for path, values in (grid or {}).items()}
    plan = TuningPlan(trials, eta, tuple(only), grids, sampler, budget, widen)
    asked = requested("tune", clients, model, folder, settings, options, names, trust)
    asked.check_jobs(jobs)
    arguments = (asked.folder, asked.base, names, asked.settings, plan, seeds, asked.trust)
    planned = Tuning.planned(*arguments)
    stored = planned.continued() if is_tuning(asked.folder) else None
    asked.store()
    tuning = stored or Tuning.create(*arguments)
    runs = displayed_trials(tuning)

    def alone(watches: Mapping[Path, Watch]) -> bool:
        return advance(tuning, by_folder(watches), lambda work, text: log.warning("%s: %s", work.title, text))

    _drive(asked, runs, alone, asked.jobs(jobs, len(runs), tuning.base.run.device), progress)
    return TuningResult(tuning.folder, tuning.trust.asked_by(tuning.folder / TUNING))


def _drive(
    asked: PythonRequest,
    runs: Mapping[Path, DisplayedRun],
    alone: Callable[[Mapping[Path, Watch]], bool],
    jobs: int,
    progress: bool,
) -> None:
    """Finish all runs in this process or with several; raises if that is interrupted."""
    line = ProgressLine(list(runs.values()), progress)
    watches = {folder: line.watch(run) for folder, run in runs.items()}
    try:
        crew = Crew(asked.folder, asked.trust, "the same call in Python", min(jobs, len(runs)))
        done = alone(watches) if jobs == 1 else share(crew, watches, log.warning, never)
    finally:
        line.end()
    if not done:
        raise KeyboardInterrupt(f"what is done is saved in '{asked.folder}': continue with folder='{asked.folder}'")


class ProgressLine:
    """How many rounds are done, in one line of the terminal or notebook that is written over itself."""

    def __init__(self, runs: Sequence[DisplayedRun], shown: bool) -> None:
        self._runs, self._shown, self._last, self._width = runs, shown, 0.0, 0

    def watch(self, run: DisplayedRun) -> Watch:
        notices = Notices(run.done)

        def watch(rounds: int, history: Sequence[Line]) -> None:
            run.done = rounds
            for notice in notices.of(history):
                log.warning("%s%s", run.label, notice)
            self._write(run)

        return watch

    def _write(self, run: DisplayedRun) -> None:
        done, rounds = (sum(getattr(each, name) for each in self._runs) for name in ("done", "rounds"))
        if self._shown and time.monotonic() - self._last >= SECONDS:
            text = f"{done:,} of {rounds:,} rounds ({run.line})"
            self._last, self._width = time.monotonic(), max(self._width, len(text))
            print(f"\r{text.ljust(self._width)}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)
