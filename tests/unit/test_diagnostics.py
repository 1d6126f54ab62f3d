"""Layer diagnostics: their numbers by hand, their lines for every method, and that they change and cost nothing."""

import json
import math
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stratafl.algorithms import ALGORITHMS, algorithm, fedalp, fedavg, fedlag, fedper, flayer, pfedla
from stratafl.config.experiment import Experiment, with_settings
from stratafl.core.describe import columns, describe
from stratafl.core.layout import Layout
from stratafl.core.state import expand
from stratafl.data import from_splits
from stratafl.errors import RecordError
from stratafl.evaluation import LayerDiagnostics, cka, diagnostics
from stratafl.evaluation import trial as trial_module
from stratafl.evaluation.cka import centred_gram, grams, mean_similarity, outlet
from stratafl.evaluation.diagnostics import (
    DiagnosticsCollector,
    _written,
    common_samples,
    conflict_numbers,
    noted,
    told,
)
from stratafl.evaluation.trial import Trial
from stratafl.execute import Matrix, simulation
from stratafl.models import ResNet, build
from stratafl.policies import Exponential, LocalTraining
from stratafl.runs import Run
from stratafl.runs.json_files import read_lines
from stratafl.runtime import engine
from stratafl.testing import CLASSES, SHAPE, difference, everything, tiny_federation, tiny_model, within_reach
from tiers import slow_and_nightly

PLAIN = {"round", "layer", "columns", "bytes.down", "bytes.up"}
ALWAYS = {"cka", "conflicts", "cosine", "update_norm", "sent"}
ACTING = {  # settings in which methods that need time act at once
    "fedalp": fedalp(groups=2, warmup=1),
    "fedlag": fedlag(k=2, xi=0.0, warmup=0),
    "flayer": flayer(s=1),
    "pfedla": pfedla(hyper_lr=0.5),
}


@pytest.fixture(autouse=True)
def untraced(monkeypatch):
    """Steps are not traced: that takes most of the time of a short run."""
    monkeypatch.setattr(engine, "patience", lambda _: float("inf"), raising=False)


def made(alg, batchnorm=True, rounds=1, **options):
    options = {"dtype": torch.float64, "participation": 0.5} | options
    return simulation(alg, tiny_federation(), tiny_model(batchnorm), rounds=rounds, **options)


def run(trial):
    progress, entries = trial.sim.start(), []
    while progress.t < trial.rounds:
        progress, entry = trial.round(progress)
        entries.append(entry)
    return progress, entries


@cache
def examined(name):
    """The simulation of a method with every layer examined in two rounds, its end, and its lines."""
    method, rounds = within_reach(ACTING.get(name) or algorithm(name), 2)
    sim = made(method, rounds=rounds)
    return sim, *run(Trial(sim, lab=LayerDiagnostics(1)))


def looked(entry):
    return any("cka" in line for line in entry.layers)


# Linear CKA


def textbook(x, y):
    """‖Yᵀ·X‖²_F / (‖Xᵀ·X‖_F·‖Yᵀ·Y‖_F) of centred features, pair by pair."""
    x, y = (z.double() - z.double().mean(0) for z in (x, y))
    return float((y.T @ x).square().sum() / ((x.T @ x).norm() * (y.T @ y).norm()))


@pytest.fixture
def features():
    return torch.randn(4, 30, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_cka_is_the_textbook_formula_pair_by_pair(features):
    similar = cka(features)
    for i in range(4):
        for j in range(4):
            assert float(similar[i, j]) == pytest.approx(textbook(features[i], features[j]), abs=1e-12)
            pair = cka(features[[i, j]])
            assert float(pair[0, 1]) == pytest.approx(float(similar[i, j]), abs=1e-12)


def test_cka_knows_rotation_scale_and_shift(features):
    x = features[0]
    rotation, _ = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))
    assert textbook(rotation, rotation) == pytest.approx(1)
    stretched = x * torch.tensor([1.0, 1, 1, 1, 1, 20], dtype=torch.float64)
    similar = cka(torch.stack([x, x @ rotation, -3 * x + 7, stretched]))
    assert similar[0, :3].tolist() == pytest.approx([1, 1, 1])
    assert float(similar[0, 3]) < 0.9  # but not for every linear map


