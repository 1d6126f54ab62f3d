"""FedALP as in its paper: every equation by hand or by a plain loop, both readings of what it leaves open."""

from dataclasses import replace
from hashlib import sha256
from itertools import combinations

import numpy as np
import pytest
import torch
from plain_clients import assert_same, clients
from plain_fedalp import PlainFedALP
from torch import Tensor

from stratafl.algorithms import fedalp, fedavg
from stratafl.algorithms.fedalp import USUAL_GROUPS, FormGroups, LearnGroups, MixGroups, shares, ward
from stratafl.algorithms.special_cases import SpecialCase
from stratafl.core.fields import ShareOfClients
from stratafl.core.layers import Layer
from stratafl.core.layout import Layout, Spec
from stratafl.core.parcel import Field, Parcel
from stratafl.core.records import stored_repr
from stratafl.core.reduce import cosines
from stratafl.core.round import Round, Setup
from stratafl.core.state import flatten
from stratafl.errors import ContractError, RecordError
from stratafl.evaluation.evaluate import received_models
from stratafl.evaluation.trial import Trial
from stratafl.execute import Matrix, Simulation, simulation
from stratafl.policies import LocalTraining
from stratafl.testing import SETTINGS, check_special_case, difference, tiny_federation, tiny_model
from tiers import slow_except

D = torch.float64


def T(*values):
    return torch.tensor(values, dtype=D)


def toy_layout(statistics: bool = False) -> Layout:
    """Layers a, of two columns, and b, of one; with `statistics`, a third column of b that is not trained."""
    specs = [Spec("a.w", (2,), 0, True), Spec("b.w", (1,), 1, True)]
    specs += [Spec("b.mean", (1,), 1, False)] if statistics else []
    names = ("b.w", "b.mean") if statistics else ("b.w",)
    return Layout(
        specs, [Layer("a", "linear", "a", False, None, ("a.w",)), Layer("b", "linear", "b", True, None, names)]
    )


def toy_round(layout: Layout, count: int) -> Round:
    start = {name: torch.zeros(spec.shape, dtype=D) for name, spec in layout.specs.items()}
    return Round(Setup(layout, start, lambda _: start, count, 10), 0)


def parcel(samples: Tensor, **rows: Tensor) -> Parcel:
    return Parcel({"theta": Field({n.replace("_", "."): x for n, x in rows.items()}), "samples": Field(samples)})


# Eq. 3–4: similarities


def test_cosines_by_hand():
    updates = {"a.w": T([3, 4], [4, -3], [0, 0], [6, 8]), "b.w": T([0], [12], [0], [0])}
    rho = cosines(toy_layout().gram(updates).sum(0, keepdim=True))[0]
    expected = T([1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1])
    torch.testing.assert_close(rho, expected)
    whole = {"a.w": T([3, 4], [3, -4]), "b.w": T([12], [12])}  # 135 of 169, over the layers together
    assert float(cosines(toy_layout().gram(whole).sum(0, keepdim=True))[0, 0, 1]) == pytest.approx((9 - 16 + 144) / 169)


# Clustering


def similarity_of(updates: np.ndarray) -> Tensor:
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    return torch.from_numpy(unit @ unit.T)


def test_two_clear_groups_are_found():
    rng = np.random.default_rng(0)
    centres = np.eye(2, 8)[[0, 1, 1, 0, 0, 1, 0]]
    labels = ward(similarity_of(centres + 0.1 * rng.standard_normal((7, 8))), 2)
    assert sorted(labels.unique().tolist()) == [0, 1]
    assert (labels == labels[0]).tolist() == [True, False, False, True, True, False, True]


def test_rows_of_similarities_are_what_ward_sees():
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import pdist

    rng = np.random.default_rng(1)
    rho = similarity_of(rng.standard_normal((9, 4)))
    for features, x in (("cosine", rho.numpy()), ("angle", np.arccos(rho.numpy().clip(-1, 1)))):
        expected = fcluster(linkage(pdist(x), "ward"), t=3, criterion="maxclust")
        assert (ward(rho, 3, features) + 1).tolist() == expected.tolist()


