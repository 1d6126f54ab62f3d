"""What `compare`, `tune` and `advise` return: the best method, tables, a report, and a picture in a notebook."""

from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from stratafl.advice import Advice, advice_text
from stratafl.api.fitted import Fitted
from stratafl.api.fitting import load
from stratafl.config.setting_tables import Settings
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.core.reprs import holder
from stratafl.errors import RunError, counted, unknown
from stratafl.files import check_new, write_atomically
from stratafl.report import Study, to_csv
from stratafl.report.decision import decision
from stratafl.report.formats import score_text
from stratafl.report.gains_tables import clients_csv
from stratafl.report.in_short import in_short
from stratafl.report.notebook import Dot, data_frames, dot_picture, fragment, standalone
from stratafl.report.page import check_report_file, write_report
from stratafl.report.pair_tables import pairs_csv
from stratafl.report.ranking import winner
from stratafl.report.ranking_tables import COST_COLUMNS, ranking_table
from stratafl.report.report_tables import ReportTable, as_csv, text
from stratafl.report.study import ranked_study
from stratafl.report.tuned import TunedMethod
from stratafl.runs.comparison import Comparison
from stratafl.runs.logistic import WHY
from stratafl.tuning.search import shown_settings
from stratafl.tuning.tuning import WINNERS, Tuning
from stratafl.tuning.tuning_result import (
    HEAD,
    caption,
    methods_csv,
    ranked,
    remarks,
    result_rows,
    trials_csv,
    write_results,
)

Frame = Any  # a pandas DataFrame: pandas is imported when it is asked for


class BestMethod(NamedTuple):
    """The method to use.

    Attributes:
        method: Its name.
        settings: The settings that are its own, as `settings` of `compare` takes them.
        score: Its score, or None if the score is unknown.
    """

    method: str
    settings: Settings
    score: float | None


@holder
class ComparisonResult:
    """A finished comparison, which `compare` returns. `print` shows the ranking and the answer,
    a notebook a picture as well.

    Attributes:
        folder: The folder of the runs.
    """

    folder: Path
    trust: Trust = NO_TRUST

    def _about(self) -> str:
        named = ", ".join(rank.label for rank in self.study.ranks)
        return f"{named} in '{self.folder}', best: {self.best.method}"

    @cached_property
    def study(self) -> Study:
        """Everything that the report shows, as private records."""
        return ranked_study([self.folder])

    @property
    def best(self) -> BestMethod:
        """The method that the report recommends, or the first if it recommends none."""
        rank = decision(self.study).use or winner(self.study.ranks) or self.study.ranks[0]
        stored = Comparison.read(self.folder).per_method.get(rank.method, {})
        return BestMethod(rank.method, stored, rank.mean("score"))

    def to_pandas(self, table: str = "ranking") -> Frame:
        """A table as a pandas DataFrame.

        Args:
            table: `"ranking"`, `"clients"` with what each gains, or `"pairs"` for all pairs of methods.
        """
        study = self.study
        written = {
            "ranking": lambda: to_csv([*study.ranks, *study.rows_below]),
            "clients": lambda: clients_csv(study.ranks, study.gains),
            "pairs": lambda: pairs_csv(study.pairs),
        }
        return _frame(table, written)

    def report(self, path: str | Path) -> Path:
        """Write the report of `strata compare`, one HTML file. A report that is there is replaced.

        Args:
            path: The name of the file, which ends in `.html`.
        """
        return _reported(self.study, Path(path))

    def fitted(self, method: str | None = None, seed: int | None = None) -> Fitted:
        """The models of one run, as `load` returns them.

        Args:
            method: The name of a method, by default the best one.
            seed: One of the comparison's seeds, by default the first.
        """
        return load(_run(Comparison.read(self.folder), method or self.best.method, seed), trust=self.trust.everything)

    def _sentences(self) -> list[str]:
        return list(map(str, [*decision(self.study).headline, *in_short(self.study)]))

    def __str__(self) -> str:
        table = ranking_table(self.study)
        return "\n".join([table.plain(len(table.head) - COST_COLUMNS), "", *self._sentences()])

    def _repr_html_(self) -> str:
        return fragment(" ".join(self._sentences()), study_picture(self.study), ranking_table(self.study))


