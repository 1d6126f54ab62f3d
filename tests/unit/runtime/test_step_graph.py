"""A step as text: the same bits when it is built again, another text whenever it computes something else."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from stratafl.errors import ModelError
from stratafl.runtime.step_graph import blank_tensors, build_step, describe_step, fake_tensors, record_graph, torch_word


def loss(weight, x, y):
    pooled = F.max_pool2d(torch.einsum("bihw,oi->bohw", x, weight), 2)  # an operation with two results
    return F.cross_entropy(pooled.mean((2, 3)).relu(), y)


def descend(weight, x, y, at):
    weight.sub_(0.1 * vmap(grad(loss))(weight, x, y))
    at.add_(1)


def given(clients=3):
    generator = torch.Generator().manual_seed(5)
    weight, x = (torch.rand(shape, generator=generator) for shape in ((clients, 4, 3), (1, 2, 3, 6, 6)))
    y = torch.randint(4, (clients, 2), generator=generator)
    return weight, x.expand(clients, -1, -1, -1, -1), y, torch.zeros(1, dtype=torch.int64)


def text(step, *tensors):
    return json.dumps(describe_step(step, tensors)[0])


def test_a_step_that_is_built_from_its_text_gives_the_same_bits():
    described, constants = describe_step(descend, given())
    built = build_step(json.loads(json.dumps(described)))
    mine, theirs = given(), given()
    descend(*mine)
    assert built(*theirs, *constants) == ()
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert not torch.equal(mine[0], given()[0])
    assert mine[3].item() == 1


def test_the_text_is_the_same_for_the_same_step_and_another_for_another():
    def scaled(by):
        return lambda x, y: x.add_(y, alpha=by)

    x, y = torch.rand(4, 4), torch.rand(4, 4)
    texts = [
        text(scaled(2), x, y),
        text(scaled(3), x, y),
        text(scaled(2), x, y.T),
        text(scaled(2), x, y.double()),
        text(scaled(2), x[:2], y[:2]),
        text(scaled(2), x, y[:1].expand(4, 4)),
        text(scaled(2), y, y),
        text(lambda x, y: x.sub_(y, alpha=2), x, y),
        text(lambda x, y: y.add_(x, alpha=2), x, y),
    ]
    assert len(set(texts)) == len(texts)
    assert text(scaled(2), torch.zeros(4, 4), torch.ones(4, 4)) == texts[0]  # values do not matter


def test_constants_belong_to_the_step():
    def halved(held):
        return lambda x: x.mul_(held)

    x = torch.ones(3)
    described, constants = describe_step(halved(torch.tensor([0.5, 0.25, 1.0])), [x.clone()])
    assert [c.tolist() for c in constants] == [[0.5, 0.25, 1.0]]
    (_, same) = blank_tensors(described)
    build_step(described)(x, same)
    assert x.tolist() == [0.5, 0.25, 1.0]
    assert text(halved(torch.tensor(0.5)), x) != text(halved(torch.tensor(0.25)), x)
    assert text(lambda x: x.mul_(torch.tensor(0.5)), x) != text(lambda x: x.mul_(torch.tensor(0.25)), x)


@pytest.mark.parametrize("held", [torch.arange(6.0).reshape(2, 3).T, torch.arange(2.0).expand(3, 2)])
def test_constants_keep_their_strides(held):
    def step(x):
        x.add_(held).add_(held.flatten()[4])

    x, y = torch.zeros(3, 2), torch.zeros(3, 2)
    described, _ = describe_step(step, [torch.zeros(3, 2)])
    (_, same) = blank_tensors(json.loads(json.dumps(described)))
    assert same.stride() == held.stride()
    step(x)
    build_step(described)(y, same)
    assert torch.equal(x, y)


def test_a_recorded_function_returns_what_it_returned():
    def function(weight, x, y):
        gradients, value = vmap(lambda *given: (grad(loss)(*given), loss(*given)))(weight, x, y)
        return {"weight": weight - 0.1 * gradients}, (value, [weight, x.view(x.shape)], None, {})

    weight, x, y, _ = given()
    recorded = record_graph(function, (weight, x, y))
    other = (weight + 1, x, y)
    mine, theirs = function(*other), recorded(*other)
    assert torch.equal(mine[0]["weight"], theirs[0]["weight"])
    assert torch.equal(mine[1][0], theirs[1][0])
    assert theirs[1][1][0] is other[0]
    assert (theirs[1][2], theirs[1][3]) == (None, {})
    assert torch.equal(recorded(weight, x, y)[0]["weight"], function(weight, x, y)[0]["weight"])


def test_a_literal_that_a_step_writes_to_begins_anew_in_each_step():
    def step(x):
        x.add_(torch.tensor([1.0, 2.0]).mul_(2))

    described, constants = describe_step(step, [torch.zeros(2)])
    built, recorded, x = build_step(described), record_graph(step, [torch.zeros(2)]), torch.zeros(2)
    for run in (built, lambda x, _: recorded(x)):
        for _ in range(2):
            run(x, *constants)
    assert x.tolist() == [8, 16]


def test_views_that_change_nothing_are_left_out():
    x = torch.rand(4, 3)
    idle = describe_step(lambda x: x.view(4, 3).expand(4, 3).add_(1), [x])[0]
    assert [name for name, *_ in idle["operations"]] == ["aten::add_.Tensor"]
    needed = describe_step(lambda x: x.view(12).add_(1), [x])[0]
    assert [name for name, *_ in needed["operations"]] == ["aten::view.default", "aten::add_.Tensor"]


def test_arguments_that_json_does_not_know():
    def step(x):
        y = x.to(torch.float64).clamp(max=float("inf")).contiguous(memory_format=torch.channels_last)
        x.copy_(torch.ones_like(y, device="cpu", memory_format=torch.preserve_format))

    described, _ = describe_step(step, [torch.zeros(1, 2, 2, 2)])
    (x,) = blank_tensors(described)
    build_step(json.loads(json.dumps(described)))(x)
    assert x.sum() == 8


def test_what_cannot_be_compiled_is_refused():
    x, held, big = torch.ones(3), torch.zeros(3), torch.zeros(2**19)
    with pytest.raises(ModelError, match=r"'aten\._local_scalar_dense\.default'"):
        describe_step(lambda x: x.mul_(x.sum().item()), [x])
    with pytest.raises(ModelError, match=r"2,097,152.*1,048,576"):
        describe_step(lambda x: x.add_(big[:3]), [x])
    with pytest.raises(ModelError, match=r"'aten\.add_\.Tensor'"):
        describe_step(lambda x: held.add_(x), [x])


def test_a_step_with_a_huge_tensor_is_refused(monkeypatch):
    """Whose elements 32 bits cannot number: compiled code for such a step crashed on a GPU."""
    monkeypatch.setattr("stratafl.runtime.step_graph.ELEMENTS", 11)
    with pytest.raises(ModelError, match=r"\b12\b.*\b11\b"):
        describe_step(lambda x: x.add_(torch.outer(x, torch.ones(4)).sum()), [torch.zeros(3)])


@pytest.mark.parametrize(
    "name", ["os::system.default", "aten::add", "aten::__class__.mro", "aten::add.__class__", "add"]
)
def test_a_text_names_nothing_but_operations(name):
    with pytest.raises(ModelError, match=name):
        build_step({"tensors": [], "constants": [], "operations": [[name, [], {"table": {}}]]})
    with pytest.raises(ModelError, match=r"'load'.*dtype"):
        torch_word("dtype", "load")


@pytest.mark.budget(2, "imports torch's fake tensors")
def test_tensors_like_those_of_a_text():
    wanted = [torch.rand(2, 3).T, torch.rand(1, 3).expand(4, 3), torch.zeros(0, 2), torch.zeros((), dtype=torch.int64)]
    described, _ = describe_step(lambda *x: None, wanted)
    for made in (list(blank_tensors(described)), fake_tensors(described)):
        assert [(x.shape, x.stride(), x.dtype) for x in made] == [(x.shape, x.stride(), x.dtype) for x in wanted]
    assert all(not x.any() for x in blank_tensors(described))
