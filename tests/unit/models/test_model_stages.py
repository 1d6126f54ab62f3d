"""Every model is a chain of stages that covers it."""

import copy
from collections import OrderedDict
from itertools import chain

import pytest
import torch
from model_cases import Case
from torch import nn

from stratafl.errors import ModelError
from stratafl.models import MLP, ConvNorm, EmbeddingClassifier, ResNet, Staged, build
from stratafl.models.transformer import EncoderBlock


def test_feature_and_output_shapes(case: Case) -> None:
    model, x = case.model().eval(), case.batch()
    assert model.features(x).shape == (3, case.width)
    assert model(x).shape == (3, case.classes)


def test_forward_is_the_head_on_the_features(case: Case) -> None:
    model, x = case.model().eval(), case.batch()
    head = model.get_submodule(model.head_name)
    torch.testing.assert_close(model(x), head(model.features(x)), rtol=0, atol=0)


def test_forward_is_the_chain_of_stages(case: Case) -> None:
    model, x = case.model().eval(), case.batch()
    expected = model(x)
    for stage in model.stages():
        x = stage.run(x)
    torch.testing.assert_close(x, expected, rtol=0, atol=0)


def test_stages_cover_every_parameter_and_buffer_exactly_once(case: Case) -> None:
    model = case.model()
    for name in model.state_dict():
        assert sum(name.startswith(f"{module}.") for stage in model.stages() for module in stage.modules) == 1, name


def test_stage_names_are_distinct_and_end_with_the_head(case: Case) -> None:
    model = case.model()
    names = [stage.name for stage in model.stages()]
    assert len(set(names)) == len(names)
    assert model.stages()[-1].modules == (names[-1],) == (model.head_name,)


def test_a_swapped_head_is_used(case: Case) -> None:
    model, x = case.model().eval(), case.batch()
    features = model.features(x)
    setattr(model, model.head_name, nn.Identity())
    torch.testing.assert_close(model(x), features, rtol=0, atol=0)


def test_a_deep_copy_runs_its_own_modules(case: Case) -> None:
    model, x = case.model().eval(), case.batch()
    expected, twin = model(x), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    torch.testing.assert_close(twin(x), expected, rtol=0, atol=0)


def test_every_parameter_gets_a_gradient(case: Case) -> None:
    model = case.model()
    model(case.batch(4)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_mlp_equals_its_definition() -> None:
    model = MLP(shape=(2, 3), classes=4, hidden=(5, 7))
    layers = OrderedDict(a=nn.Flatten(), b=model.fc1, c=nn.ReLU(), d=model.fc2, e=nn.ReLU(), f=model.fc)
    x = torch.randn(3, 2, 3)
    torch.testing.assert_close(model(x), nn.Sequential(layers)(x))
    assert [stage.name for stage in model.stages()] == ["fc1", "fc2", "fc"]


@pytest.mark.parametrize("side", [28, 8])
def test_cnn_equals_its_definition(side: int) -> None:
    model = build("cnn", shape=(1, side, side), classes=10)
    definition = nn.Sequential(
        model.conv1, nn.ReLU(), nn.MaxPool2d(2), model.conv2, nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), model.fc1, nn.ReLU(), model.fc,
    )  # fmt: skip
    x = torch.randn(3, 1, side, side)
    torch.testing.assert_close(model(x), definition(x))
    assert model.conv1.padding == model.conv2.padding == ((0, 0) if side == 28 else (2, 2))


@pytest.mark.parametrize("last_relu", [False, True])
def test_threeconv_equals_its_definition(last_relu: bool) -> None:
    model = build("cifar10cnn", shape=(3, 32, 32), classes=10, last_relu=last_relu)
    definition = nn.Sequential(
        model.conv1, nn.ReLU(), nn.MaxPool2d(2), model.conv2, nn.ReLU(), nn.MaxPool2d(2),
        model.conv3, nn.ReLU() if last_relu else nn.Identity(), nn.Flatten(), model.fc1, nn.ReLU(), model.fc,
    )  # fmt: skip
    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(model(x), definition(x))
    assert model.conv1.padding == (0, 0)


def test_threeconv_drops_after_every_convolution() -> None:
    model, x = build("mnistcnn", shape=(1, 28, 28), classes=10, dropout=0.5), torch.randn(2, 1, 28, 28)
    with torch.no_grad():
        for stage in model.stages()[:3]:
            model.get_submodule(stage.name).bias.fill_(10.0)  # so that no ReLU makes zeros
            x = stage.run(x)
            assert stage.modules == (stage.name, f"drop{stage.name[-1]}")
            assert 0.4 < (x == 0).float().mean() < 0.6
            x = torch.randn_like(x)


