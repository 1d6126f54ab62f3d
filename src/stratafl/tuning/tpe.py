"""Trials that Optuna's TPE suggests, one after another, each for all rounds. Needs `pip install stratafl[tune]`.

What is suggested for a trial follows from the results before it and from its number, so a tuning that is resumed is
told the same. Results are also told to a study in `optuna.log`, for Optuna's own tools.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf, isfinite, log
from pathlib import Path
from types import ModuleType
from typing import Any

from stratafl.config.experiment import to_tables
from stratafl.config.setting_tables import Settings
from stratafl.errors import RunError
from stratafl.runs.directory import config_of, is_run
from stratafl.tuning.folder_claims import waited_for
from stratafl.tuning.halving import Rung
from stratafl.tuning.search import Search, SearchDecision, Side
from stratafl.tuning.space import Dimension

STUDY = "optuna.log"
STARTUP = 4  # trials that are drawn at random before TPE has anything to go by
EDGE = 0.05  # share of a range that counts as its end


def optuna_or_refusal() -> ModuleType:
    """Optuna, which logs nothing below a warning."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise RunError("--sampler tpe needs 'optuna', which is not installed: pip install 'stratafl[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    module: ModuleType = optuna  # mypy sees Any where Optuna is not installed
    return module


class TPESearch(Search):
    """Trials of one method, each suggested by those before it; nothing is thinned out, nothing widened."""

    @cached_property
    def points(self) -> list[Settings]:
        """What is known of the trials in advance: the first is the default."""
        return [self.default]

    @property
    def planned(self) -> int:
        return self.trials

    @cached_property
    def schedule(self) -> list[Rung]:
        return [Rung(self.trials, self.rounds)]

    def _side(self, dimension: Dimension, chosen: Settings, tried: Sequence[Any]) -> Side:
        """Where the chosen value lies in the declared range."""
        tune, value = dimension.tune, chosen[dimension.path]
        if tune is None or tune.low is None or tune.high is None or value is None:
            return "inside"
        low, high, value = (log(x) if tune.log else x for x in (tune.low, tune.high, value))
        share = (value - low) / (high - low)
        return "lowest" if share < EDGE else "highest" if share > 1 - EDGE else "inside"

    def decision(self) -> SearchDecision:
        """One trial after the other: each waits for those before it."""
        settings: dict[int, Settings] = {}
        for number in range(self.trials):
            settings[number] = self._settings(number, {**settings})
            if pending := self._unfinished([number], settings, self.rounds):
                return SearchDecision(settings, pending)
        self._tell(settings)
        best = self._best(settings, self.rounds, 1)
        return SearchDecision(settings, best=best[0] if best else None)

    def _settings(self, number: int, before: Mapping[int, Settings]) -> Settings:
        """The settings of a trial: those of its run if it has begun, the default of the first, or what TPE suggests."""
        if is_run(self.place(number)):
            tables = to_tables(config_of(self.place(number)))
            flat = {f"{table}.{key}": value for table, keys in tables.items() for key, value in keys.items()}
            return {each.path: flat.get(each.path) for each in self.space}
        if number == 0:
            return self.default
        if number not in self._suggested:
            self._suggested[number] = self._suggestion(number, before)
        return self._suggested[number]

    @cached_property
    def _suggested(self) -> dict[int, Settings]:
        return {}

    def _suggestion(self, number: int, before: Mapping[int, Settings]) -> Settings:
        optuna = optuna_or_refusal()
        sampler = optuna.samplers.TPESampler(seed=number, n_startup_trials=STARTUP, multivariate=False)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for trial in self._told(optuna, before):
            study.add_trial(trial)
        asked = study.ask({each.path: _distribution(optuna, each) for each in self.space}).params
        return {path: float(f"{value:.3g}") if isinstance(value, float) else value for path, value in asked.items()}

    def _told(self, optuna: ModuleType, numbers: Mapping[int, Settings]) -> list[Any]:
        """Trials as Optuna knows them; those that failed are worse than the worst."""
        scores = {number: self.journals.score(number, self.rounds) for number in numbers}
        finite = [score for score in scores.values() if score is not None and isfinite(score)]
        worst = min(finite, default=0.0) - 1.0
        trials = []
        for number, settings in numbers.items():
            searched = {each.path: each for each in self.space if settings[each.path] is not None}
            score = scores[number]
            trials.append(
                optuna.trial.create_trial(
                    params={path: settings[path] for path in searched},
                    distributions={path: _distribution(optuna, each) for path, each in searched.items()},
                    value=worst if score in (None, -inf) else score,
                )
            )
        return trials

    def _tell(self, numbers: Mapping[int, Settings]) -> None:
        """Write the trials into Optuna's storage, each once."""
        with waited_for(self.folder / "optuna"):
            optuna = optuna_or_refusal()
            study = _stored(optuna, self.folder / STUDY, self.method)
            for trial in self._told(optuna, numbers)[len(study.trials) :]:
                study.add_trial(trial)


def _stored(optuna: ModuleType, path: Path, name: str) -> Any:
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    storage = optuna.storages.JournalStorage(backend)
    return optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)


def _distribution(optuna: ModuleType, dimension: Dimension) -> Any:
    """The range of a setting, which also holds its default."""
    tune, default, kinds = dimension.tune, dimension.default, optuna.distributions
    assert tune is not None
    if tune.low is None or tune.high is None:
        others = [] if default is None or default in tune.choices else [default]
        return kinds.CategoricalDistribution((*tune.choices, *others))
    ends = [tune.low, tune.high, *([] if default is None else [default])]
    if dimension.whole:
        return kinds.IntDistribution(round(min(ends)), round(max(ends)))
    return kinds.FloatDistribution(min(ends), max(ends), log=tune.log and min(ends) > 0)
