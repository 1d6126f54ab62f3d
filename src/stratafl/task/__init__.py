"""The client's side of the work: data, gradients and scores of a cohort."""

from stratafl.task.engine import Engine, Gradients, Inputs, LoopEngine, Stack, StackedEngine
from stratafl.task.model import Model, Net
from stratafl.task.task import Scores, Task, Workshop
from stratafl.task.workshop import workshop

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
