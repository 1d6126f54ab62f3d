"""Simulation: rounds of an algorithm on a federation, executed in memory, over messages, or by several processes.

Read `round.py` for one round, `simulation.py` for all of them, and one file per executor for how a round is executed.
Client states between rounds live in `client_states.py` (RAM) and `disk.py`. `evaluation`, `config` and everything above
import this package; algorithms and policies never do.
"""

from stratafl.execute.build import simulation
from stratafl.execute.debug import Debug
from stratafl.execute.distributed import Distributed
from stratafl.execute.matrix import Matrix
from stratafl.execute.messages import Messages
from stratafl.execute.process_group import SINGLE_PROCESS, InOneProcess, ProcessGroup
from stratafl.execute.round import Executor, Report
from stratafl.execute.simulation import Progress, Simulation

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
