"""From a module to a layout: what is a column, what is a layer, what is the head."""

import logging

import pytest
import torch
from torch import nn

from stratafl.core.describe import columns, describe, head_of
from stratafl.errors import ModelError, UnknownNameError
from stratafl.models import ConvNorm, build


def convnorm() -> ConvNorm:
    return ConvNorm(shape=(1, 4, 4), classes=3, channels=2)


def heads(module: nn.Module, **options: object) -> list[str]:
    return [layer.name for layer in describe(module, **options).layers if layer.head]


# The head


def test_the_default_head_is_the_last_linear_layer():
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4), nn.BatchNorm1d(4))
    assert head_of(module) == "2"
    assert heads(module) == ["2"]


def test_without_a_linear_layer_the_last_one_is_the_head():
    assert heads(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 3, 3), nn.ReLU())) == ["1"]


def test_a_module_may_declare_its_head():
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    module.head_name = "0"
    assert heads(module) == ["0"]
    assert heads(module, head="1") == ["1"]


def test_a_head_may_be_a_module_of_several_layers():
    module = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4)))
    assert heads(module, head="1") == ["1.0", "1.2"]


def test_a_block_is_the_head_only_if_all_of_it_is():
    module = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4)))
    assert heads(module, head="1.1", granularity="block") == []
    assert heads(module, head="1", granularity="block") == ["1"]


@pytest.mark.parametrize("path", ["fcc", "f", "drop", "conv"])
def test_a_head_that_does_not_exist_is_refused(path):
    with pytest.raises(UnknownNameError, match=rf"unknown head '{path}'.*one of: conv1, bn1, conv2, bn2, fc"):
        describe(convnorm(), head=path)


