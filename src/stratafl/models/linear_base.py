"""FedPer's ablation: one linear layer replaces the shared base of a model."""

import copy
import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from stratafl.errors import ModelError, first_line
from stratafl.models.staged import Stage, Staged, flat_size


class LinearBase(Staged):
    """A model in which one Linear without activation, called `base`, replaces all but the last `personal` stages.

    The personal sub-modules are those of the given model, not copies, and keep their names.
    """

    _host: Staged  # set past nn.Module, of which it would be a sub-module

    def __init__(self, model: Staged, personal: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        stages = model.stages()
        if personal not in range(1, len(stages)):
            kind, most = type(model).__name__, len(stages) - 1
            raise ModelError(f"a linear base of {kind} needs 1 to {most} personal stages, got {personal!r}")
        self.head_name = model.head_name
        self.personal = personal
        self.personal_shape = _shape_after(model, len(stages) - personal, shape)
        weight = next(model.parameters())
        size = flat_size("LinearBase", shape)
        self.base = nn.Linear(size, math.prod(self.personal_shape), device=weight.device, dtype=weight.dtype)
        for name in (name for stage in stages[-personal:] for name in stage.modules):
            _adopt(self, name, model.get_submodule(name))
        object.__setattr__(self, "_host", _hosted(model, self))
        self.training = self.base.training = model.training

    def stages(self) -> tuple[Stage, ...]:
        return (Stage("base", ("base",), self._base), *self._host.stages()[-self.personal :])

    def train(self, mode: bool = True) -> Self:
        self._host.training = mode  # its stages read it
        return super().train(mode)

    def _base(self, x: Tensor) -> Tensor:
        return self._apply_module("base", x.flatten(1)).reshape(x.shape[0], *self.personal_shape)


def _hosted(model: Staged, owner: nn.Module) -> Staged:
    # The personal stages look up their modules in the model they came from. This shallow copy of it shares the tables
    # of the owner, so the stages see a module that is swapped there, also in deep copies of the owner.
    host = copy.copy(model)
    for table in ("_modules", "_parameters", "_buffers"):
        host.__dict__[table] = owner.__dict__[table]
    return host


def _adopt(owner: nn.Module, name: str, module: nn.Module) -> None:
    *path, last = name.split(".")
    for step in path:
        if step not in owner._modules:
            owner.add_module(step, nn.Module())
        owner = owner.get_submodule(step)
    if last in owner._modules:
        raise ModelError(f"the linear base already has a sub-module '{name}': rename the model's sub-module")
    owner.add_module(last, module)


def _shape_after(model: Staged, count: int, shape: Sequence[int]) -> tuple[int, ...]:
    weight, modes = next(model.parameters()), [(module, module.training) for module in model.modules()]
    x = torch.zeros((1, *shape), device=weight.device, dtype=weight.dtype)
    model.eval()
    try:
        with torch.no_grad():
            for stage in model.stages()[:count]:
                x = stage.run(x)
    except RuntimeError as error:
        name, reason = type(model).__name__, first_line(error)
        raise ModelError(f"{name} does not take samples of shape {tuple(shape)}: {reason}") from error
    finally:
        for module, mode in modes:
            module.training = mode
    return tuple(x.shape[1:])
