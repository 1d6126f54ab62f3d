"""The catalogue, and what it refuses."""

from typing import Any

import pytest
from torch import nn

import stratafl.models
from stratafl.errors import ModelError, UnknownNameError
from stratafl.models import CNN, MLP, MODELS, ConvNorm, EmbeddingClassifier, ResNet, build
from wording import mentions


def test_the_catalogue() -> None:
    assert list(MODELS) == [
        "mlp", "mnistnn", "cnn", "lenet", "mnistcnn", "cifar10cnn", "cnn20", "alexnet", "mobilenet", "resnet9",
        "resnet18", "resnet18cifar", "resnet20", "resnet34", "resnet34cifar", "embedding", "fasttext", "transformer",
        "convnorm",
    ]  # fmt: skip
    assert all(hasattr(stratafl.models, name) for name in stratafl.models.__all__)


@pytest.mark.parametrize(
    ("name", "kind", "shape", "options"),
    [
        ("mlp", MLP, (3,), {"hidden": [4]}),
        ("cnn", CNN, (1, 8, 8), {}),
        ("resnet9", ResNet, (3, 8, 8), {}),
        ("embedding", EmbeddingClassifier, (5,), {"vocabulary": 7, "width": 2, "padding": 6}),
        ("convnorm", ConvNorm, (1, 8, 8), {"channels": 2, "dropout": 0}),
    ],
)
def test_build(name: str, kind: type, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    assert type(build(name, shape=shape, classes=2, **options)) is kind


def test_unknown_model() -> None:
    with pytest.raises(UnknownNameError, match=r"'resnet81'.*'resnet18'") as caught:
        build("resnet81", shape=(3, 8, 8), classes=2)
    assert "convnorm" in str(caught.value)


def test_unknown_option() -> None:
    with pytest.raises(ModelError) as caught:
        build("embedding", shape=(8,), classes=2, vocabluary=9)
    assert mentions(str(caught.value), "'embedding'", "'vocabluary'", "'vocabulary'", "vocabulary, width, padding")
    with pytest.raises(ModelError, match=r"'cnn'.*'hidden'"):
        build("cnn", shape=(1, 8, 8), classes=2, hidden=3)


def test_a_maker_that_takes_anything_is_given_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def maker(**options: Any) -> nn.Module:
        return nn.Linear(options["shape"][0], options["classes"], bias=options["bias"])

    monkeypatch.setitem(MODELS, "own", maker)
    assert build("own", shape=(3,), classes=2, bias=False).bias is None


@pytest.mark.parametrize(
    ("name", "shape", "options", "values"),
    [
        ("cnn", (64,), {}, r"CNN.*\(64,\)"),
        ("cnn", (1, 3, 8), {}, "CNN.*4×4.*3×8"),
        ("resnet18", (32, 32), {}, r"ResNet.*\(32, 32\)"),
        ("resnet34", (0, 8, 8), {}, r"ResNet.*\(0, 8, 8\).*0"),
        ("lenet", (1, 8, 3), {}, "LeNet.*4×4.*8×3"),
        ("mnistcnn", (1, 3, 3), {}, "ThreeConv.*4×4.*3×3"),
        ("cifar10cnn", (3, 32, 32), {"dropout": -0.1}, r"ThreeConv.*0.*1.*\-0\.1"),
        ("cnn20", (3, 32, 7), {}, "CNN20.*8×8.*32×7"),
        (
            "cnn",
            (16, 16, 3),
            {},
            r"CNN.*4×4.*16×3.*\(16, 16, 3\)",
        ),
        ("alexnet", (1, 8, 8), {}, "AlexNet.*15×15.*8×8"),
        ("alexnet", (1, 28, 28), {"hidden": 9}, r"AlexNet.*\(512,\).*9"),
        ("mobilenet", (28, 28), {}, r"MobileNet.*\(28, 28\)"),
        ("mobilenet", (1, 8, 8), {"blocks": 12}, "MobileNet.*11.*13.*12"),
        (
            "mobilenet",
            (1, 8, 8),
            {"stem": "imagnet"},
            "'imagnet'.*'imagenet'",
        ),
        ("mnistnn", (3,), {"width": 0}, r"MLP.*hidden\[0\].*0"),
        ("convnorm", (1, 8, 1), {}, "ConvNorm.*2×2.*8×1"),
        ("convnorm", (1, 8, 8), {"dropout": 1.0}, r"ConvNorm.*0.*1.*1\.0"),
        ("convnorm", (1, 8, 8), {"channels": 2.5}, r"ConvNorm.*2\.5"),
        ("mlp", (), {}, r"MLP.*\(\)"),
        ("mlp", (3,), {"hidden": (4, 0)}, r"MLP.*hidden\[1\].*0"),
        ("mlp", (3,), {"hidden": 200}, r"MLP.*hidden.*200"),
        ("embedding", (2, 3), {"vocabulary": 9}, r"EmbeddingClassifier.*\(2, 3\)"),
        ("embedding", (3,), {}, "EmbeddingClassifier.*'vocabulary'"),
        ("transformer", (2, 3), {}, r"transformer.*\(2, 3\)"),
        ("transformer", (3,), {"heads": 3}, "transformer.*64.*3"),
        ("transformer", (3,), {"dropout": 1.0}, "transformer.*dropout"),
        (
            "embedding",
            (3,),
            {"vocabulary": 9, "padding": 9},
            "EmbeddingClassifier.*0.*8.*9",
        ),
        (
            "resnet18",
            (3, 8, 8),
            {"stem": "cifra"},
            "'cifra'.*'cifar'",
        ),
    ],
)
def test_refusals(name: str, shape: tuple[int, ...], options: dict[str, Any], values: str) -> None:
    with pytest.raises(ModelError, match=values):
        build(name, shape=shape, classes=2, **options)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("classes", [0, -1, True, "3"])
def test_the_number_of_classes_is_checked(name: str, classes: Any) -> None:
    options = {"vocabulary": 5} if name in ("embedding", "fasttext", "transformer") else {}
    with pytest.raises(ModelError, match=f"classes.*{classes!r}"):
        build(name, shape=(8,) if options else (1, 16, 16), classes=classes, **options)


@pytest.mark.parametrize("blocks", [(), 3, "22"])
def test_the_blocks_are_checked(blocks: Any) -> None:
    with pytest.raises(ModelError, match=r"ResNet.*blocks"):
        ResNet(shape=(3, 8, 8), classes=2, blocks=blocks)