def _merged_by_sums_of_squares(x, groups):
    """Ward's method from its definition: always the two groups whose union adds least to the squares within groups."""
    found = [[i] for i in range(len(x))]

    def added(pair):
        a, b = (x[found[k]] for k in pair)
        return len(a) * len(b) / (len(a) + len(b)) * np.square(a.mean(0) - b.mean(0)).sum()

    while len(found) > groups:
        i, j = min(combinations(range(len(found)), 2), key=added)
        found[i] += found.pop(j)
    return set(map(frozenset, found))


@pytest.mark.parametrize("seed", range(6))
def test_groups_are_those_of_wards_definition(seed):
    rho = _random_similarities(seed)
    assert _partition(ward(rho, 2).tolist()) == _merged_by_sums_of_squares(rho.numpy(), 2)


def test_a_client_at_the_edge_is_not_left_alone_as_other_linkages_would():
    way = np.array([[-1.0, -1], [-1, 0], [2, 3], [-3, 3], [0, -1]])
    assert _partition(ward(similarity_of(way), 2).tolist()) == {frozenset({0, 4}), frozenset({1, 2, 3})}


def test_angles_may_group_differently():
    found = [(ward(rho, 3).tolist(), ward(rho, 3, "angle").tolist()) for rho in map(_random_similarities, range(20))]
    assert any(_partition(a) != _partition(b) for a, b in found)


def _random_similarities(seed):
    return similarity_of(np.random.default_rng(seed).standard_normal((9, 4)))


def _partition(labels):
    return {frozenset(i for i, x in enumerate(labels) if x == label) for label in labels}


def test_clients_that_did_not_move_are_similar_to_themselves_only():
    rho = T([1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0])
    assert _partition(ward(rho, 3).tolist()) == {frozenset({0, 1}), frozenset({2}), frozenset({3})}
    assert set(ward(torch.zeros(4, 4), 2).tolist()) <= {0, 1}  # nobody moved
    assert len(ward(torch.full((4, 4), torch.nan), 2)) == 4  # nor does an update that overflowed stop the run
    assert ward(T([1.0]), 1).tolist() == [0]  # a federation of one


def test_rounding_above_one_is_not_an_angle_that_does_not_exist():
    rho = T([1 + 1e-12, -1 - 1e-12, 1], [-1 - 1e-12, 1, -1], [1, -1, 1])
    assert _partition(ward(rho, 2, "angle").tolist()) == {frozenset({0, 2}), frozenset({1})}


# Eq. 5–8: Ψ


def test_layer_weights_by_hand():
    """Group 0: D = (1/8)(3, 4) + (1/8)(3, 4) → δ_a = 10/8; group 1: D_a = (6/8)(0, 1), D_b = (6/8)·2."""
    delta = {"a.w": T([3, 4], [3, 4], [0, 1]), "b.w": T([-1], [5], [2])}
    found = shares(delta, T(1, 1, 6), torch.tensor([0, 0, 1]), 2, toy_layout())
    torch.testing.assert_close(found, T([1, 0.4], [0.5, 1]))


def test_a_group_that_does_not_move_has_no_weight():
    delta = {"a.w": T([3, 4], [-3, -4], [0, 0]), "b.w": T([1], [-1], [0])}  # in group 0 they cancel
    found = shares(delta, T(1, 1, 6), torch.tensor([0, 0, 1]), 3, toy_layout())
    assert torch.equal(found, torch.zeros(3, 2, dtype=D))


@pytest.mark.parametrize("beta", [0.0, 0.6, 1.0])
def test_forming_groups_by_hand(beta):
    """Two pairs that move against each other; Ψ = β·δ/max δ; w_g is FedAvg's mean, and every w_m starts there."""
    layout = toy_layout()
    rnd = toy_round(layout, 4)
    server = _server(groups=2, clients=4, global_model={"a.w": T(1, 1), "b.w": T(1)})
    a, b = T([4, 5], [-2, -3], [4, 5], [-2, -3]), T([3.5], [1], [3.5], [1])
    up, ids = parcel(T(1, 1, 1, 5), a_w=a, b_w=b), torch.tensor([3, 0, 2, 1])
    new = FormGroups(2, beta).absorb(rnd, server, up, ids)
    member = new["member"].tolist()
    assert member[3] == member[2] != member[0] == member[1]
    first = int(member[3])
    torch.testing.assert_close(new["psi"][[first, 1 - first]], beta * T([1, 0.5], [1, 0]))
    torch.testing.assert_close(new["theta"]["a.w"], (T(4, 5) * 2 + T(-2, -3) * 6) / 8)
    assert all(torch.equal(new["group"][n][m], new["theta"][n]) for n in layout.specs for m in range(2))