def test_cka_of_unrelated_features_is_low_and_of_orthogonal_ones_zero():
    generator = torch.Generator().manual_seed(3)
    many = torch.randn(2, 2000, 3, dtype=torch.float64, generator=generator)
    assert float(cka(many)[0, 1]) < 0.01
    t = torch.arange(64) * 2 * math.pi / 64
    waves = torch.stack([torch.sin(t)[:, None], torch.sin(2 * t)[:, None]]).double()
    assert float(cka(waves)[0, 1]) == pytest.approx(0, abs=1e-12)


def test_cka_keeps_its_digits_in_single_precision(features):
    far = features.float() + 100
    assert float(cka(far)[0, 1]) == pytest.approx(textbook(far[0], far[1]), abs=1e-12)


def test_the_mean_leaves_out_what_a_client_is_to_itself():
    similar = torch.tensor([[1.0, 0.2, 0.4], [0.2, 1.0, 0.6], [0.4, 0.6, 1.0]])
    assert mean_similarity(similar) == pytest.approx(0.4)
    assert mean_similarity(torch.ones(1, 1)) is None


@pytest.mark.parametrize("granularity", ["tensor", "module", "block"])
@pytest.mark.parametrize(
    "make",
    [
        lambda **sizes: build("mlp", hidden=(5,), norm=True, **sizes),
        lambda **sizes: build("convnorm", **sizes),
        lambda **sizes: ResNet(blocks=(2, 1), stem="cifar", width=4, **sizes),
    ],
    ids=["mlp", "convnorm", "resnet"],
)
def test_what_layers_give_at_every_granularity(make, granularity):
    torch.manual_seed(0)
    module = make(shape=SHAPE, classes=CLASSES)
    layout = describe(module, granularity=granularity)
    rows = {n: x.clone() for n, x in expand(columns(module), 2).items()}
    rows["fc.weight"][1] *= 3
    x = torch.randn(4, *SHAPE)
    seen = grams(module, rows, x, layout)
    assert set(seen) == set(layout.names)
    last = "fc.bias" if granularity == "tensor" else "fc"
    with torch.no_grad():
        torch.testing.assert_close(seen[last][0], centred_gram(module.eval()(x)))
    torch.testing.assert_close(seen[last][1], 9 * seen[last][0], rtol=1e-4, atol=1e-5)
    assert {(one.shape, one.dtype) for one in seen.values()} == {((2, 4, 4), torch.float64)}  # no features are kept


def test_a_block_without_a_module_gives_what_its_last_part_gives():
    with torch.device("meta"):
        module = build("resnet18", shape=(3, 32, 32), classes=3)
    layout = describe(module, granularity="block")
    assert [outlet(layer, module) for layer in layout.layers[:3]] == ["bn1", "layer1.0", "layer1.1"]


class Listed(nn.Module):
    """Layers in a list and in a dictionary, which are never called themselves."""

    def __init__(self):
        super().__init__()
        self.body = nn.ModuleList([nn.Linear(3, 4), nn.Linear(4, 5)])
        self.named = nn.ModuleDict({"a": nn.Linear(5, 5), "b": nn.Linear(5, 4)})
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        for layer in (*self.body, *self.named.values()):
            x = torch.relu(layer(x))
        return self.fc(x)


def test_a_block_in_a_list_gives_what_its_last_part_gives():
    module = Listed()
    layout = describe(module, granularity="block")
    assert layout.names == ("body", "named", "fc")
    assert [outlet(layer, module) for layer in layout.layers] == ["body.1", "named.b", "fc"]
    x = torch.randn(6, 3)
    seen = grams(module, expand(columns(module), 1), x, layout)
    with torch.no_grad():
        expected = centred_gram(module.body[1](torch.relu(module.body[0](x))))
    torch.testing.assert_close(seen["body"][0], expected)
    assert set(seen) == set(layout.names)


def test_a_layer_is_seen_before_an_activation_in_place():
    torch.manual_seed(0)
    first, last = nn.Linear(5, 4), nn.Linear(4, 2)
    x = torch.randn(6, 5)
    for inplace in (False, True):
        module = nn.Sequential(first, nn.ReLU(inplace=inplace), last)
        seen = grams(module, expand(columns(module), 1), x, describe(module))
        with torch.no_grad():
            torch.testing.assert_close(seen["0"][0], centred_gram(first(x)))


