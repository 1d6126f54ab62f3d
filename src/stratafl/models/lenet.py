"""The small LeNet of pFedHN, on which pFedLA was run."""

from stratafl.models.convnet import Conv, ConvNet


class LeNet(ConvNet):
    """Two 5×5 convolutions of 16 and 32 kernels with pooling, and linear layers of 120, 84 and one unit per class.

    With `norm`, batch norm stands between each convolution and its ReLU. The convolutions are unpadded, but padded by
    2 where the smaller side is below 16.
    """

    head_name = "fc3"

    def __init__(self, *, shape: tuple[int, ...], classes: int, norm: bool = False) -> None:
        super().__init__(shape, classes, (Conv(16, 5, pool=True), Conv(32, 5, pool=True)), (120, 84), norm=norm)
