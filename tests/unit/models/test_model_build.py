"""The catalogue, and what it refuses."""

from typing import Any

import pytest
from torch import nn

import stratafl.models
from stratafl.errors import ModelError, UnknownNameError
from stratafl.models import CNN, MLP, MODELS, ConvNorm, EmbeddingClassifier, ResNet, build


def test_the_catalogue() -> None:
    assert list(MODELS) == [
        "mlp", "mnistnn", "cnn", "lenet", "mnistcnn", "cifar10cnn", "cnn20", "alexnet", "mobilenet", "resnet9",
        "resnet18", "resnet18cifar", "resnet20", "resnet34", "resnet34cifar", "embedding", "fasttext", "convnorm",
    ]  # fmt: skip
    assert all(hasattr(stratafl.models, name) for name in stratafl.models.__all__)


@pytest.mark.parametrize(
    ("name", "kind", "shape", "options"),
    [
        ("mlp", MLP, (3,), {"hidden": [4]}),
        ("cnn", CNN, (1, 8, 8), {}),
        ("resnet18", ResNet, (3, 8, 8), {"stem": "cifar"}),
        ("embedding", EmbeddingClassifier, (5,), {"vocabulary": 7, "width": 2, "padding": 6}),
        ("convnorm", ConvNorm, (1, 8, 8), {"channels": 2, "dropout": 0}),
    ],
)
def test_build(name: str, kind: type, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    assert type(build(name, shape=shape, classes=2, **options)) is kind


def test_unknown_model() -> None:
    with pytest.raises(UnknownNameError, match="unknown model 'resnet81'; did you mean 'resnet18'") as caught:
        build("resnet81", shape=(3, 8, 8), classes=2)
    assert "convnorm" in str(caught.value)


def test_unknown_option() -> None:
    with pytest.raises(ModelError) as caught:
        build("embedding", shape=(8,), classes=2, vocabluary=9)
    assert str(caught.value) == (
        "unknown option of model 'embedding', 'vocabluary'; did you mean 'vocabulary'? "
        "Choose one of: vocabulary, width, padding"
    )
    with pytest.raises(ModelError, match="there is none"):
        build("cnn", shape=(1, 8, 8), classes=2, hidden=3)


def test_a_maker_that_takes_anything_is_given_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def maker(**options: Any) -> nn.Module:
        return nn.Linear(options["shape"][0], options["classes"], bias=options["bias"])

    monkeypatch.setitem(MODELS, "own", maker)
    assert build("own", shape=(3,), classes=2, bias=False).bias is None


@pytest.mark.parametrize(
    ("name", "shape", "options", "sentence"),
    [
        ("cnn", (64,), {}, "CNN needs samples of shape (channels, height, width), got (64,)"),
        ("cnn", (1, 3, 8), {}, "CNN needs images of at least 4×4, got 3×8"),
        ("resnet18", (32, 32), {}, "ResNet needs samples of shape (channels, height, width), got (32, 32)"),
        ("resnet34", (0, 8, 8), {}, "ResNet needs a positive whole number as every axis of shape (0, 8, 8), got 0"),
        ("lenet", (1, 8, 3), {}, "LeNet needs images of at least 4×4, got 8×3"),
        ("mnistcnn", (1, 3, 3), {}, "ThreeConv needs images of at least 4×4, got 3×3"),
        ("cifar10cnn", (3, 32, 32), {"dropout": -0.1}, "ThreeConv needs dropout of at least 0 and below 1, got -0.1"),
        ("cnn20", (3, 32, 7), {}, "CNN20 needs images of at least 8×8, got 32×7"),
        (
            "cnn",
            (16, 16, 3),
            {},
            "CNN needs images of at least 4×4, got 16×3 (channels come first: is (16, 16, 3) height, width, channels?)",
        ),
        ("alexnet", (1, 8, 8), {}, "AlexNet needs images of at least 15×15, got 8×8"),
        ("alexnet", (1, 28, 28), {"hidden": 9}, "AlexNet needs hidden as a sequence of widths such as (512,), got 9"),
        ("mobilenet", (28, 28), {}, "MobileNet needs samples of shape (channels, height, width), got (28, 28)"),
        ("mobilenet", (1, 8, 8), {"blocks": 12}, "MobileNet has 11 or 13 blocks, got 12"),
        (
            "mobilenet",
            (1, 8, 8),
            {"stem": "imagnet"},
            "unknown stem 'imagnet'; did you mean 'imagenet'? Choose one of: cifar, imagenet",
        ),
        ("mnistnn", (3,), {"width": 0}, "MLP needs a positive whole number as hidden[0], got 0"),
        ("convnorm", (1, 8, 1), {}, "ConvNorm needs images of at least 2×2, got 8×1"),
        ("convnorm", (1, 8, 8), {"dropout": 1.0}, "ConvNorm needs dropout of at least 0 and below 1, got 1.0"),
        ("convnorm", (1, 8, 8), {"channels": 2.5}, "ConvNorm needs a positive whole number as channels, got 2.5"),
        ("mlp", (), {}, "MLP needs samples with at least one axis, got shape ()"),
        ("mlp", (3,), {"hidden": (4, 0)}, "MLP needs a positive whole number as hidden[1], got 0"),
        ("mlp", (3,), {"hidden": 200}, "MLP needs hidden as a sequence of widths such as (200,), got 200"),
        ("embedding", (2, 3), {"vocabulary": 9}, "EmbeddingClassifier needs samples of shape (tokens,), got (2, 3)"),
        ("embedding", (3,), {}, "EmbeddingClassifier needs the option 'vocabulary', the number of token ids, got none"),
        (
            "embedding",
            (3,),
            {"vocabulary": 9, "padding": 9},
            "EmbeddingClassifier needs padding among the ids 0 … 8, got 9",
        ),
        (
            "resnet18",
            (3, 8, 8),
            {"stem": "cifra"},
            "unknown stem 'cifra'; did you mean 'cifar'? Choose one of: torchvision, cifar",
        ),
    ],
)
def test_refusals(name: str, shape: tuple[int, ...], options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError) as caught:
        build(name, shape=shape, classes=2, **options)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("classes", [0, -1, True, "3"])
def test_the_number_of_classes_is_checked(name: str, classes: Any) -> None:
    options = {"vocabulary": 5} if name in ("embedding", "fasttext") else {}
    with pytest.raises(ModelError, match="positive whole number as classes"):
        build(name, shape=(8,) if options else (1, 16, 16), classes=classes, **options)


@pytest.mark.parametrize("blocks", [(), 3, "22"])
def test_the_blocks_are_checked(blocks: Any) -> None:
    with pytest.raises(ModelError, match="blocks as a sequence"):
        ResNet(shape=(3, 8, 8), classes=2, blocks=blocks)
