"""A tuning: the searches of several methods in one directory, their choices, and runs of these on fresh seeds.

tune.toml                    the methods, the plan, and the common configuration
trials/METHOD/000/           run directories that score no test sample, see `search`
tuned.toml                   what was chosen, written when every search has ended
winners/                     a comparison of the chosen settings on fresh seeds
untuned/                     the same with the defaults, of methods whose choice is another
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from stratafl.config.assemble import completed, simulation_of
from stratafl.config.experiment import Experiment, from_stored, names_code, read_toml, to_tables, with_values
from stratafl.config.metric_choice import with_metric
from stratafl.config.migrations import FORMAT, check_format
from stratafl.config.setting_tables import EvaluateTable, Settings
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.core.annotations import MAX_INTEGER
from stratafl.errors import DamagedError, DataError, RecordError, RunError, UnknownNameError, shown, unknown
from stratafl.files import is_plain, write_atomically
from stratafl.report.tuned import TunedMethod
from stratafl.runs.comparison import (
    MAX_SEEDS,
    Comparison,
    check_member,
    check_same_request,
    folder_name,
    is_comparison,
    shared_and_own,
    with_former_defaults,
    without_none,
)
from stratafl.runs.directory import TUNING, is_run, new_folder, refuse_existing
from stratafl.runs.distributed import check_stage
from stratafl.runs.json_files import check_table, check_value, is_list_of
from stratafl.runs.run import with_absolute_paths
from stratafl.tuning.folder_claims import waited_for
from stratafl.tuning.search import Search, TuningPlan
from stratafl.tuning.space import OPTION_PREFIX, is_own, own_settings, search_space
from stratafl.tuning.tpe import TPESearch, optuna_or_refusal
from stratafl.tuning.trials import PendingRun, is_open

CHOSEN, WINNERS, UNTUNED, TRIALS = "tuned.toml", "winners", "untuned", "trials"
PLAN = {"trials": int, "eta": int, "only": list, "grids": dict, "sampler": str, "budget": str, "widen": bool}


@dataclass(frozen=True, eq=False)
class Tuning:
    """Methods that are tuned alike, in a directory; `per_method` are settings of single methods."""

    folder: Path
    base: Experiment
    methods: Sequence[str]
    per_method: Mapping[str, Settings]
    plan: TuningPlan
    seeds: int
    trust: Trust = NO_TRUST

    @classmethod
    def create(
        cls,
        folder: Path,
        base: Experiment,
        methods: Sequence[str],
        settings: Settings,
        plan: TuningPlan,
        seeds: int = 3,
        trust: Trust = NO_TRUST,
    ) -> "Tuning":
        """A new tuning; everything is checked before the directory is made. Settings are as those of a comparison.

        The trials have the seed of `base`, the chosen settings so many seeds after that.
        """
        refuse_existing(folder)
        tuning = cls.planned(folder, base, methods, settings, plan, seeds, trust)
        # Once, because shares of classes differ a little between seeds.
        tuning = replace(tuning, base=replace(tuning.base, evaluate=tuning._check()))
        with new_folder(folder) as partial:
            write_atomically(partial / TUNING, tomli_w.dumps(tuning._tables()).encode())
        return tuning

    @classmethod
    def planned(
        cls,
        folder: Path,
        base: Experiment,
        methods: Sequence[str],
        settings: Settings,
        plan: TuningPlan,
        seeds: int = 3,
        trust: Trust = NO_TRUST,
    ) -> "Tuning":
        """What `create` would write, before methods are built."""
        common, per_method = shared_and_own(methods, settings)
        base = with_absolute_paths(with_values(base, common))
        _check_seeds(seeds, base)
        return cls(folder, base, methods, per_method, plan, seeds, trust)

    def continued(self) -> "Tuning":
        """The tuning in the folder, if it is the one that is planned."""
        stored = Tuning.open(self.folder, self.trust)
        check_same_request(self.folder / TUNING, stored._tables(), self._tables())
        return stored

    @classmethod
    def open(cls, folder: Path, trust: Trust | bool = NO_TRUST) -> "Tuning":
        """A stored tuning to continue; refused if its trials are not what it says."""
        tuning = cls.read(folder, Trust.of(trust).asked_by(folder / TUNING))
        with _damaged(folder / TUNING):
            tuning._check_values()
        for search in tuning.shared() or tuning.searches if tuning.plan.sampler == "grid" else ():
            for number, settings in enumerate(search.points):
                if is_run(search.place(number)):
                    today = completed(search.experiment(settings), tuning.trust)
                    check_member(folder / TUNING, search.place(number), today)
        if is_plain(folder / CHOSEN):
            tuning._check_chosen()
        return tuning

    @classmethod
    def read(cls, folder: Path, trust: Trust = NO_TRUST) -> "Tuning":
        tables = read_toml(folder / TUNING, plain=True)
        head = tables.pop("tune", {})
        check_format(folder / TUNING, head.get("format") if isinstance(head, dict) else None)
        with _damaged(folder / TUNING):
            check_table(head, {"methods": list, "seeds": int, "settings": dict, "plan": dict})
            methods, seeds, per_method = head["methods"], head["seeds"], head["settings"]
            base = from_stored({"format": head["format"], **tables})
            if not methods or not is_list_of(str, methods) or len(set(methods)) < len(methods):
                raise ValueError(f"methods must be one or more different names, not {shown(methods)}")
            _check_seeds(seeds, base)
            check_table(per_method, dict.fromkeys(methods, dict))
            per_method = with_former_defaults(per_method, base, head["format"])
            tuning = cls(folder, base, methods, per_method, _plan(head["plan"]), seeds, trust)
            for method in methods:
                tuning.experiment_with(method, {})
        return tuning

    @cached_property
    def searches(self) -> list[Search]:
        """The search of each method."""
        places = {method: self.folder / TRIALS / folder_name(method) for method in self.methods}
        kind = TPESearch if self.plan.sampler == "tpe" else Search
        return [kind(place, self.experiment(m), self.plan, self.trust) for m, place in places.items()]

    def experiment(self, method: str) -> Experiment:
        """The configuration of a method at its defaults, with the seed of the trials."""
        return with_values(self.base, {"algorithm.name": method, **self.per_method[method]})

    def experiment_with(self, method: str, settings: Settings) -> Experiment:
        """That with these settings, which a file has; refused if methods cannot differ in them."""
        for path in (*self.per_method[method], *settings):
            if not is_own(path):
                raise RecordError(f"{shown(path)} is not a setting of a single method")
        return with_values(self.experiment(method), settings)

    @property
    def fresh(self) -> Experiment:
        """The common configuration with the first seed after that of the trials."""
        return with_values(self.base, {"run.seed": self.base.run.seed + 1})

    @property
    def names_code(self) -> bool:
        return any(names_code(self.experiment(method)) for method in self.methods)

    def work(self) -> list[PendingRun]:
        """What can be done now: trials, and when all methods have a choice, runs on fresh seeds; nothing at the end."""
        if not is_plain(self.folder / CHOSEN):
            if work := self._trials_left():
                return work
            self._fix()
        return self._runs_left()

    def choices(self) -> dict[str, TunedMethod]:
        """What every search came to; those that have not ended are left out."""
        results = {search.method: search.choice() for search in self.shared()}
        return {method: choice for method, choice in results.items() if choice is not None}

    def tuned(self) -> dict[str, dict[str, Any]]:
        """What was chosen for each method, as it was written down."""
        path = self.folder / CHOSEN
        if not is_plain(path):
            raise RunError(
                f"the tuning '{self.folder}' has not chosen yet: continue it with 'strata resume {self.folder}'"
            )
        head = read_toml(path, plain=True).get("tuned", {})
        check_format(path, head.get("format") if isinstance(head, dict) else None)
        with _damaged(path):
            kinds = {"settings": dict, "is_default": bool}
            methods = check_table(check_table(head, {"methods": dict})["methods"], dict.fromkeys(self.methods, dict))
            for method, entry in methods.items():
                if method not in self.methods:
                    raise ValueError(f"{shown(method)} is not a method of this tuning")
                check_table(entry, kinds, optional=kinds)
                self.experiment_with(method, entry.get("settings", {}))
        return methods

    def _check_chosen(self) -> None:
        """Refuse a file of choices that are not those of the trials, as far as these are there."""
        tuned = self.tuned()
        for method, choice in self.choices().items():
            entry = _entry(choice)
            for key in ("settings", "is_default"):
                if tuned[method].get(key) != entry.get(key):
                    stored, chosen = shown(tuned[method].get(key)), shown(entry.get(key))
                    raise DamagedError(
                        f"'{self.folder / CHOSEN}' is damaged: {key} of {method} is {stored}, but its trials give "
                        f"{chosen}: remove it, and write it again with 'strata resume'"
                    )

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """The chosen settings on fresh seeds, and the defaults on the same seeds where they differ."""
        tuned = self.tuned()
        chosen = {method: entry["settings"] for method, entry in tuned.items() if "settings" in entry}
        other = [method for method in chosen if not tuned[method].get("is_default")]
        defaults: dict[str, Settings] = {method: {} for method in other}
        return [self._comparison(WINNERS, chosen), *([self._comparison(UNTUNED, defaults)] if other else [])]

    def _comparison(self, name: str, settings: Mapping[str, Settings]) -> Comparison:
        folder = self.folder / name
        per_method = {method: {**self.per_method[method], **each} for method, each in settings.items()}
        with waited_for(folder):
            if not is_comparison(folder):
                typed = {path: v for m in per_method for path, v in own_settings(m, per_method[m]).items()}
                Comparison.create(folder, self.fresh, list(settings), self.seeds, typed, self.trust, checked=False)
        comparison = Comparison.open(folder, self.trust)
        seeds = tuple(self.fresh.run.seed + i for i in range(self.seeds))
        settled = {method: without_none(options) for method, options in per_method.items()}
        if comparison.per_method != settled or comparison.seeds != seeds:
            raise DamagedError(
                f"'{folder}' is damaged: its settings or seeds are not those of '{self.folder / CHOSEN}' and "
                f"{TUNING}: remove the folder '{folder}', and run it again with 'strata resume'"
            )
        return comparison

    def _trials_left(self) -> list[PendingRun]:
        if self.plan.budget == "steps":
            first = [work for search in self.searches for work in search.pending_for_cost()]
            if first:
                return first
        pending = [work for search in self.shared() for work in search.work()]
        return sorted(pending, key=lambda work: (work.rounds, work.folder.name))

    def shared(self) -> list[Search]:
        """The searches with as many trials as the budget gives each of them; equally many while steps are unknown."""
        if self.plan.budget == "trials":
            return self.searches
        taken = [search.steps_per_round() for search in self.searches]
        if None in taken:
            return self.searches
        steps = [each or 0.0 for each in taken]
        least = min((each for each in steps if each), default=0.0)
        shares = [max(1, int(self.plan.trials * least / each)) if each else self.plan.trials for each in steps]
        return [search.with_trials(share) for search, share in zip(self.searches, shares, strict=True)]

    def _fix(self) -> None:
        """Write down what was chosen; from here on it stays."""
        choices = self.choices()
        if all(choice.settings is None for choice in choices.values()):
            why = [trial.failed for choice in choices.values() for trial in choice.trials if trial.failed]
            raise RunError(f"every trial in '{self.folder}' failed; the first: {why[0] if why else 'no score'}")
        head = {"format": FORMAT, "seed": self.base.run.seed, "rounds": self.base.run.rounds}
        tables = {"tuned": {**head, "methods": {method: _entry(choice) for method, choice in choices.items()}}}
        write_atomically(self.folder / CHOSEN, tomli_w.dumps(tables).encode())

    def _runs_left(self) -> list[PendingRun]:
        """The runs on fresh seeds, seed by seed."""
        rounds = {search.method: search.rounds for search in self.searches}
        members = [member for comparison in self.comparisons for member in comparison.members()]
        work = []
        for member in sorted(members, key=lambda member: member.seed):
            title, method = f"{member.method}, seed {member.seed}", member.method
            work.append(PendingRun(method, title, member.experiment, member.folder, rounds[method], self.trust))
        return [run for run in work if is_open(run)]

    def _check(self) -> EvaluateTable:
        """How runs are evaluated on this data.

        Refuses what cannot be tuned: methods that cannot be run, that see test data, or without validation data.
        """
        if self.plan.sampler == "tpe":
            optuna_or_refusal()
        if self.base.evaluate.guard:
            raise RecordError("a tuning has no guard: tune without it, then run 'strata compare --tuned DIR --guard'")
        evaluate = self.base.evaluate
        self._check_values()
        for method, search in zip(self.methods, self.searches, strict=True):
            sim = simulation_of(search.base, trust=self.trust)
            if sim.algorithm.leaks is not None:
                raise RecordError(f"{method} cannot be tuned on validation data: {sim.algorithm.leaks}; leave it out")
            if not int(sim.runtime.federation.counts("validation").sum()):
                raise DataError(f"{method} has no validation data to be tuned on: set data.validation, such as 0.1")
            evaluate = with_metric(self.experiment(method), sim.runtime.federation, self.trust).evaluate
            check_stage(evaluate.stage, sim)
        return evaluate

    def _check_values(self) -> None:
        """Refuse settings to tune that no method has, values that they cannot have, and too many of them."""
        tunable = set[str]()
        for method, search in zip(self.methods, self.searches, strict=True):
            every = search_space(search.base, grids=self.plan.grids, trust=self.trust)
            tunable |= {each.path.replace(OPTION_PREFIX, f"{method}.") for each in every}
            search.check()
            _ = search.points  # refused if they are too many
        for name in (*self.plan.only, *self.plan.grids):
            if name not in tunable:
                raise unknown("setting to tune", name, sorted(tunable))

    def _tables(self) -> dict[str, Any]:
        settings = {method: without_none(options) for method, options in self.per_method.items()}
        grids = {path: list(values) for path, values in self.plan.grids.items()}
        plan = {**vars(self.plan), "only": list(self.plan.only), "grids": grids}
        head: dict[str, Any] = {"format": FORMAT, "methods": list(self.methods), "seeds": self.seeds}
        head |= {"settings": settings, "plan": plan}
        return {"tune": head, **to_tables(self.base)}


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Say of what is refused that it comes from this file."""
    try:
        yield
    except (RecordError, UnknownNameError, ValueError) as error:
        raise DamagedError(f"'{path}' is damaged: {error}") from error


