"""Runs: experiments in directories, which can be killed and resumed; comparisons: many of them."""

from stratafl.runs.comparison import Comparison, Member, is_comparison
from stratafl.runs.follower import Follower
from stratafl.runs.run import Run, environment_of, is_run, refuse_existing, stored

__all__ = [
    "Comparison",
    "Follower",
    "Member",
    "Run",
    "environment_of",
    "is_comparison",
    "is_run",
    "refuse_existing",
    "stored",
]
