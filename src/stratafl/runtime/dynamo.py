"""Torch's compiler front end (`torch._dynamo`) is imported only by what needs it.

`torch.func.grad` and `make_fx` import it, 1.7 of the 4.9 seconds that a short run takes, to switch off features of it
that nobody can have switched on before it is imported. `leave_unloaded` spares that import; whatever else asks for
the package gets the real one.
"""

import importlib
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.fx.experimental import proxy_tensor

NAME = "torch._dynamo"


class _Unloaded(ModuleType):
    """In place of the package until it is imported, which replaces this."""

    compiled_autograd = SimpleNamespace(_disable=nullcontext)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(NAME), name)


def leave_unloaded() -> None:
    """Let gradients and traces be made without the package, if nothing has imported it yet."""
    if NAME in sys.modules or "_dynamo" in vars(torch):
        return
    vars(torch)["_dynamo"] = _Unloaded(NAME)
    untraced = getattr(proxy_tensor.dispatch_trace, "__wrapped__", None)
    if untraced is not None and not hasattr(untraced, "__dynamo_disable"):
        setattr(untraced, "__dynamo_disable", untraced)  # what `torch._disable_dynamo` looks for before it imports
