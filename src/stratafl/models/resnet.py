"""Residual networks of basic blocks, with torchvision's parameter names and initialisation."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from stratafl.errors import ModelError, unknown
from stratafl.models.staged import Stage, Staged, image_shape, require_positive

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
        """The rectified sum of the shortcut and the two convolutions."""
        shortcut = x if self.downsample is None else self.downsample(x)
        hidden = relu(self.bn1(self.conv1(x)))
        return relu(self.bn2(self.conv2(hidden)) + shortcut)


class ResNet(Staged):
    """A stem, groups of basic blocks that double the channels and halve the sides, and a linear head.

    The stem `torchvision` is a 7×7 convolution and a max-pool, both of stride 2; `cifar` is 3×3 of stride 1 alone.
    """

    def __init__(
        self,
        *,
        shape: tuple[int, ...],
        classes: int,
        blocks: Sequence[int] = (2, 2, 2, 2),
        stem: str = "torchvision",
    ) -> None:
        super().__init__()
        channels, _, _ = image_shape("ResNet", shape)
        require_positive("ResNet", classes=classes)
        if stem not in _STEMS:
            raise ModelError(str(unknown("stem", str(stem), _STEMS)))
        self.blocks = _checked_blocks(blocks)
        self.stem = stem
        self.conv1 = _stem_convolution(channels, stem)
        self.bn1 = nn.BatchNorm2d(64)
        for group, depth in enumerate(self.blocks):
            self.add_module(f"layer{group + 1}", _group(group, depth))
        self.fc = nn.Linear(64 << (len(self.blocks) - 1), classes)
        _initialise(self)

    def stages(self) -> tuple[Stage, ...]:
        """The stem, every basic block, the last of which pools, then the head."""
        names = [f"layer{group + 1}.{i}" for group, depth in enumerate(self.blocks) for i in range(depth)]
        early = (Stage(name, (name,), partial(self._apply_module, name)) for name in names[:-1])
        last = Stage(names[-1], (names[-1],), partial(self._block_and_pool, names[-1]))
        return (Stage("stem", ("conv1", "bn1"), self._stem), *early, last, self._head_stage())

    def _stem(self, x: Tensor) -> Tensor:
        x = relu(self._apply_module("bn1", self._apply_module("conv1", x)))
        return max_pool2d(x, 3, stride=2, padding=1) if self.stem == "torchvision" else x

    def _block_and_pool(self, name: str, x: Tensor) -> Tensor:
        return self._apply_module(name, x).mean((-2, -1))


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


def _checked_blocks(blocks: Sequence[int]) -> tuple[int, ...]:
    if isinstance(blocks, str) or not isinstance(blocks, Sequence) or not blocks:
        raise ModelError(f"ResNet needs blocks as a sequence of depths such as (2, 2, 2, 2), got {blocks!r}")
    require_positive("ResNet", **{f"blocks[{i}]": depth for i, depth in enumerate(blocks)})
    return tuple(blocks)


def _stem_convolution(channels: int, stem: str) -> nn.Conv2d:
    if stem == "torchvision":
        return nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    return nn.Conv2d(channels, 64, 3, padding=1, bias=False)


def _group(group: int, depth: int) -> nn.Sequential:
    outputs = 64 << group
    inputs, stride = (outputs, 1) if group == 0 else (outputs // 2, 2)
    first = BasicBlock(inputs=inputs, outputs=outputs, stride=stride)
    return nn.Sequential(first, *(BasicBlock(inputs=outputs, outputs=outputs, stride=1) for _ in range(depth - 1)))


def _projection(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def _initialise(model: nn.Module) -> None:
    # Batch norms already start at weight 1, bias 0, and the head keeps the default of nn.Linear.
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