def test_the_numbers_of_groups_do_not_depend_on_the_order_of_the_cohort():
    """With this seed two groups are single clients that are each other's nearest: Ward numbers them as they come."""
    data = tiny_federation((31, 23, 14, 12, 7, 4))
    sim = simulation(fedalp(groups=3, warmup=1), data, tiny_model(), rounds=2, seed=7, dtype=D)
    servers = []
    for ids in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [3, 4, 5, 0, 2, 1]):
        progress, _ = sim.round(sim.start(), Matrix(), torch.tensor(ids))
        servers.append(progress.server)
    assert sorted(servers[0]["member"].tolist()) == [0, 0, 0, 0, 1, 2]
    for server in servers[1:]:
        assert torch.equal(server["member"], servers[0]["member"])
        assert torch.equal(server["psi"], servers[0]["psi"])


def test_layer_weights_are_not_rounded_where_samples_are_whole_numbers():
    """As clients send them: a quotient of two integers is a float32."""
    delta = {"a.w": T([3, 4], [1, 7], [0, 1]), "b.w": T([-1], [5], [2])}
    exact, whole = T(1, 3, 7), torch.tensor([1, 3, 7])
    labels = torch.tensor([0, 0, 1])
    assert torch.equal(shares(delta, whole, labels, 2, toy_layout()), shares(delta, exact, labels, 2, toy_layout()))
    lengths = (T(3 + 3, 4 + 21).norm(), T(-1 + 15).norm())
    torch.testing.assert_close(
        shares(delta, whole, labels, 2, toy_layout())[0, 1], lengths[1] / lengths[0], rtol=1e-14, atol=0
    )


def overflowing(participation: float, client: int, value: float = float("inf")):
    """What the groups are formed to when this client's update of layer b is not finite."""
    rnd = toy_round(toy_layout(), 4)
    rnd = replace(rnd, setup=replace(rnd.setup, participation=participation))
    server = _server(groups=2, clients=4, global_model={"a.w": T(1, 1), "b.w": T(1)})
    a, b = T([4, 5], [4, 6], [-2, -3], [-2, -4]), T([3.5], [3], [1], [1])
    b[client] = value
    return rnd, FormGroups(2).absorb(rnd, server, parcel(T(1, 1, 1, 5), a_w=a, b_w=b), torch.arange(4)), a


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_an_update_that_overflowed_where_nobody_was_sampled_spoils_neither_model_nor_weights(value):
    rnd, _, _ = overflowing(0.5, 0)
    sampled = rnd.setup.sampled(0)
    outsider = next(k for k in range(4) if k not in sampled.tolist())
    _, new, a = overflowing(0.5, outsider, value)
    weights = T(1, 1, 1, 5)[sampled]
    torch.testing.assert_close(new["theta"]["a.w"], (weights[:, None] * a[sampled]).sum(0) / weights.sum())
    assert all(bool(torch.isfinite(x).all()) for x in (*new["theta"].values(), *new["group"].values(), new["psi"]))


def test_one_client_that_overflowed_takes_nobodys_weights_away():
    """Client 1 counts as one that did not move: Ψ of the others' group is that of client 0 alone, or theirs."""
    _, new, _ = overflowing(1.0, 1)
    member = [int(m) for m in new["member"]]
    assert member[2] == member[3] != member[0]
    torch.testing.assert_close(new["psi"][member[3]], 0.6 * T(1, 0))
    torch.testing.assert_close(new["psi"][member[0]], 0.6 * T(1, 0.5))


