"""A network of a few hundred parameters that has every kind of layer a method may treat specially."""

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from stratafl.models.staged import Stage, Staged, image_shape, require_positive, require_share


class ConvNorm(Staged):
    """Two bias-free 3×3 convolutions with batch norm, a global average, dropout and a linear head."""

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
        """The two convolutions with what follows them, then the head."""
        first = Stage("conv1", ("conv1", "bn1"), self._first)
        return (first, Stage("conv2", ("conv2", "bn2", "drop"), self._second), self._head_stage())

    def _first(self, x: Tensor) -> Tensor:
        return max_pool2d(relu(self._apply_module("bn1", self._apply_module("conv1", x))), 2)

    def _second(self, x: Tensor) -> Tensor:
        x = relu(self._apply_module("bn2", self._apply_module("conv2", x)))
        return self._apply_module("drop", x.mean((-2, -1)))
