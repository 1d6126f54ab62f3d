"""Models: chains of named stages, built by name with `build`.

`staged.py` defines what every model is, so read it first; the other files hold one family of models each. To add a
model, write a class or function that takes `shape` and `classes`, and name it in `MODELS`; `strata list` shows the
first line of its docstring. This package imports torch, `stratafl.errors` and `stratafl.files`; every package but
`core` and `data` may import it.
"""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from stratafl.errors import ModelError, unknown
from stratafl.models.convnet import CNN, CNN20, AlexNet, Conv, ConvNet, ConvNorm, LeNet, ThreeConv
from stratafl.models.embedding import EmbeddingClassifier, fasttext
from stratafl.models.linear_base import LinearBase
from stratafl.models.mlp import MLP, mnistnn
from stratafl.models.mobilenet import MobileNet
from stratafl.models.resnet import ResNet, resnet9, resnet18, resnet18cifar, resnet20, resnet34, resnet34cifar
from stratafl.models.staged import Stage, Staged
from stratafl.models.weights import load_weights, save_weights

__all__ = [
    "CNN",
    "CNN20",
    "MLP",
    "MODELS",
    "AlexNet",
    "Conv",
    "ConvNet",
    "ConvNorm",
    "EmbeddingClassifier",
    "LeNet",
    "LinearBase",
    "MobileNet",
    "ResNet",
    "Stage",
    "Staged",
    "ThreeConv",
    "build",
    "fasttext",
    "load_weights",
    "mnistnn",
    "resnet9",
    "resnet18",
    "resnet20",
    "resnet34",
    "save_weights",
]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP,
    "mnistnn": mnistnn,
    "cnn": CNN,
    "lenet": LeNet,
    "mnistcnn": ThreeConv,
    "cifar10cnn": ThreeConv,
    "cnn20": CNN20,
    "alexnet": AlexNet,
    "mobilenet": MobileNet,
    "resnet9": resnet9,
    "resnet18": resnet18,
    "resnet18cifar": resnet18cifar,
    "resnet20": resnet20,
    "resnet34": resnet34,
    "resnet34cifar": resnet34cifar,
    "embedding": EmbeddingClassifier,
    "fasttext": fasttext,
    "convnorm": ConvNorm,
}


def build(name: str, *, shape: tuple[int, ...], classes: int, **options: Any) -> nn.Module:
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    maker = MODELS[name]
    existing = _options(maker)
    for option in options:
        if existing is not None and option not in existing:
            raise ModelError(str(unknown(f"option of model '{name}',", option, existing)))
    return maker(shape=shape, classes=classes, **options)


def _options(maker: Callable[..., nn.Module]) -> list[str] | None:
    parameters = inspect.signature(maker).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters if parameter.name not in ("shape", "classes")]
