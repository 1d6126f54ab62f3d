"""Reports: the results of a set of runs as a ranking, as CSV and as one HTML page.

Directories become records (`outcome`, `ranking`, `study`, `verdict`), records become tables, sentences and charts, and
`page` puts them together. It reads run directories and never writes to them; `recipes` and `cli` may import it.
"""

from stratafl.report.formats import MARK
from stratafl.report.intervals import Spread
from stratafl.report.outcome import Outcome, read_outcome, run_folders
from stratafl.report.ranking import INCOMPARABLE, Rank, ranking, to_csv
from stratafl.report.study import Study, gather

__all__ = [
    "INCOMPARABLE",
    "MARK",
    "Outcome",
    "Rank",
    "Spread",
    "Study",
    "gather",
    "ranking",
    "read_outcome",
    "run_folders",
    "to_csv",
]
