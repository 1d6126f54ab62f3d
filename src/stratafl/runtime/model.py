"""A module as a function of its columns: `net(row, x)`, with modes, features, head and running statistics.

Frozen tensors are no columns: the module has them, once for all clients and threads.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from stratafl.core.describe import frozen_tensors, head_of
from stratafl.core.keys import torchs_generator
from stratafl.core.layout import Layout, Rows
from stratafl.errors import ModelError, unknown
from stratafl.models import AdaptedModel, shared_copy
from stratafl.runtime.attention import KeyedAttention, KeyedFunctions
from stratafl.runtime.draws import Context
from stratafl.runtime.modules import prepare
from stratafl.runtime.products import MatmulConv2d, MatmulLinear
from stratafl.runtime.ways import Way

T = TypeVar("T")


class Model:
    """The structure of a model with its frozen tensors: every call brings the columns of a client."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        *,
        head: str | None,
        stacked: bool,
        device: torch.device,
        rounded: bool = False,
        products: Mapping[str, Way] | None = None,
        functions: bool = False,
    ) -> None:
        self.context = Context(packed=functions)  # functions: it attends, or drops by functions
        self.layout = layout
        self.head_name = head_of(module, head)
        skeleton = shared_copy(module).to(device)  # of columns its values are never used: every call brings them
        names = frozen_tensors(module)
        self.frozen: tuple[Tensor, ...] = tuple(attrgetter(name)(skeleton) for name in names)
        self.module = prepare(skeleton, self.context, stacked=stacked, device=device, rounded=rounded)
        for path, product in (products or {}).items():
            self.module.get_submodule(path).product = product  # type: ignore[assignment]
        for path in (name.removesuffix(".weight") for name in names if name.endswith(".weight")):
            if isinstance(shared := self.module.get_submodule(path), MatmulConv2d | MatmulLinear):
                shared.frozen = True
        for path, sub in self.module.named_modules():
            if isinstance(sub, KeyedAttention):
                prefix = f"{path}." if path else ""
                sub.frozen = frozenset(name.removeprefix(prefix) for name in names if name.startswith(prefix))
        self.module.requires_grad_(False)
        self._masked = {name for name in layout.specs if stacked and _in_batchnorm(self.module, name)}
        self._modes: frozenset[str] | None = None
        self._modes_of: dict[tuple[str, ...], frozenset[str]] = {}
        self._owner_of = _owners(self.module, {name.rpartition(".")[0] for name in names})
        self._path_of: dict[str, str] = {}
        # What the head was given; its hook refers to nothing else, so that models can be freed.
        self._caught: list[Tensor] = []
        self.module.get_submodule(self.head_name).register_forward_pre_hook(_catcher(self._caught), with_kwargs=True)

    def net(
        self, row: Rows, frozen: Mapping[str, Rows], modes: frozenset[str], weight: Tensor | None, key: Tensor | None
    ) -> "FilledModel":
        """The model for one objective: `row` runs in training mode, the frozen rows in evaluation mode."""
        self.context.weight, self.context.key = weight, key
        self.context.calls.clear()
        return FilledModel(self, row, tuple(frozen.values()), modes)

    def modes(self, trained: tuple[str, ...]) -> frozenset[str]:
        """The modules in training mode when these tensors are trained: their owners, and what follows them."""
        if trained not in self._modes_of:
            owners = {name.rpartition(".")[0] for name in trained}
            active = {path for path, owner in self._owner_of.items() if owner in owners}
            # A container trains if a module in it does: its forward may depend on it (functional dropout).
            around = {"", *(path.rpartition(".")[0] for path in owners)}
            self._modes_of[trained] = frozenset(active | around | {p for path in around for p in _parents(path)})
        return self._modes_of[trained]

    def switch(self, modes: frozenset[str]) -> None:
        if modes != self._modes:
            for path, sub in self.module.named_modules():
                sub.training = path in modes
            self._modes = modes

    def run(self, row: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        self._caught.clear()
        output = functional_call(self.module, dict(row), (x,))
        features = self._caught[-1] if self._caught else output
        self._caught.clear()
        return output, features

    def keyed(self) -> AbstractContextManager[Any]:
        """Where dropout and attention that the module calls as functions are keyed, if it calls any."""
        return KeyedFunctions(self.context) if self.context.packed else nullcontext()

    def draws(self, row: Mapping[str, Tensor], x: Tensor) -> bool:
        """Whether training draws from torch's own generator, which all threads share."""
        modes = frozenset(path for path, _ in self.module.named_modules())
        key = torch.zeros((), dtype=torch.int64, device=x.device)
        with torchs_generator() as generator, torch.no_grad():
            before = generator.get_state()
            self.net(dict(row), {}, modes, None, key).both(dict(row), x, train=True)
            drawn = not torch.equal(before, generator.get_state())
        self.context.clear()
        return drawn

    def path_of(self, part: str) -> str:
        """The path of a part; where no module is called `head`, `head.personal` is a part of the head."""
        if part not in self._path_of:
            paths = [path for path, _ in self.module.named_modules()]
            named = self.head_name + part.removeprefix("head")
            matching = [path for path in (part, named if part.partition(".")[0] == "head" else part) if path in paths]
            if not matching:
                raise unknown("part of the model", part, paths)
            self._path_of[part] = matching[0]
        return self._path_of[part]

    def moving(self, row: Rows) -> tuple[Rows, Rows]:
        """The row with copies of the buffers that modules write into, and these copies."""
        specs = self.layout.specs
        written = {n: x.clone() for n, x in row.items() if specs[n].is_statistic and n not in self._masked}
        return {**row, **written}, written


class FilledModel:
    """A model inside an objective: call it with a row and inputs `[B, …]`.

    The trained row runs in training mode, and its statistics are updated; declared frozen rows run in evaluation mode;
    for any other row, such as a copy with some columns detached, pass `train`.
    """

    def __init__(self, model: Model, row: Rows, frozen: tuple[Rows, ...], modes: frozenset[str]) -> None:
        self._model, self._row, self._frozen, self._modes = model, row, frozen, modes

    def __call__(self, row: Rows, x: Tensor, *, train: bool | None = None) -> Tensor:
        return self.both(row, x, train=train)[0]

    def features(self, row: Rows, x: Tensor, *, train: bool | None = None) -> Tensor:
        return self.both(row, x, train=train)[1]

    def head(self, row: Rows, features: Tensor, *, train: bool | None = None) -> Tensor:
        outputs, whole = self.part(self._model.head_name, row, features, train=train), self._model.module
        return whole.finished(outputs) if isinstance(whole, AdaptedModel) else outputs

    def part(self, path: str, row: Rows, *inputs: Tensor, train: bool | None = None) -> Tensor:
        path = self._model.path_of(path)
        module, inside = self._model.module.get_submodule(path), f"{path}." if path else ""

        def run(full: Rows) -> Tensor:
            output: Tensor = functional_call(module, {n.removeprefix(inside): x for n, x in full.items()}, inputs)
            return output

        return self._in_mode(row, {n: x for n, x in row.items() if n.startswith(inside)}, train, run)

    def both(self, row: Rows, x: Tensor, *, train: bool | None = None) -> tuple[Tensor, Tensor]:
        return self._in_mode(row, row, train, lambda full: self._model.run(full, x))

    def _in_mode(self, row: Rows, used: Rows, train: bool | None, run: Callable[[Rows], T]) -> T:
        """`run` on the columns that it uses; in training mode, their new statistics are written into the row."""
        model = self._model
        if not self._trains(row, train):
            model.switch(frozenset())
            return run(used)
        full, written = model.moving(used)
        model.switch(self._modes)
        model.context.statistics.clear()
        with model.keyed():
            result = run(full)
        row.update({**written, **model.context.statistics})
        return result

    def _trains(self, row: Rows, train: bool | None) -> bool:
        if train is not None:
            return train
        if row is not self._row and not any(row is frozen for frozen in self._frozen):
            raise ModelError(
                "this row is neither the trained row nor a declared frozen row: pass train=True or train=False"
            )
        return row is self._row


def _catcher(caught: list[Tensor]) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
    def catch(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        caught.append(next(iter((*inputs, *named.values()))))

    return catch


def _parents(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def _owners(module: nn.Module, shared: set[str]) -> dict[str, str]:
    """For each module but containers: the module whose mode it follows, itself or the last one with columns.

    Modules with shared tensors alone follow as a whole, so that their dropout drops while others train; a BatchNorm
    among them never trains.
    """
    parameters = {path for path, sub in module.named_modules() if any(p is not None for p in sub._parameters.values())}
    around = {"", *_with_parents(parameters - shared)}
    followers = _with_parents(shared) - around
    owners: dict[str, str] = {}
    last = ""
    for path, sub in module.named_modules():
        has = path in parameters and path not in followers
        last = path if has else last
        if path in followers and isinstance(sub, _BatchNorm):
            continue
        if has or path in followers or next(sub.children(), None) is None:
            owners[path] = last
    first = next((owner for owner in owners.values() if owner), "")
    return {path: owner or first for path, owner in owners.items()}


def _with_parents(paths: set[str]) -> set[str]:
    return paths.union(*map(_parents, paths))


def _in_batchnorm(module: nn.Module, name: str) -> bool:
    return isinstance(module.get_submodule(name.rpartition(".")[0]), _BatchNorm)