@pytest.mark.parametrize("samples", [3, 20])
def test_cka_is_that_of_trained_models_on_so_many_samples(samples):
    sim, seen = made(fedavg(train=LocalTraining(lr=1.0)), batchnorm=False, participation=1.0), {}
    collector = DiagnosticsCollector(LayerDiagnostics(1, samples=samples), sim, sim.at(0))

    def examine(group, before, after):
        collector.collect(before, after)
        seen.update(after)

    lines = collector.lines(*sim.round(sim.start(), Matrix(), examine=examine))
    x = common_samples(sim, samples).flatten(1)
    assert len(x) == samples
    hidden = [x @ seen["fc1.weight"][k].T + seen["fc1.bias"][k] for k in range(6)]
    last = [torch.relu(h) @ seen["fc.weight"][k].T + seen["fc.bias"][k] for k, h in enumerate(hidden)]
    for line, features in zip(lines, (hidden, last), strict=True):
        pairs = [textbook(a, b) for a, b in combinations(features, 2)]
        assert line["cka"] == pytest.approx(sum(pairs) / 15, abs=1e-12)
        assert line["cka"] < 0.999


def test_a_linear_base_is_seen_as_well():
    sim = made(fedper(linear_base=True), participation=1.0, rounds=1)
    _, (entry,) = run(Trial(sim, lab=LayerDiagnostics(1)))
    assert all(0 <= line["cka"] <= 1 + 1e-12 for line in entry.layers)


def test_samples_are_common_constant_and_of_the_test_split():
    sim = made(fedavg())
    held = {tuple(x.flatten().tolist()) for x in sim.runtime.federation.x[sim.runtime.federation.split("test").indices]}
    x = common_samples(sim, 10)
    assert len(x) == 10
    assert {tuple(one.flatten().tolist()) for one in x} <= held
    assert torch.equal(x, common_samples(made(fedlag(k=1, warmup=0), rounds=9), 10))
    assert not torch.equal(x, common_samples(made(fedavg(), seed=1), 10))
    assert len(common_samples(sim, 1000)) == len(held)


def test_without_a_test_split_other_samples_are_taken():
    data = from_splits([{"train": ([[0.0], [1.0]], [0, 1])}] * 3, classes=2)
    sim = simulation(fedavg(), data, nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 2)), rounds=1)
    assert sorted(common_samples(sim, 9).flatten().tolist()) == [0, 0, 0, 1, 1, 1]


# Conflicts, cosines, norms, rates, shares


@pytest.fixture
def layout():
    return describe(nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1, bias=False)))


def test_conflicts_cosines_and_norms_by_hand(layout):
    """Layer 0 has the updates (3, 4, 0, 0), (−3, −4, 0, 0), (0, 0, 5, 12); layer 1 has (1, 0), (1, 1), (0, 0)."""
    update = {
        "0.weight": torch.tensor([[[3.0], [4.0]], [[-3.0], [-4.0]], [[0.0], [0.0]]]),
        "0.bias": torch.tensor([[0.0, 0.0], [0.0, 0.0], [5.0, 12.0]]),
        "1.weight": torch.tensor([[[1.0, 0.0]], [[1.0, 1.0]], [[0.0, 0.0]]]),
    }
    found = conflict_numbers(update, layout)
    assert found["conflicts"] == pytest.approx([1 / 3, 0])
    assert found["cosine"] == pytest.approx([-1 / 3, math.sqrt(0.5) / 3])
    assert found["update_norm"] == pytest.approx([(5 + 5 + 13) / 3, (1 + math.sqrt(2)) / 3])


def test_an_update_is_what_was_trained_less_what_was_received():
    sim, seen = made(flayer(), batchnorm=False, participation=1.0, rounds=2), {}
    progress, _ = sim.round(sim.start(), Matrix())
    collector = DiagnosticsCollector(LayerDiagnostics(1), sim, sim.at(1))

    def examine(group, before, after):
        collector.collect(before, after)
        seen.update({name: (after[name] - before[name]).flatten(1) for name in before})

    lines = collector.lines(*sim.round(progress, Matrix(), examine=examine))
    for line, name in zip(lines, ("fc1", "fc"), strict=True):
        update = torch.cat([seen[f"{name}.weight"], seen[f"{name}.bias"]], 1)
        cosine = torch.nn.functional.cosine_similarity(update[:, None], update[None], dim=-1)
        pairs = cosine[torch.triu(torch.ones_like(cosine), 1).bool()]
        assert line["update_norm"] == pytest.approx(float(update.norm(dim=1).mean()), abs=1e-12)
        assert line["cosine"] == pytest.approx(float(pairs.mean()), abs=1e-12)
        assert line["conflicts"] == pytest.approx(float((pairs < 0).double().mean()), abs=1e-12)


