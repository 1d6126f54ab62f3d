"""The parameter and tensor counts that the papers and their code fix."""

from typing import Any

import pytest
import torch
from torch import nn

from stratafl.models import Staged, build

GRAY, COLOUR, TINY = (1, 28, 28), (3, 32, 32), (3, 64, 64)

PARAMETERS = [
    ("mlp", GRAY, 10, {"hidden": (50,)}, 39_760, 4),
    ("mlp", GRAY, 10, {"hidden": (100,)}, 79_510, 4),
    ("mlp", GRAY, 10, {}, 159_010, 4),
    ("mlp", GRAY, 10, {"hidden": ()}, 7_850, 2),
    ("cnn", GRAY, 10, {}, 582_026, 8),
    ("cnn", GRAY, 62, {}, 608_702, 8),
    ("cnn", COLOUR, 10, {}, 878_538, 8),
    ("cnn", COLOUR, 100, {}, 924_708, 8),
    ("cnn", TINY, 200, {}, 5_694_600, 8),
    ("lenet", GRAY, 10, {}, 85_822, 10),
    ("lenet", GRAY, 62, {}, 90_242, 10),
    ("lenet", COLOUR, 10, {}, 121_182, 10),
    ("lenet", COLOUR, 10, {"norm": True}, 121_182 + 96, 14),
    ("lenet", COLOUR, 100, {}, 128_832, 10),
    ("embedding", (200,), 4, {"vocabulary": 98_635}, 3_157_508, 5),
    ("embedding", (200,), 4, {"vocabulary": 32_000}, 1_025_188, 5),
    ("embedding", (200,), 4, {"vocabulary": 32_000, "width": 512}, 16_648_708, 5),
    # tokens and places; attention, mixing, two layers and two norms of a block, twice; norm; head
    ("transformer", (32,), 4, {}, 8224 * 64 + 2 * (65 * 192 + 65 * 64 + 65 * 128 + 129 * 64 + 256) + 128 + 260, 30),
    ("resnet18", COLOUR, 10, {}, 11_181_642, 62),
    ("resnet18", COLOUR, 100, {}, 11_227_812, 62),
    ("resnet18", TINY, 200, {}, 11_279_112, 62),
    ("resnet18cifar", COLOUR, 10, {}, 11_173_962, 62),
    ("resnet34", COLOUR, 10, {}, 21_289_802, 110),
    ("resnet34", COLOUR, 100, {}, 21_335_972, 110),
    ("resnet34cifar", COLOUR, 10, {}, 21_282_122, 110),
    ("convnorm", (1, 8, 8), 10, {}, 770, 8),
    ("mnistnn", GRAY, 10, {}, 39_760, 4),
    ("mnistnn", GRAY, 10, {"width": 100}, 79_510, 4),
    ("mnistcnn", GRAY, 10, {}, 93_322, 10),
    ("cifar10cnn", COLOUR, 10, {}, 122_570, 10),
    ("cifar10cnn", COLOUR, 10, {"dropout": 0.2, "last_relu": True}, 122_570, 10),
    ("cifar10cnn", COLOUR, 100, {}, 128_420, 10),
    ("cnn20", COLOUR, 10, {}, 1_341_226, 16),
    ("cnn20", COLOUR, 100, {}, 1_387_396, 16),
    ("alexnet", COLOUR, 10, {}, 23_272_266, 16),
    ("fasttext", (200,), 4, {}, 3_157_508, 5),
    ("resnet9", GRAY, 10, {}, 1_695_210, 54),
    ("resnet9", GRAY, 62, {}, 1_701_918, 54),
    ("resnet20", COLOUR, 10, {}, 4_425_162, 69),
    ("resnet20", COLOUR, 100, {"blocks": (2, 3, 4)}, 5_543_460, 69),
    ("mobilenet", COLOUR, 10, {"blocks": 11}, 2_679_626, 71),
    ("mobilenet", COLOUR, 100, {"blocks": 11}, 2_771_876, 71),
    ("mobilenet", COLOUR, 5, {"blocks": 11}, 2_674_501, 71),
    ("mobilenet", COLOUR, 10, {}, 3_217_226, 83),
    ("mobilenet", COLOUR, 100, {}, 3_309_476, 83),
    ("mobilenet", (3, 224, 224), 5, {"stem": "imagenet"}, 3_212_101, 83),
]


