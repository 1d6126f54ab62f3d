"""A reproduction: the cells of a recipe as runs in a folder that several recipes may share, and what they came to.

runs/fedper-cifar100-1a2b3c4d/     a run directory; two recipes that ask for the same experiment share it
flayer-table2-short/               reproduce.toml, verdicts.json and result.md of one recipe at one scale
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w
import torch

from stratafl.config.assemble import completed
from stratafl.config.experiment import BEFORE, Experiment, read_toml, to_tables
from stratafl.config.trust import NOTHING, Trust
from stratafl.errors import BusyError, DataError, RunError, counted
from stratafl.execute.devices import device_of
from stratafl.files import write_atomically
from stratafl.recipes.gaps import Numbers
from stratafl.recipes.judging import Printed, Verdict, verdicts
from stratafl.recipes.measuring import measured
from stratafl.recipes.recipe import Cell, Recipe
from stratafl.report.outcomes import Outcome, outcome
from stratafl.runs.directory import is_run
from stratafl.runs.journal import line_bodies
from stratafl.runs.run import Run

FILE, RESULT = "reproduce.toml", "result.md"
FEW = 10  # columns that are left out are named, unless there are more


@dataclass(frozen=True)
class Reproduction:
    """A recipe at a scale in a folder; `settings` go before those of the recipe."""

    root: Path
    recipe: Recipe
    scale: str
    settings: tuple[str, ...] = ()
    seeds: int | None = None
    trust: Trust = NOTHING
    refused: dict[str, str] = field(default_factory=dict)  # why columns could not be run
    failed: dict[tuple[str, str], str] = field(default_factory=dict)  # why a row could not be run in a column
    ended: dict[Path, Outcome] = field(default_factory=dict)  # what runs came to, which are read once

    @property
    def folder(self) -> Path:
        """Where its verdicts are."""
        return self.root / f"{self.recipe.name.replace('/', '-')}-{self.scale}"

    @property
    def stand_in(self) -> str | None:
        """What is run in place of the paper's data and model, if it is."""
        return self.recipe.at(self.scale).stand_in

    def shown(self, columns: str) -> str:
        """What numbers of columns are called: what stands in comes before the paper's name."""
        if not self.stand_in:
            return columns
        asked = [cell.experiment for cell in self.cells]
        names = dict.fromkeys([*(Path(each.data.name).stem for each in asked), *(each.model.name for each in asked)])
        return f"{', '.join(names)} in place of {columns}"

    @cached_property
    def cells(self) -> list[Cell]:
        """What is to be run."""
        return self.recipe.cells(self.scale, self.settings, self.seeds)

    def begin(self) -> None:
        """Write down what is asked for; refused if the folder was made for something else."""
        asked: dict[str, Any] = {"recipe": self.recipe.name, "scale": self.scale, "settings": list(self.settings)}
        asked |= {"source": self.recipe.source} if self.recipe.source else {}
        if (self.folder / FILE).exists():
            found = read_toml(self.folder / FILE)
            for key, value in asked.items():
                if found.get(key) != value:
                    given = f"{found.get(key)}, not {value}"
                    raise RunError(f"'{self.folder}' was made with other {key}: {given}; choose another --out")
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / FILE, tomli_w.dumps(asked).encode())

    def place(self, cell: Cell) -> Path:
        """The run directory of a cell, named after its experiment."""
        return self.root / "runs" / run_name(cell.experiment, self.trust)

    def run(self, cell: Cell) -> Run | None:
        """Its run, new or from where it was left; None where the data cannot be had, which is remembered."""
        place = self.place(cell)
        begun = is_run(place)
        try:
            return Run.open(place, trust=self.trust) if begun else Run.create(cell.experiment, place, trust=self.trust)
        except DataError as error:
            self.refused[cell.column] = str(error)
            return None
        except RunError as error:
            if not begun and is_run(place):
                raise BusyError(f"another process has just begun '{place}'") from error
            raise

    def check(self, run: Run) -> None:
        """Refuse data without classes: all that is measured and claimed is about accuracy."""
        if run.sim.runtime.federation.classes is None:
            name = run.experiment.data.name
            raise RunError(f"recipes compare accuracies, and '{name}' has no classes: see data.targets")

    def able(self, cell: Cell) -> bool:
        """Whether this machine computes with the digits that a cell asks for; a device that is not here is refused."""
        device = torch.device(device_of(cell.experiment.run.device))
        return cell.experiment.run.precision == "fp32" or device.type == "cuda"

    def lacks(self) -> str | None:
        """What this machine lacks for the cells that are not at their end, and what can be done; None: nothing."""
        unable = (cell for cell, one in self.outcomes() if one is None and not self.able(cell))
        first = next(unable, None)
        if first is None:
            return None
        ways = [*(["--scale smoke"] if self.scale != "smoke" else []), "--set run.precision=fp32"]
        asked = f"{self.recipe.name} at scale {self.scale} computes in {first.experiment.run.precision}"
        return f"{asked}, which needs a GPU, and this runs on a CPU: take {' or '.join(ways)}"

    def done(self, cell: Cell) -> int:
        """How many rounds of a cell are done."""
        return _outcome_rounds(self.place(cell))

    def outcomes(self) -> Iterator[tuple[Cell, Outcome | None]]:
        """Every cell with what its run came to; None where it is not at its end."""
        for cell in (*self.cells, *self.further):
            yield cell, self.outcome(cell)

    @cached_property
    def further(self) -> list[Cell]:
        """Cells at their end with seeds that were asked for earlier, and not now."""
        found = list[Cell]()
        seed = 1 + max((cell.seed for cell in self.cells), default=-1)
        while True:
            more = self.recipe.cells(self.scale, self.settings, seed + 1)
            ended = [cell for cell in more if cell.seed == seed and self.outcome(cell) is not None]
            if not ended:
                return found
            found += ended
            seed += 1

    def outcome(self, cell: Cell) -> Outcome | None:
        """What the run of a cell came to; None where it is not at its end."""
        place = self.place(cell)
        if place not in self.ended and is_run(place) and self.done(cell):
            one = outcome(place)
            if one.rounds >= cell.experiment.run.rounds or one.stopped:
                self.ended[place] = one
        return self.ended.get(place)

    def numbers(self, measure: str = "score") -> Numbers:
        """What was measured, by row and column, by seed."""
        table: dict[tuple[str, str], dict[int, float]] = {}
        for cell, one in self.outcomes():
            value = None if one is None else measured(one, measure)
            if value is not None:
                table.setdefault((cell.row, cell.column), {})[cell.seed] = value
        return table

    def leaking(self) -> set[tuple[str, str]]:
        """Rows and columns whose numbers compare with no other's, because test data steers training."""
        return {(cell.row, cell.column) for cell, one in self.outcomes() if one is not None and one.leaks}

    def printed(self, measure: str = "score") -> Printed:
        """What the paper prints."""
        one = "score" if measure in self.recipe.readings else measure
        return {(row.name, name): float(v) for row in self.recipe.rows for name, v in row.prints(one).items()}

    def judged(self) -> list[Verdict]:
        """The verdicts on all claims."""
        columns, found, shorter = self.recipe.columns_at(self.scale), list[Verdict](), self.shorter()
        every = {measure: self.numbers(measure) for measure in {claim.measure for claim in self.recipe.claims}}
        for claim in self.recipe.claims:
            if self.stand_in and claim.kind == "printed":
                continue  # of other data
            numbers, printed = every[claim.measure], self.printed(claim.measure)
            if claim.kind == "best":
                against = verdicts(claim, self._without_controls(numbers), printed, columns, shorter)
                found += [self._against_rivals(verdict, numbers) for verdict in against]
            else:
                found += verdicts(claim, numbers, printed, columns, shorter)
        named = [replace(v, column=v.column if v.holds is None else self.shown(v.column)) for v in found]
        return [replace(v, stand_in=self.stand_in is not None) for v in named]

    def shorter(self) -> dict[str, str]:
        """By column, how many rounds are run in place of those of scale full; nothing where nothing compares."""
        if self.stand_in or "full" not in self.recipe.scales:
            return {}
        whole = {(cell.row, cell.column): cell.experiment.run.rounds for cell in self.recipe.cells("full", seeds=1)}
        found: dict[str, set[tuple[int, int]]] = {}
        for cell in self.cells:
            here, there = cell.experiment.run.rounds, whole.get((cell.row, cell.column))
            if there is not None and here != there:
                found.setdefault(cell.column, set()).add((here, there))
        return {
            column: ", ".join(f"{counted(here, 'round')} in place of {there:,}" for here, there in sorted(pairs))
            for column, pairs in found.items()
        }

    @property
    def begun(self) -> list[Path]:
        """The run directories that hold anything."""
        return list(dict.fromkeys(self.place(cell) for cell in (*self.cells, *self.further) if self.done(cell)))

    def _without_controls(self, numbers: Numbers) -> Numbers:
        controls = [row.name for row in self.recipe.rows if row.control]
        return {place: number for place, number in numbers.items() if place[0] not in controls}

    def _against_rivals(self, verdict: Verdict, numbers: Numbers) -> Verdict:
        """The verdict, and which rivals there were not."""
        missing = sum(row.missing is not None for row in self.recipe.rows)
        said = f"; {missing} {'rival is' if missing == 1 else 'rivals are'} not in the catalogue" if missing else ""
        rivals = [row for row in self.recipe.runnable if not row.control and row.runs(verdict.column)]
        left = [row.name for row in rivals if (row.name, verdict.column) not in numbers]
        said += f"; not run yet: {', '.join(left)}" if left else ""
        return verdict if verdict.holds is None else replace(verdict, reason=verdict.reason + said)

    def _why(self, cell: Cell) -> str:
        """Why a cell has no number."""
        why = self.refused.get(cell.column) or self.failed.get((cell.row, cell.column))
        why = why or (None if self.able(cell) else f"{cell.experiment.run.precision} needs a GPU")
        return why or f"{self.done(cell)} of {counted(cell.experiment.run.rounds, 'round')}"

    def diverged(self) -> list[str]:
        """The runs whose loss is no number any more."""
        ended = [(cell, one) for cell, one in self.outcomes() if one is not None]
        return [f"{cell.row}, {cell.column}, seed {cell.seed}" for cell, one in ended if one.diverged]

    def not_run(self) -> list[str]:
        """What was not reached, and why."""
        open_cells = [cell for cell, one in self.outcomes() if one is None]
        lines = [f"{cell.row}, {cell.column}, seed {cell.seed}: {self._why(cell)}" for cell in open_cells]
        if self.stand_in:
            lines.append(f"the paper's own data: {self.stand_in}; no number compares, and rankings are no evidence")
        left_out = [c.name for c in self.recipe.columns if c.name not in self.recipe.columns_at(self.scale)]
        missing = [row.name for row in self.recipe.rows if row.missing]
        named = "; ".join(left_out) if len(left_out) <= FEW else f"{len(left_out)} of {len(self.recipe.columns)}"
        lines += [f"columns that are not part of scale {self.scale}: {named}"] if left_out else []
        return lines + ([f"methods that are not in the catalogue: {', '.join(missing)}"] if missing else [])


def run_name(experiment: Experiment, trust: Trust | bool = NOTHING) -> str:
    """The name of the directory of an experiment: method, data, and a digest of everything, defaults included."""
    told = to_tables(completed(experiment, trust))
    told["data"] = {key: value for key, value in told["data"].items() if BEFORE.get(key) != value}  # older runs lack it
    tables = json.dumps(told, sort_keys=True)
    data = Path(experiment.data.name).stem
    plain = "".join(c if c.isalnum() else "-" for c in f"{experiment.algorithm.name}-{data}-{experiment.model.name}")
    return f"{plain}-{hashlib.sha256(tables.encode()).hexdigest()[:8]}"


def _outcome_rounds(folder: Path) -> int:
    return sum(1 for _ in line_bodies(folder / "rounds.jsonl"))
