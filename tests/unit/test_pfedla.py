"""pFedLA, HeurpFedLA and mixing by similarity: each equation by hand, whole runs against a plain loop in float64."""

from hashlib import sha256
from math import exp

import numpy as np
import pytest
import torch
from plain_pfedla import LAYERS, TRAIN, PlainPFedLA
from torch import nn

from stratafl.algorithms import fedavg, heurpfedla, pfedla, simmix
from stratafl.algorithms.hypernetwork import Drawn, Hypernetwork
from stratafl.algorithms.pfedla import LearnFromCosines, Retain, mixed
from stratafl.algorithms.simmix import Similarity
from stratafl.core.describe import describe
from stratafl.core.layout import Layout
from stratafl.core.parcel import Field, Parcel
from stratafl.core.records import stored_repr
from stratafl.data import from_splits
from stratafl.errors import RecordError
from stratafl.evaluation.evaluate import received_models, score_new_clients
from stratafl.execute import Matrix, simulation
from stratafl.models import build
from stratafl.policies import LocalTraining
from stratafl.runtime import engine
from stratafl.testing import CLASSES, SHAPE, difference, tiny_federation
from tiers import slow_except

SIZES = (14, 11, 7, 20)
SMALL = {"embedding": 6, "width": 5, "depth": 2, "train": TRAIN}
QUICK = {**SMALL, "hyper_lr": 0.5, "initial": "drawn"}
EAGER = {**QUICK, "hyper_lr": 5.0}
COSINE = {**SMALL, "hyper_step": 0.5, "initial": "drawn"}
EQUAL = {"initial": "uniform"}
IDS = torch.arange(4)


@pytest.fixture(autouse=True)
def untraced(monkeypatch):
    """Steps are not traced: that takes most of the time of a short run."""
    monkeypatch.setattr(engine, "patience", lambda _: float("inf"), raising=False)


def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return build("convnorm", shape=SHAPE, classes=CLASSES, channels=3, dropout=0.0)


def run_of(method, *, rounds=3, participation=0.5, buffers="follow", **options):
    data = tiny_federation(SIZES)
    sim = simulation(
        method,
        data,
        model(),
        rounds=rounds,
        participation=participation,
        buffers=buffers,
        dtype=torch.float64,
        **options,
    )
    return sim, sim.run(Matrix())


@pytest.fixture(scope="module")
def linear():
    """Two clients of a model with layers fc1 and fc, before the first round."""
    data = tiny_federation((4, 4))
    module = build("mlp", shape=SHAPE, classes=CLASSES, hidden=(2,))
    sim = simulation(pfedla(), data, module, rounds=2, dtype=torch.float64)
    return sim.at(0)


# Equations


def by_hand():
    """One hidden unit: v = 2, h = relu(3·2 − 1) = 5; outputs of client 0 for layers fc1 and fc, of clients 0 and 1."""
    out = [[[0.1], [0.0]], [[0.3], [-0.2]]]  # [N, L, 1]
    values = {
        "v": [[2.0], [1.0]],
        "psi0.weight": [[[3.0]], [[1.0]]],
        "psi0.bias": [[-1.0], [0.0]],
        "out.weight": [out, [[[0.0]] * 2] * 2],
        "out.bias": [[[0.2, 0.0], [0.0, 0.4]], [[0.0] * 2] * 2],
    }
    return {name: torch.tensor(x, dtype=torch.float64) for name, x in values.items()}


HAND = Hypernetwork(embedding=1, width=1, depth=1)
Z = ((0.1 * 5 + 0.2, 0.3 * 5), (0.0, -0.2 * 5 + 0.4))  # outputs for fc1 and for fc
ALPHA = tuple((exp(a) / (exp(a) + exp(b)), exp(b) / (exp(a) + exp(b))) for a, b in Z)


def test_eq_3_and_4_weights_are_a_softmax_over_clients_of_an_mlp(linear):
    alpha = HAND.weights(linear, by_hand(), torch.tensor([0, 1]))
    assert alpha.shape == (2, 2, 2)  # clients, layers, clients
    torch.testing.assert_close(alpha[0], torch.tensor(ALPHA, dtype=torch.float64), rtol=0, atol=1e-14)
    torch.testing.assert_close(alpha[1], torch.full((2, 2), 0.5, dtype=torch.float64))