def test_one_client_conflicts_with_nobody(layout):
    update = {n: torch.ones(1, *s.shape) for n, s in layout.specs.items()}
    assert set(conflict_numbers(update, layout)) == {"update_norm"}


def test_layers_that_are_not_trained_have_no_updates():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2))
    layout = describe(module)
    update = {n: torch.ones(2, *s.shape) for n, s in layout.specs.items() if s.trainable}
    assert conflict_numbers(update, layout)["cosine"] == [pytest.approx(1), None, pytest.approx(1)]


@pytest.mark.parametrize("method", [fedavg, flayer])
def test_a_layer_that_was_not_trained_has_neither_rate_nor_directions(method):
    sim = made(method(train=LocalTraining(layers="head")), batchnorm=False, participation=1.0)
    _, (entry, *_) = run(Trial(sim, lab=LayerDiagnostics(1)))
    base, head = entry.layers
    absent = {"train.rate", "conflicts", "cosine"}
    assert not absent & set(base)
    assert base["update_norm"] == 0
    assert absent <= set(head)


def test_a_rate_that_chooses_layers_leaves_the_others_at_the_plain_rate():
    @dataclass(frozen=True)
    class Slower:
        reads = ()

        def __call__(self, gradients, row, client, layout):
            return layout.spread(torch.full((len(row["fc.bias"]), 2), 0.5), ["fc1.weight", "fc1.bias"])

    sim = made(fedavg(train=LocalTraining(lr=0.1, rates=Slower())), batchnorm=False)
    _, (entry, *_) = run(Trial(sim, lab=LayerDiagnostics(1)))
    assert [line["train.rate"] for line in entry.layers] == pytest.approx([0.05, 0.1])


def test_a_schedule_shows_in_the_rates_of_every_method():
    sim = made(fedavg(train=LocalTraining(lr=0.1, schedule=Exponential(0.5))), rounds=2)
    _, entries = run(Trial(sim, lab=LayerDiagnostics(1)))
    for t, entry in enumerate(entries):
        assert [line["train.rate"] for line in entry.layers] == pytest.approx([0.1 * 0.5**t] * 5, rel=1e-12)
    assert "train/rates" not in sim.round(sim.start(), Matrix())[1].notes


def test_shares_of_large_layers_keep_their_digits():
    columns = 2**24 + 1
    report = SimpleNamespace(cohort=[0], up=SimpleNamespace(values=torch.tensor([2**24])), notes={})
    assert noted(report, SimpleNamespace(sizes=(columns,)))["sent"] == [2**24 / columns]


