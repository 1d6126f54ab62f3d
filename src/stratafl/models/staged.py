"""A model as a chain of named stages, and the checks of sizes that all models share."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from numbers import Integral

from torch import Tensor, nn
from torch.nn.functional import relu

from stratafl.errors import ModelError


@dataclass(frozen=True)
class Stage:
    """One part of the chain: its name, the sub-modules that belong to it, and what it does to a batch."""

    name: str
    modules: tuple[str, ...]
    run: Callable[[Tensor], Tensor]


class Staged(nn.Module, ABC):
    """A model that is a chain of named stages, the last of which is the head."""

    head_name: str = "fc"

    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """The chain from input to output, made without touching a sub-module: `run` looks them up by name."""

    def features(self, x: Tensor) -> Tensor:
        """What the head sees: the batch after all stages but the last, as [B, d]."""
        for stage in self.stages()[:-1]:
            x = stage.run(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.stages()[-1].run(self.features(x))

    def _apply_module(self, name: str, x: Tensor) -> Tensor:
        # Looked up at every call, because modules are swapped and borrowed after construction.
        out: Tensor = self.get_submodule(name)(x)
        return out

    def _add_linear(self, inputs: int, hidden: Sequence[int], classes: int) -> None:
        """Add fc1, fc2 … of these widths, and the head."""
        widths = (inputs, *hidden)
        for i, (before, after) in enumerate(pairwise(widths)):
            self.add_module(f"fc{i + 1}", nn.Linear(before, after))
        self.add_module(self.head_name, nn.Linear(widths[-1], classes))

    def _hidden_stage(self, *names: str) -> Stage:
        """A stage that runs a flat batch through these modules and a ReLU."""
        return Stage(names[0], names, partial(self._hidden, names))

    def _hidden(self, names: tuple[str, ...], x: Tensor) -> Tensor:
        x = x.flatten(1)
        for name in names:
            x = self._apply_module(name, x)
        return relu(x)

    def _block_stages(self, names: Sequence[str]) -> tuple[Stage, ...]:
        """A stage per module; the last one also averages over the image."""
        *early, last = [Stage(name, (name,), partial(self._apply_module, name)) for name in names]
        return (*early, replace(last, run=lambda x: last.run(x).mean((-2, -1))))

    def _head_stage(self) -> Stage:
        return Stage(self.head_name, (self.head_name,), lambda x: self._apply_module(self.head_name, x))


def require_positive(model: str, **sizes: object) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, Integral) or int(size) < 1:
            raise ModelError(f"{model} needs a positive whole number as {name}, got {size!r}")


def require_sizes(model: str, name: str, sizes: object, such_as: str) -> tuple[int, ...]:
    if isinstance(sizes, str) or not isinstance(sizes, Sequence):
        raise ModelError(f"{model} needs {name} as a sequence of {such_as}, got {sizes!r}")
    require_positive(model, **{f"{name}[{i}]": size for i, size in enumerate(sizes)})
    return tuple(sizes)


def require_share(model: str, name: str, share: object) -> None:
    if not isinstance(share, int | float) or not 0 <= share < 1:
        raise ModelError(f"{model} needs {name} of at least 0 and below 1, got {share!r}")


def flat_size(model: str, shape: Sequence[int]) -> int:
    if not shape:
        raise ModelError(f"{model} needs samples with at least one axis, got shape ()")
    for size in shape:
        require_positive(model, **{f"every axis of shape {tuple(shape)}": size})
    return math.prod(shape)


def image_shape(model: str, shape: Sequence[int], smallest_side: int = 1) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ModelError(f"{model} needs samples of shape (channels, height, width), got {tuple(shape)}")
    flat_size(model, shape)
    channels, height, width = shape
    if min(height, width) < smallest_side:
        last = width in (1, 3) and channels not in (1, 3)
        hint = f" (channels come first: is {tuple(shape)} height, width, channels?)" if last else ""
        wanted = f"{smallest_side}×{smallest_side}"
        raise ModelError(f"{model} needs images of at least {wanted}, got {height}×{width}{hint}")
    return channels, height, width
