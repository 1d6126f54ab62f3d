"""MobileNet-v1, on which FedPer was run."""

from torch import Tensor, nn
from torch.nn.functional import relu

from stratafl.errors import ModelError, unknown
from stratafl.models.staged import Stage, Staged, image_shape, require_positive

_STRIDES = {"cifar": 1, "imagenet": 2}
_MIDDLE = {13: 5, 11: 3}  # blocks of 512 channels that keep their side, by the number of all blocks


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
        inputs = 32
        for i, (outputs, stride) in enumerate(_plan(blocks), 1):
            self.add_module(f"block{i}", SeparableBlock(inputs=inputs, outputs=outputs, stride=stride))
            inputs = outputs
        self.fc = nn.Linear(inputs, classes)

    def stages(self) -> tuple[Stage, ...]:
        blocks = self._block_stages([f"block{i}" for i in range(1, self.blocks + 1)])
        return (Stage("stem", ("conv1", "bn1"), self._stem), *blocks, self._head_stage())

    def _stem(self, x: Tensor) -> Tensor:
        return relu(self._apply_module("bn1", self._apply_module("conv1", x)))


def _plan(blocks: int) -> list[tuple[int, int]]:
    early = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]
    return [*early, *[(512, 1)] * _MIDDLE[blocks], (1024, 2), (1024, 1)]
