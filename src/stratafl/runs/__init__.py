"""Runs: experiments in directories that can be killed and resumed; comparisons: many runs in one directory.

May be imported by report, recipes, cli and api. Start with `run.py`; `directory.py` lists the files of a run.
"""

from stratafl.runs.comparison import Comparison, Member, is_comparison
from stratafl.runs.directory import environment_of, is_run, read_run, refuse_existing
from stratafl.runs.distributed import FollowerRun
from stratafl.runs.run import Run

__all__ = ["Comparison", "FollowerRun", "Member", "Run", "environment_of", "is_comparison", "is_run"]
__all__ += ["read_run", "refuse_existing"]