@holder
class TuningResult:
    """A finished tuning, which `tune` returns: what was chosen for each method, and how that scored on fresh seeds.

    `print` shows it as a table.

    Attributes:
        folder: The folder of the trials and runs.
    """

    folder: Path
    trust: Trust = NO_TRUST

    def _about(self) -> str:
        return f"{counted(len(self.methods), 'method')} in '{self.folder}', best: {self.best.method}"

    @cached_property
    def tuning(self) -> Tuning:
        """The trials, as private records."""
        return Tuning.open(self.folder, self.trust)

    @cached_property
    def methods(self) -> list[TunedMethod]:
        """The methods, the best test score on fresh seeds first."""
        return ranked(write_results(self.tuning))

    @cached_property
    def study(self) -> Study:
        """The runs of what was chosen, as private records."""
        return ranked_study([self.folder])

    @property
    def best(self) -> BestMethod:
        """The method with the best mean test score on fresh seeds, and what was chosen for it."""
        first = self.methods[0]
        mean = first.spread("tuned")
        return BestMethod(first.method, first.settings or {}, mean.mean if mean else None)

    def to_pandas(self, table: str = "methods") -> Frame:
        """A table as a pandas DataFrame.

        Args:
            table: `"methods"` with what was chosen for each, or `"trials"`.
        """
        return _frame(table, {"methods": lambda: methods_csv(self.methods), "trials": lambda: trials_csv(self.methods)})

    def report(self, path: str | Path) -> Path:
        """Write the report of `strata compare`, one HTML file. A report that is there is replaced.

        Args:
            path: The name of the file, which ends in `.html`.
        """
        return _reported(self.study, Path(path))

    def fitted(self, method: str | None = None, seed: int | None = None) -> Fitted:
        """The models of one run of what was chosen, as `load` returns them.

        Args:
            method: The name of a method, by default the best one.
            seed: One of the fresh seeds, by default the first.
        """
        winners = next(each for each in self.tuning.comparisons if each.folder.name == WINNERS)
        return load(_run(winners, method or self.best.method, seed), trust=self.trust.everything)

    def _table(self) -> ReportTable:
        rows = tuple(tuple(map(text, row)) for row in result_rows(self.methods))
        return ReportTable("tuned", caption(self.tuning), HEAD, rows, left=2)

    def _sentences(self) -> list[str]:
        best = self.best
        return [f"{best.method} with {shown_settings(best.settings)} is first.", *remarks(self.methods)]

    def __str__(self) -> str:
        return "\n".join([self._table().plain(), "", *self._sentences()])

    def _repr_html_(self) -> str:
        dots = [
            Dot(f"{method.method}{shown}", mean.mean, mean.std, score_text(mean.mean, method.like), faint)
            for method in self.methods
            for which, shown, faint in (("tuned", "", False), ("untuned", " (default)", True))
            if (mean := method.spread(which)) is not None
        ]
        picture = dot_picture(dots, percent=self.methods[0].like.percent)
        return fragment(" ".join(self._sentences()), picture, self._table())


