"""Selections of layers: every rule, on layers made by hand and on real models."""

from functools import cache

import pytest
from torch import nn

from stratafl.core.describe import describe
from stratafl.core.layers import RULES, Layer, Select, select
from stratafl.core.layout import Layout
from stratafl.errors import RecordError, UnknownNameError
from stratafl.models import build


def made(name: str, kind: str, block: str, normalises: str | None = None, head: bool = False) -> Layer:
    return Layer(name, kind, block, head, normalises, (f"{name}.weight",))


LAYERS = (
    made("stem.conv", "convolution", "stem"),
    made("stem.bn", "batchnorm", "stem", "stem.conv"),
    made("body.0", "convolution", "body"),
    made("body.1", "norm", "body", "body.0"),
    made("body.2", "linear", "body"),
    made("neck", "linear", "neck"),
    made("neck2", "linear", "top", head=True),
)
EVERY = tuple(layer.name for layer in LAYERS)


def chosen(text: str) -> str:
    return " ".join(select(text).resolve(LAYERS))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", "stem.conv stem.bn body.0 body.1 body.2 neck neck2"),
        ("none", ""),
        ("head", "neck2"),
        ("base", "stem.conv stem.bn body.0 body.1 body.2 neck"),
        ("batchnorm", "stem.bn"),
        ("first:0", ""),
        ("first:1", "stem.conv stem.bn"),
        ("first:2", "stem.conv stem.bn body.0 body.1"),
        ("middle:1", "body.2"),
        ("middle:2", "body.0 body.1 body.2"),
        ("middle:3", "body.0 body.1 body.2 neck"),
        ("last:0", ""),
        ("last:1", "neck2"),
        ("last:4", "body.0 body.1 body.2 neck neck2"),
        ("last:5", "stem.conv stem.bn body.0 body.1 body.2 neck neck2"),
        ("blocks:0", ""),
        ("blocks:1", "neck2"),
        ("blocks:3", "body.0 body.1 body.2 neck neck2"),
        ("blocks:4", "stem.conv stem.bn body.0 body.1 body.2 neck neck2"),
        ("body.1", "body.1"),
        ("body", "body.0 body.1 body.2"),
        ("neck", "neck"),
        ("neck*", "neck neck2"),
        ("*.bn", "stem.bn"),
        ("body.[0-1]", "body.0 body.1"),
        ("?tem.*", "stem.conv stem.bn"),
        ("*.bn+neck", "stem.bn neck"),
        ("not body.*", "stem.conv stem.bn neck neck2"),
        ("head+batchnorm", "stem.bn neck2"),
        ("neck2 + stem.conv", "stem.conv neck2"),
        ("head, body.0", "body.0 neck2"),
        ("head+none", "neck2"),
        ("not head", "stem.conv stem.bn body.0 body.1 body.2 neck"),
        ("not last:2", "stem.conv stem.bn body.0 body.1 body.2"),
        ("not head+body", "stem.conv stem.bn neck"),
        ("not all", ""),
    ],
)
def test_a_rule_chooses_its_layers_in_forward_order(text, expected):
    assert chosen(text) == expected


@pytest.mark.parametrize(
    "text", ["all", "none", "head", "base", "batchnorm", "last:2", "not body", "not head", "head+batchnorm"]
)
def test_a_complement_is_what_is_left_and_twice_is_nothing(text):
    rule = select(text)
    assert set(rule.resolve(LAYERS)) ^ set((~rule).resolve(LAYERS)) == set(EVERY)
    assert set(rule.resolve(LAYERS)) & set((~rule).resolve(LAYERS)) == set()
    assert (~~rule).resolve(LAYERS) == rule.resolve(LAYERS)


@pytest.mark.parametrize(
    ("text", "opposite"),
    [("head", "base"), ("base", "head"), ("all", "none"), ("none", "all"), ("batchnorm", "not batchnorm")],
)
def test_the_complement_of_a_rule_is_written_simply(text, opposite):
    assert str(~select(text)) == opposite


@pytest.mark.parametrize("text", ["head", "not conv1", "last:2", "head+batchnorm", "not blocks:2+stem", "layer4.1.bn2"])
def test_text_and_selection_go_back_and_forth(text):
    assert str(select(text)) == text
    assert Select.parse(str(select(text))) == select(text)
    assert select(select(text)) == select(text)
    assert Select.parse(str(~select(text))) == ~select(text)


def test_spaces_and_commas_are_forgiven():
    assert select(" head , batchnorm") == select("head+batchnorm") == Select(("head", "batchnorm"))


def test_a_selection_is_a_value():
    assert select("head") == select("head")
    assert len({select("head"), select("head"), select("not head")}) == 2


@pytest.mark.parametrize("text", ["", "+", "not ", " , "])
def test_an_empty_selection_is_refused(text):
    with pytest.raises(RecordError, match=r"selects nothing: write 'none'"):
        select(text)


@pytest.mark.parametrize("text", ["last:", "last:x", "last:-1", "blocks:1.5"])
def test_a_count_that_is_no_number_is_refused(text):
    with pytest.raises(RecordError, match=rf"'{text}'.*'{text.split(':')[0]}:2'"):
        select(text)


