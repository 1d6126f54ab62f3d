"""Residual networks of basic blocks, with torchvision's parameter names and initialisation."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from stratafl.errors import ModelError, unknown
from stratafl.models.staged import Stage, Staged, image_shape, require_positive, require_sizes

_STEMS = ("torchvision", "cifar")


class BasicBlock(nn.Module):
    """Two 3×3 convolutions added to their input, which is projected where the shape changes."""

    def __init__(self, *, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = _projection(inputs, outputs, stride) if stride > 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        hidden = relu(self.bn1(self.conv1(x)))
        return relu(self.bn2(self.conv2(hidden)) + shortcut)


class ResNet(Staged):
    """A stem, groups of basic blocks that double the channels and halve the sides, and a linear head.

    The stem `torchvision` is a 7×7 convolution and a max-pool, both of stride 2; `cifar` is 3×3 of stride 1 alone.
    `width` is the number of channels of the stem and the first group; `hidden` adds linear layers before the head.
    """

    def __init__(
        self,
        *,
        shape: tuple[int, ...],
        classes: int,
        blocks: Sequence[int] = (2, 2, 2, 2),
        stem: str = "torchvision",
        width: int = 64,
        hidden: Sequence[int] = (),
    ) -> None:
        super().__init__()
        channels, _, _ = image_shape("ResNet", shape)
        require_positive("ResNet", classes=classes, width=width)
        if stem not in _STEMS:
            raise ModelError(str(unknown("stem", str(stem), _STEMS)))
        self.blocks, self.stem = _checked_blocks(blocks), stem
        self.hidden = require_sizes("ResNet", "hidden", hidden, "widths such as (256, 128)")
        self.conv1 = _stem_convolution(channels, width, stem)
        self.bn1 = nn.BatchNorm2d(width)
        for group, depth in enumerate(self.blocks):
            self.add_module(f"layer{group + 1}", _group(width << group, depth, first=group == 0))
        self._add_linear(width << (len(self.blocks) - 1), self.hidden, classes)
        _initialise(self)

    def stages(self) -> tuple[Stage, ...]:
        names = [f"layer{group + 1}.{i}" for group, depth in enumerate(self.blocks) for i in range(depth)]
        hidden = (self._hidden_stage(f"fc{i + 1}") for i in range(len(self.hidden)))
        return (Stage("stem", ("conv1", "bn1"), self._stem), *self._block_stages(names), *hidden, self._head_stage())

    def _stem(self, x: Tensor) -> Tensor:
        x = relu(self._apply_module("bn1", self._apply_module("conv1", x)))
        return max_pool2d(x, 3, stride=2, padding=1) if self.stem == "torchvision" else x


def resnet18(*, shape: tuple[int, ...], classes: int, stem: str = "torchvision") -> ResNet:
    """ResNet-18, by default with torchvision's stem."""
    return ResNet(shape=shape, classes=classes, blocks=(2, 2, 2, 2), stem=stem)


def resnet34(*, shape: tuple[int, ...], classes: int, stem: str = "torchvision") -> ResNet:
    """ResNet-34, by default with torchvision's stem."""
    return ResNet(shape=shape, classes=classes, blocks=(3, 4, 6, 3), stem=stem)


def resnet18cifar(*, shape: tuple[int, ...], classes: int) -> ResNet:
    """ResNet-18 with the 3×3 stem for small images."""
    return resnet18(shape=shape, classes=classes, stem="cifar")


def resnet34cifar(*, shape: tuple[int, ...], classes: int) -> ResNet:
    """ResNet-34 with the 3×3 stem for small images."""
    return resnet34(shape=shape, classes=classes, stem="cifar")


def resnet9(*, shape: tuple[int, ...], classes: int) -> ResNet:
    """FedLAG's ResNet-9: groups of 1, 2, 2 and 1 blocks from 32 channels on, and linear layers of 256 and 128."""
    return ResNet(shape=shape, classes=classes, blocks=(1, 2, 2, 1), stem="cifar", width=32, hidden=(256, 128))


def resnet20(*, shape: tuple[int, ...], classes: int, blocks: Sequence[int] = (3, 3, 3)) -> ResNet:
    """FedLAG's ResNet-20: groups of blocks from 64 channels on, and linear layers of 256 and 128."""
    return ResNet(shape=shape, classes=classes, blocks=blocks, stem="cifar", hidden=(256, 128))


def _checked_blocks(blocks: Sequence[int]) -> tuple[int, ...]:
    depths = "depths such as (2, 2, 2, 2)"
    if not require_sizes("ResNet", "blocks", blocks, depths):
        raise ModelError(f"ResNet needs blocks as a sequence of {depths}, got {blocks!r}")
    return tuple(blocks)


def _stem_convolution(channels: int, width: int, stem: str) -> nn.Conv2d:
    if stem == "torchvision":
        return nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
    return nn.Conv2d(channels, width, 3, padding=1, bias=False)


def _group(outputs: int, depth: int, first: bool) -> nn.Sequential:
    inputs, stride = (outputs, 1) if first else (outputs // 2, 2)
    entry = BasicBlock(inputs=inputs, outputs=outputs, stride=stride)
    return nn.Sequential(entry, *(BasicBlock(inputs=outputs, outputs=outputs, stride=1) for _ in range(depth - 1)))


def _projection(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def _initialise(model: nn.Module) -> None:
    # Batch norms already start at weight 1, bias 0, and the head keeps the default of nn.Linear.
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