def test_cnn20_equals_its_definition() -> None:
    model = build("cnn20", shape=(3, 16, 16), classes=10)
    pairs = [(f"conv{i}", f"conv{i + 1}") for i in (1, 3, 5)]
    steps = [[model.get_submodule(a), nn.ReLU(), model.get_submodule(b), nn.ReLU(), nn.MaxPool2d(2)] for a, b in pairs]
    definition = nn.Sequential(*chain(*steps), nn.Flatten(), model.fc1, nn.ReLU(), model.fc)
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(model(x), definition(x))


def test_alexnet_equals_its_definition() -> None:
    model, x = build("alexnet", shape=(3, 32, 32), classes=10, hidden=[20, 10]), torch.randn(2, 3, 32, 32)
    definition = nn.Sequential(
        model.conv1, nn.ReLU(), nn.MaxPool2d(2), model.conv2, nn.ReLU(), nn.MaxPool2d(2), model.conv3, nn.ReLU(),
        model.conv4, nn.ReLU(), model.conv5, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        model.fc1, nn.ReLU(), model.fc2, nn.ReLU(), model.fc,
    )  # fmt: skip
    torch.testing.assert_close(model(x), definition(x))
    assert model.head_name == "fc"


@pytest.mark.parametrize("blocks", [11, 13])
def test_mobilenet_equals_its_definition(blocks: int) -> None:
    model = build("mobilenet", shape=(1, 8, 8), classes=10, blocks=blocks)
    x = torch.randn(4, 1, 8, 8)
    separable = [model.get_submodule(f"block{i + 1}") for i in range(blocks)]
    steps = [[b.depthwise, b.bn1, nn.ReLU(), b.pointwise, b.bn2, nn.ReLU()] for b in separable]
    stem = (model.conv1, model.bn1, nn.ReLU())
    definition = nn.Sequential(*stem, *chain(*steps), nn.AdaptiveAvgPool2d(1), nn.Flatten(), model.fc)
    torch.testing.assert_close(model(x), definition(x))
    assert all(b.depthwise.groups == b.depthwise.in_channels for b in separable)
    assert [stage.name for stage in model.stages()] == ["stem", *(f"block{i + 1}" for i in range(blocks)), "fc"]


def test_resnet20_ends_with_three_linear_layers() -> None:
    model = build("resnet20", shape=(1, 8, 8), classes=10, blocks=(1, 1, 1)).eval()
    assert [stage.name for stage in model.stages()] == [
        "stem", "layer1.0", "layer2.0", "layer3.0", "fc1", "fc2", "fc",
    ]  # fmt: skip
    x = torch.randn(2, 1, 8, 8)
    for stage in model.stages()[:4]:
        x = stage.run(x)
    linear = nn.Sequential(model.fc1, nn.ReLU(), model.fc2, nn.ReLU(), model.fc)
    torch.testing.assert_close(model.stages()[6].run(model.stages()[5].run(model.stages()[4].run(x))), linear(x))
    assert x.shape == (2, 256)


def test_convnorm_equals_its_definition_while_training() -> None:
    model = ConvNorm(shape=(1, 8, 8), classes=3, dropout=0.0)
    definition = nn.Sequential(
        model.conv1, nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), model.conv2, nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), model.fc,
    )  # fmt: skip
    x = torch.randn(5, 1, 8, 8)
    torch.testing.assert_close(model(x), definition(x))
    torch.testing.assert_close(model.bn2.running_mean, definition[5].running_mean)


def test_convnorm_drops_features_only_while_training() -> None:
    model, x = ConvNorm(shape=(1, 8, 8), classes=3, channels=64, dropout=0.5), torch.randn(4, 1, 8, 8)
    dropped = (model.features(x) == 0).float().mean()
    assert 0.3 < dropped < 0.7
    model.eval()
    assert (model.features(x) == 0).float().mean() < 0.1


def test_embedding_averages_pads_too() -> None:
    model = EmbeddingClassifier(shape=(4,), classes=2, vocabulary=9, width=3)
    x = torch.tensor([[5, 7, 0, 0]])
    mean = (model.embedding.weight[5] + model.embedding.weight[7]) / 4
    torch.testing.assert_close(model(x)[0], model.fc(model.fc1(mean)))


@pytest.mark.parametrize("name", ["fasttext", "transformer"])
def test_pads_are_left_out_of_a_text(name: str) -> None:
    options = {"pads": False} if name == "fasttext" else {"width": 8, "depth": 2, "hidden": 8}
    long, short = (build(name, shape=(n,), classes=2, vocabulary=9, **options).double() for n in (5, 3))
    weights = long.state_dict()
    short.load_state_dict({n: x[:3] if n == "position.weight" else x for n, x in weights.items()})
    alone, padded = short(torch.tensor([[5, 7, 8]])), long(torch.tensor([[5, 7, 8, 0, 0], [0, 0, 0, 0, 0]]))
    torch.testing.assert_close(padded[:1], alone)
    assert padded.isfinite().all()  # also of a text without a token


