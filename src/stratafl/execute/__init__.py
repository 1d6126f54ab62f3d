"""Simulation: rounds of an algorithm on a federation, executed in memory, over messages, or by several processes.

Read `round_run.py` for one round, `simulation.py` for all of them, and `executors.py` for how a round is executed.
Client states between rounds live in `client_states.py` (RAM) and `disk.py`. `evaluation`, `config` and everything above
import this package; algorithms and policies never do.
"""

from stratafl.execute.build_simulation import simulation
from stratafl.execute.executors import Debug, Distributed, InOneProcess, Matrix, Messages
from stratafl.execute.process_group import SINGLE_PROCESS, ProcessGroup
from stratafl.execute.round_run import Executor, Report
from stratafl.execute.simulation import Progress, Simulation

__all__ = ["SINGLE_PROCESS", "Debug", "Distributed", "Executor", "InOneProcess", "Matrix", "Messages", "ProcessGroup"]
__all__ += ["Progress", "Report", "Simulation", "simulation"]
