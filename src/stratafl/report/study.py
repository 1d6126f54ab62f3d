"""All that a report needs of a set of run directories, read once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratafl.core.reprs import short_repr
from stratafl.errors import RunError
from stratafl.evaluation.measure import Line
from stratafl.report.journals import Looks, lines_of_round, looks
from stratafl.report.outcomes import Outcome, outcome, run_folders
from stratafl.report.ranking import Rank, ranking
from stratafl.report.verdicts import VERDICTS, Verdict, verdicts
from stratafl.report.waiting import waiting
from stratafl.runs.class_counts import read_class_counts
from stratafl.runs.directory import CONFIG, check_committed, config_of, environment_of
from stratafl.runs.summary import evaluated


@short_repr
@dataclass(frozen=True)
class Record:
    """A run beyond its rounds: where it was made, its clients in the selected round, its layers, who holds what."""

    outcome: Outcome
    environment: Mapping[str, Any]
    clients: list[Line]
    looks: Looks
    holdings: Mapping[str, Any] | None

    @property
    def client_names(self) -> Sequence[str]:
        """What the data calls its clients, if anything."""
        names: Sequence[str] = (self.holdings or {}).get("client_names", ())
        return names

    @property
    def class_names(self) -> Sequence[str]:
        """What the data calls its classes, if anything."""
        names: Sequence[str] = (self.holdings or {}).get("class_names", ())
        return names


@short_repr
@dataclass(frozen=True)
class Study:
    """Runs, ranked and in detail; runs that have nothing to report yet, or that repeat another; verdicts on papers."""

    ranks: list[Rank]
    records: Mapping[Path, Record]
    empty: list[Path]
    repeated: list[Path]
    verdicts: list[Verdict]
    waiting: Sequence[str] = ()  # what is to be said of runs that nobody has begun

    def of(self, rank: Rank) -> list[Record]:
        """The records of a configuration, seed by seed."""
        return [self.records[one.folder] for one in rank.members]

    @property
    def outcomes(self) -> list[Outcome]:
        """The ranked runs."""
        return [one for rank in self.ranks for one in rank.members]

    @property
    def regression(self) -> bool:
        """Whether everything is measured by its loss."""
        return bool(self.ranks) and self.ranks[0].members[0].regression

    @property
    def metric(self) -> str:
        """What everything is measured by."""
        return "loss" if self.regression else "accuracy"


def gather(places: Sequence[Path]) -> Study:
    """The runs and verdicts at or below these places."""
    told = verdicts(places)
    folders = run_folders([place for place in places if not verdicts_alone(place)])
    found = [outcome(folder) for folder in folders]
    scored = [one for one in found if evaluated(one.lines)]
    if found and not scored and not told:
        raise RunError(f"'{found[0].folder}' has no evaluated round yet")
    ranks = ranking(scored) if scored else []
    records = {one.folder: _record(one) for rank in ranks for one in rank.members}
    empty = [one.folder for one in found if not evaluated(one.lines)]
    repeated = [one.folder for one in scored if one.folder not in records]
    return Study(ranks, records, empty, repeated, told, waiting(places))


def verdicts_alone(place: Path) -> bool:
    """Whether a folder holds verdicts and no run."""
    return (place / VERDICTS).is_file() and not any(place.glob(f"**/{CONFIG}"))


def _record(one: Outcome) -> Record:
    folder, chosen = one.folder, int(one.numbers()["selected_round"])
    check_committed(folder, "clients", "layers")
    return Record(
        one,
        environment_of(folder),
        lines_of_round(folder / "clients.jsonl", chosen, summed=one.checked),
        looks(folder / "layers.jsonl", summed=one.checked),
        read_class_counts(folder, config_of(folder)),
    )
