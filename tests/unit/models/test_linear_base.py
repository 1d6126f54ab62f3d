"""One linear layer in place of the shared base."""

import copy
import pickle

import pytest
import torch
from model_cases import CASES
from torch import nn

from stratafl.errors import ModelError
from stratafl.models import MLP, ConvNorm, EmbeddingClassifier, LinearBase, ResNet, resnet34

SHAPE = (3, 32, 32)


def small(training: bool = False) -> ResNet:
    return ResNet(shape=(3, 8, 8), classes=3, blocks=(1, 2), stem="cifar").train(training)


@pytest.mark.parametrize(
    ("stem", "personal", "received"),
    [
        pytest.param("torchvision", 2, (512, 1, 1), marks=pytest.mark.slow),
        ("cifar", 1, (512,)),
        ("cifar", 4, (256, 8, 8)),
    ],
)
def test_resnet34_base_shapes(stem: str, personal: int, received: tuple[int, ...]) -> None:
    with torch.device("meta"):
        model = LinearBase(resnet34(shape=SHAPE, classes=10, stem=stem), personal, SHAPE)
        seen = model.stages()[0].run(torch.zeros(2, *SHAPE))
        assert model.eval()(torch.zeros(2, *SHAPE)).shape == (2, 10)
    assert seen.shape == (2, *received)
    assert model.personal_shape == received
    assert (model.base.in_features, model.base.out_features) == (3072, torch.Size(received).numel())


def test_the_personal_state_keeps_its_names_and_tensors() -> None:
    with torch.device("meta"):
        original = resnet34(shape=SHAPE, classes=10)
        model = LinearBase(original, 3, SHAPE)
    state = model.state_dict(keep_vars=True)
    kept = {
        k: v for k, v in original.state_dict(keep_vars=True).items() if k.startswith(("layer4.1", "layer4.2", "fc"))
    }
    assert "layer4.2.conv1.weight" in kept
    assert state.keys() == kept.keys() | {"base.weight", "base.bias"}
    assert all(state[name] is value for name, value in kept.items())
    assert [stage.name for stage in model.stages()] == ["base", "layer4.1", "layer4.2", "fc"]
    personal = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("base."))
    assert personal == 9_446_410


def test_the_stages_cover_the_parameters() -> None:
    model = LinearBase(small(), 3, (3, 8, 8))
    for name in model.state_dict():
        assert sum(name.startswith(f"{module}.") for stage in model.stages() for module in stage.modules) == 1, name


def test_the_output_is_the_personal_part_on_the_linear_map() -> None:
    original = small()
    model, x = LinearBase(original, 2, (3, 8, 8)), torch.randn(4, 3, 8, 8)
    received = (x.flatten(1) @ model.base.weight.T + model.base.bias).reshape(4, 128, 4, 4)
    last = original.get_submodule("layer2.1")
    torch.testing.assert_close(model(x), original.fc(last(received).mean((2, 3))))
    torch.testing.assert_close(model.features(x), last(received).mean((2, 3)))


@pytest.mark.parametrize("name", ["mlp", "mlp-no-hidden", "cnn-28", "cnn-8", "resnet-two-groups", "convnorm"])
def test_models_of_real_inputs_take_a_linear_base(name: str) -> None:
    case = CASES[name]
    model = LinearBase(case.model(), 1, case.shape).eval()
    assert model.features(case.batch()).shape == (3, case.width)
    assert model(case.batch()).shape == (3, case.classes)


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_run_their_own_modules(twin) -> None:  # type: ignore[no-untyped-def]
    model, x = LinearBase(small(), 2, (3, 8, 8)), torch.randn(2, 3, 8, 8)
    expected, other = model(x), twin(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    torch.testing.assert_close(other(x), expected, rtol=0, atol=0)
    other.fc = nn.Identity()
    assert other(x).shape == (2, 128)
    assert model(x).shape == (2, 3)


def test_swapped_modules_are_used_and_the_original_is_left_alone() -> None:
    original = small()
    model, x = LinearBase(original, 2, (3, 8, 8)), torch.randn(2, 3, 8, 8)
    model.fc = nn.Identity()
    torch.testing.assert_close(model(x), model.features(x), rtol=0, atol=0)
    assert isinstance(original.fc, nn.Linear)
    assert original(x).shape == (2, 3)


@pytest.mark.parametrize("training", [True, False])
def test_the_probe_changes_neither_mode_nor_statistics(training: bool) -> None:
    original = small(training)
    original.layer2.eval()
    before = {name: value.clone() for name, value in original.state_dict().items()}
    model = LinearBase(original, 2, (3, 8, 8))
    assert model.training is model.base.training is original.training is original.bn1.training is training
    assert not model.get_submodule("layer2.1").training
    for name, value in original.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def test_train_and_eval_reach_the_personal_part() -> None:
    model = LinearBase(ConvNorm(shape=(1, 8, 8), classes=2), 2, (1, 8, 8))
    model.eval()
    assert not any(module.training for module in model.modules())
    assert not model._host.training
    model.train()
    assert model.drop.training
    assert model._host.training


def test_the_base_has_the_models_precision() -> None:
    model = LinearBase(MLP(shape=(4,), classes=2).double(), 1, (4,))
    assert model.base.weight.dtype == torch.float64


@pytest.mark.parametrize("personal", [0, 5, -1])
def test_the_number_of_personal_stages_is_checked(personal: int) -> None:
    with pytest.raises(ModelError, match=f"ResNet .*1 to 4 .*{personal}$"):
        LinearBase(small(), personal, (3, 8, 8))


def test_a_shape_the_model_does_not_take_is_refused() -> None:
    with pytest.raises(ModelError, match=r"ResNet.*\(1, 8, 8\)"):
        LinearBase(small(), 1, (1, 8, 8))


def test_tokens_are_refused() -> None:
    with pytest.raises(ModelError, match="token ids"):
        LinearBase(EmbeddingClassifier(shape=(4,), classes=2, vocabulary=9), 1, (4,))


def test_a_clash_of_names_is_refused() -> None:
    class Clash(MLP):
        head_name = "base"

        def __init__(self) -> None:
            super().__init__(shape=(4,), classes=2)
            self.base = self.fc
            del self.fc

    with pytest.raises(ModelError, match="'base'"):
        LinearBase(Clash(), 1, (4,))
