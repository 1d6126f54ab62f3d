"""A reproduction: the cells of a recipe as runs in a folder that several recipes may share, and their numbers.

runs/fedper-cifar100-1a2b3c4d/     a run directory; two recipes with the same experiment share it
tuning/fedper-cifar100-5e6f7a8b/   the trials of a row in a column, of recipes that are tuned
flayer-table2-short/               reproduce.toml, verdicts.json and result.md of one recipe at one scale
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import tomli_w
import torch

from stratafl.config.assemble import completed
from stratafl.config.experiment import BEFORE, Experiment, read_toml, to_tables, with_values
from stratafl.config.setting_tables import Settings, parse_settings
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.errors import BusyError, DataError, RunError, counted
from stratafl.execute.memory import device_of
from stratafl.files import write_atomically
from stratafl.recipes.claims import OF_CONVERGENCE, REFERENCE, Claim
from stratafl.recipes.recipe import Recipe, RecipeCell
from stratafl.recipes.verdicts import Numbers, Printed, verdicts
from stratafl.report.outcome import Outcome, read_outcome
from stratafl.report.tuned import TunedMethod
from stratafl.report.verdict import Verdict
from stratafl.runs.comparison import MAX_SEEDS
from stratafl.runs.directory import is_run
from stratafl.runs.json_files import line_bodies
from stratafl.runs.run import Run
from stratafl.runs.summary import scored
from stratafl.tuning.search import Search, TuningPlan, shown_settings
from stratafl.tuning.space import LR

FILE, RESULT = "reproduce.toml", "result.md"
MAX_NAMED_COLUMNS = 10  # with more columns left out, they are counted instead of named
VALIDATION = 0.1  # share of validation data in the trials of recipes whose runs have none
TUNED = "the learning rate of every row was tuned on validation data"
SETTLED = 0.9  # of its rounds; a run that converges later may still be improving


@dataclass(frozen=True)
class Reproduction:
    """A recipe at a scale in a folder; `settings` replace those of the recipe."""

    root: Path
    recipe: Recipe
    scale: str
    settings: Settings = field(default_factory=dict)
    seeds: int | None = None
    trust: Trust = NO_TRUST
    refused: dict[str, str] = field(default_factory=dict)  # why a column could not be run
    failed: dict[tuple[str, str], str] = field(default_factory=dict)  # why a row could not be run in a column
    ended: dict[Path, Outcome] = field(default_factory=dict)  # finished runs, each read once
    searches: dict[tuple[str, str], Search] = field(default_factory=dict)  # of rows and columns that are tuned
    chosen: dict[tuple[str, str], TunedMethod] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        tuned = "-tuned" if self.recipe.tuned else ""
        return self.root / f"{self.recipe.name.replace('/', '-')}-{self.scale}{tuned}"

    @property
    def stand_in(self) -> str | None:
        """What replaces the paper's data and model at this scale, if anything does."""
        return self.recipe.at(self.scale).stand_in

    @property
    def no_evidence(self) -> str | None:
        """The first line of a result on other data than the paper's."""
        return f"This is no evidence on the paper: {self.stand_in}." if self.stand_in else None

    def shown(self, columns: str) -> str:
        """The names of columns with measured numbers, after what replaces the paper's data."""
        if not self.stand_in:
            return columns
        asked = [cell.experiment for cell in self.cells]
        names = dict.fromkeys([*(Path(each.data.name).stem for each in asked), *(each.model.name for each in asked)])
        return f"{', '.join(names)} in place of {columns}"

    @cached_property
    def cells(self) -> list[RecipeCell]:
        return self.recipe.cells(self.scale, self.settings, self.seeds)

    def begin(self) -> None:
        """Write `reproduce.toml`, or refuse a folder that was made with other settings."""
        asked: dict[str, Any] = {"recipe": self.recipe.name, "scale": self.scale, "settings": dict(self.settings)}
        asked |= {"source": self.recipe.source} if self.recipe.source else {}
        if (self.folder / FILE).exists():
            stored = read_toml(self.folder / FILE)
            if isinstance(stored.get("settings"), list):  # as they were typed, in folders of older versions
                stored["settings"] = parse_settings(map(str, stored["settings"]))
            for key, value in asked.items():
                if stored.get(key) != value:
                    difference = f"{stored.get(key)}, not {value}"
                    raise RunError(f"'{self.folder}' was made with {key} {difference}; choose another --out")
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / FILE, tomli_w.dumps(asked).encode())

    def search(self, cell: RecipeCell) -> Search:
        """The search for the learning rate of a row in a column, with a seed that no cell has."""
        key = (cell.row, cell.column)
        if key not in self.searches:
            base = with_values(cell.experiment, {"run.seed": MAX_SEEDS})  # cells have those from 0 on
            if base.data.validation == 0:
                base = with_values(base, {"data.validation": VALIDATION})
            plan = TuningPlan(self.recipe.at(self.scale).trials, only=(LR,))
            place = self.root / "tuning" / f"{run_name(base, self.trust)}-{plan.trials}"
            self.searches[key] = Search(place, base, plan, self.trust)
        return self.searches[key]

    def choice(self, cell: RecipeCell) -> TunedMethod | None:
        """What its search chose; None while it is not decided."""
        key = (cell.row, cell.column)
        if key not in self.chosen and (result := self.search(cell).choice()) is not None:
            self.chosen[key] = result
            if result.settings is None:
                self.failed[key] = "every trial of its tuning failed"
        return self.chosen.get(key)

    def experiment(self, cell: RecipeCell) -> Experiment | None:
        """What a cell runs; None if that is still to be tuned."""
        if not self.recipe.tuned:
            return cell.experiment
        result = self.choice(cell)
        return None if result is None or result.settings is None else with_values(cell.experiment, result.settings)

    def place(self, cell: RecipeCell) -> Path:
        """The directory of its run, which is nowhere before it is tuned."""
        experiment = self.experiment(cell)
        if experiment is None:
            return self.search(cell).folder / "chosen"
        return self.root / "runs" / run_name(experiment, self.trust)

    def run(self, cell: RecipeCell) -> Run | None:
        """The run of a cell, new or resumed; None if its data is not available, which `refused` records."""
        place, experiment = self.place(cell), self.experiment(cell)
        if experiment is None:
            return None
        begun = is_run(place)
        try:
            return Run.open(place, trust=self.trust) if begun else Run.create(experiment, place, trust=self.trust)
        except DataError as error:
            self.refused[cell.column] = str(error)
            return None
        except RunError as error:
            if not begun and is_run(place):
                raise BusyError(f"another process has just started '{place}'") from error
            raise

    def check(self, run: Run) -> None:
        """Refuse data without classes, because all measures and claims are about accuracy."""
        if run.sim.runtime.federation.classes is None:
            name = run.experiment.data.name
            raise RunError(f"'{name}' has no classes, but recipes compare accuracies; see data.targets")

    def able(self, cell: RecipeCell) -> bool:
        """Whether this machine has the precision of a cell; a device that is not here is refused."""
        device = torch.device(device_of(cell.experiment.run.device))
        return cell.experiment.run.precision == "fp32" or device.type == "cuda"

    def lacks(self) -> str | None:
        """What this machine lacks for the unfinished cells, and what to do; None if it lacks nothing."""
        first = next((cell for cell, outcome in self.outcomes() if outcome is None and not self.able(cell)), None)
        if first is None:
            return None
        ways = [*(["--scale smoke"] if self.scale != "smoke" else []), "--set run.precision=fp32"]
        needed = f"{self.recipe.name} at scale {self.scale} uses {first.experiment.run.precision}"
        return f"{needed}, which needs a GPU, but this machine only has a CPU; use {' or '.join(ways)}"

    def done(self, cell: RecipeCell) -> int:
        return sum(1 for _ in line_bodies(self.place(cell) / "rounds.jsonl"))

    def outcomes(self) -> Iterator[tuple[RecipeCell, Outcome | None]]:
        """Every cell with its outcome; None if its run is not finished."""
        for cell in (*self.cells, *self.further):
            yield cell, self.outcome(cell)

    @cached_property
    def further(self) -> list[RecipeCell]:
        """Finished cells with seeds of an earlier call that this call does not include."""
        finished = list[RecipeCell]()
        for seed in count(1 + max((cell.seed for cell in self.cells), default=-1)):
            more = self.recipe.cells(self.scale, self.settings, seed + 1)
            ended = [cell for cell in more if cell.seed == seed and self.outcome(cell) is not None]
            if not ended:
                break
            finished += ended
        return finished

    def outcome(self, cell: RecipeCell) -> Outcome | None:
        """The outcome of a cell; None if its run is not finished."""
        place = self.place(cell)
        if place not in self.ended and is_run(place) and self.done(cell):
            outcome = read_outcome(place)
            if outcome.rounds >= cell.experiment.run.rounds or outcome.stopped:
                self.ended[place] = outcome
        return self.ended.get(place)

    def numbers(self, measure: str = "score") -> Numbers:
        if measure == "relative":
            return relative(self.numbers("seconds"))
        table: dict[tuple[str, str], dict[int, float]] = {}
        for cell, outcome in self.outcomes():
            value = None if outcome is None else paper_measure(outcome, measure)
            if value is not None:
                table.setdefault((cell.row, cell.column), {})[cell.seed] = value
        return table

    def leaking(self) -> set[tuple[str, str]]:
        """Cells whose numbers are not comparable, because test data influences training."""
        return {(cell.row, cell.column) for cell, outcome in self.outcomes() if outcome is not None and outcome.leaks}

    def printed(self, measure: str = "score") -> Printed:
        reading = "score" if measure in self.recipe.readings else measure
        return {(row.name, name): float(v) for row in self.recipe.rows for name, v in row.prints(reading).items()}

    def judged(self) -> list[Verdict]:
        columns, judged_claims, shorter = self.recipe.columns_at(self.scale), list[Verdict](), self.shorter()
        every = {measure: self.numbers(measure) for measure in {claim.measure for claim in self.recipe.claims}}
        controls = [row.name for row in self.recipe.rows if row.control]
        for claim in self.recipe.claims:
            if self.stand_in and claim.kind == "printed":
                continue  # the paper's numbers are of other data
            numbers, best = every[claim.measure], claim.kind == "best"
            rivals = {place: values for place, values in numbers.items() if not (best and place[0] in controls)}
            less = {column: self._less(claim, rivals, column, shorter) for column in columns}
            less = {column: text for column, text in less.items() if text}
            judged = verdicts(claim, rivals, self.printed(claim.measure), columns, less)
            judged_claims += [self._against_rivals(claim, verdict, rivals) for verdict in judged] if best else judged
        paper, _, table = self.recipe.name.partition("/")
        judged_claims = [replace(v, column=self.shown(v.column)) if v.measured else v for v in judged_claims]
        if self.recipe.tuned:
            judged_claims = [replace(v, reason=f"{v.reason}; {TUNED}") if v.measured else v for v in judged_claims]
        if self.stand_in:  # no number of the paper beside those of other data
            judged_claims = [replace(v, paper_value="", stand_in=True) for v in judged_claims]
        return [replace(v, paper=paper, table=table) for v in judged_claims]

    def shorter(self) -> dict[str, str]:
        """By column, which rounds, epochs and clients replace the paper's; empty if the numbers do not compare."""
        if self.stand_in or "headline" not in self.recipe.scales:
            return {}
        differing: dict[str, dict[str, None]] = {}
        for row, column, here in {(c.row, c.column): (c.row, c.column, c.experiment) for c in self.cells}.values():
            paper = self.recipe.stated(row, column)
            for thing, ours, theirs in (
                ("round", here.run.rounds, paper.run.rounds),
                ("epoch", here.train.epochs, paper.train.epochs),
                ("client", here.data.clients, paper.data.clients),
            ):
                if ours != theirs:
                    text = f"{counted(ours, thing)} in place of {theirs:,}"
                    differing.setdefault(column, {})[text] = None
        return {column: ", ".join(texts) for column, texts in differing.items()}

    def _less(self, claim: Claim, numbers: Numbers, column: str, shorter: Mapping[str, str]) -> str:
        """What a claim's numbers in a column have less of than the paper's: rounds, epochs, clients and seeds."""
        rows = [row for row, where in numbers if where == column and (row in claim.names or claim.kind == "best")]
        seeds, paper_seeds = min((len(numbers[row, column]) for row in rows), default=0), self.recipe.paper_seeds or 0
        fewer = f"{counted(seeds, 'seed')} in place of {paper_seeds}" if 0 < seeds < paper_seeds else ""
        return ", ".join(filter(None, (shorter.get(column), fewer if not self.stand_in else "")))

    @property
    def begun(self) -> list[Path]:
        """The run directories with at least one round."""
        return list(dict.fromkeys(self.place(cell) for cell in (*self.cells, *self.further) if self.done(cell)))

    def _against_rivals(self, claim: Claim, verdict: Verdict, numbers: Numbers) -> Verdict:
        """The verdict, with the rivals that were not run; being ahead of the others alone decides nothing."""
        rivals = self.recipe.rivals(str(claim.row), verdict.column)
        left = [name for name in rivals if (name, verdict.column) not in numbers]
        if verdict.holds is None or not left:
            return verdict
        run = f"{len(rivals) - len(left)} of {counted(len(rivals), 'rival')}"
        standing = {True: f"ahead of {run}", False: f"against {run}"}[verdict.holds]
        reason = f"{standing}: {verdict.reason}; rivals that were not run: {', '.join(left)}"
        return replace(verdict, reason=reason, holds=None if verdict.holds else False)

    def tuning_lines(self) -> list[str]:
        """What was chosen for each row in each column, and on what."""
        cells = {(cell.row, cell.column): cell for cell in self.cells} if self.recipe.tuned else {}
        searches = {key: (self.choice(cell), self.search(cell)) for key, cell in cells.items()}
        return [
            f"{row}, {column}: {shown_settings(choice.settings)} of {len(choice.trials)} tried"
            + "".join(f", the {side} of them" for side in choice.sides.values() if side != "inside")
            + f" ({counted(choice.rounds, 'round')} of trials, data.validation={search.base.data.validation:g})"
            for (row, column), (choice, search) in searches.items()
            if choice is not None and choice.settings is not None
        ]

    def _why(self, cell: RecipeCell) -> str:
        why = self.refused.get(cell.column) or self.failed.get((cell.row, cell.column))
        why = why or ("not tuned yet" if self.experiment(cell) is None else None)
        why = why or (None if self.able(cell) else f"{cell.experiment.run.precision} needs a GPU")
        return why or f"{self.done(cell)} of {counted(cell.experiment.run.rounds, 'round')}"

    def diverged(self) -> list[str]:
        ended = [(cell, outcome) for cell, outcome in self.outcomes() if outcome is not None]
        return [f"{cell.row}, {cell.column}, seed {cell.seed}" for cell, outcome in ended if outcome.diverged]

    def not_run(self) -> list[str]:
        """The cells, columns and methods that were not run, and why."""
        open_cells = [cell for cell, outcome in self.outcomes() if outcome is None]
        lines = [f"{cell.row}, {cell.column}, seed {cell.seed}: {self._why(cell)}" for cell in open_cells]
        left_out = [c.name for c in self.recipe.columns if c.name not in self.recipe.columns_at(self.scale)]
        missing = [row.name for row in self.recipe.rows if row.missing]
        several = f"{len(left_out)} of {len(self.recipe.columns)}"
        named = "; ".join(left_out) if len(left_out) <= MAX_NAMED_COLUMNS else several
        lines += [f"left out: {', '.join(self.recipe.left_out)}"] if self.recipe.left_out else []
        lines += [f"columns that are not part of scale {self.scale}: {named}"] if left_out else []
        return lines + ([f"methods that are not in the catalogue: {', '.join(missing)}"] if missing else [])


