"""Convolutional networks without shortcuts: convolutions one after the other, then linear layers.

`ConvNet` builds such a network from a list of `Conv`; every network below it is one such list. To add one, write a
subclass here and name it in `MODELS` (models/__init__.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import count

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from stratafl.models.staged import Stage, Staged, image_shape, require_positive, require_share, require_sizes


@dataclass(frozen=True)
class Conv:
    """One convolution, and what follows it: a ReLU and a max-pool by 2, if asked for."""

    channels: int
    kernel: int = 3
    stride: int = 1
    padding: int = 0
    pool: bool = False
    relu: bool = True

    def side(self, side: int) -> int:
        """The side of an image after this convolution; 0 or less if nothing is left."""
        side = (side + 2 * self.padding - self.kernel) // self.stride + 1
        return side // 2 if self.pool else side


class ConvNet(Staged):
    """Convolutions with bias, hidden linear layers with a ReLU each, and a linear head.

    `norm` puts a batch norm between each convolution and its ReLU. `dropout` drops that share of each convolution's
    output. If an image is too small for the convolutions, all of them are padded by half their kernel.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        convolutions: Sequence[Conv],
        hidden: Sequence[int],
        *,
        norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        kind = type(self).__name__
        padded = [replace(conv, padding=conv.kernel // 2) for conv in convolutions]
        channels, height, width = image_shape(kind, shape, _smallest_side(padded))
        self.hidden = require_sizes(kind, "hidden", hidden, "widths such as (512,)")
        require_positive(kind, classes=classes)
        require_share(kind, "dropout", dropout)
        self.convolutions = tuple(convolutions if min(height, width) >= _smallest_side(convolutions) else padded)
        self.norm, self.dropout = norm, dropout
        for i, conv in enumerate(self.convolutions, 1):
            self.add_module(f"conv{i}", nn.Conv2d(channels, conv.channels, conv.kernel, conv.stride, conv.padding))
            if norm:
                self.add_module(f"bn{i}", nn.BatchNorm2d(conv.channels))
            if dropout:
                self.add_module(f"drop{i}", nn.Dropout(dropout))
            channels = conv.channels
        pixels = _after(self.convolutions, height) * _after(self.convolutions, width)
        self._add_linear(channels * pixels, self.hidden, classes)

    def stages(self) -> tuple[Stage, ...]:
        hidden = (self._hidden_stage(f"fc{i + 1}") for i in range(len(self.hidden)))
        convolutions = (self._convolution_stage(i + 1) for i in range(len(self.convolutions)))
        return (*convolutions, *hidden, self._head_stage())

    def _convolution_stage(self, i: int) -> Stage:
        modules = (f"conv{i}", *([f"bn{i}"] if self.norm else []), *([f"drop{i}"] if self.dropout else []))
        return Stage(f"conv{i}", modules, partial(self._convolve, i))

    def _convolve(self, i: int, x: Tensor) -> Tensor:
        conv = self.convolutions[i - 1]
        x = self._apply_module(f"conv{i}", x)
        if self.norm:
            x = self._apply_module(f"bn{i}", x)
        if conv.relu:
            x = relu(x)
        if conv.pool:
            x = max_pool2d(x, 2)
        return self._apply_module(f"drop{i}", x) if self.dropout else x


def _after(convolutions: Sequence[Conv], side: int) -> int:
    return reduce(lambda left, conv: conv.side(left), convolutions, side)


def _smallest_side(convolutions: Sequence[Conv]) -> int:
    return next(side for side in count(1) if _after(convolutions, side) > 0)


class CNN(ConvNet):
    """FedAvg's network: two 5×5 convolutions with pooling and two linear layers.

    The convolutions are unpadded as in the papers, but padded by 2 where the smaller side is below 16.
    """

    def __init__(self, *, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape, classes, (Conv(32, 5, pool=True), Conv(64, 5, pool=True)), (512,))


class LeNet(ConvNet):
    """The small LeNet of pFedHN and pFedLA: 5×5 convolutions of 16 and 32 kernels, linear layers of 120 and 84.

    The convolutions are unpadded, but padded by 2 where the smaller side is below 16.
    """

    head_name = "fc3"

    def __init__(self, *, shape: tuple[int, ...], classes: int, norm: bool = False) -> None:
        super().__init__(shape, classes, (Conv(16, 5, pool=True), Conv(32, 5, pool=True)), (120, 84), norm=norm)


class ThreeConv(ConvNet):
    """FedFomo's network, which is FedALP's MNIST-CNN and CIFAR10-CNN: three 3×3 convolutions, a hidden layer of 64.

    `last_relu` puts a ReLU after the third convolution, as in FedFomo's own network; FedALP's cited code has none, and
    a `dropout` of 0.2 after each convolution. Unpadded, but padded by 1 where the smaller side is below 18.
    """

    def __init__(self, *, shape: tuple[int, ...], classes: int, dropout: float = 0.0, last_relu: bool = False) -> None:
        convolutions = (Conv(32, pool=True), Conv(64, pool=True), Conv(64, relu=last_relu))
        super().__init__(shape, classes, convolutions, (64,), dropout=dropout)


class CNN20(ConvNet):
    """The network without batch norm in FedLAG's published scripts: three pairs of padded 3×3 convolutions."""

    def __init__(self, *, shape: tuple[int, ...], classes: int) -> None:
        pairs = [(Conv(channels, padding=1), Conv(channels, padding=1, pool=True)) for channels in (32, 64, 128)]
        super().__init__(shape, classes, [conv for pair in pairs for conv in pair], (512,))


class AlexNet(ConvNet):
    """AlexNet for small images: FedALP's "5 convolutions and 3 linear layers".

    `hidden = [1024, 512]` makes it a tenth of the size.
    """

    def __init__(self, *, shape: tuple[int, ...], classes: int, hidden: Sequence[int] = (4096, 4096)) -> None:
        first = (Conv(64, stride=2, padding=1, pool=True), Conv(192, padding=1, pool=True))
        later = (Conv(384, padding=1), Conv(256, padding=1), Conv(256, padding=1, pool=True))
        super().__init__(shape, classes, (*first, *later), hidden)


class ConvNorm(Staged):
    """A few hundred parameters, and every kind of layer a method may treat specially: batch norm, dropout, no bias."""

    def __init__(self, *, shape: tuple[int, ...], classes: int, channels: int = 8, dropout: float = 0.2) -> None:
        super().__init__()
        inputs, _, _ = image_shape("ConvNorm", shape, smallest_side=2)
        require_positive("ConvNorm", classes=classes, channels=channels)
        require_share("ConvNorm", "dropout", dropout)
        self.conv1 = nn.Conv2d(inputs, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(channels, classes)

    def stages(self) -> tuple[Stage, ...]:
        first = Stage("conv1", ("conv1", "bn1"), self._first)
        return (first, Stage("conv2", ("conv2", "bn2", "drop"), self._second), self._head_stage())

    def _first(self, x: Tensor) -> Tensor:
        return max_pool2d(relu(self._apply_module("bn1", self._apply_module("conv1", x))), 2)

    def _second(self, x: Tensor) -> Tensor:
        x = relu(self._apply_module("bn2", self._apply_module("conv2", x)))
        return self._apply_module("drop", x.mean((-2, -1)))
