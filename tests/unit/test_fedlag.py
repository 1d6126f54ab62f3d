"""FedLAG as in its paper: every equation by hand or by a plain loop; and its control, FedAvg and then nothing."""

from dataclasses import replace

import plain_clients
import pytest
import torch
from plain_clients import UNITS, Clients, assert_same, state
from plain_fedlag import PlainFedLAG
from torch import Tensor, nn

from stratafl.algorithms import fedavg, fedavg30local, fedlag
from stratafl.algorithms.fedlag import PersonaliseConflicts, started
from stratafl.algorithms.special_cases import SpecialCase
from stratafl.core.describe import describe
from stratafl.core.layers import Layer
from stratafl.core.layout import Layout, Spec
from stratafl.core.parcel import Field, Parcel
from stratafl.core.phased import Phased
from stratafl.core.reduce import conflicting_pairs, cosines
from stratafl.core.round import Round, Setup
from stratafl.errors import RecordError
from stratafl.evaluation.evaluate import received_models
from stratafl.execute import Matrix, Simulation, simulation
from stratafl.models import build
from stratafl.policies import LocalTraining
from stratafl.testing import CLASSES, check_special_case, difference, tiny_federation, tiny_model
from tiers import slow_except

D = torch.float64
IDS = torch.arange(6)
SIZES = (31, 23, 14, 12, 7, 4)  # with which the personal layers change from round to round


def clients(participation: float = 1.0) -> Clients:
    return replace(plain_clients.clients(participation), federation=tiny_federation(SIZES))


def T(*values):
    return torch.tensor(values, dtype=D)


# Eq. 1–3: updates and conflict scores, by hand


def toy_layout() -> Layout:
    """Layers a and b of two columns each."""
    layers = [Layer(n, "linear", n, n == "b", None, (f"{n}.w",)) for n in "ab"]
    return Layout([Spec("a.w", (2,), 0, True), Spec("b.w", (2,), 1, True)], layers)


def toy_round(layout: Layout, count: int) -> Round:
    start = {name: torch.zeros(spec.shape, dtype=D) for name, spec in layout.specs.items()}
    return Round(Setup(layout, start, lambda _: start, count, 10), 0)


# a: client 1 goes against client 0, client 2 does not move. b: cosines 0–1: −0.6, 0–2: 0, 1–2: 0.8.
H = {"a.w": T([1, 0], [-2, 0], [0, 0]), "b.w": T([2, 0], [-3, 4], [0, 7])}


def test_cosines_by_hand():
    found = cosines(toy_layout().gram(H))
    assert found[0].tolist() == [[1, -1, 0], [-1, 1, 0], [0, 0, 0]]  # with an update of norm 0 there is none
    torch.testing.assert_close(found[1], T([1, -0.6, 0], [-0.6, 1, 0.8], [0, 0.8, 1]))


@pytest.mark.parametrize(("xi", "scores"), [(0.0, [1, 1]), (-0.5, [1, 1]), (-0.6, [1, 0]), (-0.9, [1, 0])])
def test_conflicts_are_pairs_strictly_below_the_threshold(xi, scores):
    assert conflicting_pairs(toy_layout().gram(H), xi).tolist() == scores


def test_a_pair_counts_once():
    gram = toy_layout().gram({"a.w": T([1, 0], [-1, 0.1], [-1, -0.1]), "b.w": T([1, 0], [1, 1], [0, 1])})
    assert conflicting_pairs(gram, 0.0).tolist() == [2, 0]


def toy_server(personal=(0, 0)):
    """w_g = 0 in both layers; the rows that clients 0 … 3 uploaded last are 10, 20, 30, 40 everywhere."""
    last = T([10, 10], [20, 20], [30, 30], [40, 40])
    return {
        "theta": {"a.w": T(0, 0), "b.w": T(0, 0)},
        "rows": {"a.w": last, "b.w": last.clone()},
        "personal": T(*personal),
        "conflicts": T(0, 0),
    }


def absorbed(server, a, b, samples=(1, 1, 1), ids=(0, 1, 2), **options):
    up = Parcel({"theta": Field({"a.w": a, "b.w": b}), "samples": Field(T(*samples))})
    step = PersonaliseConflicts(**{"k": 1, "xi": 0.0, **options})
    return step.absorb(toy_round(toy_layout(), 4), server, up, torch.tensor(ids))


