"""Torch's compiler front end (`torch._dynamo`) is imported only by what needs it.

`torch.func.grad` imports it, 1.7 of the 4.9 seconds that a short run takes, to switch off a feature of it that nobody
can have switched on before it is imported. `leave_unloaded` spares that import; whoever asks for anything else gets the
real package.
"""

import importlib
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

NAME = "torch._dynamo"


class _Unloaded(ModuleType):
    """In place of the package until it is imported, which replaces this."""

    compiled_autograd = SimpleNamespace(_disable=nullcontext)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(NAME), name)


def leave_unloaded() -> None:
    """Let gradients be taken without the package, if nothing has imported it yet."""
    if NAME not in sys.modules and "_dynamo" not in vars(torch):
        vars(torch)["_dynamo"] = _Unloaded(NAME)
