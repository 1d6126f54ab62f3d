"""AlexNet for small images, as FedALP's "5 convolutions and 3 linear layers" may be read."""

from collections.abc import Sequence

from stratafl.models.convnet import Conv, ConvNet

_RECIPE = (
    Conv(64, stride=2, padding=1, pool=True),
    Conv(192, padding=1, pool=True),
    Conv(384, padding=1),
    Conv(256, padding=1),
    Conv(256, padding=1, pool=True),
)


class AlexNet(ConvNet):
    """Five padded 3×3 convolutions, three of them with pooling, and linear layers of 4096, 4096 and one per class.

    `hidden = [1024, 512]` makes it a tenth of the size.
    """

    def __init__(self, *, shape: tuple[int, ...], classes: int, hidden: Sequence[int] = (4096, 4096)) -> None:
        super().__init__(shape, classes, _RECIPE, hidden)
