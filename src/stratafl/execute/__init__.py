"""Executors, and the simulation they execute."""

from stratafl.execute.debug import Debug
from stratafl.execute.distributed import Distributed
from stratafl.execute.matrix import Matrix
from stratafl.execute.messages import Messages
from stratafl.execute.round import Executor, Report
from stratafl.execute.simulation import Progress, Simulation, simulation
from stratafl.execute.team import SOLO, Alone, Team

__all__ = [
    "SOLO",
    "Alone",
    "Debug",
    "Distributed",
    "Executor",
    "Matrix",
    "Messages",
    "Progress",
    "Report",
    "Simulation",
    "Team",
    "simulation",
]
