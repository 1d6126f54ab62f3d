"""The networks of FedALP's MNIST-CNN and CIFAR10-CNN, which are FedFomo's: three convolutions and two linear layers."""

from stratafl.models.convnet import Conv, ConvNet


class ThreeConv(ConvNet):
    """Three 3×3 convolutions of 32, 64 and 64 kernels, the first two with pooling, and a hidden layer of 64.

    `last_relu` puts a ReLU after the third convolution, as in FedFomo's own network; FedALP's cited code has none, and
    a `dropout` of 0.2 after each convolution. Unpadded, but padded by 1 where the smaller side is below 18.
    """

    def __init__(self, *, shape: tuple[int, ...], classes: int, dropout: float = 0.0, last_relu: bool = False) -> None:
        recipe = (Conv(32, pool=True), Conv(64, pool=True), Conv(64, relu=last_relu))
        super().__init__(shape, classes, recipe, (64,), dropout=dropout)