def test_updates_are_from_where_each_client_started():
    """Layer a is personal, so clients 2, 0, 1 started it from 30, 10, 20: their updates are (1, 0), (−1, 0), (1, 1)."""
    server = toy_server(personal=(1, 0))
    a = T([31, 30], [9, 10], [21, 21])
    start = started(server, torch.tensor([2, 0, 1]), toy_layout())
    torch.testing.assert_close(start["a.w"], T([30, 30], [10, 10], [20, 20]))
    torch.testing.assert_close(start["b.w"], torch.zeros(3, 2, dtype=D))
    new = absorbed(server, a, T([1, 0], [1, 1], [1, 2]), ids=(2, 0, 1))
    assert new["conflicts"].tolist() == [2, 0]
    assert new["personal"].tolist() == [1, 0]
    assert new["rows"]["a.w"].tolist() == [[9, 10], [21, 21], [31, 30], [40, 40]]  # client 3 was not there


def test_the_server_averages_personal_layers_too():
    """Algorithm 1 line 13; with n_k or as in Eq. 4."""
    server = toy_server(personal=(1, 0))
    a, b = T([31, 30], [9, 10], [20, 20]), T([2, 0], [0, 2], [4, 4])
    rnd, ids = toy_round(toy_layout(), 4), torch.tensor([0, 1, 2])
    up = Parcel({"theta": Field({"a.w": a, "b.w": b}), "samples": Field(T(1, 1, 2))})
    for weights, expected in (("samples", T(2.5, 2.5)), ("uniform", T(2, 2))):
        _, mean = fedlag(k=1, xi=0.0, warmup=0, weights=weights).phases[0].algorithm.merge
        theta = mean.finish(rnd, server, mean.fold(rnd, server, {}, up, ids))["theta"]
        torch.testing.assert_close(theta["a.w"], T(20, 20))
        torch.testing.assert_close(theta["b.w"], expected)


def test_of_equal_scores_the_later_layer_is_personal():
    moved = T([1, 0], [-1, 0], [1, 1])
    assert absorbed(toy_server(), moved, moved)["personal"].tolist() == [0, 1]
    assert absorbed(toy_server(), moved, moved, k=2)["personal"].tolist() == [1, 1]


def test_more_conflicts_go_before_a_later_place():
    assert absorbed(toy_server(), T([1, 0], [-1, 0], [-1, 0]), T([1, 0], [-1, 0], [0, 1]))["personal"].tolist() == [
        1,
        0,
    ]


def test_a_layer_without_a_conflict_is_never_personal():
    same = T([1, 0], [1, 1], [1, 0])
    assert absorbed(toy_server(), same, same, k=2)["personal"].tolist() == [0, 0]
    assert absorbed(toy_server(), T([1, 0], [-1, 0], [1, 0]), same, k=2)["personal"].tolist() == [1, 0]
    assert absorbed(toy_server((1, 1)), same[:1], same[:1], (1,), (2,), k=2)["personal"].tolist() == [0, 0]  # no pairs


# BatchNorm, and how many layers


def personal_layers(layout: Layout, scores: dict[str, int], **options) -> list[str]:
    conflicts = torch.tensor([scores.get(name, 0) for name in layout.names])
    chosen = PersonaliseConflicts(**options)._personal(conflicts, layout)
    return [name for name, mine in zip(layout.names, chosen.tolist(), strict=True) if mine]


def test_a_batchnorm_is_not_scored_and_follows_its_convolution():
    layout = describe(tiny_model())
    assert [layout.names[i] for i in layout.computing] == ["conv1", "conv2", "fc"]
    scores = {"conv1": 3, "bn1": 9, "conv2": 5, "bn2": 1, "fc": 4}
    assert personal_layers(layout, scores, k=1) == ["conv2", "bn2"]
    assert personal_layers(layout, scores, k=2) == ["conv2", "bn2", "fc"]
    assert personal_layers(layout, scores, k=2, bn="averaged") == ["conv2", "fc"]
    assert personal_layers(layout, scores, k=0) == []


