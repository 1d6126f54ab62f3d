"""A module as a function of its columns: `net(row, x)`, with modes, features, head and running statistics."""

import copy
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from stratafl.describe import head_of
from stratafl.layout import Layout, Rows
from stratafl.task.modules import Context, prepare

if TYPE_CHECKING:
    from collections.abc import Iterator


class Model:
    """The skeleton of a model: its structure, to be filled with anybody's columns."""

    def __init__(
        self, module: nn.Module, layout: Layout, *, head: str | None, stacked: bool, device: torch.device
    ) -> None:
        self.context = Context()
        self.layout = layout
        self.head_name = head_of(module, head)
        self.module = prepare(copy.deepcopy(module).to(device), self.context, stacked=stacked, device=device)
        self.module.requires_grad_(False)
        self._masked = {name for name in layout.specs if _in_batchnorm(self.module, name)} if stacked else set()
        self._modes: frozenset[str] | None = None
        self._features: Tensor | None = None
        self.head_module = self.module.get_submodule(self.head_name)
        self.head_module.register_forward_pre_hook(self._catch_features)

    def net(self, row: Rows, modes: frozenset[str], weight: Tensor | None, key: Tensor | None) -> "Net":
        """The model for one objective: `row` is trained (and its statistics move), any other row is only evaluated."""
        self.context.weight, self.context.key = weight, key
        self.context.calls.clear()
        return Net(self, row, modes)

    def modes(self, trained: Iterable[str]) -> frozenset[str]:
        """The modules that run in training mode when these tensors are trained: their own, and all without tensors."""
        owners = {name.rpartition(".")[0] for name in trained}
        everything = owners >= {n.rpartition(".")[0] for n, s in self.layout.specs.items() if s.trainable}
        bare = {path for path, sub in self.module.named_modules() if not _has_tensors(sub)}
        if everything:
            return frozenset(path for path, _ in self.module.named_modules())
        # A module without tensors (dropout, say) trains if what comes before it is trained.
        return frozenset(owners | {path for path in bare if self._before(path) in owners})

    def _before(self, path: str) -> str | None:
        last = None
        for other, sub in self.module.named_modules():
            if other == path:
                return last
            last = other if _has_tensors(sub) else last
        return None

    @contextmanager
    def switched(self, modes: frozenset[str]) -> "Iterator[None]":
        """The skeleton with these modules in training mode."""
        if modes != self._modes:
            for path, sub in self.module.named_modules():
                sub.training = path in modes
            self._modes = modes
        yield

    def run(self, row: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs, and features: what the head was given."""
        self._features = None
        output = functional_call(self.module, dict(row), (x,))
        features, self._features = self._features, None
        return output, output if features is None else features

    def _catch_features(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._features = inputs[0]

    def moving(self, row: Rows) -> tuple[Rows, Rows]:
        """The row with copies of the buffers that modules write into, and these copies."""
        specs = self.layout.specs
        written = {n: x.clone() for n, x in row.items() if not specs[n].trainable and n not in self._masked}
        return {**row, **written}, written


class Net:
    """A model inside an objective."""

    def __init__(self, model: Model, row: Rows, modes: frozenset[str]) -> None:
        self._model, self._row, self._modes = model, row, modes

    def __call__(self, row: Rows, x: Tensor) -> Tensor:
        """The outputs of a row on inputs `[B, …]`."""
        return self.both(row, x)[0]

    def features(self, row: Rows, x: Tensor) -> Tensor:
        """What the head is given."""
        return self.both(row, x)[1]

    def head(self, row: Rows, features: Tensor) -> Tensor:
        """The head alone."""
        prefix = self._model.head_name + "."
        own = {name.removeprefix(prefix): x for name, x in row.items() if name.startswith(prefix)}
        with self._model.switched(self._modes if row is self._row else frozenset()):
            output: Tensor = functional_call(self._model.head_module, own, (features,))
        return output

    def both(self, row: Rows, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and features of one pass; the trained row runs in training mode and its statistics move."""
        if row is not self._row:
            with self._model.switched(frozenset()):
                return self._model.run(row, x)
        full, written = self._model.moving(row)
        self._model.context.statistics.clear()
        with self._model.switched(self._modes):
            result = self._model.run(full, x)
        row.update(written)
        row.update(self._model.context.statistics)
        return result


def _has_tensors(sub: nn.Module) -> bool:
    return bool(sub._parameters or sub._buffers)


def _in_batchnorm(module: nn.Module, name: str) -> bool:
    return isinstance(module.get_submodule(name.rpartition(".")[0]), _BatchNorm)
