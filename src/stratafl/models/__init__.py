"""The models: chains of named stages, built by name from a catalogue."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from stratafl.errors import ModelError, unknown
from stratafl.models.cnn import CNN
from stratafl.models.embedding import EmbeddingClassifier
from stratafl.models.lenet import LeNet
from stratafl.models.linear_base import LinearBase
from stratafl.models.mlp import MLP
from stratafl.models.resnet import ResNet, resnet18, resnet18cifar, resnet34, resnet34cifar
from stratafl.models.small import ConvNorm
from stratafl.models.staged import Stage, Staged
from stratafl.models.weights import load_weights, save_weights

__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "ConvNorm",
    "EmbeddingClassifier",
    "LeNet",
    "LinearBase",
    "ResNet",
    "Stage",
    "Staged",
    "build",
    "load_weights",
    "resnet18",
    "resnet34",
    "save_weights",
]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP,
    "cnn": CNN,
    "lenet": LeNet,
    "resnet18": resnet18,
    "resnet18cifar": resnet18cifar,
    "resnet34": resnet34,
    "resnet34cifar": resnet34cifar,
    "embedding": EmbeddingClassifier,
    "convnorm": ConvNorm,
}


def build(name: str, *, shape: tuple[int, ...], classes: int, **options: Any) -> nn.Module:
    """The model of this name for samples of this shape and so many classes."""
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