def _check_seeds(seeds: int, base: Experiment) -> None:
    most = min(MAX_SEEDS, MAX_INTEGER - base.run.seed)
    if not 1 <= seeds <= most:
        raise RecordError(f"--seeds must be from 1 to {most:,}, not {shown(seeds)}")


def _plan(table: dict[str, Any]) -> TuningPlan:
    """The plan in a file; ValueError says what is wrong with it."""
    for key in check_table(table, PLAN, optional=PLAN):
        if key not in PLAN:
            raise unknown("key of [tune.plan]", key, PLAN)
    only, grids = table.get("only", []), table.get("grids", {})
    for name in only:
        check_value("a setting in only", name, str)
    for path, values in grids.items():
        check_value(path, values, list)
        if not values or len({str(value) for value in values}) < len(values):
            raise ValueError(f"the grid of {shown(path)} must have one or more different values, not {shown(values)}")
    return TuningPlan(**{**table, "only": tuple(only)})


def is_tuning(folder: Path) -> bool:
    return is_plain(folder / TUNING)


def read_tuned(folder: Path) -> dict[str, dict[str, Any]]:
    """What a finished tuning chose for each method."""
    if not is_tuning(folder):
        raise RunError(f"'{folder}' is not a tuning: it has no {TUNING}; make one with 'strata tune'")
    return Tuning.read(folder).tuned()


def _entry(choice: TunedMethod) -> dict[str, Any]:
    """A choice as a table of TOML, which has no none."""
    failed = [f"trial {trial.number}: {trial.failed}" for trial in choice.trials if trial.failed]
    entry: dict[str, Any] = {} if choice.settings is None else {"settings": without_none(choice.settings)}
    entry |= {} if choice.validation is None else {"validation": choice.sign * choice.validation}  # higher is better
    entry |= {"is_default": choice.is_default, "default": without_none(choice.default), "trials": len(choice.trials)}
    entry |= {"rounds": choice.rounds, "steps": choice.steps, "sides": dict(choice.sides), "widened": choice.widened}
    return entry | {"left_at_default": list(choice.left), "failed": failed}
