"""Composed heads in a federation: their layers, their names in any model, the global model, new weights, exports."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy

import stratafl
from methods import NIGHTLY, SLOW
from stratafl.algorithms import fedper
from stratafl.core.describe import describe, head_of
from stratafl.core.fields import Filled, Start, Together
from stratafl.core.layers import select
from stratafl.core.records import from_toml, record, to_toml
from stratafl.core.state import rows_of
from stratafl.errors import ModelError, UnknownNameError
from stratafl.evaluation.evaluate import deployed, received_models, score_stages
from stratafl.execute import Matrix, simulation
from stratafl.models import HeadExtension, build, save_weights
from stratafl.policies import LocalTraining
from stratafl.testing import CLASSES, SHAPE, check_algorithm, tiny_federation, tiny_model
from tiers import slow_except

PARTS = {
    "two": ("generic", "personal"),
    "bias": ("linear", "bias"),
    "prior": ("linear", "prior"),
    "shift": ("inner", "shift"),
    "gated": ("personal", "generic", "policy"),
    "conditional": ("classifier", "embedding", "valve", "frequencies"),
}
PERSONAL = {"two": "personal", "bias": "bias", "prior": "prior", "shift": "shift", "gated": "personal"}
PERSONAL |= {"conditional": "classifier+head.frequencies"}


def extended(kind, model=None, head="fc"):
    model = tiny_model().eval() if model is None else model
    return HeadExtension(kind)(model, torch.zeros(1, *SHAPE), CLASSES, head)


def kept_head(kind, **options):
    """A method whose clients keep one part of the head."""
    return replace(fedper(personal=f"head.{PERSONAL[kind]}", **options), extension=HeadExtension(kind))


def made(algorithm, model=tiny_model, **options):
    options = {"rounds": 1, "dtype": torch.float64} | options
    return simulation(algorithm, tiny_federation(), model, **options)


# Layers


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("granularity", ["tensor", "module", "block"])
def test_the_parts_of_a_composed_head_are_layers_of_their_own(kind, granularity):
    layout = describe(extended(kind), granularity=granularity)
    heads = [layer.name for layer in layout.layers if layer.head]
    assert heads == [name for name in layout.names if name.startswith("fc.")]
    for part in PARTS[kind]:
        own = layout.resolve(f"head.{part}")
        assert own == layout.resolve(f"fc.{part}") == tuple(n for n in heads if f"{n}.".startswith(f"fc.{part}."))
        assert own
        assert len(own) == 1 or granularity != "block"
    assert layout.resolve("head") == tuple(heads)
    assert {layer.block for layer in layout.layers if layer.head} == {"fc"}


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("granularity", ["module", "block"])
def test_a_composed_head_counts_as_one_layer_and_as_one_block(kind, granularity):
    plain, layout = (describe(m, granularity=granularity) for m in (tiny_model(), extended(kind)))
    head, base = layout.resolve("head"), layout.resolve("base")
    for rule in ("last:1", "blocks:1"):
        assert layout.resolve(rule) == head
    for rule in ("last:2", "first:1", "middle:1", "first:3"):
        assert set(layout.resolve(rule)) & set(base) == set(plain.resolve(rule)) & set(base)
    assert max(layout.units) == max(plain.units)
    assert {layout.units[layout.index[name]] for name in head} == {max(layout.units)}
    assert [layout.leaders[layout.index[name]] for name in base] == list(plain.leaders[: len(base)])


def test_a_normalisation_in_a_head_follows_the_layer_before_it():
    layout = describe(extended("conditional"))
    assert layout.layer("fc.valve.gamma.norm").normalises == "fc.valve.gamma.linear"
    assert layout.layer("fc.valve.beta.norm").normalises == "fc.valve.beta.linear"
    assert describe(extended("gated")).layer("fc.policy.norm").normalises == "fc.policy.linear"


# Names


class Named(nn.Module):
    """A model whose classifier is called `top`, and something else `head`."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(36, 5)
        self.top = nn.Linear(5, 3)

    def forward(self, x):
        return self.top(torch.relu(self.head(x.flatten(1))))


