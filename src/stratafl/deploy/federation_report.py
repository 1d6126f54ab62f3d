"""The report of a federation, `report.json` of a host and of each site: the scores of the sites that share them.

A site computes its scores once for each end of the federation (`site_scores.py`). Its owner may keep them: then they
are in the site's own file alone.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stratafl.config.deployment import FederationFile
from stratafl.deploy.site_scores import SiteScores
from stratafl.errors import DamagedError, WireError
from stratafl.evaluation.metrics import Metric
from stratafl.files import json_value, read_plain, write_atomically
from stratafl.report.formats import score_text
from stratafl.report.gains.gain_records import Outlook
from stratafl.report.gains.gain_text import signed

REPORT = "report.json"
MAX_REPORT_BYTES = 1 << 24


@dataclass(frozen=True)
class FederationReport:
    """The scores of sites by name, and the sites whose owners keep theirs, after `rounds` rounds."""

    rounds: int
    scores: Mapping[str, SiteScores] = field(default_factory=dict)
    private: tuple[str, ...] = ()

    @property
    def heard(self) -> frozenset[str]:
        return frozenset((*self.scores, *self.private))

    def to_table(self) -> dict[str, object]:
        scores = {site: each.to_table() for site, each in self.scores.items()}
        return {"rounds": self.rounds, "scores": scores, "private": list(self.private)}

    @staticmethod
    def from_table(table: object, file: FederationFile) -> "FederationReport":
        """A report of sites of this federation; a `WireError` if the table is anything else."""
        match table:
            case {"rounds": int(rounds), "scores": dict(scores), "private": list(private)} if rounds >= 0:
                names = frozenset(file.deploy.all_sites)
                if all(isinstance(site, str) for site in private) and {*scores, *private} <= names:
                    read = {site: SiteScores.from_table(each) for site, each in scores.items()}
                    return FederationReport(rounds, read, tuple(dict.fromkeys(private)))
        raise WireError("this is not the report of this federation: run the same version on both sides")

    def save(self, folder: Path) -> None:
        write_atomically(folder / REPORT, json.dumps(self.to_table()).encode())

    @staticmethod
    def load(folder: Path, file: FederationFile) -> "FederationReport | None":
        """The report in a folder; None if there is none yet."""
        path = folder / REPORT
        if not path.exists():
            return None
        try:
            return FederationReport.from_table(json_value(read_plain(path, MAX_REPORT_BYTES)), file)
        except (WireError, ValueError) as error:
            raise DamagedError(f"'{path}' is damaged ({error}): remove it, and host again") from error


def report_sentences(report: FederationReport, file: FederationFile) -> list[str]:
    """Where the federation gains, where a site would be better alone, and whose scores are not names."""
    by_outlook: dict[Outlook, list[str]] = {}
    for site, scores in report.scores.items():
        by_outlook.setdefault(scores.outlook, []).append(site)
    missing = [site for site in file.deploy.sites if site not in report.heard]
    parts = {
        "better with the federation than alone": by_outlook.get("gains", []),
        "better alone": by_outlook.get("loses", []),
        "no clear difference from training alone": by_outlook.get("unclear", []),
        "keep their scores to themselves": report.private,
        "have not reported": missing,
    }
    return [f"{what}: {', '.join(sites)}" for what, sites in parts.items() if sites]


HEAD = ("site", "test samples", "alone", "as received", "personalised", "gain", "federation")
OUTLOOKS: dict[Outlook, str] = {"gains": "better", "loses": "worse", "unclear": "unclear"}


def cells(site: str, scores: SiteScores, metric: Metric) -> tuple[str, ...]:
    """A row of the report's table, under `HEAD`."""
    ends = "" if scores.low is None else f" ({signed(scores.low, metric)} to {signed(scores.high, metric)})"
    stages = (score_text(value, metric) for value in (scores.alone, scores.received, scores.personalised))
    return site, str(scores.samples), *stages, f"{signed(scores.gain(metric), metric)}{ends}", OUTLOOKS[scores.outlook]
