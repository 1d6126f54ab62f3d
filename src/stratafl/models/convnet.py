"""Convolutional networks without shortcuts, each a recipe: convolutions one after the other, then linear layers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import count

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from stratafl.models.staged import Stage, Staged, image_shape, require_positive, require_share, require_sizes


@dataclass(frozen=True)
class Conv:
    """One convolution, and what follows it: a ReLU, a max-pool by 2, or neither."""

    channels: int
    kernel: int = 3
    stride: int = 1
    padding: int = 0
    pool: bool = False
    relu: bool = True

    def side(self, side: int) -> int:
        """The side of an image after it; 0 or less if nothing is left."""
        side = (side + 2 * self.padding - self.kernel) // self.stride + 1
        return side // 2 if self.pool else side


class ConvNet(Staged):
    """Convolutions with bias, hidden linear layers with a ReLU each, and a linear head.

    With `norm`, batch norm stands between each convolution and its ReLU; with `dropout`, that share of what each
    convolution passes on is dropped. Images of which nothing would be left are padded, so that convolutions of stride 1
    keep their sides.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        recipe: Sequence[Conv],
        hidden: Sequence[int],
        *,
        norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        kind = type(self).__name__
        padded = [replace(conv, padding=conv.kernel // 2) for conv in recipe]
        channels, height, width = image_shape(kind, shape, _smallest_side(padded))
        self.hidden = require_sizes(kind, "hidden", hidden, "widths such as (512,)")
        require_positive(kind, classes=classes)
        require_share(kind, "dropout", dropout)
        self.recipe = tuple(recipe if min(height, width) >= _smallest_side(recipe) else padded)
        self.norm, self.dropout = norm, dropout
        for i, conv in enumerate(self.recipe, 1):
            self._add_convolution(i, conv, channels)
            channels = conv.channels
        self._add_linear(channels * _after(self.recipe, height) * _after(self.recipe, width), self.hidden, classes)

    def stages(self) -> tuple[Stage, ...]:
        """Every convolution and every hidden layer, each with what follows it, then the head."""
        hidden = (self._hidden_stage(f"fc{i + 1}") for i in range(len(self.hidden)))
        return (*(self._convolution_stage(i) for i in range(1, len(self.recipe) + 1)), *hidden, self._head_stage())

    def _add_convolution(self, i: int, conv: Conv, channels: int) -> None:
        self.add_module(f"conv{i}", nn.Conv2d(channels, conv.channels, conv.kernel, conv.stride, conv.padding))
        if self.norm:
            self.add_module(f"bn{i}", nn.BatchNorm2d(conv.channels))
        if self.dropout:
            self.add_module(f"drop{i}", nn.Dropout(self.dropout))

    def _convolution_stage(self, i: int) -> Stage:
        there = (f"conv{i}", *([f"bn{i}"] if self.norm else []), *([f"drop{i}"] if self.dropout else []))
        return Stage(f"conv{i}", there, partial(self._convolve, i))

    def _convolve(self, i: int, x: Tensor) -> Tensor:
        conv = self.recipe[i - 1]
        x = self._apply_module(f"conv{i}", x)
        if self.norm:
            x = self._apply_module(f"bn{i}", x)
        if conv.relu:
            x = relu(x)
        if conv.pool:
            x = max_pool2d(x, 2)
        return self._apply_module(f"drop{i}", x) if self.dropout else x


def _after(recipe: Sequence[Conv], side: int) -> int:
    return reduce(lambda left, conv: conv.side(left), recipe, side)


def _smallest_side(recipe: Sequence[Conv]) -> int:
    return next(side for side in count(1) if _after(recipe, side) > 0)
