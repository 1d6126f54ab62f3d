"""A comparison: the same experiment for several methods and seeds, each a run of its own in one directory.

compare.toml                 the methods, the seeds and what they vary, and the common configuration
fedper/seed-0/               a run directory, and so on
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import tomli_w

from stratafl.algorithms import ALGORITHMS
from stratafl.config.assemble import completed, seeds_of, simulation_of
from stratafl.config.experiment import Experiment, from_stored, names_code, read_toml, to_tables, with_values
from stratafl.config.metric_choice import AUTO, PLAIN, with_metric
from stratafl.config.migrations import FORMAT, check_format, former_defaults
from stratafl.config.setting_tables import Settings, parse_settings
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.core.annotations import MAX_INTEGER
from stratafl.core.reprs import short_repr
from stratafl.errors import BusyError, RecordError, RunError, counted, shown, unknown
from stratafl.evaluation.guard import SAFE
from stratafl.files import is_plain, is_plain_folder, write_atomically
from stratafl.policies import LocalTraining
from stratafl.runs.directory import COMPARISON, check_config, config_of, is_run, new_folder, refuse_existing
from stratafl.runs.distributed import check_stage
from stratafl.runs.json_files import is_list_of
from stratafl.runs.run import Run, with_absolute_paths

MAX_SEEDS = 10_000  # of a comparison
METHOD_TABLES = ("train", "server")  # tables in which methods may differ; in the others they would not be comparable
UNRESOLVED = (AUTO, PLAIN)  # settings that each run resolves from its data
Varied = Literal["all", "partition", "weights", "batches"]
OWN_SEEDS = {"partition": "data.seed", "weights": "model.seed", "batches": "run.batch_seed"}


@short_repr
@dataclass(frozen=True)
class Member:
    """One method with one seed."""

    method: str
    seed: int
    experiment: Experiment
    folder: Path
    trust: Trust = NO_TRUST
    # How this comparison sets local training, which is a guard's safe choice.
    alone: LocalTraining | None = None

    def run(self) -> Run:
        """Its run, new or resumed."""
        run = self._run()
        run.alone = self.alone
        return run

    def _run(self) -> Run:
        for place in (self.folder.parent, self.folder):
            if os.path.lexists(place) and not is_plain_folder(place):
                raise RunError(f"'{place}' is a link or a file, not a folder of the comparison: restore the folder")
        if is_run(self.folder):
            return Run.open(self.folder, trust=self.trust)
        try:
            return Run.create(self.experiment, self.folder, trust=self.trust)
        except RunError as error:
            if is_run(self.folder):
                raise BusyError(f"another process has just started '{self.folder}': let it finish") from error
            raise


@short_repr
@dataclass(frozen=True)
class Comparison:
    """Methods × seeds in a directory; `per_method` are settings of single methods.

    Over the seeds everything random varies, or only the part that `vary` names: the other parts keep the first seed.
    """

    folder: Path
    base: Experiment
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    per_method: Mapping[str, Settings]
    trust: Trust = NO_TRUST
    vary: Varied = "all"

    @classmethod
    def create(
        cls,
        folder: Path,
        base: Experiment,
        methods: Sequence[str],
        seeds: int,
        settings: Settings,
        trust: Trust = NO_TRUST,
        vary: str = "all",
        checked: bool = True,
    ) -> "Comparison":
        """A new comparison; `settings` are of `table.key`, or of `method.key` or `method.table.key` for one alone.

        If it is `checked`, a method that cannot be run is refused before anything is written.
        """
        comparison = cls.planned(folder, base, methods, seeds, settings, trust, vary)
        comparison = comparison._checked() if checked else comparison
        refuse_existing(folder)
        with new_folder(folder) as partial:
            write_atomically(partial / COMPARISON, tomli_w.dumps(comparison._tables()).encode())
        return comparison

    @classmethod
    def planned(
        cls,
        folder: Path,
        base: Experiment,
        methods: Sequence[str],
        seeds: int,
        settings: Settings,
        trust: Trust = NO_TRUST,
        vary: str = "all",
    ) -> "Comparison":
        """What `create` would write, before methods are built."""
        common, per_method = shared_and_own(methods, settings)
        if not 1 <= seeds <= MAX_SEEDS:
            raise RecordError(f"a comparison must have from 1 to {MAX_SEEDS:,} seeds, not {shown(seeds)}")
        base = with_absolute_paths(with_values(base, common))
        first = base.run.seed
        if first + seeds - 1 > MAX_INTEGER:
            raise RecordError(f"the last of {counted(seeds, 'seed')} from {first} would be above {MAX_INTEGER}")
        varied = _varied(vary, base)
        return cls(folder, base, tuple(methods), tuple(range(first, first + seeds)), per_method, trust, varied)

    def continued(self) -> "Comparison":
        """The comparison in the folder, if it is the one that is planned."""
        stored = Comparison.open(self.folder, self.trust)
        check_same_request(self.folder / COMPARISON, stored._tables(), self._tables())
        return stored

    def _checked(self) -> "Comparison":
        """The comparison with a definite metric; builds every method once, so that its errors precede the first run."""
        for method in self.methods:
            experiment = self._seeded(self._of(method), self.seeds[0])
            sim = simulation_of(experiment, trust=self.trust)
            definite = with_metric(experiment, sim.runtime.federation, self.trust).evaluate
            check_stage(definite.stage, sim)
        # A metric is chosen once, because shares of classes may differ a little between seeds.
        chosen = definite if self.base.evaluate.metric == AUTO else self.base.evaluate
        return replace(self, base=replace(self.base, evaluate=chosen))

    @classmethod
    def open(cls, folder: Path, trust: Trust | bool = NO_TRUST) -> "Comparison":
        """A stored comparison to continue; refused if its runs are not what it says."""
        trust = Trust.of(trust).asked_by(folder / COMPARISON)
        comparison = replace(cls.read(folder), trust=trust)
        for member in comparison.members():
            if is_run(member.folder):
                check_member(folder / COMPARISON, member.folder, completed(member.experiment, trust))
        return comparison

    @classmethod
    def read(cls, folder: Path) -> "Comparison":
        tables, damaged = read_toml(folder / COMPARISON, plain=True), f"'{folder / COMPARISON}' is damaged"
        head = tables.pop("compare", {})
        check_format(folder / COMPARISON, head.get("format") if isinstance(head, dict) else None)
        methods, seeds, per_method = (head.get(key) for key in ("methods", "seeds", "settings"))
        lists = bool(methods) and is_list_of(str, methods) and bool(seeds) and is_list_of(int, seeds)
        if not (lists and isinstance(per_method, dict)):
            raise RunError(f"{damaged}: methods and seeds are lists, settings a table")
        if wrong := [seed for seed in seeds if not 0 <= seed <= MAX_INTEGER]:
            raise RunError(f"{damaged}: seeds must be from 0 to {MAX_INTEGER}, not {shown(wrong[0])}")
        for method in methods:
            if is_list_of(str, per_method.get(method)):  # as they were typed, in comparisons of older versions
                per_method[method] = parse_settings(per_method[method])
            if not isinstance(per_method.get(method), dict):
                raise RunError(f"{damaged}: '{method}' has no table of settings")
        vary = head.get("vary", "all")  # comparisons of older versions do not say it
        if vary not in get_args(Varied):
            raise RunError(f"{damaged}: vary is {shown(vary)}, not one of {', '.join(get_args(Varied))}")
        base = from_stored({"format": head["format"], **tables})
        per_method = with_former_defaults(per_method, base, head["format"])
        return cls(folder, base, tuple(methods), tuple(seeds), per_method, vary=vary)

    def members(self) -> Iterator[Member]:
        """Seed by seed, so that a comparison that stops early has runs of every method."""
        alone = self._of(SAFE).train if SAFE in self.methods else None
        for seed in self.seeds:
            for method in self.methods:
                folder = self.folder / folder_name(method) / f"seed-{seed}"
                yield Member(method, seed, self._seeded(self._of(method), seed), folder, self.trust, alone)

    @property
    def names_code(self) -> bool:
        return any(names_code(self._of(method)) for method in self.methods)

    def _of(self, method: str) -> Experiment:
        return with_values(self.base, {"algorithm.name": method, **self.per_method[method]})

    def _seeded(self, experiment: Experiment, seed: int) -> Experiment:
        """The experiment with `seed` for the part that varies; the other parts keep the first seed."""
        run = experiment.run
        first = seeds_of(replace(experiment, run=replace(run, seed=self.seeds[0])))
        fixed = {} if self.vary == "all" else {p: getattr(first, p) for p in OWN_SEEDS if p != self.vary}
        return replace(
            experiment,
            data=replace(experiment.data, seed=fixed.get("partition", experiment.data.seed)),
            model=replace(experiment.model, seed=fixed.get("weights", experiment.model.seed)),
            run=replace(run, seed=seed, batch_seed=fixed.get("batches", run.batch_seed)),
        )

    def _tables(self) -> dict[str, Any]:
        head = {"format": FORMAT, "methods": list(self.methods), "seeds": list(self.seeds), "vary": self.vary}
        head["settings"] = {method: without_none(settings) for method, settings in self.per_method.items()}
        return {"compare": head, **to_tables(self.base)}


def check_member(path: Path, run: Path, experiment: Experiment) -> None:
    """Raise if a run was not begun with an experiment that the file at `path` describes."""
    begun, today = to_tables(config_of(run)), to_tables(experiment)
    chosen = {key: begun["evaluate"][key] for key, value in today["evaluate"].items() if value in UNRESOLVED}
    check_config(path, begun, today | {"evaluate": today["evaluate"] | chosen})


def check_same_request(path: Path, begun: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise if the file at `path` was begun with something else than is asked for, naming the first key."""
    then, now = _flat(begun), _flat(asked)
    for key in dict.fromkeys([*now, *then]):
        left_open = key.startswith("evaluate.") and now.get(key) in UNRESOLVED
        if then.get(key) != now.get(key) and not left_open:
            was, wanted = shown(then.get(key)), shown(now.get(key))
            raise RunError(
                f"'{path}' was begun with {key} = {was}, not {wanted}: use the same settings, or give another folder"
            )


