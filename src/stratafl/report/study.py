"""Everything that a report needs from a set of run directories, read once."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from stratafl.core.reprs import short_repr
from stratafl.errors import DamagedError, RunError, StrataError
from stratafl.evaluation.measure import Line
from stratafl.evaluation.metrics import METRICS, Metric
from stratafl.files import is_plain
from stratafl.report.chance import Chance, NoChoice, chance, no_choice
from stratafl.report.charts import short_labels
from stratafl.report.client_journal import is_number
from stratafl.report.gains import Gains, client_gains
from stratafl.report.majority import majority
from stratafl.report.outcome import Outcome, measured_by, read_outcome, run_folders
from stratafl.report.paired import Paired, pairs
from stratafl.report.ranking import Rank, ranking
from stratafl.report.tuned import TunedMethod, read_tuning
from stratafl.report.verdict import VERDICTS, Verdict, read_verdicts
from stratafl.runs.comparison import Comparison
from stratafl.runs.directory import COMPARISON, CONFIG, TUNING, check_committed, environment_of, is_run
from stratafl.runs.json_files import line_bodies, parsed_line
from stratafl.runs.summary import evaluated

NOT_DIAGNOSTICS = ("round", "layer", "columns", "bytes.down", "bytes.up")  # keys of a layer's line
Matrix = list[list[float | None]]


@short_repr
@dataclass(frozen=True)
class LayerJournal:
    """What `layers.jsonl` says: bytes of the whole run by layer, and the layer diagnostics by key, layer and round."""

    bytes: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, dict[str, dict[int, float | None]]] = field(default_factory=dict)
    matrices: dict[str, dict[str, dict[int, Matrix]]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return list(self.bytes)


@short_repr
class ClassCounts(NamedTuple):
    """Samples by split, client and class, and the names of clients and classes, if there are any."""

    counts: Mapping[str, Sequence[Sequence[int]]]
    clients: Sequence[str] = ()
    classes: Sequence[str] = ()


@short_repr
@dataclass(frozen=True)
class RunRecord:
    """A run beyond its rounds: its environment, its clients in the selected round, its layers, its class counts."""

    outcome: Outcome
    environment: Mapping[str, Any]
    clients: list[Line]
    layers: LayerJournal
    class_counts: ClassCounts


class Compared(NamedTuple):
    """The folders of a comparison's runs, and whether every method has a learning rate of its own."""

    runs: Sequence[Path]
    own_rates: bool


@short_repr
@dataclass(frozen=True)
class Study:
    """Runs, ranked and in detail; runs without an evaluated round; runs that repeat another one; verdicts on papers.

    What takes long to read or to compute is there when it is first asked for, once for the console and the page.
    """

    ranks: list[Rank]
    scored: list[Outcome]  # all runs with an evaluated round, in the order of their folders
    empty: list[Path]
    repeated: list[Path]
    verdicts: list[Verdict]
    not_started: Sequence[str] = ()  # a sentence on each comparison with runs that have not started
    tuned: Sequence[TunedMethod] = ()  # what tunings in the folders chose
    own_rates: bool = False  # whether a comparison gives every method a learning rate of its own, as a tuned one does

    @cached_property
    def records(self) -> Mapping[Path, RunRecord]:
        """The ranked runs in detail, by their folders."""
        return {run.folder: _record(run) for run in self.outcomes}

    def of(self, rank: Rank) -> list[RunRecord]:
        return [self.records[run.folder] for run in rank.members]

    @property
    def outcomes(self) -> list[Outcome]:
        return [run for rank in self.ranks for run in rank.members]

    @property
    def labels(self) -> list[str]:
        """The labels of the ranks for charts."""
        return short_labels([rank.label for rank in self.ranks])

    @property
    def regression(self) -> bool:
        return bool(self.ranks) and self.ranks[0].members[0].regression

    @property
    def metric(self) -> str:
        """What lines of clients call the metric that methods are ranked by."""
        return self.ranks[0].members[0].metric.key if self.ranks else "accuracy"

    @property
    def measured(self) -> Metric:
        """What methods are ranked by; accuracy without any."""
        return self.ranks[0].members[0].metric if self.ranks else METRICS["accuracy"]

    @cached_property
    def majority(self) -> Rank | None:
        """What always giving each client's most frequent class scores; None if it is unknown."""
        return majority(self.ranks)

    @cached_property
    def chance(self) -> Chance | None:
        """Which methods cannot be told from that; None if it is unknown."""
        return chance(self.ranks)

    @cached_property
    def no_choice(self) -> NoChoice | None:
        """Why no method can be chosen by its answers, if that is so."""
        return no_choice(self.ranks, self.chance)

    @cached_property
    def gains(self) -> list[Gains]:
        """Each method against training alone, client by client."""
        return client_gains(self)

    @cached_property
    def pairs(self) -> list[Paired]:
        """All pairs of methods, compared seed by seed and client by client."""
        return pairs(self.ranks)

    @property
    def layer_names(self) -> list[str]:
        """The layers of all runs, in the order of their models."""
        return list(dict.fromkeys(name for record in self.records.values() for name in record.layers.names))


def gather(folders: Sequence[Path], metric: Metric | None = None) -> Study:
    """The runs and verdicts in these folders and below, by their own metric or by another one; all of it is read."""
    study = read_study(folders, metric)
    _ = study.records  # damage is an error here, not in the middle of a page
    return study


