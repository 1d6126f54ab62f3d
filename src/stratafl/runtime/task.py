"""The task of a cohort: what its clients can do with their data in one round.

`Training` and `Scoring` share the cohort's data; algorithms see `stratafl.core.task.Task` and nothing else.
"""

from stratafl.runtime.scoring import Scoring
from stratafl.runtime.training import Training


class CohortTask(Training, Scoring):
    """A client's only access to data: ragged clients, padding and engines are behind it."""