def _flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{table}.{key}": value for table, keys in tables.items() for key, value in keys.items()}


def shared_and_own(methods: Sequence[str], settings: Settings) -> tuple[Settings, dict[str, Settings]]:
    """The settings of all methods, and those of each."""
    if not methods or len(set(methods)) < len(methods):
        raise RecordError(f"a comparison needs one or more different methods, not '{','.join(methods)}'")
    for typed in settings:
        table, _, option = typed.partition(".")
        if table == "algorithm":
            raise RecordError(f"'{typed}' would be an option of every method: write METHOD.{option} for one of them")
        if table in ALGORITHMS and table not in methods:
            raise RecordError(f"'{typed}' is an option of {table}, but the methods are {', '.join(methods)}")
    common = {path: v for path, v in settings.items() if not path.startswith(tuple(f"{m}." for m in methods))}
    return common, {method: _settings_of(method, settings) for method in methods}


def _settings_of(method: str, settings: Settings) -> Settings:
    """The settings of one method: `method.key` is its option, `method.table.key` a setting of a table."""
    options = {path.removeprefix(f"{method}."): v for path, v in settings.items() if path.startswith(f"{method}.")}
    return {key if key.partition(".")[0] in METHOD_TABLES else f"algorithm.{key}": v for key, v in options.items()}