@holder
class AdviceResult:
    """What `advise` returns: whether to federate, with which method, and why. `print` it for the answer in sentences.

    Attributes:
        config: The file with the settings of the recommended run: `strata run --config FILE`.
    """

    advice: Advice
    config: Path

    def _about(self) -> str:
        return f"federate={self.federate}, best: {self.best.method}, written to '{self.config.parent}'"

    def _sentences(self) -> list[str]:
        return [advice_text.advice_answer(self.advice), *advice_text.sentences(self.advice)]

    def _table(self) -> ReportTable:
        head = ("method", "rounds", self.advice.metric.title, "expected", "why")
        rows = tuple(tuple(map(text, row)) for row in advice_text.tried(self.advice))
        return ReportTable("tried", "Methods tried, on validation samples", head, rows)

    def __str__(self) -> str:
        answer, *facts = self._sentences()
        return "\n".join([answer, "", self._table().plain(len(self._table().head) - 1), "", *facts])

    @property
    def federate(self) -> bool:
        """Whether clients should federate, and not train alone."""
        return self.advice.federate

    @property
    def best(self) -> BestMethod:
        """The method of the recommended run, which is `local` if clients should train alone; its validation score."""
        candidate, tryout = self.advice.candidate, self.advice.tryout
        score = self.advice.metric.sign * tryout.of(candidate.name).score
        return BestMethod(candidate.method, dict(candidate.options), score if score == score else None)

    def to_pandas(self, table: str = "tried") -> Frame:
        """A table as a pandas DataFrame.

        Args:
            table: `"tried"` for the methods that were tried, or `"clients"` for what each client can expect.
        """
        advice = self.advice
        head = ["client", "name", "train_samples", "validation_samples", "gain", "error", "verdict"]
        rows = [[getattr(client, key) for key in head] for client in advice.clients]
        return _frame(table, {"tried": lambda: as_csv(*_tried(advice)), "clients": lambda: as_csv(head, rows)})

    def report(self, path: str | Path) -> Path:
        """Write the advice to a new file.

        Args:
            path: The name of the file, which ends in `.html`, or in `.md` for Markdown.
        """
        place = Path(path)
        check_new([place])
        page = advice_text.advice_page(self.advice, self.config)
        content = page if place.suffix == ".md" else standalone("Advice", self._repr_html_())
        write_atomically(place, content.encode())
        return place

    def _repr_html_(self) -> str:
        advice, sign = self.advice, self.advice.metric.sign
        dots = [
            Dot(result.candidate.name, sign * result.score, None, score_text(sign * result.score, advice.metric))
            for result in advice.tryout.results
            if result.score == result.score
        ]
        for name, score in advice.baselines.items():
            dots.append(Dot(name, sign * score, None, score_text(sign * score, advice.metric), faint=True))
        picture = dot_picture(dots, percent=advice.metric.percent)
        return fragment(" ".join(self._sentences()), picture, self._table())


def _tried(advice: Advice) -> tuple[list[str], list[list[Any]]]:
    sign, results = advice.metric.sign, advice.tryout.results
    rows = [[r.candidate.name, r.rounds, sign * r.score, sign * r.expected, r.candidate.why] for r in results]
    rows += [[name, None, sign * score, None, WHY[name]] for name, score in advice.baselines.items()]
    return ["method", "rounds", "score", "expected", "why"], rows


def study_picture(study: Study) -> str:
    """The score of every method, the best first, with its standard deviation over seeds."""
    metric, dots = study.measured, list[Dot]()
    for rank in (*study.ranks, *study.rows_below):
        score = rank.numbers.get("score")
        if score is not None:
            dots.append(Dot(rank.label, score.mean, score.std, score_text(score.mean, metric), not rank.members))
    return dot_picture(dots, percent=metric.percent)


def _run(comparison: Comparison, method: str, seed: int | None) -> Path:
    """The folder of a run of a comparison."""
    if method not in comparison.methods:
        raise unknown("method of this comparison", method, comparison.methods)
    seed = comparison.seeds[0] if seed is None else seed
    if seed not in comparison.seeds:
        raise RunError(f"there is no seed {seed}: choose one of {', '.join(map(str, comparison.seeds))}")
    return next(m.folder for m in comparison.members() if (m.method, m.seed) == (method, seed))


def _frame(table: str, written: dict[str, Any]) -> Frame:
    """One of several tables, which are written as CSV, as a DataFrame."""
    if table not in written:
        raise unknown("table", table, written)
    return data_frames().read_csv(StringIO(written[table]()))


def _reported(study: Study, path: Path) -> Path:
    check_report_file(path)
    write_report(study, path)
    return path