def run_name(experiment: Experiment, trust: Trust | bool = NO_TRUST) -> str:
    """The name of the run directory of an experiment: method, data, model, and a digest of all settings."""
    tables = to_tables(completed(experiment, trust))
    _as_before(tables)
    digest = hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:8]
    name = f"{experiment.algorithm.name}-{Path(experiment.data.name).stem}-{experiment.model.name}"
    return f"{''.join(c if c.isalnum() else '-' for c in name)}-{digest}"


def _as_before(tables: dict[str, dict[str, Any]]) -> None:
    """Settings as they were before some of their keys came: the same experiment keeps its name."""
    for table, then in BEFORE.items():
        tables[table] = {key: value for key, value in tables[table].items() if then.get(key) != value}
    evaluate = tables["evaluate"]
    for key, usual in (("better", "auto"), ("test", True)):
        if evaluate.get(key) == usual:
            del evaluate[key]
    if evaluate["average"] == "auto" and "metric" not in evaluate:
        evaluate["average"] = "samples"


def relative(seconds: Numbers) -> Numbers:
    """Seconds per round, divided by FedAvg's in the same column with the same seed; empty where FedAvg has none."""
    quotients: dict[tuple[str, str], dict[int, float]] = {}
    for (row, column), values in seconds.items():
        usual = seconds.get((REFERENCE, column), {})
        shares = {seed: value / usual[seed] for seed, value in values.items() if usual.get(seed)}
        quotients |= {(row, column): shares} if shares else {}
    return quotients


