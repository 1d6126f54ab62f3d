"""Everything that a report needs from a set of run directories, read once."""

import logging
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from stratafl.core.reprs import short_repr
from stratafl.errors import RunError, StrataError
from stratafl.evaluation.metrics import METRICS, Metric
from stratafl.files import is_plain
from stratafl.report.chance import Chance, NoChoice, baselines, chance, majority, no_choice
from stratafl.report.charts import short_labels
from stratafl.report.gains import Gains, client_gains
from stratafl.report.outcome import Outcome, measured_by, read_outcome, run_folders
from stratafl.report.paired import Paired, pairs
from stratafl.report.ranking import Rank, ranking
from stratafl.report.tuned import TunedMethod, read_tuning
from stratafl.report.verdict import VERDICTS, Verdict, read_verdicts
from stratafl.runs.comparison import Comparison
from stratafl.runs.directory import COMPARISON, CONFIG, TUNING, is_run
from stratafl.runs.summary import evaluated

log = logging.getLogger("stratafl")


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
    def measured(self) -> Metric:
        """What methods are ranked by; accuracy without any."""
        return self.ranks[0].members[0].metric if self.ranks else METRICS["accuracy"]

    @cached_property
    def majority(self) -> Rank | None:
        """What always giving each client's most frequent class scores; None if it is unknown."""
        return majority(self.ranks)

    @cached_property
    def baselines(self) -> list[Rank]:
        """Logistic regressions outside the federation, if the comparison is of a table."""
        return baselines(self.ranks)

    @property
    def rows_below(self) -> list[Rank]:
        """What stands below the methods in a ranking: none of it is a method of the federation."""
        return [*self.baselines, *([self.majority] if self.majority else [])]

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
        return client_gains(self.ranks)

    @cached_property
    def pairs(self) -> list[Paired]:
        """All pairs of methods, compared seed by seed and client by client."""
        return pairs(self.ranks)

    @property
    def layer_names(self) -> list[str]:
        """The layers of all runs, in the order of their models."""
        return list(dict.fromkeys(name for run in self.outcomes for name in run.layers.names))


def gather(folders: Sequence[Path], metric: Metric | None = None) -> Study:
    """The runs and verdicts in these folders and below, by their own metric or by another one; all of it is read."""
    study = read_study(folders, metric)
    for run in study.outcomes:  # damage is an error here, not in the middle of a page
        _ = run.environment, run.client_lines, run.layers, run.split_counts, run.cross_site
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
    own_rates = any(all("train.lr" in each.per_method[method] for method in each.methods) for each in compared)
    return Study(ranks, scored, empty, repeated, verdicts, not_started(compared), tuned, own_rates)


def ranked_study(folders: Sequence[Path], by: Metric | None = None) -> Study:
    """The runs in these folders, ranked; each without results is a note, or an error if there are no results at all."""
    for folder in folders:
        if only_verdicts(folder):
            raise RunError(f"there is no run in '{folder}'")
    study = read_study(folders, by)
    if not study.ranks:
        raise not_evaluated(study.empty[0])
    for folder in study.empty:
        log.warning("'%s' has no evaluated round yet", folder)
    return study


def not_evaluated(folder: Path) -> RunError:
    return RunError(f"'{folder}' has no evaluated round yet: let it run, or continue it with 'strata resume'")


def only_verdicts(folder: Path) -> bool:
    return (folder / VERDICTS).is_file() and not any(folder.glob(f"**/{CONFIG}"))


def not_started(compared: Sequence[Comparison]) -> list[str]:
    """A sentence on each of these comparisons that has runs which have not started."""
    sentences = []
    for comparison in compared:
        folder, runs = comparison.folder, [is_run(member.folder) for member in comparison.members()]
        missing, count = runs.count(False), len(runs)
        have = f"{missing} of the {count} runs of '{folder}' {'has' if missing == 1 else 'have'} not started"
        whole = folder.parent if is_plain(folder.parent / TUNING) else folder  # the runs of what a tuning chose
        sentences += [f"{have}. To continue, run: strata resume {shlex.quote(str(whole))}"] if missing else []
    return sentences


def comparisons(folders: Iterable[Path]) -> list[Comparison]:
    """The comparisons in these folders and below."""
    readable = list[Comparison]()
    for folder in dict.fromkeys(path.parent for each in folders for path in sorted(each.glob(f"**/{COMPARISON}"))):
        with suppress(StrataError):  # `strata resume` says what is wrong; the runs can be reported all the same
            comparison = Comparison.read(folder)
            list(comparison.members())  # or it has settings that no run can have
            readable.append(comparison)
    return readable