def test_eq_5_and_6_mix_layer_by_layer(linear):
    rows = {n: torch.zeros(2, *s.shape, dtype=torch.float64) for n, s in linear.layout.specs.items()}
    for name, x in rows.items():
        x[0], x[1] = (1.0, 3.0) if name.startswith("fc1.") else (10.0, 30.0)
    alpha = torch.tensor([[[0.25, 0.75], [1.0, 0.0]], [[0.5, 0.5], [0.1, 0.9]]], dtype=torch.float64)
    found = mixed(alpha, rows, linear.layout)
    expected = {"fc1": (0.25 * 1 + 0.75 * 3, 2.0), "fc": (10.0, 0.1 * 10 + 0.9 * 30)}
    for name, x in found.items():
        for client in (0, 1):
            value = expected[name.split(".")[0]][client]
            torch.testing.assert_close(x[client], torch.full_like(x[client], value), rtol=0, atol=1e-13)


def test_eq_10_and_11_by_hand(linear):
    """One step along (∂α/∂(v, ψ))ᵀ·t, where t is ⟨Δθ, θ_j⟩ for each layer; client 1 is not in the cohort."""
    server, lr = by_hand(), 0.1
    pull = ((2.0, -1.0), (0.5, 4.0))
    moved = HAND.moved(server, torch.tensor([0]), torch.tensor([pull], dtype=torch.float64), lr)
    dz = [[a * (t - sum(x * y for x, y in zip(al, p, strict=True))) for a, t in zip(al, p, strict=True)]
          for al, p in zip(ALPHA, pull, strict=True)]  # [L][N]  # fmt: skip
    out = server["out.weight"][0, :, :, 0].tolist()  # [N][L]
    dh = sum(dz[layer][j] * out[j][layer] for layer in (0, 1) for j in (0, 1))
    after = {name: server[name].clone() for name in server}
    for layer in (0, 1):
        for j in (0, 1):
            after["out.bias"][0, j, layer] += lr * dz[layer][j]
            after["out.weight"][0, j, layer, 0] += lr * 5 * dz[layer][j]
    after["psi0.bias"][0, 0] += lr * dh
    after["psi0.weight"][0, 0, 0] += lr * dh * 2
    after["v"][0, 0] += lr * dh * 3
    assert difference(moved, after) < 1e-14
    assert abs(dh) > 0.1


def three_models(linear, scale=1.0, repeats=1):
    """Models of three clients around a mean, of fc1's bias (3, 4), (−3, 4), (0, −8); an update (6, 8) of client 0.

    `scale` multiplies all of these; with `repeats` the layer has as many copies of each column.
    """
    apart = scale * torch.tensor([[3.0, 4.0], [-3.0, 4.0], [0.0, -8.0]], dtype=torch.float64).repeat(1, repeats)
    rows = {"fc1.bias": torch.full_like(apart, 10.0) + apart}
    delta_theta = {"fc1.bias": scale * torch.tensor([[6.0, 8.0]], dtype=torch.float64).repeat(1, repeats)}
    return rows, delta_theta


