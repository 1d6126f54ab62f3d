"""Executors, and the simulation they execute."""

from stratafl.execute.debug import Debug
from stratafl.execute.distributed import Distributed
from stratafl.execute.matrix import Matrix
from stratafl.execute.messages import Messages
from stratafl.execute.process_group import SINGLE_PROCESS, InOneProcess, ProcessGroup
from stratafl.execute.round import Executor, Report
from stratafl.execute.simulation import Progress, Simulation, simulation

__all__ = [
    "SINGLE_PROCESS",
    "Debug",
    "Distributed",
    "Executor",
    "InOneProcess",
    "Matrix",
    "Messages",
    "ProcessGroup",
    "Progress",
    "Report",
    "Simulation",
    "simulation",
]
