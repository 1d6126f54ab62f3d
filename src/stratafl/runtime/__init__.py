"""The client's only door to data: engines that compute gradients and scores of a cohort, and captured steps.

The only package with padding, devices, threads and in-place updates. Executors and evaluation build a `Runtime` here;
algorithms see `stratafl.core.task.Task` and nothing else of it.
"""

from stratafl.runtime.build import build_runtime
from stratafl.runtime.engine import Engine, LoopEngine, StackedEngine
from stratafl.runtime.model import FilledModel, Model
from stratafl.runtime.task import CohortTask, Runtime

__all__ = ["CohortTask", "Engine", "FilledModel", "LoopEngine", "Model", "Runtime", "StackedEngine", "build_runtime"]