def test_attention_is_that_of_pytorch() -> None:
    block = EncoderBlock(8, 2, 12, 0.0).double().eval()
    x, real = torch.randn(2, 5, 8, dtype=torch.float64), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    stock = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    stock.load_state_dict(
        {
            "in_proj_weight": block.attention.weight,
            "in_proj_bias": block.attention.bias,
            "out_proj.weight": block.mixed.weight,
            "out_proj.bias": block.mixed.bias,
        }
    )
    normed = block.norm1(x)
    attended = x + stock(normed, normed, normed, key_padding_mask=~real)[0]
    expected = attended + block.fc2(torch.nn.functional.gelu(block.fc1(block.norm2(attended))))
    torch.testing.assert_close(block(x, real), expected)


def test_the_pad_row_gets_no_gradient() -> None:
    model = EmbeddingClassifier(shape=(4,), classes=2, vocabulary=9, padding=3)
    model(torch.tensor([[5, 7, 3, 3]])).sum().backward()
    moved = model.embedding.weight.grad.abs().sum(1) > 0
    assert moved.nonzero().flatten().tolist() == [5, 7]
    assert model.embedding.weight[3].abs().sum() == 0


def test_embedding_refuses_real_inputs() -> None:
    model = EmbeddingClassifier(shape=(4,), classes=2, vocabulary=9)
    with pytest.raises(ModelError, match="float32"):
        model(torch.zeros(1, 4))


def test_resnet_names_are_torchvisions() -> None:
    with torch.device("meta"):
        names = list(ResNet(shape=(3, 32, 32), classes=10).state_dict())
    bn = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert names[:6] == ["conv1.weight", *(f"bn1.{part}" for part in bn)]
    block = [name.removeprefix("layer2.0.") for name in names if name.startswith("layer2.0.")]
    assert block == [
        "conv1.weight", *(f"bn1.{part}" for part in bn),
        "conv2.weight", *(f"bn2.{part}" for part in bn),
        "downsample.0.weight", *(f"downsample.1.{part}" for part in bn),
    ]  # fmt: skip
    assert [name for name in names if "downsample.0" in name] == [f"layer{i}.0.downsample.0.weight" for i in (2, 3, 4)]
    assert names[-2:] == ["fc.weight", "fc.bias"]
    assert len(names) == 122


@pytest.mark.parametrize(("stem", "sides"), [("torchvision", [8, 8, 4, 2]), ("cifar", [32, 32, 16, 8])])
def test_resnet_stages_and_sides(stem: str, sides: list[int]) -> None:
    model = ResNet(shape=(3, 32, 32), classes=10, blocks=(1, 1, 1, 1), stem=stem).eval()
    x, seen = torch.zeros(1, 3, 32, 32), []
    for stage in model.stages()[:4]:
        x = stage.run(x)
        seen.append(x.shape[-1])
    assert seen == sides
    assert [stage.name for stage in model.stages()] == ["stem", "layer1.0", "layer2.0", "layer3.0", "layer4.0", "fc"]


def test_resnet_block_equals_its_definition() -> None:
    model = ResNet(shape=(3, 8, 8), classes=2, blocks=(1, 1), stem="cifar").eval()
    block = model.get_submodule("layer2.0")
    x = torch.randn(2, 64, 8, 8)
    inner = nn.Sequential(block.conv1, block.bn1, nn.ReLU(), block.conv2, block.bn2)
    torch.testing.assert_close(block(x), torch.relu(inner(x) + block.downsample(x)))
    pooled = model.stages()[-2].run(x)
    torch.testing.assert_close(pooled, torch.relu(inner(x) + block.downsample(x)).mean((2, 3)))


def test_resnet_initialisation() -> None:
    torch.manual_seed(0)
    model = ResNet(shape=(3, 32, 32), classes=10, blocks=(1, 1, 1))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 4:
            outputs, _, height, width = parameter.shape
            expected = (2 / (outputs * height * width)) ** 0.5
            assert parameter.std().item() == pytest.approx(expected, rel=0.05), name
        elif "fc" not in name:
            assert (parameter == (1 if name.endswith("weight") else 0)).all(), name
    assert model.fc.weight.abs().max() <= 1 / 256**0.5


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 64, 64), (3, 224, 224), (2, 1, 5)])
def test_resnet_takes_images_of_any_size(shape: tuple[int, ...]) -> None:
    with torch.device("meta"):
        assert ResNet(shape=shape, classes=7).eval()(torch.zeros(2, *shape)).shape == (2, 7)


def test_staged_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Staged()
