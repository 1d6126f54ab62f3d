"""Models: chains of named stages, built by name with `build`.

`staged.py` defines what every model is, so read it first; the other files hold one family of models each. To add a
model, write a class or function that takes `shape` and `classes`, and name it in `MODELS`; `strata list` shows the
first line of its docstring. `heads.py` holds the heads of several parts with which methods replace a model's own,
`adapted.py` translates inputs and outputs of models of others. This
package imports torch, `stratafl.core.records`, `stratafl.errors` and `stratafl.files`; every package but `core` and
`data` may import it.
"""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from stratafl.errors import ModelError, unknown
from stratafl.models.adapted import Adaptation, AdaptedModel, own_model, shared_copy, without_fast_paths
from stratafl.models.architecture import with_recipe
from stratafl.models.convnet import CNN, CNN20, AlexNet, Conv, ConvNet, ConvNorm, LeNet, ThreeConv
from stratafl.models.heads import (
    BiasedHead,
    ComposedHead,
    ConditionalHead,
    GatedHead,
    HeadExtension,
    PriorHead,
    ShiftedHead,
    TwoHeads,
    replace_head,
)
from stratafl.models.linear_base import LinearBase
from stratafl.models.mlp import MLP, EmbeddingClassifier, fasttext, mnistnn
from stratafl.models.resnet import (
    MobileNet,
    ResNet,
    resnet9,
    resnet18,
    resnet18cifar,
    resnet20,
    resnet34,
    resnet34cifar,
)
from stratafl.models.staged import Stage, Staged
from stratafl.models.transformer import TextTransformer
from stratafl.models.weights import load_weights, save_weights

__all__ = [
    "CNN", "CNN20", "MLP", "MODELS", "Adaptation", "AdaptedModel", "AlexNet", "BiasedHead", "ComposedHead",
    "ConditionalHead", "Conv", "ConvNet", "ConvNorm", "EmbeddingClassifier", "GatedHead", "HeadExtension", "LeNet",
    "LinearBase", "MobileNet", "PriorHead", "ResNet", "ShiftedHead", "Stage", "Staged", "TextTransformer", "ThreeConv",
    "TwoHeads", "build", "fasttext", "load_weights", "mnistnn", "own_model", "replace_head", "resnet9", "resnet18",
    "resnet20", "resnet34", "save_weights", "shared_copy", "without_fast_paths",
]  # fmt: skip

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP, "mnistnn": mnistnn, "cnn": CNN, "lenet": LeNet, "mnistcnn": ThreeConv, "cifar10cnn": ThreeConv,
    "cnn20": CNN20, "alexnet": AlexNet, "mobilenet": MobileNet, "resnet9": resnet9, "resnet18": resnet18,
    "resnet18cifar": resnet18cifar, "resnet20": resnet20, "resnet34": resnet34, "resnet34cifar": resnet34cifar,
    "embedding": EmbeddingClassifier, "fasttext": fasttext, "transformer": TextTransformer, "convnorm": ConvNorm,
}  # fmt: skip


def build(name: str, *, shape: tuple[int, ...], classes: int, **options: Any) -> nn.Module:
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    parameters = inspect.signature(MODELS[name]).parameters
    any_option = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    existing = [parameter for parameter in parameters if parameter not in ("shape", "classes")]
    for option in options:
        if not any_option and option not in existing:
            raise ModelError(str(unknown(f"option of model '{name}',", option, existing)))
    module = MODELS[name](shape=shape, classes=classes, **options)
    return with_recipe(module, name, shape=shape, classes=classes, **options)