def _server(groups, clients, global_model, member=None, psi=None, group=None):
    copies = {n: x.expand(groups, *x.shape).clone() for n, x in global_model.items()}
    return {
        "theta": global_model,
        "group": group or copies,
        "member": torch.zeros(clients, dtype=D) if member is None else member,
        "psi": torch.zeros(groups, 2, dtype=D) if psi is None else psi,
        "active": T(0)[0],
    }


# Eq. 9–10 and lines 10–11


@pytest.fixture
def mixed():
    """Two groups with Ψ = (1, 0.5) and (0.25, 0), w_g = 0 and w_m = ±8, statistics 7 in w_g and 1 in w_m."""
    global_model = {"a.w": T(0, 0), "b.w": T(0), "b.mean": T(7)}
    group = {"a.w": T([8, 0], [-8, -8]), "b.w": T([4], [-4]), "b.mean": T([1], [1])}
    return _server(2, 3, global_model, T(0, 0, 1), T([1, 0.5], [0.25, 0]), group)


def test_mixing_by_hand(mixed):
    rnd = toy_round(toy_layout(statistics=True), 3)
    sent = MixGroups()(rnd, mixed, torch.tensor([2, 0]))["theta"].rows
    torch.testing.assert_close(sent["a.w"], T([-2, -2], [8, 0]))
    torch.testing.assert_close(sent["b.w"], T([0], [2]))
    torch.testing.assert_close(sent["b.mean"], T([7], [7]))  # the global ones


# Clients 0 and 1 (n = 1, 3) received a = (8, 0), b = 2 and moved by (4, 0), 4 and (0, 4), 0: on average (1, 3), 1.
# Client 2 (n = 4) received a = (−2, −2), b = 0 and moved by (2, 2), 8. Γ is ½ and ½.
UPLOADS = parcel(T(1, 3, 4), a_w=T([12, 0], [8, 4], [0, 0]), b_w=T([6], [2], [8]), b_mean=T([1], [5], [3]))
BY_HAND = {
    ("received", "group"): (T([9, 3], [0, 0]), T([3], [8])),
    ("received", "all"): (T([8.5, 1.5], [-1, -1]), T([2.5], [4])),
    ("group", "group"): (T([9, 3], [-6, -6]), T([5], [4])),
    ("group", "all"): (T([8.5, 1.5], [-7, -7]), T([4.5], [0])),
}


@pytest.mark.parametrize(("base", "gamma"), BY_HAND)
def test_lines_10_and_11_by_hand(mixed, base, gamma):
    rnd, ids = toy_round(toy_layout(statistics=True), 3), torch.tensor([0, 1, 2])
    step = LearnGroups(base, gamma)
    new = step.finish(rnd, mixed, step.fold(rnd, mixed, {}, UPLOADS, ids))
    a, b = BY_HAND[base, gamma]
    torch.testing.assert_close(new["group"]["a.w"], a)
    torch.testing.assert_close(new["group"]["b.w"], b)
    torch.testing.assert_close(new["theta"]["a.w"], a.mean(0))
    torch.testing.assert_close(new["theta"]["b.w"], b.mean(0))
    torch.testing.assert_close(new["theta"]["b.mean"], T((1 + 15 + 12) / 8))  # FedAvg's


def test_a_group_of_whom_nobody_was_sampled_keeps_its_model_and_has_no_weight(mixed):
    rnd, step = toy_round(toy_layout(statistics=True), 3), LearnGroups()
    up, ids = UPLOADS.pick(torch.tensor([1])), torch.tensor([1])
    new = step.finish(rnd, mixed, step.fold(rnd, mixed, {}, up, ids))
    torch.testing.assert_close(new["group"]["a.w"], T([8, 4], [-8, -8]))
    torch.testing.assert_close(new["theta"]["a.w"], T(8, 4))
    assert step.communication(rnd, {**mixed, **new})["bytes.between"] == 2 * 8 * 4  # a model of four doubles, each way


