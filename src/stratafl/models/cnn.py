"""The four-layer convolutional network of FedAvg."""

from stratafl.models.convnet import Conv, ConvNet


class CNN(ConvNet):
    """Two 5×5 convolutions with pooling and two linear layers.

    The convolutions are unpadded as in the papers, but padded by 2 where the smaller side is below 16.
    """

    def __init__(self, *, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape, classes, (Conv(32, 5, pool=True), Conv(64, 5, pool=True)), (512,))