def read_study(folders: Sequence[Path], metric: Metric | None = None) -> Study:
    """As `gather`, but clients and layers are read when they are first asked for: a ranking needs few of them."""
    verdicts = read_verdicts(folders)
    outcomes = [read_outcome(folder) for folder in run_folders([each for each in folders if not only_verdicts(each)])]
    scored = [run if metric is None else measured_by(run, metric) for run in outcomes if evaluated(run.lines)]
    if outcomes and not scored and not verdicts:
        raise not_evaluated(outcomes[0].folder)
    ranks = ranking(scored) if scored else []
    ranked = {run.folder for rank in ranks for run in rank.members}
    empty = [run.folder for run in outcomes if not evaluated(run.lines)]
    repeated = [run.folder for run in scored if run.folder not in ranked]
    tuned = [method for folder in folders for method in read_tuning(folder)]
    compared = comparisons(folders)
    return Study(ranks, scored, empty, repeated, verdicts, not_started(compared), tuned, _own_rates(compared))


def not_evaluated(folder: Path) -> RunError:
    return RunError(f"'{folder}' has no evaluated round yet: let it run, or continue it with 'strata resume'")


def only_verdicts(folder: Path) -> bool:
    return (folder / VERDICTS).is_file() and not any(folder.glob(f"**/{CONFIG}"))


def not_started(compared: Mapping[Path, Compared]) -> list[str]:
    """A sentence on each of these comparisons that has runs which have not started."""
    sentences = []
    for folder, comparison in compared.items():
        missing, count = sum(not is_run(member) for member in comparison.runs), len(comparison.runs)
        have = f"{missing} of the {count} runs of '{folder}' {'has' if missing == 1 else 'have'} not started"
        whole = folder.parent if is_plain(folder.parent / TUNING) else folder  # the runs of what a tuning chose
        sentences += [f"{have}. To continue, run: strata resume {shlex.quote(str(whole))}"] if missing else []
    return sentences


def _own_rates(compared: Mapping[Path, Compared]) -> bool:
    return any(each.own_rates for each in compared.values())


def comparisons(folders: Iterable[Path]) -> dict[Path, Compared]:
    """The comparisons in these folders and below."""
    by_folder = dict[Path, Compared]()
    for folder in dict.fromkeys(path.parent for each in folders for path in sorted(each.glob(f"**/{COMPARISON}"))):
        with suppress(StrataError):  # `strata resume` says what is wrong; the runs can be reported all the same
            comparison = Comparison.read(folder)
            runs = [member.folder for member in comparison.members()]  # or settings that no run can have
            by_folder[folder] = Compared(
                runs, all("train.lr" in comparison.per_method[method] for method in comparison.methods)
            )
    return by_folder


def _record(run: Outcome) -> RunRecord:
    check_committed(run.folder, "layers")
    clients = run.client_lines
    if run.values is not None:
        key, values = f"test.{run.evaluate.stage}.{run.metric.key}", run.by_client()
        clients = [line | ({} if line.get("new") else {key: values.get(int(line["client"]))}) for line in clients]
    layers = read_layer_journal(run.folder / "layers.jsonl", summed=run.checked)
    return RunRecord(run, environment_of(run.folder), clients, layers, _class_counts(run.class_counts, clients))


def _class_counts(recorded: Mapping[str, Any] | None, clients: Sequence[Line]) -> ClassCounts:
    """As the run recorded them, or else the number of samples of its evaluated clients as a single class."""
    if recorded is not None:
        return ClassCounts(recorded["counts"], recorded.get("client_names", ()), recorded.get("class_names", ()))
    lines = [line for line in clients if "test.samples" in line]
    splits = [split for split in ("validation", "test") if any(f"{split}.samples" in line for line in lines)]
    return ClassCounts({split: [[int(line.get(f"{split}.samples", 0))] for line in lines] for split in splits})


def read_layer_journal(path: Path, *, summed: bool = False) -> LayerJournal:
    """The journal of layers, read line by line because it may be long."""
    journal = LayerJournal()
    for body in line_bodies(path, summed=summed):
        line = parsed_line(path, body)
        layer, number = line.get("layer"), line.get("round")
        if not isinstance(layer, str) or not isinstance(number, int) or isinstance(number, bool):
            raise DamagedError(f"'{path}' is damaged: a line lacks round or layer")
        sent = [line.get(key, 0) for key in ("bytes.down", "bytes.up")]
        if not all(is_number(each, int) for each in sent):
            raise DamagedError(f"'{path}' is damaged: bytes are not whole numbers")
        journal.bytes[layer] = journal.bytes.get(layer, 0) + sum(sent)
        for key, value in line.items():
            if isinstance(value, list):
                journal.matrices.setdefault(key, {}).setdefault(layer, {})[number] = _matrix(path, value)
            elif key not in NOT_DIAGNOSTICS and (value is None or is_number(value, int | float)):
                journal.numbers.setdefault(key, {}).setdefault(layer, {})[number] = value
    return journal


def _matrix(path: Path, value: list[Any]) -> Matrix:
    """Rows of one length; a list of numbers is a single row."""
    rows = value if value and isinstance(value[0], list) else [value]
    whole = all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows)
    if not whole or not all(each is None or is_number(each, int | float) for row in rows for each in row):
        raise DamagedError(f"'{path}' is damaged: a matrix is not rows of numbers")
    return rows
