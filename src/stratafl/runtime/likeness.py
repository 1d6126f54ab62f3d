"""Whether two models, or two steps, compute the same function, so that clients of two runs can take one step."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType
from typing import Any, TypeVar

import torch
from torch import nn

from stratafl.core.describe import frozen_tensors, light_copy
from stratafl.core.keys import torchs_generator

_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))  # what every module has: tensors, children, hooks, its mode
_HOOKS = tuple(name for name in _MODULE_ATTRIBUTES if name.endswith("_hooks"))
_FOUND: OrderedDict[Hashable, Any] = OrderedDict()
MAX_FOUND = 1000  # facts about models that a process remembers
T = TypeVar("T")
_PLAIN = (int, float, str, bytes, bool, type(None), torch.dtype, torch.Size, type, FunctionType, BuiltinFunctionType)


def likeness(module: nn.Module) -> Hashable | None:
    """The same for modules of the same classes with the same attributes; None if that cannot be told.

    Values of parameters and persistent floating-point buffers are left out: they are columns, which every call brings.
    Those of frozen tensors count.
    """
    try:
        return _described(module)
    except RecursionError:  # an attribute that holds itself
        return None


def _described(module: nn.Module) -> Hashable | None:
    descriptions: list[Hashable] = []
    for path, sub in module.named_modules(remove_duplicate=False):
        attributes = {name: value for name, value in vars(sub).items() if name not in _MODULE_ATTRIBUTES}
        if any(getattr(sub, hooks, None) for hooks in _HOOKS) or not all(_comparable(v) for v in attributes.values()):
            return None
        buffers = {name: x for name, x in sub._buffers.items() if x is not None}
        fixed = {name for name, x in buffers.items() if not x.is_floating_point()} | sub._non_persistent_buffers_set
        counters = tuple((name, _values(x)) for name, x in buffers.items() if name in fixed)
        descriptions.append(
            (path, type(sub), tuple(sorted((name, _hashable(v)) for name, v in attributes.items())), counters)
        )
    frozen = tuple((name, _values(x)) for name, x in frozen_tensors(module).items())
    return tuple(descriptions), _ties(module), frozen


def found_once(what: Hashable, find: Callable[[], T]) -> T:
    """What `find` gives, found once in this process: `what` holds the model's likeness and the form of its data."""
    if what not in _FOUND:
        _FOUND[what] = find()
        while len(_FOUND) > MAX_FOUND:
            _FOUND.popitem(last=False)
    value: T = _FOUND[what]
    return value


def keeps_state(module: nn.Module, sample: torch.Tensor) -> bool:
    """Whether a pass in training changes attributes of a module: passes of other runs would change them too."""
    trial = light_copy(module).to(sample.device).train()
    persistent = frozenset(trial.state_dict())  # columns, and counters of a BatchNorm
    before, buffers = likeness(trial), {name: x.clone() for name, x in trial.named_buffers() if name in persistent}
    try:
        with torch.no_grad(), torchs_generator():
            trial(sample.clone())
    except Exception:  # a user's module may fail in any way, which is explained where it trains
        return False
    for name, x in trial.named_buffers():
        if name in buffers:
            x.copy_(buffers[name])
    return likeness(trial) != before


def enclosed(step: object, name: Hashable = ()) -> Hashable:
    """The code of a step and what it closes over, as far as that can be compared.

    A step is told apart by its name; one that leaves out a number that the step uses would be taken for another. What
    the name holds is looked at only for attributes that are no fields, because looking at it whole takes longer.
    """
    if isinstance(step, partial):
        bound = (*step.args, *(value for _, value in sorted(step.keywords.items())))
        return enclosed(step.func, name), _known(bound, name)
    if isinstance(step, MethodType):
        return enclosed(step.__func__, name), _known((step.__self__,), name)
    if not isinstance(step, FunctionType):
        return type(step), _known((step,), name)
    return step.__code__, _known((*(step.__defaults__ or ()), *map(_content, step.__closure__ or ())), name)


def _known(values: Sequence[object], name: Hashable) -> Hashable:
    """The values that can be compared; None for others, such as tensors and tasks."""
    named = name if isinstance(name, tuple) else (name,)
    parts: list[Hashable] = []
    for value in values:
        if isinstance(value, (FunctionType, MethodType, partial)):
            parts.append(enclosed(value, name))
            continue
        rest = _further(value) if any(value is each for each in named) else value
        parts.append(_hashable(rest) if _comparable(rest) else None)
    return tuple(parts)


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty: a function that calls itself, while it is made
        return None


def _ties(module: nn.Module) -> Hashable:
    """Which parameters are one tensor under several names."""
    seen: dict[int, int] = {}
    return tuple(seen.setdefault(id(x), len(seen)) for _, x in module.named_parameters(remove_duplicate=False))


def _comparable(value: Any) -> bool:
    if is_dataclass(value) and not isinstance(value, type):
        return all(_comparable(each) for each in _attributes(value))
    if isinstance(value, (tuple, list)):
        return all(_comparable(each) for each in value)
    if isinstance(value, dict):
        return all(_comparable(each) for pair in value.items() for each in pair)
    return isinstance(value, _PLAIN)


def _hashable(value: Any) -> Hashable:
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), _hashable(_attributes(value))
    if isinstance(value, (tuple, list)):
        return tuple(_hashable(each) for each in value)
    if isinstance(value, dict):
        return tuple((_hashable(key), _hashable(each)) for key, each in value.items())
    return (type(value).__name__, value)  # 1, 1.0 and True are equal


def _attributes(value: Any) -> list[Any]:
    return [*(getattr(value, each.name, None) for each in fields(value)), *_further(value)]


def _further(value: Any) -> list[tuple[str, Any]]:
    """The attributes of a record that are no fields, so that two that are equal may differ in them."""
    attributes = getattr(value, "__dict__", {})
    named = {each.name for each in fields(value)} if is_dataclass(value) else attributes
    return sorted((name, each) for name, each in attributes.items() if name not in named)


def _values(buffer: torch.Tensor) -> Hashable:
    data = buffer.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data  # no copy: it may be large
    return buffer.dtype, buffer.shape, hashlib.sha256(data).digest()