def test_folding_in_chunks_is_folding_at_once(mixed):
    rnd, step, sums = toy_round(toy_layout(statistics=True), 3), LearnGroups(), {}
    for k in range(3):
        sums = step.fold(rnd, mixed, sums, UPLOADS.pick(torch.tensor([k])), torch.tensor([k]))
    whole = step.fold(rnd, mixed, {}, UPLOADS, torch.arange(3))
    assert all(torch.equal(sums["top"][n], x) for n, x in whole["top"].items())
    assert torch.equal(sums["weight"], whole["weight"])


# The quadratic toy: two groups of one client with optima −1 and 2, from which a round moves by a share of the way


def _fixed_point(psi: float, base: str, share: float = 0.5, rounds: int = 250):
    layout = Layout([Spec("w", (1,), 0, True)], [Layer("w", "linear", "w", True, None, ("w",))])
    setup = Setup(layout, {"w": T(0)}, lambda _: {}, 2, rounds)
    optima, ids, rnd, step = T([-1], [2]), torch.arange(2), Round(setup, 0), LearnGroups(base)
    server = _server(2, 2, {"w": T(0)}, T(0, 1), T([psi], [psi]))
    for _ in range(rounds):
        sent = MixGroups()(rnd, server, ids)["theta"].rows["w"]
        up = parcel(T(1, 1), w=sent + share * (optima - sent))
        server = {**server, **step.finish(rnd, server, step.fold(rnd, server, {}, up, ids))}
    return MixGroups()(rnd, server, ids)["theta"].rows["w"].flatten(), server["group"]["w"].flatten()


PSIS = (0.3, 0.6, 1.0)  # the letter's way to the optimum shrinks by 1 − Ψ/2 a round


@pytest.mark.parametrize("psi", PSIS)
def test_in_the_default_the_fixed_point_depends_on_psi(psi):
    """With shares s: W − c̄ = Ψ·s/(1 − (1 − s)·Ψ) of the way from the common optimum c̄ = ½ to the group's."""
    sent, _ = _fixed_point(psi, "received")
    way = psi * 0.5 / (1 - 0.5 * psi)
    torch.testing.assert_close(sent, 0.5 + way * T(-1.5, 1.5))


@pytest.mark.parametrize("psi", PSIS)
def test_to_the_letter_every_group_ends_at_its_own_optimum(psi):
    """Line 10 integrates: whatever Ψ, clients end where their group would alone, and w_m grows like 1/Ψ."""
    sent, group = _fixed_point(psi, "group")
    torch.testing.assert_close(sent, T(-1, 2))
    torch.testing.assert_close(group, 0.5 + T(-1.5, 1.5) / psi)


# Whole runs against a plain loop


def together(plain: PlainFedALP, rounds: int = 4) -> Simulation:
    method = fedalp(
        beta=plain.beta,
        groups=plain.groups,
        warmup=plain.warmup,
        base=plain.base,
        gamma=plain.gamma,
        train=plain.clients.train,
    )
    return simulation(
        method,
        plain.clients.federation,
        plain.clients.module,
        rounds=rounds,
        participation=plain.clients.participation,
        dtype=D,
    )


@pytest.mark.budget(0.8, "four rounds against a plain loop")
@pytest.mark.parametrize(("base", "gamma"), slow_except([("received", "group"), ("group", "all")], BY_HAND))
def test_four_rounds_against_a_plain_loop(base, gamma):
    plain = PlainFedALP(clients(), base=base, gamma=gamma)
    sim = together(plain)
    progress = sim.run(Matrix())
    assert_same(sim, progress, plain.run(4).models(), tolerance=1e-13)
    assert progress.server["member"].tolist() in (plain.member, [1 - m for m in plain.member])
    assert len(set(plain.member)) == 2
    gaps = [float((progress.server["theta"][n] - x).abs().max()) for n, x in plain.global_model.items()]
    assert max(gaps) < 1e-13


def test_a_third_of_the_clients_and_a_longer_warm_up_against_a_plain_loop():
    """Two clients take part: every main round, some group has nobody."""
    plain = PlainFedALP(clients(participation=1 / 3), groups=3, warmup=2)
    sim = together(plain, rounds=6)
    assert_same(sim, sim.run(Matrix()), plain.run(6).models(), tolerance=1e-13)
    assert len(set(plain.member)) == 3