def paper_measure(outcome: Outcome, measure: str) -> float | None:
    """A number of a run as papers print it; see `MEASURES`."""
    numbers = outcome.numbers()
    if measure in ("trained", "global", "new"):
        sent = measure == "global" and outcome.config["algorithm"]["name"] == "fedavg"  # FedAvg sends its global model
        name = "client_accuracy" if outcome.config["evaluate"]["average"] == "clients" else "accuracy"
        selected = next((line for line in outcome.lines if line["round"] == numbers["selected_round"]), {})
        place = f"new.test.{outcome.evaluate.stage}" if measure == "new" else f"test.{'received' if sent else measure}"
        value = selected.get(f"{place}.{name}")
        return None if value is None else 100 * value
    if measure in ("score", "spread"):
        return 100 * numbers[measure] if measure in numbers else None
    if measure in OF_CONVERGENCE:
        settled = numbers.get("converged_round", inf) <= SETTLED * outcome.rounds
        return numbers["converged_round" if measure == "rounds" else "converged_seconds"] if settled else None
    if measure == "bytes":
        return numbers["bytes"] / numbers["rounds"] / 2**20
    if measure == "jump":
        return _jump(outcome)
    parts = ("seconds.server",) if measure == "server" else ("seconds.train", "seconds.server")
    # A mean would count the compilation in the first round.
    return median(sum(float(line[part]) for part in parts) for line in outcome.lines)


def _jump(outcome: Outcome) -> float | None:
    """The test accuracy in points of the first evaluated round after the warm-up, above that of the last before."""
    warmup = outcome.config["algorithm"].get("warmup")
    scores = {int(line["round"]): scored(line, outcome.evaluate) for line in outcome.lines}
    evaluated = {number: score for number, score in scores.items() if score is not None and warmup is not None}
    before, after = ([t for t in evaluated if (t > warmup) is late] for late in (False, True))
    return 100 * (evaluated[min(after)] - evaluated[max(before)]) if before and after else None
