"""Tuning: every method gets the same trials, is judged on validation data alone, and then runs on fresh seeds.

`space` says what is looked for and where, `grid` which values are tried, `halving` which trials go on, `search` what
the journals of one method's trials decide, and `tuning` holds the searches of several methods in one directory.
`worker` advances it, by as many processes as you like, which `claims` keeps apart. It stands on `report`; `recipes`
and `cli` import it.
"""

from stratafl.tuning.halving import Rung, promoted, rungs
from stratafl.tuning.search import Search, TuningPlan
from stratafl.tuning.space import Dimension, search_space
from stratafl.tuning.trials import PendingRun
from stratafl.tuning.tuning import Tuning, is_tuning
from stratafl.tuning.worker import advance

__all__ = ["Dimension", "PendingRun", "Rung", "Search", "Tuning", "TuningPlan", "advance"]
__all__ += ["is_tuning", "promoted", "rungs", "search_space"]