def shapes_only(name: str, **options: Any) -> Staged:
    with torch.device("meta"):
        model = build(name, **options)
    assert isinstance(model, Staged)
    return model


def count(model: nn.Module, *prefixes: str) -> int:
    owned = tuple(f"{prefix}." for prefix in prefixes) or ""
    return sum(value.numel() for name, value in model.named_parameters() if name.startswith(owned))


@pytest.mark.parametrize(("name", "shape", "classes", "options", "parameters", "tensors"), PARAMETERS)
def test_parameters_and_tensors(
    name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any], parameters: int, tensors: int
) -> None:
    model = shapes_only(name, shape=shape, classes=classes, **options)
    assert count(model) == parameters
    assert len(list(model.parameters())) == tensors


@pytest.mark.parametrize(
    ("shape", "classes", "layers"),
    [
        (GRAY, 10, (832, 51_264, 524_800, 5_130)),
        (COLOUR, 10, (2_432, 51_264, 819_712, 5_130)),
        (COLOUR, 100, (2_432, 51_264, 819_712, 51_300)),
    ],
)
def test_cnn_layers(shape: tuple[int, ...], classes: int, layers: tuple[int, ...]) -> None:
    model = shapes_only("cnn", shape=shape, classes=classes)
    assert tuple(count(model, name) for name in ("conv1", "conv2", "fc1", "fc")) == layers


@pytest.mark.parametrize(
    ("shape", "layers"),
    [
        (GRAY, (416, 12_832, 61_560, 10_164, 850)),
        (COLOUR, (1_216, 12_832, 96_120, 10_164, 850)),
        ((1, 8, 8), (416, 12_832, 15_480, 10_164, 850)),
    ],
)
def test_lenet_layers(shape: tuple[int, ...], layers: tuple[int, ...]) -> None:
    model = shapes_only("lenet", shape=shape, classes=10)
    assert tuple(count(model, name) for name in ("conv1", "conv2", "fc1", "fc2", "fc3")) == layers


def test_lenet_normalises_between_convolution_and_relu() -> None:
    plain, model, x = (
        build("lenet", shape=(1, 8, 8), classes=2),
        build("lenet", shape=(1, 8, 8), classes=2, norm=True),
        torch.randn(4, 1, 8, 8),
    )
    assert [stage.name for stage in model.stages()] == ["conv1", "conv2", "fc1", "fc2", "fc3"]
    assert [name for name, _ in model.named_children()] == ["conv1", "bn1", "conv2", "bn2", "fc1", "fc2", "fc3"]
    model.load_state_dict(plain.state_dict(), strict=False)
    with torch.no_grad():
        model.bn1.bias.fill_(-100.0)  # so the ReLU after it lets nothing through
        assert not model.stages()[0].run(x).any()
        assert plain.stages()[0].run(x).any()


@pytest.mark.parametrize(
    ("side", "inputs"), [(28, 1024), (32, 1600), (64, 10_816), (16, 64), (15, 576), (8, 256), (4, 64)]
)
def test_cnn_hidden_layer_fits_the_image(side: int, inputs: int) -> None:
    model = shapes_only("cnn", shape=(3, side, side), classes=10)
    assert model.get_parameter("fc1.weight").shape == (512, inputs)


def test_embedding_layers() -> None:
    model = shapes_only("embedding", shape=(200,), classes=4, vocabulary=98_635)
    assert [count(model, name) for name in ("embedding", "fc1", "fc")] == [3_156_320, 1_056, 132]


