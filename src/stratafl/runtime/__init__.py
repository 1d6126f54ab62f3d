"""The client's side of the work: data, gradients and scores of a cohort."""

from stratafl.runtime.engine import Engine, Gradients, Inputs, LoopEngine, Stack, StackedEngine
from stratafl.runtime.model import Model, Net
from stratafl.runtime.task import Scores, Task, Workshop
from stratafl.runtime.workshop import workshop

__all__ = [
    "Engine",
    "Gradients",
    "Inputs",
    "LoopEngine",
    "Model",
    "Net",
    "Scores",
    "Stack",
    "StackedEngine",
    "Task",
    "Workshop",
    "workshop",
]