def test_the_probing_round_asks_everybody_and_averages_the_sampled():
    sim = together(PlainFedALP(clients(participation=0.5), warmup=2))
    progress, first = sim.round(sim.start(), Matrix())
    progress, probing = sim.round(progress, Matrix())
    _, main = sim.round(progress, Matrix())
    assert [len(report.cohort) for report in (first, probing, main)] == [3, 6, 3]


# Special cases, what is evaluated, bytes


@pytest.mark.slow
@pytest.mark.parametrize("batchnorm", [True, False])
@pytest.mark.parametrize(("buffers", "participation"), SETTINGS)
def test_without_beta_it_is_fedavg_after_four_rounds(buffers, participation, batchnorm):
    law = SpecialCase("β = 0 is FedAvg", fedalp(beta=0.0, groups=3, warmup=2), fedavg(), batchnorm=batchnorm)
    check_special_case(law, rounds=4, participation=participation, buffers=buffers)


def test_who_was_only_probed_keeps_its_own_statistics():
    sim = simulation(
        fedalp(groups=2, warmup=1), tiny_federation(), tiny_model(), rounds=2, participation=0.5, buffers="local"
    )
    progress, _ = sim.round(sim.start(), Matrix())
    sampled = sim.setup.sampled(0).tolist()
    for client, memory in progress.clients.items():
        same = [torch.equal(x, sim.setup.start[name]) for name, x in memory["theta"].items()]
        assert same == [client not in sampled] * 4


@pytest.mark.slow
def test_to_the_letter_it_is_fedavg_only_if_everybody_takes_part():
    law = SpecialCase("β = 0 is FedAvg", fedalp(beta=0.0, groups=3, warmup=1, base="group"), fedavg(), batchnorm=False)
    check_special_case(law, rounds=4)
    with pytest.raises(ContractError, match="β = 0"):
        check_special_case(law, rounds=4, participation=0.5)


@pytest.mark.slow
def test_where_it_acts_models_differ_between_groups_and_from_fedavg():
    data, module, train = tiny_federation(), tiny_model(), LocalTraining(lr=0.2)
    runs = []
    for method in (fedalp(groups=2, warmup=1, train=train), fedavg(train=train)):
        sim = simulation(method, data, module, rounds=3, dtype=D)
        progress = sim.run(Matrix())
        runs.append((sim, progress, received_models(sim, progress, torch.arange(6))))
    (sim, progress, own), (_, _, common) = runs
    assert progress.server["member"].unique().tolist() == [0, 1]
    assert difference(own, common) > 1e-3
    member = progress.server["member"].tolist()
    other = member.index(1 - member[0])
    assert float((own["fc.weight"][0] - own["fc.weight"][other]).abs().max()) > 1e-3
    assert len({tuple(x.flatten().tolist()) for x in own["fc.weight"]}) == 2  # one model per group


def test_psi_is_told_per_layer_and_reaches_beta():
    sim = simulation(fedalp(beta=0.7, groups=2, warmup=1), tiny_federation(), tiny_model(), rounds=2)
    progress = sim.run(Matrix())
    psi = sim.algorithm.tell(sim.at(2), progress.server)["psi"]
    assert psi.shape == (5, 2)
    torch.testing.assert_close(psi.max(0).values, torch.full((2,), 0.7))


def test_the_global_model_is_evaluated_on_every_clients_samples():
    data, module = tiny_federation(), tiny_model(batchnorm=False)
    sim = simulation(fedalp(groups=2, warmup=1, train=LocalTraining(lr=0.3)), data, module, rounds=3, dtype=D)
    trial, progress = Trial(sim), sim.start()
    for _ in range(3):
        progress, entry = trial.round(progress)
    net = module.double()
    net.load_state_dict(progress.server["theta"])
    held = data.split("test").indices
    expected = float((net.eval()(data.x[held]).argmax(1) == data.y[held]).double().mean())
    assert entry.round["test.global.accuracy"] == pytest.approx(expected)
    assert entry.round["test.global.loss"] != entry.round["test.received.loss"]