class Normed(nn.Module):
    """Normalisations that follow no layer of their width: of the input, after flattening, and of every other kind."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.BatchNorm2d(1)
        self.conv = nn.Conv2d(1, 2, 3)
        self.flat = nn.BatchNorm1d(32)
        self.layer = nn.LayerNorm(32)
        self.fc1 = nn.Linear(32, 4)
        self.group = nn.GroupNorm(2, 4)
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(self.flat(self.conv(self.before(x)).flatten(1)))
        return self.fc(torch.relu(self.group(self.fc1(x))))


def test_no_normalisation_is_scored_whether_or_not_it_follows_a_layer():
    layout = describe(Normed())
    assert [layer.name for layer in layout.layers if not layer.computes] == ["before", "flat", "layer", "group"]
    assert {layer.name: layer.normalises for layer in layout.layers if layer.normalises} == {"group": "fc1"}
    assert [layout.names[i] for i in layout.computing] == ["conv", "fc1", "fc"]
    everywhere = dict.fromkeys(layout.names, 9) | {"fc1": 1, "conv": 2, "fc": 3}
    assert personal_layers(layout, everywhere, k=3) == ["conv", "fc1", "group", "fc"]
    assert personal_layers(layout, everywhere, k=3, bn="averaged") == ["conv", "fc1", "fc"]
    with pytest.raises(RecordError, match=r"0 to 3, .*not 4"):
        simulation(fedlag(k=4), tiny_federation(SIZES), Normed, rounds=1)


def test_in_a_run_normalisations_without_a_layer_stay_averaged():
    sim = simulation(
        fedlag(k=3, xi=0.0, warmup=0, train=LocalTraining(lr=0.3)), tiny_federation(SIZES), Normed, rounds=3, dtype=D
    )
    progress = sim.run(Matrix())
    chosen = {sim.setup.layout.names[i] for i in progress.server["personal"].nonzero()[:, 0].tolist()}
    assert chosen
    assert not chosen & {"before", "flat", "layer"}


def test_a_model_that_only_normalises_has_no_personal_layer():
    assert personal_layers(describe(nn.Sequential(nn.BatchNorm1d(3))), {"0": 4}) == []


def test_left_open_k_is_five_or_half_of_a_small_models_layers():
    with torch.device("meta"):
        large = describe(build("resnet18cifar", shape=(3, 32, 32), classes=10))
    everywhere = dict.fromkeys(large.names, 1)
    assert sum(not name.startswith("bn") and ".bn" not in name for name in large.names) > 10
    assert len(personal_layers(large, everywhere, bn="averaged")) == 5
    for hidden, expected in (((), ["fc"]), ((8,), ["fc"]), ((8, 8), ["fc"]), ((8, 8, 8), ["fc3", "fc"])):
        small = describe(build("mlp", shape=(1, 6, 6), classes=3, hidden=hidden))
        assert personal_layers(small, dict.fromkeys(small.names, 1)) == expected


# Whole runs against a plain loop


def together(plain: PlainFedLAG, rounds: int = 5) -> Simulation:
    options = {name: getattr(plain, name) for name in ("k", "xi", "warmup", "weights", "bn")}
    return simulation(
        fedlag(**options, train=plain.clients.train),
        plain.clients.federation,
        plain.clients.module,
        rounds=rounds,
        participation=plain.clients.participation,
        dtype=D,
    )


VARIANTS = {
    "default": {},
    "uniform": {"weights": "uniform", "k": 2},
    "averaged": {"bn": "averaged", "k": 2},
    "warm-up": {"warmup": 2, "xi": -0.1},
    "warm-up, uniform": {"warmup": 2, "weights": "uniform", "k": 2},
}


@pytest.mark.budget(0.7, "five rounds against a plain loop")
@pytest.mark.parametrize("name", slow_except(["default", "warm-up, uniform"], VARIANTS))
def test_five_rounds_with_half_of_the_clients_against_a_plain_loop(name):
    plain = PlainFedLAG(clients(participation=0.5), **VARIANTS[name])
    sim = together(plain)
    progress = sim.start()
    for t in range(5):
        progress, _ = sim.round(progress, Matrix())
        plain.round(t)
        told = sim.algorithm.tell(sim.at(t), progress.server)
        by_name = {key: dict(zip(sim.setup.layout.names, x.tolist(), strict=True)) for key, x in told.items()}
        assert {name for name, mine in by_name["personal"].items() if mine} == plain.sets[t]
        assert {name: by_name["conflicting_pairs"][name] for name in UNITS} == plain.scores  # in the warm-up as well
    assert_same(sim, progress, [plain.start(k) for k in plain.clients.everybody])
    assert len({frozenset(chosen) for chosen in plain.sets}) > 1  # the personal layers change from round to round
    assert any(plain.sets)
    assert all(not chosen for chosen in plain.sets[: plain.warmup])


def test_a_warm_up_counts_conflicts_with_the_methods_own_threshold():
    told = []
    for xi in (0.0, -0.4):
        plain = PlainFedLAG(clients(), xi=xi, warmup=3)
        sim = together(plain, rounds=4)
        progress, _ = sim.round(sim.start(), Matrix())
        pairs = sim.algorithm.tell(sim.at(0), progress.server)["conflicting_pairs"]
        scores = plain.run(1).scores
        told.append([int(pairs[sim.setup.layout.index[name]]) for name in UNITS])
        assert told[-1] == [scores[name] for name in UNITS]
    assert told[0] != told[1]


@pytest.mark.slow
def test_everybody_against_a_plain_loop():
    plain = PlainFedLAG(clients(), k=2, xi=-0.1)
    sim = together(plain)
    assert_same(sim, sim.run(Matrix()), plain.run(5) and [plain.start(k) for k in plain.clients.everybody])
    assert any(plain.sets)


@pytest.mark.budget(0.7, "five rounds, whose starts are compared")
@pytest.mark.parametrize(("warmup", "buffers"), [(0, "follow"), pytest.param(2, "local", marks=pytest.mark.slow)])
def test_the_server_knows_what_a_client_started_from(warmup, buffers):
    """Bit for bit, in every round, for clients that were away as well: it never needs to be told."""
    method = fedlag(k=2, xi=0.0, warmup=warmup, train=LocalTraining(lr=0.2))
    sim = simulation(
        method, tiny_federation(SIZES), tiny_model(), rounds=5, participation=0.5, buffers=buffers, dtype=D
    )
    progress, seen = sim.start(), 0
    for _ in range(5):
        server = progress.server

        def compare(ids, models, _, server=server):
            nonlocal seen
            believed = started(server, ids, sim.setup.layout)
            assert all(torch.equal(believed[n], models[n]) for n in believed)
            seen += len(ids)

        progress, _ = sim.round(progress, Matrix(), examine=compare)
    assert seen == 15


def test_who_was_not_sampled_keeps_its_layers_and_takes_the_newest_shared_ones():
    sim = simulation(
        fedlag(k=2, xi=0.0, warmup=0, train=LocalTraining(lr=0.2)), tiny_federation(SIZES), tiny_model(), rounds=2
    )
    names, layout = sim.setup.layout.names, sim.setup.layout
    progress, _ = sim.round(sim.start(), Matrix(), ids=torch.arange(5))
    away = progress.clients[2]["theta"]
    progress, _ = sim.round(progress, Matrix(), ids=torch.tensor([0, 1, 3, 4]))
    personal = {names[i] for i in progress.server["personal"].nonzero()[:, 0].tolist()}
    assert personal
    assert personal != set(names)
    rows = received_models(sim, progress, torch.tensor([2, 5]))
    for name, spec in layout.specs.items():
        mine = names[spec.layer] in personal
        assert torch.equal(rows[name][0], away[name] if mine else progress.server["theta"][name])
        assert torch.equal(rows[name][1], sim.setup.start[name] if mine else progress.server["theta"][name])


def test_new_clients_are_sent_the_mean_of_all_layers_also_of_personal_ones():
    method = fedlag(k=2, xi=0.0, warmup=0, train=LocalTraining(lr=0.2))
    sim = simulation(method, tiny_federation(SIZES), tiny_model(), rounds=3, new_clients=1, dtype=D)
    progress = sim.run(Matrix())
    assert bool(progress.server["personal"].any())
    given = method.download(sim.at(3), progress.server, torch.tensor([5]), new=True)["theta"]
    assert given.common
    assert given.mask is None
    assert set(given.rows) == set(sim.setup.layout.specs)
    assert all(torch.equal(given.rows[n], x) for n, x in progress.server["theta"].items())


# Bytes


def test_a_model_goes_up_and_what_is_shared_comes_down():
    sim = simulation(fedlag(k=1, xi=0.0, warmup=1), tiny_federation(SIZES), tiny_model(batchnorm=False), rounds=4)
    layout, progress, personal = sim.setup.layout, sim.start(), []
    sizes = [sum(spec.size for spec in layout.specs.values() if spec.layer == i) for i in range(len(layout.layers))]
    for _ in range(4):
        mine = progress.server["personal"].nonzero()[:, 0].tolist()
        personal.append(len(mine))
        progress, report = sim.round(progress, Matrix())
        assert report.up.total == 6 * (4 * layout.columns + 8)  # θ and n_k, no more than FedAvg
        kept = sum(sizes[i] for i in mine)
        assert report.down.total == 6 * (4 * (layout.columns - kept) + 1)  # and one byte that says which layers
    assert personal[:2] == [0, 0]
    assert personal[2:] == [1, 1]


# Special cases


@pytest.mark.slow
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_without_personal_layers_it_is_fedavg_after_five_rounds(participation):
    law = SpecialCase("k = 0 is FedAvg", fedlag(k=0, warmup=2), fedavg(), batchnorm=False)
    check_special_case(law, rounds=5, participation=participation)


@pytest.mark.slow
def test_a_warm_up_is_fedavg():
    check_special_case(
        SpecialCase("a warm-up is FedAvg", Phased(fedlag(k=2, xi=0.0, warmup=5).phases[:-1]), fedavg()),
        rounds=3,
        participation=0.5,
    )


@pytest.mark.slow
def test_where_it_acts_clients_differ_from_each_other_and_from_fedavg():
    models = []
    for method in (fedlag(k=1, xi=0.0, warmup=1, train=LocalTraining(lr=0.2)), fedavg(train=LocalTraining(lr=0.2))):
        sim = simulation(method, tiny_federation(SIZES), tiny_model(), rounds=4, dtype=D)
        progress = sim.run(Matrix())
        models.append(received_models(sim, progress, IDS))
        if method != fedavg(train=LocalTraining(lr=0.2)):
            told = sim.algorithm.tell(sim.at(4), progress.server)
            assert 0 < int(told["personal"].sum()) < len(sim.setup.layout.layers)
            assert told["conflicting_pairs"].max() > 0
    own, common = models
    assert difference(own, common) > 1e-3
    assert any(float((x[0] - x[1]).abs().max()) > 1e-3 for x in own.values())
    assert all(torch.equal(x[0], x[1]) for x in common.values())


# FedAvg and then nothing


def control(warmup: int, rounds: int):
    plain = clients(participation=0.5)
    method = fedavg30local(warmup=warmup, train=plain.train)
    return plain, simulation(method, plain.federation, plain.module, rounds=rounds, participation=0.5, dtype=D)


@pytest.mark.parametrize(("warmup", "rounds"), slow_except([(2, 4)], [(1, 3), (3, 4)]))
def test_the_control_goes_on_from_what_was_trained_or_sent_last_in_its_warm_up(warmup, rounds):
    """As in the published code, which sends the model to all clients in every round of the warm-up."""
    plain, sim = control(warmup, rounds)
    global_model = state(plain.module)
    own = [dict(global_model) for _ in plain.everybody]
    for t in range(rounds):
        if t < warmup:
            own = [dict(global_model) for _ in plain.everybody]
        for client in plain.sampled(t):
            own[client] = plain.trained(own[client], client, t)
        global_model = plain.mean({k: own[k] for k in plain.sampled(t)}) if t < warmup else global_model
    progress = sim.run(Matrix())
    assert_same(sim, progress, own)
    assert all(float((progress.server["theta"][n] - x).abs().max()) < 1e-10 for n, x in global_model.items())


def test_the_control_reaches_everybody_once_and_sends_nothing_after_its_warm_up():
    _, sim = control(warmup=2, rounds=4)
    progress, down, up = sim.start(), [], []
    for _ in range(4):
        progress, report = sim.round(progress, Matrix())
        down.append(int(report.down.values.sum()))
        up.append(int(report.up.values.sum()))
    model = sum(spec.size for spec in sim.setup.layout.specs.values())
    assert down == [3 * model, 6 * model, 0, 0]
    assert up == [3 * model, 3 * model, 0, 0]


# Bad input


def test_more_layers_than_there_are_is_refused():
    for batchnorm, most in ((True, 3), (False, 2)):
        with pytest.raises(RecordError, match=f"0 to {most}, .*not 4"):
            simulation(fedlag(k=4), tiny_federation(SIZES), tiny_model(batchnorm), rounds=1)
        simulation(fedlag(k=most, warmup=0), tiny_federation(SIZES), tiny_model(batchnorm), rounds=1)
