"""The client's only access to data: engines that compute gradients and scores of a cohort, and captured steps.

The only package with padding, devices, threads and in-place updates. Start with `runtime.py` (what does not change from
round to round) and `cohort_task.py` (what a cohort can do). `execute` and `evaluation` import it; algorithms see
`stratafl.core.task.Task` alone.
"""

from stratafl.runtime.build import build_runtime
from stratafl.runtime.cohort_task import CohortTask
from stratafl.runtime.engine import Engine, LoopEngine, StackedEngine
from stratafl.runtime.model import FilledModel, Model
from stratafl.runtime.runtime import Runtime

__all__ = ["CohortTask", "Engine", "FilledModel", "LoopEngine", "Model", "Runtime", "StackedEngine", "build_runtime"]