def test_bytes_of_clients_and_between_servers_are_recorded_in_every_round():
    sim = simulation(fedalp(groups=2, warmup=2), tiny_federation(), tiny_model(batchnorm=False), rounds=3)
    model = 4 * sim.setup.layout.columns
    trial, progress = Trial(sim), sim.start()
    between = []
    for _ in range(3):
        progress, entry = trial.round(progress)
        between.append(entry.round["bytes.between"])
        assert entry.round["bytes.down"] == 6 * model
        assert entry.round["bytes.up"] == 6 * (model + 8)  # and n_k
    assert between == [0, 0, 2 * 2 * model]


# The number of groups


def test_the_default_number_of_groups_by_hand():
    """Three quarters of the clients, but two at least, because one group is FedAvg, and twenty at most."""
    clients_and_groups = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 12: 9, 20: 15, 26: 19, 27: 20, 100: 20}
    assert {clients: USUAL_GROUPS.of(clients) for clients in clients_and_groups} == clients_and_groups
    assert ShareOfClients(0.29).of(100) == 29  # 0.29 · 100 is a little less in floating point


@pytest.mark.parametrize(("count", "groups"), [(2, 2), (3, 2), (5, 3), pytest.param(20, 15, marks=pytest.mark.slow)])
def test_the_default_is_bit_for_bit_that_number_of_groups(count, groups):
    data, module = tiny_federation((4,) * count), tiny_model(batchnorm=False)
    runs = [simulation(method, data, module, rounds=2) for method in (fedalp(), fedalp(groups=groups))]
    (default, explicit), (sim, same) = (sim.run(Matrix()).server for sim in runs), runs
    assert len(default["psi"]) == groups
    assert default["member"].unique().tolist() == list(range(groups))
    flat, expected = flatten(default), flatten(explicit)
    assert flat.keys() == expected.keys()
    assert all(torch.equal(flat[name], x) for name, x in expected.items())
    assert sim.algorithm.footprint(sim.setup) == same.algorithm.footprint(same.setup)


def test_new_clients_count_for_no_group():
    sim = simulation(fedalp(), tiny_federation((4,) * 8), tiny_model(batchnorm=False), rounds=2, new_clients=2)
    assert len(sim.start().server["psi"]) == 4


def test_runs_of_an_explicit_number_of_groups_are_what_they_were():
    """The digest of the method that runs stored when 4 groups were the default."""
    assert sha256(stored_repr(fedalp(groups=4)).encode()).hexdigest().startswith("3433511aee65a126")


# Bad input


def test_more_groups_than_clients_are_refused():
    with pytest.raises(RecordError, match=r"1 to 6 .*not 7"):
        simulation(fedalp(groups=7), tiny_federation(), tiny_model(), rounds=1)
    with pytest.raises(RecordError, match=r"1 to 4 .*not 5"):  # new clients are nobody's members
        simulation(fedalp(groups=5), tiny_federation(), tiny_model(), rounds=1, new_clients=2)


@pytest.mark.slow
def test_as_many_groups_as_clients_and_one_group_run():
    for groups in (1, 6):
        sim = simulation(fedalp(groups=groups, warmup=1), tiny_federation(), tiny_model(), rounds=3)
        progress = sim.run(Matrix())
        assert len(progress.server["member"].unique()) == groups
        assert bool(torch.isfinite(progress.server["theta"]["fc.weight"]).all())


def test_new_clients_are_sent_the_global_model():
    sim = simulation(fedalp(groups=2, warmup=1), tiny_federation(), tiny_model(), rounds=2, new_clients=1)
    progress = sim.run(Matrix())
    given = sim.algorithm.download(sim.at(2), progress.server, torch.tensor([5]), new=True)["theta"]
    assert given.common
    assert all(torch.equal(given.rows[n], x) for n, x in progress.server["theta"].items())


@pytest.mark.slow
def test_one_group_is_fedavg():
    """w_1 is w_g: there is nothing to mix."""
    law = SpecialCase("one group is FedAvg", fedalp(groups=1, warmup=1), fedavg(), batchnorm=False)
    check_special_case(law, rounds=3)
    check_special_case(replace(law, special=fedalp(groups=1, warmup=1, base="group")), rounds=3)
