"""A comparison: the same experiment for several methods and seeds, each a run of its own in one directory.

compare.toml                 the methods, the seeds, and the common configuration
fedper/seed-0/               a run directory, and so on
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from stratafl.algorithms import ALGORITHMS
from stratafl.config.assemble import completed, simulation_of
from stratafl.config.experiment import Experiment, from_stored, read_toml, to_tables, with_values
from stratafl.config.metrics import AUTO, PLAIN, with_metric
from stratafl.config.settings import Settings, parse_settings
from stratafl.config.trust import NOTHING, Trust
from stratafl.core.annotations import WHOLE
from stratafl.core.reprs import short_repr
from stratafl.errors import BusyError, RecordError, RunError, counted, shown
from stratafl.files import is_plain, is_plain_folder, write_atomically
from stratafl.runs.directory import COMPARISON, check_config, config_of, is_run, new_folder, refuse_existing
from stratafl.runs.distributed import check_stage
from stratafl.runs.format import FORMAT, check_format
from stratafl.runs.json_files import is_list_of
from stratafl.runs.run import Run, with_absolute_paths

SEEDS = 10_000  # of a comparison, at most
OPEN = (AUTO, PLAIN)  # settings that each run makes definite by its data


@short_repr
@dataclass(frozen=True)
class Member:
    """One method with one seed."""

    method: str
    seed: int
    experiment: Experiment
    folder: Path
    trust: Trust = NOTHING

    def run(self) -> Run:
        """Its run, new or resumed."""
        for place in (self.folder.parent, self.folder):
            if os.path.lexists(place) and not is_plain_folder(place):
                raise RunError(f"'{place}' is not a folder of the comparison but a link or a file: put the folder back")
        if is_run(self.folder):
            return Run.open(self.folder, trust=self.trust)
        try:
            return Run.create(self.experiment, self.folder, trust=self.trust)
        except RunError as error:
            if is_run(self.folder):
                raise BusyError(f"another process has just started '{self.folder}': leave it to that") from error
            raise


@short_repr
@dataclass(frozen=True)
class Comparison:
    """Methods × seeds in a directory; `own` are settings of single methods."""

    folder: Path
    base: Experiment
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    own: Mapping[str, Settings]
    trust: Trust = NOTHING

    @classmethod
    def create(
        cls,
        folder: Path,
        base: Experiment,
        methods: Sequence[str],
        seeds: int,
        settings: Settings,
        trust: Trust = NOTHING,
    ) -> "Comparison":
        """A new comparison; `settings` are of `table.key`, or of `method.key` for one method alone."""
        if not methods or len(set(methods)) < len(methods):
            raise RecordError(f"a comparison needs methods, each once, not '{','.join(methods)}'")
        if not 1 <= seeds <= SEEDS:
            raise RecordError(f"a comparison has from 1 to {SEEDS:,} seeds, not {shown(seeds)}")
        for given in settings:
            table, _, option = given.partition(".")
            if table == "algorithm":
                raise RecordError(
                    f"'{given}' would be an option of every method: write METHOD.{option} for one of them"
                )
            if table in ALGORITHMS and table not in methods:
                raise RecordError(f"'{given}' is an option of {table}, which is not compared: {', '.join(methods)}")
        own: dict[str, Settings] = {}
        for m in methods:
            mine = {path: v for path, v in settings.items() if path.startswith(f"{m}.")}
            own[m] = {f"algorithm.{path.removeprefix(f'{m}.')}": v for path, v in mine.items()}
        common = {path: v for path, v in settings.items() if not any(path.startswith(f"{m}.") for m in methods)}
        base = with_absolute_paths(with_values(base, common))
        first = base.run.seed
        if first + seeds - 1 > WHOLE:
            raise RecordError(f"the last of {counted(seeds, 'seed')} from {first} on would be above {WHOLE}")
        made = cls(folder, base, tuple(methods), tuple(range(first, first + seeds)), own, trust)
        for member in made.members():
            if member.seed == first:
                # Errors of any method come before the first one runs.
                sim = simulation_of(member.experiment, trust=trust)
                check_stage(with_metric(member.experiment, sim.runtime.federation, trust).evaluate.stage, sim)
        refuse_existing(folder)
        with new_folder(folder) as partial:
            write_atomically(partial / COMPARISON, tomli_w.dumps(made._tables()).encode())
        return made

    @classmethod
    def open(cls, folder: Path, trust: Trust | bool = NOTHING) -> "Comparison":
        """A stored comparison to continue; refused if its runs are not what it says."""
        trust = Trust.of(trust).asked_by(folder / COMPARISON)
        made = replace(cls.read(folder), trust=trust)
        for member in made.members():
            if is_run(member.folder):
                begun, today = to_tables(config_of(member.folder)), to_tables(completed(member.experiment, trust))
                chosen = {key: begun["evaluate"][key] for key, value in today["evaluate"].items() if value in OPEN}
                check_config(folder / COMPARISON, begun, today | {"evaluate": today["evaluate"] | chosen})
        return made

    @classmethod
    def read(cls, folder: Path) -> "Comparison":
        tables = read_toml(folder / COMPARISON, plain=True)
        head = tables.pop("compare", {})
        check_format(folder / COMPARISON, head.get("format") if isinstance(head, dict) else None)
        methods, seeds, own = (head.get(key) for key in ("methods", "seeds", "settings"))
        if not (methods and is_list_of(str, methods) and seeds and is_list_of(int, seeds) and isinstance(own, dict)):
            raise RunError(f"'{folder / COMPARISON}' is damaged: methods and seeds are lists, settings a table")
        wrong = [seed for seed in seeds if not 0 <= seed <= WHOLE]
        if wrong:
            raise RunError(f"'{folder / COMPARISON}' is damaged: a seed is from 0 to {WHOLE}, not {shown(wrong[0])}")
        for method in methods:
            if is_list_of(str, own.get(method)):  # as they were typed, in comparisons of older versions
                own[method] = parse_settings(own[method])
            if not isinstance(own.get(method), dict):
                raise RunError(f"'{folder / COMPARISON}' is damaged: '{method}' has no table of settings")
        return cls(folder, from_stored(tables), tuple(methods), tuple(seeds), own)

    def members(self) -> Iterator[Member]:
        """Seed by seed, so that a comparison that stops early has runs of every method."""
        for seed in self.seeds:
            for method in self.methods:
                experiment = with_values(self.base, {"algorithm.name": method, **self.own[method]})
                experiment = replace(experiment, run=replace(experiment.run, seed=seed))
                yield Member(method, seed, experiment, self.folder / _folder_name(method) / f"seed-{seed}", self.trust)

    def _tables(self) -> dict[str, Any]:
        own = {method: {k: v for k, v in settings.items() if v is not None} for method, settings in self.own.items()}
        head = {"format": FORMAT, "methods": list(self.methods), "seeds": list(self.seeds), "settings": own}
        return {"compare": head, **to_tables(self.base)}


def is_comparison(folder: Path) -> bool:
    return is_plain(folder / COMPARISON)


def _folder_name(method: str) -> str:
    return method.replace(":", "-").replace("/", "-")
