"""Composed heads: each formula against plain tensors, the weights they start from, and what they refuse."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import layer_norm

from stratafl.errors import ModelError
from stratafl.models import ComposedHead, HeadExtension, build, replace_head

KINDS = ("two", "bias", "prior", "shift", "gated", "conditional")
UNCHANGED = KINDS[:4]
X, Z = torch.randn(5, 6, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)


def mlp():
    torch.manual_seed(3)
    return build("mlp", shape=(6,), classes=3, hidden=(4,)).double().eval()


def composed(kind, model=None, head="fc", classes=3):
    return HeadExtension(kind)(model or mlp(), X[:1], classes, head)


def filled(kind):
    """A composed head in which every number is drawn."""
    head = composed(kind).fc
    with torch.no_grad():
        for tensor in head.state_dict().values():
            tensor.copy_(torch.randn_like(tensor))
    return head, dict(head.state_dict())


@pytest.mark.parametrize("kind", UNCHANGED)
def test_a_model_starts_with_the_outputs_it_had(kind):
    model = composed(kind)
    assert isinstance(model.fc, ComposedHead)
    torch.testing.assert_close(model(X), mlp()(X), rtol=0, atol=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_the_original_weights_are_kept_and_parts_have_type_and_mode_of_the_head(kind):
    model, part = composed(kind), {"two": "generic", "shift": "inner", "gated": "generic", "conditional": "classifier"}
    assert torch.equal(model.fc.get_submodule(part.get(kind, "linear")).weight, mlp().fc.weight)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert not any(sub.training for sub in model.modules())
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_parts_do_not_share_their_tensors(kind):
    model = composed(kind)
    tensors = list(model.parameters())
    assert len({p.data_ptr() for p in tensors}) == len(tensors)


def test_two_heads_are_added():
    head, p = filled("two")
    expected = Z @ (p["generic.weight"] + p["personal.weight"]).T + p["generic.bias"] + p["personal.bias"]
    torch.testing.assert_close(head(Z), expected)
    assert not composed("two").fc.personal.weight.any()
    assert not composed("two").fc.personal.bias.any()


def test_the_bias_is_a_part():
    head, p = filled("bias")
    assert set(p) == {"linear.weight", "bias.value"}
    torch.testing.assert_close(head(Z), Z @ p["linear.weight"].T + p["bias.value"])
    assert torch.equal(composed("bias").fc.bias.value, mlp().fc.bias)


def test_a_prior_is_added_to_the_outputs():
    head, p = filled("prior")
    torch.testing.assert_close(head(Z), Z @ p["linear.weight"].T + p["linear.bias"] + p["prior.value"])
    assert composed("prior").fc.prior.value.tolist() == [0.0, 0.0, 0.0]


def test_a_shift_is_added_to_the_features():
    head, p = filled("shift")
    torch.testing.assert_close(head(Z), (Z + p["shift.value"]) @ p["inner.weight"].T + p["inner.bias"])
    assert composed("shift").fc.shift.value.tolist() == [0.0] * 4


def test_a_gated_head_divides_every_feature_between_two_heads():
    head, p = filled("gated")
    noise = torch.randn(5, 2, 4, dtype=torch.float64)
    v = p["personal.weight"].sum(0)
    scores = layer_norm((Z * v / v.norm()) @ p["policy.linear.weight"].T + p["policy.linear.bias"], (8,))
    scores = (scores * p["policy.norm.weight"] + p["policy.norm.bias"]).clamp(min=0).reshape(5, 2, 4)
    for given, added in (((), 0), ((noise,), noise)):
        share = (scores + added).exp()
        r, s = (share / share.sum(1, keepdim=True)).unbind(1)
        expected = (r * Z) @ p["personal.weight"].T + p["personal.bias"] + (s * Z) @ p["generic.weight"].T
        torch.testing.assert_close(head(Z, *given), expected + p["generic.bias"])
    start = composed("gated").fc
    assert torch.equal(start.personal.weight, start.generic.weight)
    assert torch.equal(start.personal.bias, start.generic.bias)


def test_no_gradient_goes_through_the_gates_context():
    head, _ = filled("gated")
    r, _ = head.shares(Z)
    (gradient,) = torch.autograd.grad(r.sum(), head.personal.weight, allow_unused=True)
    assert gradient is None


def test_a_conditional_head_classifies_what_the_valve_leaves():
    head, p = filled("conditional")
    condition = p["frequencies.value"] @ p["embedding.weight"]

    def branch(name):
        hidden = (p[f"valve.{name}.linear.weight"] @ condition + p[f"valve.{name}.linear.bias"]).clamp(min=0)
        return layer_norm(hidden, (4,), p[f"valve.{name}.norm.weight"], p[f"valve.{name}.norm.bias"])

    valved = (Z * (branch("gamma") + 1) + branch("beta")).clamp(min=0)
    torch.testing.assert_close(head.valve(Z, condition), valved)
    torch.testing.assert_close(head(Z), valved @ p["classifier.weight"].T + p["classifier.bias"])
    assert composed("conditional").fc.frequencies.value.tolist() == [0.0, 0.0, 0.0]


def test_no_gradient_goes_through_the_condition():
    head, _ = filled("conditional")
    through = torch.autograd.grad(head(Z).sum(), [head.frequencies.value, head.embedding.weight], allow_unused=True)
    assert through == (None, None)


# Heads that are more than one linear layer


class Deep(nn.Module):
    """A head of two layers, which the model calls `head`."""

    def __init__(self, bias=True):
        super().__init__()
        self.body = nn.Linear(6, 4)
        self.head = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3, bias=bias))

    def forward(self, x):
        return self.head(self.body(x))


@pytest.mark.parametrize("kind", UNCHANGED)
@pytest.mark.parametrize("bias", [True, False])
def test_a_head_of_several_layers_keeps_its_outputs(kind, bias):
    plain = Deep(bias).double()
    model = composed(kind, copy.deepcopy(plain), "head")
    torch.testing.assert_close(model(X), plain(X), rtol=0, atol=1e-15)


def test_a_conditional_head_takes_any_classifier_and_a_gated_one_does_not():
    assert composed("conditional", Deep().double(), "head")(X).shape == (5, 3)
    with pytest.raises(ModelError, match=r"nn\.Linear.*Sequential"):
        composed("gated", Deep().double(), "head")


def test_what_has_no_bias_of_its_outputs_is_refused():
    model = Deep().double()
    model.head.append(nn.ReLU())
    with pytest.raises(ModelError, match=r"nn\.Linear.*nn\.Sequential"):
        composed("bias", model, "head")


def test_a_regression_has_no_conditional_head():
    with pytest.raises(ModelError):
        composed("conditional", classes=None)


def test_a_model_of_one_layer_cannot_have_another_head():
    with pytest.raises(ModelError):
        composed("two", nn.Linear(6, 3).double(), "")


def test_a_head_that_is_not_called_is_refused():
    model = Deep().double()
    model.spare = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(ModelError, match="'spare'"):
        composed("two", model, "spare")


def test_features_that_are_not_flat_are_refused_where_a_matrix_is_needed():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(nn.Flatten(), nn.Linear(32, 3))).double()
    x = torch.randn(2, 1, 6, 6, dtype=torch.float64)
    with pytest.raises(ModelError, match=r"'two'.*\[B, 2, 4, 4\]"):
        HeadExtension("two")(model, x, 3, "1")
    before = model(x)
    shifted = HeadExtension("shift")(model, x, 3, "1")
    torch.testing.assert_close(shifted(x), before)
    assert shifted[1].shift.value.shape == (2, 4, 4)


def test_replacing_a_head_keeps_the_order_of_modules():
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3), nn.Softmax(1))
    assert replace_head(model, "1", nn.Linear(4, 2)) is model
    assert [type(sub).__name__ for sub in model] == ["Linear", "Linear", "Softmax"]
    assert model(torch.zeros(1, 6)).shape == (1, 2)
