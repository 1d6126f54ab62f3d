"""One case per kind of model and input size, shared by the tests of this folder."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from stratafl.models import MLP, ConvNorm, ResNet, Staged, build


@dataclass(frozen=True)
class Case:
    make: Callable[[], Any]
    shape: tuple[int, ...]
    classes: int
    width: int
    tokens: int = 0

    def model(self, seed: int = 0) -> Staged:
        return copy.deepcopy(_made(self, seed))

    def batch(self, size: int = 3, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
        draw = torch.Generator().manual_seed(seed)
        if self.tokens:
            return torch.randint(self.tokens, (size, *self.shape), generator=draw)
        return torch.randn(size, *self.shape, generator=draw, dtype=dtype)


# Few are kept, since pytest runs the tests case by case and a model can take 85 MB.
@lru_cache(maxsize=2)
def _made(case: Case, seed: int) -> Staged:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Staged = case.make()
    return model


def named(name: str, shape: tuple[int, ...], classes: int, width: int, **options: Any) -> Case:
    return Case(
        lambda: build(name, shape=shape, classes=classes, **options),
        shape,
        classes,
        width,
        options.get("vocabulary", 0),
    )


# Left out for their cost: ResNet-34 with torchvision's stem (resnet18 has that stem, resnet34cifar that depth), and
# AlexNet, MobileNet and ResNet-20, which are only counted and run once.
CASES = {
    "mlp": named("mlp", (1, 28, 28), 10, 200),
    "mlp-two-hidden": named("mlp", (7,), 3, 5, hidden=[11, 5]),
    "mlp-no-hidden": Case(lambda: MLP(shape=(2, 3), classes=4, hidden=()), (2, 3), 4, 6),
    "cnn-28": named("cnn", (1, 28, 28), 10, 512),
    "cnn-32": named("cnn", (3, 32, 32), 10, 512),
    "cnn-8": named("cnn", (1, 8, 8), 10, 512),
    "cnn-uneven": named("cnn", (2, 17, 30), 5, 512),
    "lenet-28": named("lenet", (1, 28, 28), 10, 84),
    "lenet-norm": named("lenet", (3, 32, 32), 10, 84, norm=True),
    "lenet-8": named("lenet", (1, 8, 8), 10, 84),
    "cifar10cnn": named("cifar10cnn", (3, 18, 18), 10, 64),
    "mnistcnn-8": named("mnistcnn", (1, 8, 8), 10, 64, dropout=0.2, last_relu=True),
    "cnn20": named("cnn20", (3, 8, 9), 10, 512),
    "resnet9": named("resnet9", (1, 8, 8), 10, 128),
    "resnet18": named("resnet18", (3, 32, 32), 10, 512),
    "resnet18cifar": named("resnet18cifar", (3, 8, 8), 10, 512),
    "resnet34cifar": named("resnet34cifar", (3, 8, 8), 10, 512),
    "resnet-two-groups": Case(
        lambda: ResNet(shape=(3, 9, 9), classes=3, blocks=(1, 2), stem="cifar"), (3, 9, 9), 3, 128
    ),
    "resnet-stem": Case(lambda: ResNet(shape=(3, 32, 32), classes=3, blocks=(1, 1), width=8), (3, 32, 32), 3, 16),
    "embedding": named("embedding", (6,), 4, 32, vocabulary=50),
    "fasttext": named("fasttext", (6,), 4, 32, vocabulary=50),
    "fasttext-real": named("fasttext", (6,), 4, 32, vocabulary=50, pads=False),
    "transformer": named("transformer", (6,), 4, 64, vocabulary=50, hidden=12),
    "convnorm": named("convnorm", (1, 8, 8), 10, 8),
    "convnorm-wide": Case(lambda: ConvNorm(shape=(3, 5, 6), classes=2, channels=9), (3, 5, 6), 2, 9),
}
LARGE = {"resnet18", "resnet18cifar", "resnet34cifar"}  # slow: smaller networks of the same class are fast tests