class Classified(nn.Module):
    """A model that calls its classifier `head`, with a normalisation in it, as many do."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(36, 5)
        self.head = nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 3))

    def forward(self, x):
        return self.head(torch.relu(self.body(x.flatten(1))))


def test_the_head_stays_where_it_was():
    for kind in PARTS:
        assert head_of(extended(kind)) == head_of(extended(kind), "fc") == "fc"
        assert head_of(extended(kind, Named(), "top")) == head_of(extended(kind, Named(), "top"), "top") == "top"
        assert head_of(extended(kind, Named(), "head")) == "head"  # as the extension was told


def test_a_layer_may_be_called_head():
    layout = describe(Named())
    assert layout.resolve("head") == layout.resolve("layer:top") == ("top",)
    assert layout.resolve("layer:head") == layout.resolve("base") == ("head",)
    assert describe(Named(), head="head").resolve("head") == ("head",)
    assert describe(Named(), granularity="tensor").resolve("head.bias") == ("head.bias",)  # a name comes first
    assert describe(tiny_model(), granularity="tensor").resolve("head.bias") == ("fc.bias",)


def test_a_module_called_head_may_hold_the_head():
    layout = describe(Classified())
    assert layout.resolve("head") == ("head.1",)
    assert layout.resolve("layer:head") == ("head.0", "head.1")
    inside = describe(extended("two", Classified(), "head.1"))
    assert inside.resolve("head.personal") == ("head.1.personal",)
    assert inside.resolve("head.0") == ("head.0",)
    whole = describe(extended("two", Classified(), "head"), head="head")
    assert whole.resolve("head.personal") == ("head.personal",)
    assert whole.resolve("head.generic") == ("head.generic.0", "head.generic.1")
    assert whole.resolve("last:1") == whole.resolve("head")


def test_a_part_that_the_head_has_not_is_unknown():
    with pytest.raises(UnknownNameError, match=r"unknown layer 'head.personl'; did you mean 'head.personal'\?"):
        describe(extended("two")).resolve("head.personl")
    with pytest.raises(UnknownNameError, match=r"unknown layer 'head.personal'"):
        describe(tiny_model()).resolve("head.personal")


@pytest.mark.parametrize(
    ("model", "head"), slow_except([(tiny_model, None), (Named, "top")], [(tiny_model, "fc"), (Classified, None)])
)
def test_a_method_with_a_composed_head_runs_on_any_model(model, head):
    sim = made(kept_head("two"), model, head=head)
    progress = sim.run(Matrix())
    path = "head.1" if model is Classified else head or "fc"
    assert set(progress.clients[0]["theta"]) == {f"{path}.personal.weight", f"{path}.personal.bias"}
    assert progress.clients[0]["theta"][f"{path}.personal.weight"].abs().max() > 1e-3
    assert f"{path}.generic.weight" in progress.server["theta"]


@record
class Parts:
    """The loss of a head put together from its parts by name, or by its path."""

    names: tuple[str, ...]
    frozen = constants = carries = ()

    def __call__(self, net, row, frozen, batch, constants, carry):
        z = net.features(row, batch.x)
        logits = sum(net.part(name, row, z) for name in self.names)
        return batch.mean(cross_entropy(logits, batch.y, reduction="none")), carry, {}


@pytest.mark.parametrize(
    ("model", "path", "names", "engine"),
    slow_except(
        [(tiny_model, "fc", ("head",), "loop"), (Classified, "head.1", ("head.generic", "head.1.personal"), "stacked")],
        [
            (tiny_model, "fc", ("head.generic", "head.personal"), "stacked"),
            (tiny_model, "fc", ("fc.generic", "fc.personal"), "loop"),
        ],
    ),
)
def test_an_objective_calls_a_part_of_the_head_by_name(model, path, names, engine):
    train = LocalTraining(lr=0.1, objective=Parts(names))
    sim, plain = (made(kept_head("two", train=t), model, engine=engine) for t in (train, LocalTraining(lr=0.1)))
    assert sim.runtime.engine.model.head_name == path
    ids = torch.arange(6)
    ours, theirs = (received_models(s, s.run(Matrix()), ids) for s in (sim, plain))
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) < 1e-12


def test_an_objective_that_calls_an_unknown_part_is_told_what_there_is():
    train = LocalTraining(objective=Parts(("head.personl",)))
    sim = made(kept_head("two", train=train))
    with pytest.raises(UnknownNameError, match=r"'head.personl'"):
        sim.run(Matrix())


# Extensions that wrap the model


class Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.extra = inner, nn.Linear(3, 3)

    def forward(self, x):
        return self.extra(self.inner(x))


@record
class Wrap:
    """Wraps the model, and checks that it is told where the head is."""

    def __call__(self, module, example, classes, head):
        assert module.get_submodule(head) is module.fc
        return Wrapper(module)


@pytest.mark.parametrize("head", ["fc", "inner.fc"])
def test_the_head_of_a_wrapped_model_has_two_names(head):
    sim = made(replace(fedper(), extension=Wrap()), head=head)
    assert sim.setup.layout.resolve("head") == ("fc",)
    assert set(sim.run(Matrix()).clients[0]["theta"]) == {"inner.fc.weight", "inner.fc.bias"}


# The contract, the record


@pytest.mark.parametrize("kind", [pytest.param(k, marks=SLOW if k == "two" else NIGHTLY) for k in PARTS])
def test_a_method_with_a_composed_head_keeps_the_contract(kind):
    check_algorithm(kept_head(kind), settings=[("follow", 0.5)])


def test_the_extension_is_a_record():
    algorithm = kept_head("gated")
    assert from_toml(to_toml(algorithm)) == algorithm


# The global model


def generic_and_personal():
    """FedRoD's fields: the server's model has no personal head, which is one of zeros."""
    own = select("head.personal")
    server = {"theta": Together((Start(~own), Filled(0.0, own)))}
    return replace(kept_head("two", train=LocalTraining(lr=0.3)), server=server, global_model="theta")


def test_the_global_model_is_scored_with_its_own_head():
    sim, ids = made(generic_and_personal()), torch.arange(6)
    progress = sim.run(Matrix())
    board = score_stages(sim, progress, ids, ("test",), ("global", "received"))
    generic = tiny_model().double().eval()
    shared = {name.replace("fc.generic.", "fc."): x for name, x in rows_of(progress.server, "theta").items()}
    generic.load_state_dict({n: x for n, x in shared.items() if "personal" not in n}, strict=False)
    federation = tiny_federation()
    for client in ids.tolist():
        mine = federation.split("test").of(client)
        with torch.no_grad():
            logits = generic(federation.x[mine])
        expected = cross_entropy(logits, federation.y[mine], reduction="sum")
        torch.testing.assert_close(board["test.global"].loss[client], expected)
    assert (board["test.global"].loss - board["test.received"].loss).abs().min() > 1e-6
    assert not rows_of(progress.server, "theta")["fc.personal.weight"].any()


# Weights from a file, models of clients, exports


@pytest.mark.parametrize("kind", slow_except(["two", "conditional"], PARTS))
def test_weights_of_the_model_that_is_extended_or_of_the_extended_one_are_its_start(kind, tmp_path):
    plain = tiny_model().double()
    with torch.no_grad():
        plain.fc.weight.fill_(1 / 3)  # which is another number in single precision
    save_weights(plain, tmp_path / "plain")
    save_weights(extended(kind, copy.deepcopy(plain)), tmp_path / "extended")
    for name in ("plain", "extended"):
        sim = made(kept_head(kind), weights=tmp_path / name)
        assert torch.equal(next(x for n, x in sim.setup.start.items() if n.startswith("fc.")), plain.fc.weight)
    save_weights(nn.Linear(2, 2), tmp_path / "other")
    with pytest.raises(ModelError, match=r"lacks .* names \(first 'conv1.weight'"):
        made(kept_head(kind), weights=tmp_path / "other")


def images():
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((20, *SHAPE)).astype(np.float32), rng.integers(0, CLASSES, 20)) for _ in range(3)]


@pytest.mark.parametrize("kind", [pytest.param(k, marks=SLOW if k == "gated" else NIGHTLY) for k in PARTS])
def test_a_clients_model_is_exported_with_its_composed_head(kind, tmp_path):
    fitted = stratafl.fit(kept_head(kind), images(), tiny_model, rounds=1)
    x = np.random.default_rng(1).standard_normal((5, *SHAPE)).astype(np.float32)
    expected = fitted.client(1).outputs(x)
    stored = load_file(fitted.client(1).export(tmp_path / "client.safetensors"))
    again = extended(kind)
    again.load_state_dict(stored)
    with torch.no_grad():
        assert torch.equal(again.eval()(torch.from_numpy(x)), expected)
    import onnxruntime

    path = fitted.client(1).export(tmp_path / "client.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    outputs = session.run(["logits"], {"x": x})[0]
    np.testing.assert_allclose(outputs, expected, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_every_client_draws_the_same_personal_start_or_its_own():
    common, own = (made(kept_head("gated", initial=initial), tiny_model()) for initial in ("common", "own"))
    ids = torch.arange(2)
    start, drawn = (rows_of(s.algorithm.enrol(s.setup, ids), "theta")["fc.personal.weight"] for s in (common, own))
    assert torch.equal(start[0], start[1])
    assert not torch.equal(drawn[0], drawn[1])
    assert deployed(own, own.start(), ids)["fc.policy.linear.weight"].std(0).max() == 0  # what is shared is common


def test_a_model_in_stages_has_its_head_replaced_at_any_depth():
    model = build("resnet20", shape=(3, 8, 8), classes=3)
    replaced = HeadExtension("two")(model.eval(), torch.zeros(1, 3, 8, 8), 3, head_of(model))
    layout = describe(replaced, granularity="block")
    assert layout.names[-2:] == ("fc.generic", "fc.personal")
    assert layout.resolve("blocks:1") == ("fc.generic", "fc.personal")
    assert len(layout.resolve("blocks:2")) == 3
