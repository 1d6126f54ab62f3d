"""The four-layer convolutional network of FedAvg."""

from functools import partial

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from stratafl.models.staged import Stage, Staged, image_shape, require_positive


class CNN(Staged):
    """Two 5×5 convolutions with pooling and two linear layers.

    The convolutions are unpadded as in the papers, but padded by 2 where the smaller side is below 16.
    """

    def __init__(self, *, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape("CNN", shape, smallest_side=4)
        require_positive("CNN", classes=classes)
        padding = 2 if min(height, width) < 16 else 0
        self.conv1 = nn.Conv2d(channels, 32, 5, padding=padding)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=padding)
        self.fc1 = nn.Linear(64 * pooled(height, padding) * pooled(width, padding), 512)
        self.fc = nn.Linear(512, classes)

    def stages(self) -> tuple[Stage, ...]:
        """conv1, conv2 and fc1, each with what follows it, then the head."""
        convolutions = (Stage(name, (name,), partial(self._convolve, name)) for name in ("conv1", "conv2"))
        return (*convolutions, Stage("fc1", ("fc1",), self._hidden), self._head_stage())

    def _convolve(self, name: str, x: Tensor) -> Tensor:
        return max_pool2d(relu(self._apply_module(name, x)), 2)

    def _hidden(self, x: Tensor) -> Tensor:
        return relu(self._apply_module("fc1", x.flatten(1)))


def pooled(side: int, padding: int) -> int:
    """The side of an image after two 5×5 convolutions, each with a pooling by 2."""
    for _ in range(2):
        side = (side + 2 * padding - 4) // 2
    return side