def test_the_cosine_form_of_eq_10_and_11_by_hand(linear):
    """Cosines 50/(5·10), (−18 + 32)/(5·10) and −64/(8·10), divided by the largest weight, 0.5."""
    learn = LearnFromCosines(HAND)
    layout = Layout([linear.layout.specs["fc1.bias"]], linear.layout.layers)
    alpha = torch.tensor([[[0.5, 0.3, 0.2]] * 2], dtype=torch.float64)
    expected = torch.tensor([[1.0, 0.28, -0.8], [0.0, 0.0, 0.0]], dtype=torch.float64) / 0.5  # fc: nothing was learned
    for scale, repeats in ((1.0, 1), (1e-3, 1), (1e3, 50)):  # neither learning rates nor sizes of layers count
        rows, delta_theta = three_models(linear, scale, repeats)
        toward = learn.toward(delta_theta, rows, alpha, layout)
        torch.testing.assert_close(toward[0], expected, rtol=0, atol=1e-10)
    weighed_alike = LearnFromCosines(Hypernetwork(unit="model")).toward(delta_theta, rows, alpha, layout)
    torch.testing.assert_close(weighed_alike, expected[None, :1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", slow_except([pfedla], [heurpfedla]))
def test_the_default_moves_the_weights_of_every_layer(method):
    """At a rate of 0.005, as public code has it, no weight leaves the range from 0.24 to 0.26 in these rounds."""
    built = method(train=TRAIN)
    sim, progress = run_of(built, rounds=6, participation=1.0)
    alpha = built.tell(sim.at(6), progress.server)["alpha"]
    assert float(alpha.diagonal(dim1=1, dim2=2).mean(1).min()) > 0.3


def test_runs_of_the_plain_rate_are_what_they_were():
    """What an older run stored of its method, whose configuration has `hyper_lr` and `initial`."""
    stored = {"hyper_lr": 0.005, "embedding": 100, "width": 100, "depth": 3, "normalise": "softmax", "initial": "drawn"}
    for method, digest in ((pfedla, "20326a2556b66332"), (heurpfedla, "f73cc189b95503e5")):
        assert sha256(stored_repr(method(**stored)).encode()).hexdigest().startswith(digest)


def test_eq_12_retains_the_largest_self_weights(linear):
    layout = run_of(fedavg(), rounds=0)[0].setup.layout
    own = [[0.1, 0.9, 0.3, 0.8, 0.2], [0.3, 0.9, 0.2, 0.8, 0.2], [0.25, 0.25, 0.25, 0.25, 0.25]]
    alpha = torch.zeros(3, 5, 4)
    ids = torch.tensor([2, 0, 3])
    for c, (row, i) in enumerate(zip(own, ids, strict=True)):
        alpha[c, :, i] = torch.tensor(row)

    def kept(k):
        return [[LAYERS[i] for i in row.nonzero()[:, 0]] for row in Retain(k)(alpha, ids, layout)]

    assert kept(1) == [["conv2"], ["conv1"], ["fc"]]
    assert kept(2) == [["conv2", "fc"], ["conv1", "fc"], ["conv2", "fc"]]  # equal ones: nearest the output first
    assert kept(3) == [["conv1", "conv2", "fc"]] * 3  # never a normalisation
    assert Retain(0, "conv1+bn2")(alpha, ids, layout).tolist() == [[True, False, False, True, False]] * 3


def test_no_normalisation_of_any_kind_is_retained():
    module = nn.Sequential(
        nn.BatchNorm1d(6), nn.Linear(6, 4), nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
    )
    layout, ids = describe(module), torch.arange(2)
    alpha = torch.tensor([0.9, 0.1, 0.8, 0.7, 0.2, 0.6])[None, :, None].expand(2, 6, 2)
    for k, kept in ((1, ["4"]), (2, ["1", "4"])):
        for row in Retain(k)(alpha, ids, layout):
            assert [layout.names[i] for i in row.nonzero()[:, 0]] == kept


# Whole runs


CASES = {
    "pfedla": (pfedla(**QUICK), {}),
    "local statistics": (pfedla(**QUICK), {"buffers": "local"}),
    "model-wise": (pfedla(**QUICK, unit="model"), {"unit": "model"}),
    "relu": (pfedla(**{**QUICK, "hyper_lr": 0.05}, normalise="relu"), {"normalise": "relu", "lr": 0.05}),
    "uniform": (pfedla(**{**QUICK, **EQUAL}), {}),
    "public sign": (pfedla(**QUICK, sign="public"), {"lr": -0.5}),
    "top 2": (heurpfedla(k=2, **QUICK), {"k": 2}),
    "named": (heurpfedla(retained="conv2+fc", **QUICK), {"retained": ("conv2", "fc")}),
    "cosines": (pfedla(**COSINE), {"cosines": True}),
    "cosines, uniform": (pfedla(**{**COSINE, **EQUAL}), {"cosines": True}),
    "cosines, model-wise": (pfedla(**COSINE, unit="model"), {"cosines": True, "unit": "model"}),
    "cosines, relu": (pfedla(**COSINE, normalise="relu"), {"cosines": True, "normalise": "relu"}),
    "cosines, top 2": (heurpfedla(k=2, **COSINE), {"cosines": True, "k": 2}),
}


@pytest.mark.budget(0.7, "three rounds against a plain loop")
@pytest.mark.parametrize("name", slow_except(["pfedla", "cosines, top 2"], CASES))
def test_three_rounds_are_those_of_a_plain_loop(name):
    method, options = CASES[name]
    buffers = options.get("buffers", "follow")
    sim, progress = run_of(method, participation=0.75, buffers=buffers)
    plain = PlainPFedLA(sim, **{"lr": 0.5, **options})
    for t in range(3):
        plain.round(t)
    rows = received_models(sim, progress, IDS)
    for i in range(4):
        expected = {n: x for n, x in plain.received(i).state_dict().items() if x.is_floating_point()}
        assert difference({n: x[i] for n, x in rows.items()}, expected) < 1e-10
        hyper = {n: progress.server[n][i] for n in plain.hyper[i]}
        assert difference(hyper, plain.hyper[i]) < 1e-10
    start = method.init(sim.setup)
    assert difference({"": progress.server["out.bias"]}, {"": start["out.bias"]}) > 1e-3  # the weights have been taught
    assert len({tuple(sim.setup.sampled(t).tolist()) for t in range(3)}) > 1


def stored(server, sim, seed=0):
    """The server's state with models that differ, and an upload for clients 1 and 3 that started from the mixtures."""
    draw = torch.Generator().manual_seed(seed)
    rows = {n: x + torch.randn(x.shape, generator=draw, dtype=x.dtype) / 3 for n, x in server["rows"].items()}
    server = {**server, "rows": rows}
    ids = torch.tensor([1, 3])
    start = sim.algorithm.download(sim.at(1), server, ids)["theta"].rows
    trained = {n: x + torch.randn(x.shape, generator=draw, dtype=x.dtype) / 5 for n, x in start.items()}
    return server, ids, start, trained


@pytest.mark.parametrize(
    ("sign", "options"),
    [
        ("descent", {}),
        ("public", {"unit": "model"}),
        ("descent", {"normalise": "relu"}),
        ("public", {"initial": "uniform"}),
        ("descent", {"hyper_lr": None}),
        ("public", {"hyper_lr": None, "initial": "uniform"}),
    ],
)
def test_a_small_step_moves_the_mixture_towards_the_trained_model(sign, options):
    method = pfedla(**{**QUICK, "hyper_lr": 1e-4, "hyper_step": 1e-4, **options}, sign=sign)
    sim, progress = run_of(method, rounds=0)
    server, ids, start, trained = stored(progress.server, sim)
    rnd = sim.at(1)
    learned = {**server, **method.merge[0].absorb(rnd, server, Parcel({"theta": Field(trained)}), ids)}
    after = method.download(rnd, learned, ids)["theta"].rows
    for c in (0, 1):
        gaps = [sum(float((x[n][c] - trained[n][c]).square().sum()) for n in sim.setup.layout.trainable())
                for x in (start, after)]  # fmt: skip
        closer = gaps[0] - gaps[1]
        assert abs(closer) > 1e-6
        assert (closer > 0) == (sign == "descent")


@pytest.mark.parametrize("options", [QUICK, COSINE], ids=["products", "cosines"])
def test_in_the_first_round_all_models_are_equal_and_weights_learn_nothing(options):
    method = pfedla(**options)
    sim, _ = run_of(method, rounds=0)
    progress, _ = sim.round(sim.start(), Matrix(), IDS)
    before = method.init(sim.setup)
    assert difference({n: progress.server[n] for n in before if n != "rows"},
                      {n: before[n] for n in before if n != "rows"}) < 1e-13  # fmt: skip


@pytest.mark.parametrize(
    "options", slow_except([{"unit": "model"}, {"normalise": "relu"}], [{}, {"initial": "uniform"}]), ids=str
)
def test_weights_sum_to_1_for_every_client_and_layer(options):
    method = pfedla(**{**QUICK, **options})
    sim, progress = run_of(method, rounds=2)
    alpha = method.tell(sim.at(2), progress.server)["alpha"]
    assert alpha.shape == (5, 4, 4)
    assert (alpha >= 0).all()
    torch.testing.assert_close(alpha.sum(-1), torch.ones(5, 4, dtype=torch.float64), rtol=0, atol=1e-14)
    same = bool((alpha == alpha[0]).all())
    assert same == (options == {"unit": "model"})


@pytest.mark.parametrize("normalise", slow_except(["relu"], ["softmax"]))
def test_an_equal_start_is_equal_under_both_normalisations_and_can_learn(normalise):
    method = pfedla(**{**QUICK, **EQUAL}, normalise=normalise)
    sim, _ = run_of(method, rounds=0)
    alpha = method.tell(sim.at(0), method.init(sim.setup))["alpha"]
    torch.testing.assert_close(alpha, torch.full_like(alpha, 0.25), rtol=0, atol=1e-15)
    progress = sim.start()
    for _ in range(3):
        progress, _ = sim.round(progress, Matrix(), IDS)
    assert float((method.tell(sim.at(3), progress.server)["alpha"] - 0.25).abs().max()) > 1e-3


def test_a_relu_row_that_is_all_negative_is_the_client_alone(linear):
    hyper = Hypernetwork(embedding=1, width=1, depth=1, normalise="relu")
    server = by_hand()
    server["out.weight"] = torch.full_like(server["out.weight"], -1.0)
    server["out.bias"][0, :, 1] = 6.0  # the outputs of client 0: −5 and below for fc1, 1 and 1 for fc
    ids = torch.tensor([0, 1])
    alpha = hyper.weights(linear, server, ids)
    assert alpha.tolist() == [[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.0, 1.0]]]
    moved = hyper.moved(server, ids, torch.randn(2, 2, 2, dtype=torch.float64), 0.1)
    assert all(torch.isfinite(x).all() for x in moved.values())
    assert torch.equal(moved["out.bias"][0, :, 0], server["out.bias"][0, :, 0])  # nothing to learn from
    single = {name: x.float() for name, x in server.items()}
    assert all(torch.isfinite(x).all() for x in hyper.moved(single, ids, torch.randn(2, 2, 2), 0.1).values())


@pytest.mark.slow
def test_draws_belong_to_pairs_of_clients_whoever_else_there_is():
    def server(sizes, seed=0):
        sim = simulation(pfedla(**QUICK), tiny_federation(sizes), model(), rounds=1, seed=seed, dtype=torch.float64)
        return sim.algorithm.init(sim.setup)

    few, many = server((9, 5, 7)), server((9, 5, 7, 6, 4))
    for name in few:
        if name.startswith("out."):
            assert torch.equal(few[name], many[name][:3, :3])
        elif name != "rows":
            assert torch.equal(few[name], many[name][:3])
    assert len(set(few["out.bias"].flatten().tolist())) == few["out.bias"].numel()
    assert not torch.equal(few["out.weight"][0, 1], few["out.weight"][1, 0])
    assert not torch.equal(server((9, 5, 7), seed=1)["v"], few["v"])


def test_a_hypernetwork_starts_in_the_ranges_of_pytorchs_linear_layers(linear):
    """U(−1/√n, 1/√n) of n inputs; embeddings are normal."""
    fields = Hypernetwork(embedding=16, width=400, depth=2).fields()
    drawn = {name: spec.create(linear.setup, None, "server") for name, spec in fields.items()}
    inputs = {"psi0.weight": 16, "psi0.bias": 16, "psi1.weight": 400, "psi1.bias": 400, "out.weight": 400}
    for name, n in inputs.items():
        assert 0.97 * n**-0.5 < float(drawn[name].abs().max()) <= n**-0.5, name
        assert abs(float(drawn[name].std()) / (3 * n) ** -0.5 - 1) < 0.1, name
    assert float(drawn["out.bias"].abs().max()) <= 400**-0.5
    assert float(drawn["v"].abs().max()) > 1


def test_draws_have_the_distribution_they_say(linear):
    normal = Drawn((20_000,), "x", kind="normal").create(linear.setup, None, "server")[0]
    assert abs(float(normal.mean())) < 0.03
    assert abs(float(normal.std()) - 1) < 0.03
    flat = Drawn((20_000,), "x", bound=0.1).create(linear.setup, None, "server")[0]
    assert 0.0999 < float(flat.max()) < 0.1
    assert -0.1 < float(flat.min()) < -0.0999
    assert abs(float(flat.std()) - 0.1 / 3**0.5) < 0.002
    above = Drawn((20_000,), "x", kind="positive").create(linear.setup, None, "server")[0]
    assert float(above.min()) >= 0
    assert abs(float(above.mean()) - 0.5) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("method", [pfedla(**EAGER), heurpfedla(k=1, **EAGER), simmix(train=TRAIN)],
                         ids=["pfedla", "heurpfedla", "simmix"])  # fmt: skip
def test_after_some_rounds_weights_are_not_uniform_and_models_not_those_of_fedavg(method):
    sim, progress = run_of(method, rounds=5)
    alpha = method.tell(sim.at(5), progress.server)["alpha"]
    moved = alpha - method.tell(sim.at(0), method.init(sim.setup))["alpha"]
    assert float((alpha - 0.25).abs().max()) > 0.05
    assert float(moved.abs().max()) > 0.01  # learned, not drawn
    assert (
        difference(received_models(sim, progress, IDS), received_models(*run_of(fedavg(train=TRAIN), rounds=5), IDS))
        > 1e-2
    )


def test_new_clients_are_admitted_with_the_mean_of_all_rows():
    method = heurpfedla(k=1, **QUICK)
    sim, progress = run_of(method, rounds=1, new_clients=1)
    rows = progress.server["rows"]
    assert len(rows["fc.bias"]) == 3
    sent = method.download(sim.at(1), progress.server, torch.tensor([3]), new=True)["theta"]
    assert sent.common
    assert difference(sent.rows, {n: (x[0] + x[1] + x[2]) / 3 for n, x in rows.items()}) < 1e-14
    assert float(score_new_clients(sim, progress, ("test",))["test.received"].count) == 4


# HeurpFedLA


def test_retained_layers_are_the_clients_own_and_others_the_mixture():
    method = heurpfedla(k=1, **QUICK)
    sim, progress = run_of(method)
    rnd, layout = sim.at(3), sim.setup.layout
    alpha = method.tell(rnd, progress.server)["alpha"].transpose(0, 1)
    blend = mixed(alpha, progress.server["rows"], layout)
    rows, kept = received_models(sim, progress, IDS), Retain(1)(alpha, IDS, layout)
    assert kept.sum(1).tolist() == [1] * 4
    for i in range(4):
        for name, x in rows.items():
            layer = layout.specs[name].layer
            own = progress.server["rows"][name][i]
            assert torch.equal(x[i], own if kept[i, layer] else blend[name][i])
            if i in progress.clients:
                assert torch.equal(progress.clients[i]["theta"][name], own)  # both sides keep the same model
    down = method.download(rnd, progress.server, IDS)
    assert torch.equal(down["theta"].mask.sent, ~kept)


def test_retained_layers_teach_nothing():
    method = heurpfedla(retained="conv2+fc", **QUICK)
    sim, progress = run_of(method)
    start = method.init(sim.setup)
    for name in ("out.weight", "out.bias"):
        moved = (progress.server[name] - start[name]).abs().amax((0, 1)).reshape(5, -1).amax(1)
        assert [bool(x > 0) for x in moved] == [True, True, False, True, False]


def test_layers_are_named_or_chosen_but_not_both():
    assert heurpfedla() == heurpfedla(k=1)
    assert heurpfedla(retained="fc").serve[0].retain == Retain(0, "fc")
    for k in (0, 1, 2):
        with pytest.raises(RecordError, match=rf"'conv2\+fc'.*k={k}"):
            heurpfedla(k=k, retained="conv2+fc")


def cost(shape, retained, **options):
    """MB of parameters both ways, in the unit of Table 3: 75 rounds of ten clients, 2²⁰ bytes.

    `layers` of the byte counter are the values of the model alone: the mask (1 byte) is `other`.
    With local statistics, those values are the trainable parameters.
    """
    rng = np.random.default_rng(0)
    sample = {"train": (rng.random((2, *shape), dtype=np.float32), np.array([0, 9]))}
    kept = {"k": 0} if retained == "none" else {"retained": retained}
    method = heurpfedla(**kept, train=LocalTraining(batch=2), width=2, embedding=2)
    module = build("lenet", shape=shape, classes=10, **options)
    sim = simulation(method, from_splits([sample] * 10, classes=10), module, rounds=1, buffers="local")
    _, report = sim.round(sim.start(), Matrix())
    down, up = report.down, report.up
    assert int(down.layers.sum()) == 4 * int(down.values.sum())
    assert (down.other, up.other) == (0 if retained == "none" else 10, 0)
    return 75 * int(down.layers.sum() + up.layers.sum()) / 2**20


@pytest.mark.slow
@pytest.mark.parametrize(("retained", "megabytes"), [("none", 491.08), ("fc3", 488.65), ("fc3+fc1", 312.52)])
def test_communication_cost_on_emnist(retained, megabytes):
    assert round(cost((1, 28, 28), retained), 2) == megabytes


CIFAR = [("none", 693.98), ("fc1", 418.97), ("fc1+conv2", 382.25)]


@pytest.mark.parametrize(("retained", "megabytes"), slow_except([("fc1+conv2+fc3", 379.82)], CIFAR))
def test_communication_cost_on_cifar10(retained, megabytes):
    assert abs(cost((3, 32, 32), retained, norm=True) - megabytes) < 0.03


@pytest.mark.parametrize("method", slow_except([heurpfedla(**QUICK)], [pfedla(**QUICK), simmix(train=TRAIN)]))
def test_a_client_sends_its_model_and_not_how_many_samples_it_has(method):
    sim = simulation(method, tiny_federation(SIZES), model(), rounds=1, dtype=torch.float64)
    _, report = sim.round(sim.start(), Matrix())
    assert report.up.clients.tolist() == [8 * sum(spec.size for spec in sim.setup.layout.specs.values())] * len(SIZES)


# Mixing by similarity


def test_similarity_of_layers_and_of_models_by_hand(linear):
    """Updates of fc1 are orthogonal with norm 1, those of fc opposite with norm 2."""
    names = linear.layout.trainable()
    rows = {n: torch.stack([linear.setup.start[n]] * 2) for n in names}
    rows["fc1.bias"] += torch.eye(2)
    rows["fc.bias"][:, 0] += torch.tensor([2.0, -2.0])
    ids = torch.tensor([1])
    found = Similarity("layer", 3.0).weights(linear, {"rows": rows}, ids)[0].tolist()
    apart = exp(3 * 0) / (exp(3) + exp(3 * 0)), exp(-3) / (exp(3) + exp(-3))
    assert found == [pytest.approx([x, 1 - x], abs=1e-12) for x in apart]
    found = Similarity("model", 3.0).weights(linear, {"rows": rows}, ids)[0].tolist()
    other = exp(3 * -4 / 5)  # (0 − 4)/(√5·√5)
    assert found == [pytest.approx([other / (exp(3) + other), exp(3) / (exp(3) + other)], abs=1e-12)] * 2
    still = {n: torch.stack([linear.setup.start[n]] * 2) for n in names}
    assert Similarity("layer", 3.0).weights(linear, {"rows": still}, ids).tolist() == [[[0.5, 0.5]] * 2]


@pytest.mark.parametrize("unit", ["layer", pytest.param("model", marks=pytest.mark.slow)])
def test_similarities_of_a_few_clients_are_computed_for_these_alone(unit, monkeypatch):
    """C·N·P products for a cohort, or a chunk of it, not N²·P; the same weights as among everybody."""
    sim, progress = run_of(simmix(unit=unit, train=TRAIN), participation=1.0)
    rnd, shapes = sim.at(3), []
    cross = Layout.cross

    def seen(layout, a, b):
        shapes.append((len(a["fc.bias"]), len(b["fc.bias"])))
        return cross(layout, a, b)

    monkeypatch.setattr(Layout, "cross", seen)
    whole = Similarity(unit).weights(rnd, progress.server, IDS)
    few = Similarity(unit).weights(rnd, progress.server, torch.tensor([3, 1]))
    assert shapes == [(4, 4), (2, 4)]
    torch.testing.assert_close(few, whole[[3, 1]], rtol=0, atol=1e-14)
    own = whole[IDS, :, IDS]
    assert float((own - whole.amax(-1)).abs().max()) < 1e-14  # nobody is more like a client than itself


@pytest.mark.parametrize("unit", ["layer", pytest.param("model", marks=pytest.mark.slow)])
def test_three_rounds_by_similarity_are_those_of_a_plain_loop(unit):
    class Similar(PlainPFedLA):
        def alpha(self, i, hyper):
            start = dict(self.sim.template.named_parameters())
            updates = [{n: (p - start[n]).detach() for n, p in net.named_parameters()} for net in self.models]
            found = {}
            for layer in LAYERS:
                names = [n for n in start if unit == "model" or n.startswith(layer + ".")]
                flat = [torch.cat([u[n].flatten() for n in names]) for u in updates]
                found[layer] = torch.stack([4 * torch.cosine_similarity(flat[i], f, 0) for f in flat]).softmax(0)
            return found

        def _client(self, i):
            return self.trained(i), {}

    sim, progress = run_of(simmix(unit=unit, sharpness=4.0, train=TRAIN), participation=0.75)
    plain = Similar(sim, lr=0.0)
    for t in range(3):
        plain.round(t)
    rows = received_models(sim, progress, IDS)
    for i in range(4):
        expected = {n: x for n, x in plain.received(i).state_dict().items() if x.is_floating_point()}
        assert difference({n: x[i] for n, x in rows.items()}, expected) < 1e-10