def test_a_rate_is_the_rate_times_the_mean_factor():
    """One step per client, so the factor is 1 + ln(1 + 1/‖g‖)·i/L, and the update is rate·g."""
    sim = made(
        flayer(mask=False, guide=False, train=LocalTraining(lr=0.1, batch=50)), batchnorm=False, participation=1.0
    )
    moved = {}

    def see(group, before, after):
        moved.update({n: after[n] - before[n] for n in before})

    _, report = sim.round(sim.start(), Matrix(), examine=see, watched=True)
    layout = sim.setup.layout
    rates = report.notes["train/rates"]
    norms = layout.norms(moved) / rates  # ‖g‖, if the rate is what it claims to be
    i = torch.tensor([1.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(rates, 0.1 * (1 + torch.log1p(1 / norms) * i / 2), rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.tensor(noted(report, layout)["train.rate"]).double(), rates.mean(0))


def test_shares_that_were_sent():
    _, (entry, *_) = run(Trial(made(flayer(), participation=1.0, batchnorm=False), lab=LayerDiagnostics(1)))
    sizes = {line["layer"]: line["columns"] for line in entry.layers}
    assert sizes == {"fc1": 296, "fc": 27}
    assert [line["sent"] for line in entry.layers] == pytest.approx([0.5, 1.0])
    _, (entry, *_) = run(Trial(made(fedper(), participation=1.0, batchnorm=False), lab=LayerDiagnostics(1)))
    assert [line["sent"] for line in entry.layers] == [1.0, 0.0]


@pytest.mark.parametrize(("buffers", "norm"), [("follow", 1.0), ("local", 0.5)])
def test_shares_are_of_all_columns_with_statistics(buffers, norm):
    _, (entry, *_) = run(Trial(made(fedavg(), buffers=buffers), lab=LayerDiagnostics(1)))
    assert [line["sent"] for line in entry.layers] == [1, norm, 1, norm, 1]  # conv1, bn1, conv2, bn2, fc


@pytest.mark.slow
def test_the_weight_of_the_own_head_is_told():
    sim = made(flayer(), batchnorm=False, rounds=3)
    _, entries = run(Trial(sim, lab=LayerDiagnostics(1)))
    assert [line["mix.own"] for line in entries[0].layers] == [0, 0]  # nobody has an accuracy yet
    assert entries[-1].layers[0]["mix.own"] == 0
    assert 0 < entries[-1].layers[1]["mix.own"] <= 1
    _, official = run(Trial(made(flayer(preset="official"), batchnorm=False, rounds=2), lab=LayerDiagnostics(1)))
    assert 0 < official[-1].layers[1]["mix.own"] <= 1
    assert official[-1].layers[1]["train.rate"] == pytest.approx(0.05 / 5, rel=1e-6)


# What methods tell


@pytest.mark.slow
def test_alpha_psi_and_conflicts_are_told_layer_by_layer():
    entries = {name: examined(name)[2][-1] for name in ("pfedla", "fedalp", "fedlag")}
    for entry in entries.values():
        assert [line["layer"] for line in entry.layers] == ["conv1", "bn1", "conv2", "bn2", "fc"]
    alpha = torch.tensor([line["alpha"] for line in entries["pfedla"].layers])
    assert alpha.shape == (5, 6, 6)
    torch.testing.assert_close(alpha.sum(-1), torch.ones(5, 6))
    assert all(len(line["psi"]) == 2 and min(line["psi"]) >= 0 for line in entries["fedalp"].layers)
    assert all({"conflicting_pairs", "personal"} <= set(line) for line in entries["fedlag"].layers)


def test_a_large_matrix_is_told_by_its_mean(monkeypatch):
    monkeypatch.setattr(diagnostics, "ENTRIES", 35)
    sim = made(pfedla())
    progress, _ = sim.round(sim.start(), Matrix())
    assert told(sim, progress)["alpha"] == pytest.approx([1 / 6] * 5)
    monkeypatch.setattr(diagnostics, "ENTRIES", 36)
    assert len(told(sim, progress)["alpha"][0]) == 6


def test_a_server_tells_as_of_after_the_round():
    method = SimpleNamespace(tell=lambda rnd, server: {"t": torch.tensor([[rnd], [server]])})
    sim = SimpleNamespace(at=lambda t: t, algorithm=method)
    assert told(sim, SimpleNamespace(t=3, server=7)) == {"t": [[3], [7]]}


TELLING = ("flayer", "pfedla")  # notes of clients, and a matrix of the server


@pytest.mark.parametrize(
    "name", [*TELLING, *slow_and_nightly(name for name in sorted(ALGORITHMS) if name not in TELLING)]
)
def test_every_method_has_its_lines(name):
    _, _, entries = examined(name)
    assert all(looked(entry) for entry in entries)
    trained = [line for line in entries[-1].layers if line.get("update_norm", 0) > 0]  # a prior is never sent
    assert len(trained) >= min(2, len(entries[-1].layers))
    for line in trained:  # some methods have layers that nobody trains
        assert set(line) >= PLAIN | ALWAYS - {"cka"}  # of a layer that is not given samples there is none
        assert 0 <= line.get("cka", 1) <= 1 + 1e-9
        assert -1 - 1e-9 <= line["cosine"] <= 1 + 1e-9
        assert 0 <= line["conflicts"] <= 1
        assert name == "pfedfda" or any(key.endswith(".rate") for key in line)  # its head is computed, not trained
    json.dumps([entry.layers for entry in entries], allow_nan=False)


def test_numbers_that_are_not_finite_are_null():
    assert _written([1.0, [float("nan"), 2], float("inf")]) == [1.0, [None, 2], None]


def test_where_all_are_left_out_there_is_nothing_to_compare():
    sim = made(flayer(train=LocalTraining(lr=1e30)), rounds=2, dtype=torch.float32)
    _, entries = run(Trial(sim, lab=LayerDiagnostics(1)))
    assert len(entries[-1].round["left_out"]) == entries[-1].round["cohort"]
    assert not {"cka", "conflicts", "update_norm"} & set(entries[-1].layers[-1])
    json.dumps(entries[-1].layers, allow_nan=False)


# When, on whom, at what cost


@pytest.mark.parametrize(
    "bad", [{"every": -1}, {"every": 1.5}, {"every": "2"}, {"clients": 0}, {"samples": 1}, {"samples": True}]
)
def test_impossible_settings_are_refused(bad):
    with pytest.raises(RecordError, match=f"LayerDiagnostics: {next(iter(bad))} .*{next(iter(bad.values()))!r}"):
        LayerDiagnostics(**bad)


@pytest.mark.parametrize(("every", "expected"), [(0, []), (1, [1, 2, 3, 4, 5]), (2, [1, 2, 4]), (3, [1, 3]), (10, [1])])
def test_every_so_many_rounds_and_always_the_first(every, expected):
    assert [t + 1 for t in range(5) if LayerDiagnostics(every).due(t)] == expected


def test_only_so_many_clients_are_looked_at():
    sim = made(fedavg(), participation=1.0)
    for chunk in (None, 1):
        collector = DiagnosticsCollector(LayerDiagnostics(1, clients=3), sim, sim.at(0))
        examine = lambda group, before, after, collector=collector: collector.collect(before, after)  # noqa: E731
        sim.round(sim.start(), Matrix() if chunk is None else Matrix(chunk=chunk), examine=examine)
        seen = sum(len(next(iter(rows.values()))) for rows in collector._trained)
        assert seen == 3


@pytest.mark.parametrize("name", ["flayer", *(pytest.param(m, marks=pytest.mark.slow) for m in ("fedlag", "pfedla"))])
def test_diagnostics_change_nothing(name):
    sim, watched, looks = examined(name)
    plain, without = run(Trial(sim))
    assert difference(everything(sim, plain), everything(sim, watched)) == 0
    for a, b in zip(without, looks, strict=True):
        drop = lambda line: {k: v for k, v in line.items() if not k.startswith("seconds")}  # noqa: E731
        assert drop(a.round) == drop(b.round)
        assert a.clients == b.clients
        assert a.layers == [{k: v for k, v in line.items() if k in PLAIN} for line in b.layers]


def test_when_off_nothing_of_it_is_called(monkeypatch):
    calls = []

    def counted(name, function):
        return lambda *a, **k: (calls.append(name), function(*a, **k))[1]

    for name in ("grams", "similarities", "conflict_numbers", "told", "noted", "common_samples"):
        monkeypatch.setattr(diagnostics, name, counted(name, getattr(diagnostics, name)))
    monkeypatch.setattr(trial_module, "DiagnosticsCollector", counted("DiagnosticsCollector", DiagnosticsCollector))
    monkeypatch.setattr(Layout, "gram", counted("gram", Layout.gram))
    sim = made(fedavg(), batchnorm=False, rounds=3, participation=1.0)
    examiners = []
    real = type(sim).round
    monkeypatch.setattr(
        type(sim),
        "round",
        lambda self, p, e, examine, watched: (
            examiners.append(examine),
            real(self, p, e, examine=examine, watched=watched),
        )[1],
    )
    run(Trial(sim, every=3))
    assert [examine is None for examine in examiners] == [True, True, False]  # only the evaluated round is examined
    assert calls == []
    run(Trial(sim, lab=LayerDiagnostics(2)))
    layers = len(sim.setup.layout.layers)
    assert {name: calls.count(name) for name in set(calls)} == {
        "DiagnosticsCollector": 2,
        "grams": 2,
        "common_samples": 2,
        "conflict_numbers": 2,
        "gram": 2,
        "told": 2,
        "noted": 2,
        "similarities": 2 * layers,
    }


SETTINGS = (
    "algorithm.name=flayer",
    "run.rounds=4",
    "run.checkpoint=1",
    "evaluate.lab=2",
    "evaluate.every=4",
    "data.clients=3",
    "data.partition=iid",
    "train.batch=200",
    "model.hidden=[8]",
)


@pytest.mark.slow
def test_a_resumed_run_has_the_same_lines(tmp_path):
    experiment = with_settings(Experiment(), SETTINGS)
    with Run.create(experiment, tmp_path / "whole") as whole:
        assert len(list(whole.rounds())) == 4
    with Run.create(experiment, tmp_path / "part") as part:
        for line in part.rounds():
            if line["round"] == 3:
                break
    with Run.open(tmp_path / "part") as again:
        assert [line["round"] for line in again.rounds()] == [4]
    whole, part = (read_lines(tmp_path / name / "layers.jsonl") for name in ("whole", "part"))
    assert whole == part
    assert [line["round"] for line in whole] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [line["round"] for line in whole if "cka" in line] == [1, 1, 2, 2, 4, 4]
    assert {key for line in whole for key in line} == PLAIN | ALWAYS | {"train.rate", "mix.own"}
