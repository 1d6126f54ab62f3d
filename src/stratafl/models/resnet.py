"""Networks of blocks: ResNet, with torchvision's parameter names and initialisation, and MobileNet-v1."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from stratafl.errors import ModelError, unknown
from stratafl.models.staged import Stage, Staged, image_shape, require_positive, require_sizes

_STEMS = ("torchvision", "cifar")
_STRIDES = {"cifar": 1, "imagenet": 2}
_MIDDLE = {13: 5, 11: 3}  # blocks of 512 channels that keep their side, by the number of all blocks


class BasicBlock(nn.Module):
    """Two 3×3 convolutions added to their input, which is projected where the shape changes."""

    def __init__(self, *, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride > 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(outputs))

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
        depths = "depths such as (2, 2, 2, 2)"
        self.blocks, self.stem = require_sizes("ResNet", "blocks", blocks, depths), stem
        if not blocks:
            raise ModelError(f"ResNet needs blocks as a sequence of {depths}, got {blocks!r}")
        self.hidden = require_sizes("ResNet", "hidden", hidden, "widths such as (256, 128)")
        kernel, stride = (7, 2) if stem == "torchvision" else (3, 1)
        self.conv1 = nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        for group, depth in enumerate(self.blocks):
            self.add_module(f"layer{group + 1}", _group(width << group, depth, first=group == 0))
        self._add_linear(width << (len(self.blocks) - 1), self.hidden, classes)
        for module in self.modules():  # batch norms start at weight 1, bias 0, and the head as nn.Linear does
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

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


def _group(outputs: int, depth: int, first: bool) -> nn.Sequential:
    inputs, stride = (outputs, 1) if first else (outputs // 2, 2)
    entry = BasicBlock(inputs=inputs, outputs=outputs, stride=stride)
    return nn.Sequential(entry, *(BasicBlock(inputs=outputs, outputs=outputs, stride=1) for _ in range(depth - 1)))


class SeparableBlock(nn.Module):
    """A 3×3 convolution of each channel alone and a 1×1 convolution of all of them, each with batch norm and ReLU."""

    def __init__(self, *, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(inputs, inputs, 3, stride, padding=1, groups=inputs, bias=False)
        self.bn1 = nn.BatchNorm2d(inputs)
        self.pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.bn1(self.depthwise(x)))
        return relu(self.bn2(self.pointwise(x)))


class MobileNet(Staged):
    """A 3×3 stem of 32 kernels, 13 or 11 separable blocks up to 1024 channels, an average and a linear head.

    The 11-block network has three instead of five blocks of 512 channels that keep their side. The stem has stride 1
    for `cifar` and stride 2 for `imagenet` (images of 224 × 224).
    """

    def __init__(self, *, shape: tuple[int, ...], classes: int, blocks: int = 13, stem: str = "cifar") -> None:
        super().__init__()
        channels, _, _ = image_shape("MobileNet", shape)
        require_positive("MobileNet", classes=classes)
        if blocks not in _MIDDLE:
            raise ModelError(f"MobileNet has 11 or 13 blocks, got {blocks!r}")
        if stem not in _STRIDES:
            raise ModelError(str(unknown("stem", str(stem), _STRIDES)))
        self.blocks = blocks
        self.conv1 = nn.Conv2d(channels, 32, 3, _STRIDES[stem], padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        early = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]  # channels and stride of each block
        plan = [*early, *[(512, 1)] * _MIDDLE[blocks], (1024, 2), (1024, 1)]
        inputs = 32
        for i, (outputs, stride) in enumerate(plan, 1):
            self.add_module(f"block{i}", SeparableBlock(inputs=inputs, outputs=outputs, stride=stride))
            inputs = outputs
        self.fc = nn.Linear(inputs, classes)

    def stages(self) -> tuple[Stage, ...]:
        blocks = self._block_stages([f"block{i}" for i in range(1, self.blocks + 1)])
        return (Stage("stem", ("conv1", "bn1"), self._stem), *blocks, self._head_stage())

    def _stem(self, x: Tensor) -> Tensor:
        return relu(self._apply_module("bn1", self._apply_module("conv1", x)))