class TwoOutputs(nn.Module):
    """A body, and two layers side by side that give classes and an age."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 8))
        self.classes, self.age = nn.Linear(8, 3), nn.Linear(8, 1)


def notes_on_head(caplog, module):
    caplog.clear()
    with caplog.at_level(logging.WARNING, "stratafl"):
        head_of(module)
    return [record.args for record in caplog.records]


def test_a_head_that_is_one_of_two_output_layers_is_not_guessed_in_silence(caplog):
    ((_, outputs, head),) = notes_on_head(caplog, TwoOutputs())
    assert (outputs, head) == ("'classes' and 'age'", "age")
    declared = TwoOutputs()
    declared.head_name = "classes"
    assert notes_on_head(caplog, declared) == []


def test_a_frozen_copy_of_the_head_is_no_second_output(caplog):
    """As PEFT keeps one beside a classifier that is trained."""
    module = TwoOutputs()
    module.age.requires_grad_(False)
    assert notes_on_head(caplog, module) == []


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3)),
        nn.Sequential(nn.Linear(4, 9), nn.LSTM(9, 5), nn.Linear(5, 2)),
        nn.TransformerEncoderLayer(8, 2, 16),
    ],
)
def test_layers_that_follow_each_other_are_one_output(caplog, module):
    assert notes_on_head(caplog, module) == []


# Columns


def test_buffers_are_columns_and_counters_are_not():
    layout = describe(convnorm())
    assert [n for n, s in layout.specs.items() if not s.trainable] == [
        "bn1.running_mean",
        "bn1.running_var",
        "bn2.running_mean",
        "bn2.running_var",
    ]
    assert not [name for name in columns(convnorm()) if "num_batches" in name]


def test_columns_are_the_tensors_themselves_in_the_layouts_order():
    module = convnorm()
    found = columns(module)
    assert list(found) == list(describe(module).specs)
    expected = {k: v for k, v in module.state_dict().items() if not k.endswith("num_batches_tracked")}
    assert {name: tuple(x.shape) for name, x in found.items()} == {n: tuple(x.shape) for n, x in expected.items()}
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert not any(x.requires_grad for x in found.values())


def test_a_buffer_that_is_not_saved_is_no_column():
    module = nn.Sequential(nn.Linear(2, 2))
    module[0].register_buffer("kept", torch.zeros(1))
    module[0].register_buffer("passing", torch.zeros(1), persistent=False)
    module[0].register_buffer("counter", torch.zeros(1, dtype=torch.int64))
    assert list(columns(module)) == ["0.weight", "0.bias", "0.kept"]


def test_two_layers_of_one_name_in_an_extended_model_are_refused():
    module = nn.Sequential()
    module.inner = nn.Sequential()
    module.inner.fc, module.fc = nn.Linear(2, 2), nn.Linear(2, 2)
    with pytest.raises(ModelError, match="'fc'"):
        describe(module)


def test_a_batchnorm_that_counts_its_batches_is_refused():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=None))
    with pytest.raises(ModelError, match=r"'1' has momentum=None"):
        describe(module)


def test_a_batchnorm_without_statistics_is_welcome():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=None, track_running_stats=False))
    assert list(describe(module).specs) == ["0.weight", "0.bias", "1.weight", "1.bias"]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5)
        self.out.weight = self.words.weight


def test_tied_parameters_appear_once():
    layout = describe(Tied())
    assert list(layout.specs) == ["words.weight", "out.bias"] == list(columns(Tied()))
    assert layout.columns == 15 + 5
    assert [(layer.name, layer.kind, layer.tensors) for layer in layout.layers] == [
        ("words", "embedding", ("words.weight",)),
        ("out", "linear", ("out.bias",)),
    ]


def test_a_module_used_twice_appears_once():
    shared = nn.Linear(2, 2)
    assert list(describe(nn.Sequential(shared, nn.ReLU(), shared)).specs) == ["0.weight", "0.bias"]


@pytest.mark.parametrize("module", [nn.ReLU(), nn.Sequential(nn.Flatten(), nn.Dropout())])
def test_a_module_without_parameters_is_refused(module):
    with pytest.raises(ModelError, match=type(module).__name__):
        describe(module)


def test_a_parameter_of_the_root_is_a_layer_of_its_own():
    module = nn.Sequential(nn.Linear(2, 2))
    module.register_parameter("scale", nn.Parameter(torch.ones(2)))
    for granularity in ("tensor", "module", "block"):
        assert "scale" in describe(module, granularity=granularity).names


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            {"granularity": "modul"},
            r"unknown granularity 'modul'; did you mean 'module'\? Choose one of: block, module, tensor",
        ),
        ({"buffers": "folow"}, r"unknown buffers rule 'folow'; did you mean 'follow'\? Choose one of: follow, local"),
    ],
)
def test_an_option_that_does_not_exist_is_refused(option, message):
    with pytest.raises(UnknownNameError, match=message):
        describe(convnorm(), **option)


# Layers


def test_kinds_and_what_a_normalisation_follows():
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.GroupNorm(2, 4),
        nn.Conv2d(4, 4, 1),
        nn.BatchNorm2d(4),
        nn.Flatten(),
        nn.Linear(4, 6),
        nn.LayerNorm(6),
        nn.PReLU(),
        nn.Linear(6, 2),
    )
    assert [(layer.name, layer.kind, layer.normalises) for layer in describe(module).layers] == [
        ("0", "convolution", None),
        ("1", "norm", "0"),
        ("2", "convolution", None),
        ("3", "batchnorm", "2"),
        ("5", "linear", None),
        ("6", "norm", "5"),
        ("7", "other", None),
        ("8", "linear", None),
    ]


@pytest.mark.parametrize(
    ("module", "kind"),
    [(nn.LSTM(2, 3), "recurrent"), (nn.Embedding(4, 2), "embedding"), (nn.Conv1d(1, 1, 1), "convolution")],
)
def test_further_kinds(module, kind):
    assert describe(nn.Sequential(module)).layers[0].kind == kind


def test_a_normalisation_with_nothing_of_its_width_before_it_stands_alone():
    layout = describe(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)))
    assert layout.layer("0").normalises is None
    assert layout.resolve("first:1") == ("0",)


def test_a_normalisation_follows_the_nearest_layer_of_its_width():
    module = nn.ModuleDict({"wide": nn.Conv2d(1, 4, 1), "thin": nn.Conv2d(4, 2, 1), "norm": nn.BatchNorm2d(4)})
    assert describe(module).layer("norm").normalises == "wide"


def followed(**modules: nn.Module) -> dict[str, str | None]:
    layers = describe(nn.ModuleDict(modules)).layers
    return {layer.name: layer.normalises for layer in layers if not layer.computes}


def convolutions(*widths: int) -> dict[str, nn.Module]:
    return {f"conv{i}": nn.Conv2d(1, width, 1) for i, width in enumerate(widths, 1)}


def norms(*widths: int) -> dict[str, nn.Module]:
    return {f"bn{i}": nn.BatchNorm2d(width) for i, width in enumerate(widths, 1)}


def test_normalisations_made_after_all_convolutions_are_paired_in_order():
    assert followed(**convolutions(4, 4), **norms(4, 4)) == {"bn1": "conv1", "bn2": "conv2"}
    assert followed(**convolutions(4, 8, 4), **norms(4, 8, 4)) == {"bn1": "conv1", "bn2": "conv2", "bn3": "conv3"}
    assert followed(**convolutions(4, 4, 4), **norms(4, 4)) == {"bn1": "conv2", "bn2": "conv3"}  # the nearest ones
    assert followed(**convolutions(4, 4), **norms(4, 4, 4)) == {"bn1": "conv1", "bn2": "conv2", "bn3": "conv2"}
    assert followed(**convolutions(8, 4), **norms(4, 4)) == {"bn1": "conv2", "bn2": "conv2"}  # nobody else is as wide


def test_the_normalisations_of_a_transformer_follow_what_they_normalise():
    """PyTorch makes both at the end of a layer; what they normalise ends with attention's output and with linear2."""
    layout = describe(nn.Sequential(nn.Linear(3, 8), nn.TransformerEncoderLayer(8, 2, 16), nn.Linear(8, 2)))
    assert layout.layer("1.norm1").normalises == "1.self_attn.out_proj"
    assert layout.layer("1.norm2").normalises == "1.linear2"


@pytest.mark.slow
def test_blocks_are_the_models_stages_or_else_its_children():
    assert [layer.block for layer in describe(convnorm()).layers] == ["conv1", "conv1", "conv2", "conv2", "fc"]
    resnet = describe(build("resnet18cifar", shape=(3, 8, 8), classes=2), granularity="block")
    assert resnet.names[:3] == ("stem", "layer1.0", "layer1.1")
    children = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))
    assert [layer.block for layer in describe(children).layers] == ["0", "0", "1"]


class Extended(nn.Module):
    """A model with a layer more."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = convnorm()
        self.extra = nn.Linear(3, 3)


@pytest.mark.parametrize("granularity", ["tensor", "module", "block"])
def test_an_extended_model_keeps_the_names_of_its_layers(granularity):
    plain, extended = (describe(m, granularity=granularity) for m in (convnorm(), Extended()))
    assert extended.names[: len(plain.names)] == plain.names
    assert {name.partition(".")[0] for name in extended.names[len(plain.names) :]} == {"extra"}
    for before, after in zip(plain.layers, extended.layers, strict=False):
        assert after.tensors == tuple(f"inner.{name}" for name in before.tensors)
        assert (after.kind, after.block, after.normalises) == (before.kind, before.block, before.normalises)


def test_the_head_of_an_extended_model_can_be_named():
    assert heads(Extended()) == ["extra"]
    assert heads(Extended(), head="inner.fc") == ["fc"]
