"""The small LeNet of pFedHN, on which pFedLA was run."""

from functools import partial

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from stratafl.models.cnn import pooled
from stratafl.models.staged import Stage, Staged, image_shape, require_positive


class LeNet(Staged):
    """Two 5×5 convolutions of 16 and 32 kernels with pooling, and linear layers of 120, 84 and one unit per class.

    With `norm`, batch norm stands between each convolution and its ReLU. The convolutions are unpadded, but padded by
    2 where the smaller side is below 16.
    """

    head_name = "fc3"

    def __init__(self, *, shape: tuple[int, ...], classes: int, norm: bool = False) -> None:
        super().__init__()
        channels, height, width = image_shape("LeNet", shape, smallest_side=4)
        require_positive("LeNet", classes=classes)
        padding = 2 if min(height, width) < 16 else 0
        self.norm = norm
        self.conv1 = nn.Conv2d(channels, 16, 5, padding=padding)
        if norm:
            self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 5, padding=padding)
        if norm:
            self.bn2 = nn.BatchNorm2d(32)
        self.fc1 = nn.Linear(32 * pooled(height, padding) * pooled(width, padding), 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def stages(self) -> tuple[Stage, ...]:
        """conv1, conv2, fc1 and fc2, each with what follows it, then the head."""
        convolutions = [(f"conv{i}", f"bn{i}") if self.norm else (f"conv{i}",) for i in (1, 2)]
        return (
            *(Stage(names[0], names, partial(self._convolve, names)) for names in convolutions),
            *(Stage(name, (name,), partial(self._hidden, name)) for name in ("fc1", "fc2")),
            self._head_stage(),
        )

    def _convolve(self, names: tuple[str, ...], x: Tensor) -> Tensor:
        for name in names:
            x = self._apply_module(name, x)
        return max_pool2d(relu(x), 2)

    def _hidden(self, name: str, x: Tensor) -> Tensor:
        return relu(self._apply_module(name, x.flatten(1)))