def test_resnet18_groups_and_buffers() -> None:
    model = shapes_only("resnet18", shape=COLOUR, classes=10)
    groups = [("conv1", "bn1"), ("layer1",), ("layer2",), ("layer3",), ("layer4",), ("fc",)]
    assert [count(model, *group) for group in groups] == [9_536, 147_968, 525_568, 2_099_712, 8_393_728, 5_130]
    buffers = list(model.buffers())
    assert sum(b.numel() for b in buffers if b.is_floating_point()) == 9_600
    assert sum(b.numel() for b in buffers if not b.is_floating_point()) == 20
    assert sum(isinstance(m, nn.BatchNorm2d) for m in model.modules()) == 20


def test_resnet34_last_blocks() -> None:
    model = shapes_only("resnet34", shape=COLOUR, classes=10)
    assert [count(model, f"layer4.{i}") for i in (0, 1, 2)] == [3_673_088, 4_720_640, 4_720_640]


@pytest.mark.parametrize(
    ("name", "shape", "layers"),
    [
        ("cifar10cnn", COLOUR, (896, 18_496, 36_928, 65_600, 650)),
        ("mnistcnn", GRAY, (320, 18_496, 36_928, 36_928, 650)),
    ],
)
def test_threeconv_layers(name: str, shape: tuple[int, ...], layers: tuple[int, ...]) -> None:
    model = shapes_only(name, shape=shape, classes=10)
    assert tuple(count(model, layer) for layer in ("conv1", "conv2", "conv3", "fc1", "fc")) == layers


def test_alexnet_ends_with_1024_numbers_of_a_32_image() -> None:
    model = shapes_only("alexnet", shape=COLOUR, classes=10)
    assert model.get_parameter("fc1.weight").shape == (4096, 1024)
    light = shapes_only("alexnet", shape=COLOUR, classes=10, hidden=[1024, 512])
    assert [count(light, name) for name in ("fc1", "fc2", "fc")] == [1_049_600, 524_800, 5_130]


@pytest.mark.parametrize("blocks", [11, 13])
def test_mobilenet_blocks_and_buffers(blocks: int) -> None:
    model = shapes_only("mobilenet", shape=COLOUR, classes=10, blocks=blocks)
    assert [count(model, f"block{blocks - i}") for i in (2, 1, 0)] == [268_800, 531_968, 1_061_888]
    assert count(model, "conv1", "bn1") == 27 * 32 + 64
    assert sum(isinstance(m, nn.BatchNorm2d) for m in model.modules()) == 1 + 2 * blocks
    floats = sum(b.numel() for b in model.buffers() if b.is_floating_point())
    assert floats == {11: 17_792, 13: 17_792 + 2 * 2 * 1024}[blocks]  # mean and variance of every normalised channel


@pytest.mark.parametrize(("stem", "side", "last"), [("cifar", 32, 2), ("imagenet", 224, 7), ("cifar", 8, 1)])
def test_mobilenet_halves_the_side_four_times_after_its_stem(stem: str, side: int, last: int) -> None:
    model = shapes_only("mobilenet", shape=(3, side, side), classes=10, stem=stem).eval()
    x = torch.zeros(2, 3, side, side, device="meta")
    for stage in model.stages()[:-2]:
        x = stage.run(x)
    assert x.shape == (2, 1024, last, last)


PERSONAL = {
    "resnet34": (5_130, 4_725_770, 9_446_410, 13_119_498),
    "resnet34cifar": (5_130, 4_725_770, 9_446_410, 13_119_498),
    "mobilenet": (10_250, 1_072_138, 1_604_106, 1_872_906),
}


@pytest.mark.parametrize("name", PERSONAL)
@pytest.mark.parametrize("personal", [1, 2, 3, 4])
def test_the_personal_part_of_fedper(name: str, personal: int) -> None:
    model = shapes_only(name, shape=COLOUR, classes=10)
    owned = [module for stage in model.stages()[-personal:] for module in stage.modules]
    assert count(model, *owned) == PERSONAL[name][personal - 1]
