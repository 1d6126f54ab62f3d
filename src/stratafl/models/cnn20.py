"""The network without batch norm in the published scripts of FedLAG."""

from stratafl.models.convnet import Conv, ConvNet

_RECIPE = tuple(Conv(channels, padding=1, pool=second) for channels in (32, 64, 128) for second in (False, True))


class CNN20(ConvNet):
    """Three pairs of padded 3×3 convolutions of 32, 64 and 128 kernels, each pair with pooling, and a layer of 512."""

    def __init__(self, *, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape, classes, _RECIPE, (512,))