def with_former_defaults(per_method: Mapping[str, Settings], base: Experiment, number: int) -> dict[str, Settings]:
    """The settings of each method in a file of this format, with its defaults of then unless the base has them."""

    def former(method: str) -> Settings:
        options = {} if method == base.algorithm.name else former_defaults(method, number)
        return {f"algorithm.{key}": value for key, value in options.items()}

    return {method: {**former(method), **settings} for method, settings in per_method.items()}


def without_none(settings: Settings) -> dict[str, Any]:
    """Settings without None, which TOML cannot store."""
    return {path: value for path, value in settings.items() if value is not None}


def is_comparison(folder: Path) -> bool:
    return is_plain(folder / COMPARISON)


def _varied(vary: str, base: Experiment) -> Varied:
    """What the seeds vary, checked: a part with a seed of its own would not follow them."""
    allowed = get_args(Varied)
    if vary not in allowed:
        raise unknown("part to vary", vary, allowed)
    path = OWN_SEEDS.get(vary, "")
    table, _, key = path.partition(".")
    fixed = getattr(getattr(base, table), key) if path else None
    if fixed is not None:
        raise RecordError(f"{path} = {fixed} fixes the {vary}, which --vary {vary} would vary: leave out one of them")
    return cast(Varied, vary)


def folder_name(method: str) -> str:
    """A folder name for a method; your own method is named by its import path."""
    return method.replace(":", "-").replace("/", "-")
