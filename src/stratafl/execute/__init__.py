"""Executors, and the simulation they execute."""

from stratafl.execute.debug import Debug
from stratafl.execute.matrix import Matrix
from stratafl.execute.messages import Messages
from stratafl.execute.round import Executor, Report
from stratafl.execute.simulation import Progress, Simulation, simulation

__all__ = ["Debug", "Executor", "Matrix", "Messages", "Progress", "Report", "Simulation", "simulation"]
