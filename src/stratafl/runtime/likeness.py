"""Whether two models compute the same function of their columns, so that clients of two runs can take one step."""

from collections.abc import Hashable
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import nn

_USUAL = frozenset(vars(nn.Module()))  # what every module has: tensors, children, hooks, its mode
_HOOKS = tuple(name for name in _USUAL if name.endswith("_hooks"))
_PLAIN = (int, float, str, bytes, bool, type(None), torch.dtype, torch.Size, type, FunctionType, BuiltinFunctionType)


def likeness(module: nn.Module) -> Hashable | None:
    """The same for modules of the same classes with the same attributes; None if that cannot be told.

    Values of parameters and floating-point buffers are left out: they are columns, which every call brings.
    """
    found: list[Hashable] = []
    for path, sub in module.named_modules():
        own = {name: value for name, value in vars(sub).items() if name not in _USUAL}
        if any(getattr(sub, hooks, None) for hooks in _HOOKS) or not all(_comparable(v) for v in own.values()):
            return None
        buffers = {name: x for name, x in sub._buffers.items() if x is not None}
        counters = tuple((name, _values(x)) for name, x in buffers.items() if not x.is_floating_point())
        found.append((path, type(sub), tuple(sorted((name, _hashable(v)) for name, v in own.items())), counters))
    return tuple(found)


def _comparable(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_comparable(each) for each in value)
    if isinstance(value, dict):
        return all(_comparable(each) for pair in value.items() for each in pair)
    return isinstance(value, _PLAIN)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, (tuple, list)):
        return tuple(_hashable(each) for each in value)
    if isinstance(value, dict):
        return tuple((_hashable(key), _hashable(each)) for key, each in value.items())
    return (type(value).__name__, value)  # 1, 1.0 and True are equal


def _values(buffer: torch.Tensor) -> Hashable:
    return buffer.dtype, tuple(buffer.flatten().tolist())
