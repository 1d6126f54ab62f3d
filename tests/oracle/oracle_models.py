"""Small models of every kind, each a stock module with data that fits it."""

from collections.abc import Callable

import numpy as np
import torch
from oracle_loops import CLASSES, images
from torch import Tensor, nn
from torch.nn.functional import conv2d, relu, softmax

from stratafl.data import Federation, from_splits
from stratafl.models import ResNet, build
from stratafl.models.resnet import SeparableBlock

SIZES = (13, 6, 11)
TOKENS = 9


def sentences() -> Federation:
    """Seven token ids per sample, 0 for padding."""
    rng = np.random.default_rng(4)

    def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, CLASSES, count)
        x = (rng.integers(1, TOKENS, (count, 7)) + 2 * y[:, None]) % TOKENS
        return x * (rng.random((count, 7)) < 0.8), y

    return from_splits([{"train": samples(n), "test": samples(3)} for n in SIZES], classes=CLASSES)


class Recurrent(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 4, batch_first=True)
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.lstm(x[:, 0])
        return self.fc(outputs[:, -1])


class Cells(nn.Module):
    """A recurrent network written out, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(6, 5)
        self.onward = nn.Linear(5, 5, bias=False)
        self.fc = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 5, dtype=x.dtype)
        for row in x[:, 0].unbind(1):
            state = torch.tanh(self.inward(row) + self.onward(state))
        return self.fc(state)


class Attention(nn.Module):
    """Self-attention over the rows of an image, with LayerNorm, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(6, 8) / 3)
        self.embed = nn.Linear(6, 8)
        self.queries, self.keys, self.values = (nn.Linear(8, 8) for _ in range(3))
        self.norm = nn.LayerNorm(8)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z = self.embed(x[:, 0]) + self.position
        scores = self.queries(z) @ self.keys(z).transpose(1, 2) / 8**0.5
        z = self.norm(z + softmax(scores, -1) @ self.values(z))
        return self.fc(z.mean(1))


class Multihead(nn.Module):
    """The same with torch's own attention module."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z = self.embed(x[:, 0])
        return self.fc((z + self.attention(z, z, z, need_weights=False)[0]).mean(1))


def _grouped() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


def _odd_convolutions() -> nn.Module:
    """Strides, dilation, groups, paddings and kernels that differ between the axes, with and without bias."""
    return nn.Sequential(
        nn.Conv2d(1, 4, (3, 2), stride=(2, 1), padding=(2, 1)),
        nn.BatchNorm2d(4, affine=False),
        nn.ReLU(),
        nn.Conv2d(4, 6, (2, 3), padding=(0, 1), dilation=(2, 1), groups=2, bias=False),
        nn.BatchNorm2d(6, momentum=0.3, eps=1e-2),
        nn.Conv2d(6, 6, 3, padding="same", padding_mode="circular"),
        nn.Flatten(),
        nn.LazyLinear(CLASSES),
    )


class Tied(nn.Module):
    """One layer used twice, one convolution whose weights are normalised before use, one BatchNorm called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(3, 1, 3, 3))
        self.norm = nn.BatchNorm1d(6)
        self.mid = nn.Linear(6, 6)
        self.last = nn.Linear(6, 6)
        self.last.weight = self.mid.weight
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        kernel = self.kernel / self.kernel.flatten(1).norm(dim=1)[:, None, None, None]
        z = relu(conv2d(x, kernel)).mean(1).flatten(1)[:, :6]
        z = relu(self.norm(self.mid(z)))
        return self.fc(self.norm(self.last(z)))


def _images() -> Federation:
    return images(SIZES)


def _images_8() -> Federation:
    return images(SIZES, (1, 8, 8))


class Dropping(nn.Module):
    """One dropout of elements, used twice, and one of whole channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.channels = nn.Dropout2d(0.3)
        self.elements = nn.Dropout(0.4)
        self.mid = nn.Linear(16, 6)
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z = self.channels(torch.tanh(self.conv(x)))
        z = self.elements(z[..., ::2, ::2].flatten(1))
        return self.fc(self.elements(torch.tanh(self.mid(z))))


def _separable() -> nn.Module:
    """The blocks of a MobileNet, narrow."""
    blocks = [SeparableBlock(inputs=4, outputs=6, stride=2), SeparableBlock(inputs=6, outputs=6, stride=1)]
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), *blocks, nn.Flatten(), nn.Linear(54, CLASSES))


Make = Callable[[], nn.Module]
MODELS: dict[str, tuple[Make, Callable[[], Federation]]] = {
    "mlp": (lambda: build("mlp", shape=(1, 6, 6), classes=CLASSES, hidden=(7, 5)), _images),
    "cnn": (lambda: build("cnn", shape=(1, 8, 8), classes=CLASSES), _images_8),
    "embedding": (
        lambda: build("embedding", shape=(7,), classes=CLASSES, vocabulary=TOKENS, width=5),
        sentences,
    ),
    "cells": (Cells, _images),
    "attention": (Attention, _images),
    "multihead": (Multihead, _images),
    "groupnorm": (_grouped, _images),
    "odd convolutions": (_odd_convolutions, _images),
    "tied": (Tied, _images),
    "lstm": (Recurrent, _images),
    "convnorm with dropout": (
        lambda: build("convnorm", shape=(1, 6, 6), classes=CLASSES, channels=4, dropout=0.3),
        _images,
    ),
    "dropping": (Dropping, _images),
    "threeconv with dropout": (
        lambda: build("mnistcnn", shape=(1, 6, 6), classes=CLASSES, dropout=0.2),
        _images,
    ),
    "separable": (_separable, _images),
    "resnet with hidden layers": (
        lambda: ResNet(shape=(1, 6, 6), classes=CLASSES, blocks=(1, 1), stem="cifar", width=4, hidden=(5,)),
        _images,
    ),
}


def made(name: str) -> tuple[nn.Module, Federation]:
    """A model with weights drawn from a fixed seed, and its data."""
    torch.manual_seed(8)
    make, data = MODELS[name]
    module, federation = make().double(), data()
    with torch.no_grad():
        x = federation.x[:2]
        module.eval()(x.double() if x.is_floating_point() else x)  # lazy layers learn their size
    return module, federation