def test_an_unknown_rule_answers_with_the_nearest():
    with pytest.raises(UnknownNameError) as refusal:
        select("lsat:2")
    message = "unknown layer rule 'lsat'; did you mean 'last'? Choose one of: first, middle, last, blocks, layer"
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("text", "nearest"), [("body.3", "body.2"), ("hed", "head"), ("head+nekc", "neck"), ("bod", "")]
)
def test_an_unknown_layer_answers_with_the_names_and_the_nearest_one(text, nearest):
    with pytest.raises(UnknownNameError) as refusal:
        chosen(text)
    message = str(refusal.value)
    assert message.startswith(f"unknown layer '{text.split('+')[-1]}'")
    assert f"did you mean '{nearest}" in message
    assert ", ".join((*EVERY, *RULES)) in message
    assert "\n" not in message


@pytest.mark.parametrize("rule", ["first", "middle", "last"])
def test_a_count_larger_than_the_model_is_refused(rule):
    expected = f"'{rule}:6' asks for 6 layers, but there are 5: stem.conv, body.0, body.2, neck, neck2"
    with pytest.raises(RecordError, match=expected):
        chosen(f"{rule}:6")


def test_more_blocks_than_the_model_has_are_refused():
    with pytest.raises(RecordError, match="'blocks:5' asks for 5 blocks, but there are 4: stem, body, neck, top"):
        chosen("blocks:5")


# Real models


@cache
def model_of(name: str, shape: tuple[int, ...]) -> nn.Module:
    return build(name, shape=shape, classes=10)


@cache
def layout_of(name: str, shape: tuple[int, ...]) -> Layout:
    return describe(model_of(name, shape))


@pytest.fixture(scope="module")
def convnorm() -> Layout:
    return layout_of("convnorm", (1, 8, 8))


@pytest.fixture(scope="module")
def resnet18() -> Layout:
    return layout_of("resnet18", (3, 32, 32))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("head", "fc"),
        ("base", "conv1 bn1 conv2 bn2"),
        ("batchnorm", "bn1 bn2"),
        ("first:1", "conv1 bn1"),
        ("first:2", "conv1 bn1 conv2 bn2"),
        ("middle:1", "conv2 bn2"),
        ("last:1", "fc"),
        ("last:2", "conv2 bn2 fc"),
        ("blocks:2", "conv2 bn2 fc"),
        ("conv1+bn2", "conv1 bn2"),
    ],
)
def test_rules_on_convnorm(convnorm, text, expected):
    assert " ".join(convnorm.resolve(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("head", "fc"),
        ("first:1", "conv1 bn1"),
        ("first:2", "conv1 bn1 layer1.0.conv1 layer1.0.bn1"),
        ("last:2", "layer4.1.conv2 layer4.1.bn2 fc"),
        ("blocks:2", "layer4.1.conv1 layer4.1.bn1 layer4.1.conv2 layer4.1.bn2 fc"),
        ("layer4.1.bn2", "layer4.1.bn2"),
        ("layer4.1", "layer4.1.conv1 layer4.1.bn1 layer4.1.conv2 layer4.1.bn2"),
        ("layer2.0.downsample", "layer2.0.downsample.0 layer2.0.downsample.1"),
    ],
)
def test_rules_on_resnet18(resnet18, text, expected):
    assert " ".join(resnet18.resolve(text)) == expected


def test_a_shortcuts_batchnorm_follows_its_convolution(resnet18):
    assert resnet18.layer("layer2.0.downsample.1").normalises == "layer2.0.downsample.0"
    assert resnet18.layer("layer2.0.bn1").normalises == "layer2.0.conv1"


def test_resnet18_counts_21_units(resnet18):
    # A stem, 16 convolutions in eight blocks, three shortcuts and the head; 20 BatchNorms follow them.
    assert resnet18.resolve("last:21") == resnet18.names
    assert len(resnet18.names) == 41
    with pytest.raises(RecordError, match="there are 21"):
        resnet18.resolve("first:22")


def test_batchnorm_on_resnet18_is_every_batchnorm_module(resnet18):
    modules = model_of("resnet18", (3, 32, 32)).named_modules()
    found = tuple(path for path, sub in modules if isinstance(sub, nn.BatchNorm2d))
    assert resnet18.resolve("batchnorm") == found
    assert "layer2.0.downsample.1" in found
    assert len(found) == 20


@pytest.mark.parametrize(("count", "columns"), [(1, 5_130), (2, 4_725_770), (3, 9_446_410), (4, 13_119_498)])
def test_blocks_are_the_personal_layers_of_fedper_on_resnet34(count, columns):
    layout = layout_of("resnet34cifar", (3, 32, 32))
    assert sum(layout.specs[name].size for name in layout.trainable(f"blocks:{count}")) == columns


@pytest.mark.parametrize("granularity", ["tensor", "module", "block"])
def test_names_below_a_module_work_at_every_granularity(granularity):
    layout = describe(build("convnorm", shape=(1, 8, 8), classes=10), granularity=granularity)
    assert set(layout.trainable("fc")) == {"fc.weight", "fc.bias"} == set(layout.trainable("head"))
    assert "conv2.weight" in layout.trainable("conv2")
