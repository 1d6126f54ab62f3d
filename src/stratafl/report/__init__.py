"""Reports: what a set of runs came to."""

from stratafl.report.outcomes import Outcome, outcome, run_folders
from stratafl.report.ranking import INCOMPARABLE, MARK, Rank, Spread, ranking, to_csv
from stratafl.report.study import Study, gather

__all__ = [
    "INCOMPARABLE",
    "MARK",
    "Outcome",
    "Rank",
    "Spread",
    "Study",
    "gather",
    "outcome",
    "ranking",
    "run_folders",
    "to_csv",
]
