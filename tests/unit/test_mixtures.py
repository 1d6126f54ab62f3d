"""FedALA, APPLE, FedAMP, FedCAC and FedFomo: what their steps compute, by hand, and what they keep."""

from math import exp

import pytest
import torch

from stratafl.algorithms import apple, fedala, fedamp, fedcac, fedfomo
from stratafl.algorithms.fedala import CountPasses, combined
from stratafl.algorithms.fedamp import Attention, CosineAttention
from stratafl.algorithms.fedcac import collaborators, critical, overlaps
from stratafl.algorithms.fedfomo import valued
from stratafl.core.layers import Layer
from stratafl.core.layout import Layout, Spec
from stratafl.core.parcel import Parcel
from stratafl.core.state import pick, rows_of, tensor_of
from stratafl.data import from_clients
from stratafl.errors import DataError
from stratafl.evaluation.evaluate import received_models, score_new_clients
from stratafl.execute import Matrix, simulation
from stratafl.policies import Adopt, LocalTraining
from stratafl.runtime import engine
from stratafl.testing import SIZES, difference, tiny_federation, tiny_model

IDS = torch.arange(6)


@pytest.fixture(autouse=True)
def untraced(monkeypatch):
    """Steps are not traced: that takes most of the time of a short run."""
    monkeypatch.setattr(engine, "patience", lambda _: float("inf"), raising=False)


def made(method, *, rounds=2, participation=1.0, **options):
    options = {"data": tiny_federation(), "batchnorm": True} | options
    return simulation(
        method,
        options.pop("data"),
        tiny_model(options.pop("batchnorm")),
        rounds=rounds,
        participation=participation,
        dtype=torch.float64,
        **options,
    )


def at_work(sim, progress, ids=IDS, new=False):
    """What clients have before they train."""
    rnd, task = sim.at(progress.t), sim.task(ids, sim.at(progress.t))
    states = sim.client_states({} if new else progress.clients, ids)
    down = sim.algorithm.download(rnd, progress.server, ids, new=new)
    return rnd, task, sim.algorithm.receive(rnd, states, down, task)


# FedALA


def test_weights_of_0_and_1_take_one_side_exactly():
    own, received = {"fc": torch.tensor([[0.1, 0.2, 0.3]])}, {"fc": torch.tensor([[0.7, 0.8, 0.9]])}
    found = combined({"fc": torch.tensor([[0.0, 1.0, 0.5]])}, received, own)["fc"]
    assert found[0].tolist() == pytest.approx([0.1, 0.8, 0.6])
    assert found[0, 0] == own["fc"][0, 0]
    assert found[0, 1] == received["fc"][0, 1]


def test_weights_are_learned_often_the_first_time_and_once_afterwards():
    client = {"rounds": torch.tensor([0.0, 1.0, 2.0, 9.0])}
    assert CountPasses(7)(None, client, Parcel({}), None)["passes"].tolist() == [0, 7, 1, 1]


@pytest.mark.slow
def test_fedala_learns_weights_between_0_and_1_and_keeps_the_top_of_its_own_model():
    sim = made(fedala(weights_lr=200.0, first_passes=3), rounds=3, participation=0.5)
    progress = sim.run(Matrix())
    took_part = [i for i in range(6) if float(tensor_of(progress.clients[i], "rounds"))]
    W = torch.cat([x.flatten() for i in took_part for x in rows_of(progress.clients[i], "W").values()])
    assert float(W.min()) == 0
    assert float(W.max()) == 1
    assert bool(((W > 0) & (W < 1)).any())
    assert all(set(rows_of(progress.clients[i], "own")) == {"fc.weight", "fc.bias"} for i in range(6))


# APPLE


def test_all_clients_share_one_copy_of_the_cores_however_they_are_picked():
    sim = made(apple())
    progress, _ = sim.round(sim.start(), Matrix())
    _, _, client = at_work(sim, progress)
    once = sum(x.numel() for x in rows_of(progress.server, "cores").values())
    for state in (client, pick(client, torch.tensor([4, 1, 1])), pick(client, slice(2, 5))):
        cores = rows_of(state, "cores").values()
        assert {x.stride(0) for x in cores} == {0}
        assert sum(x.untyped_storage().nbytes() // x.element_size() for x in cores) == once


def test_captured_steps_keep_the_cores_once():
    from stratafl.runtime.speed import Speed

    sim = made(apple(), speed=Speed(graphs="on"))
    sim.round(sim.start(), Matrix())
    (step,) = sim.runtime.captured._kept.values()
    cores = [x for name, x in step._constants.items() if name.startswith("cores/")]
    assert cores
    assert {x.stride(0) for x in cores} == {0}


@pytest.mark.slow
def test_apple_weighs_all_cores_equally_and_is_pulled_to_their_numbers_of_samples_for_a_while():
    sim = made(apple(strength=0.5, until=0.5, own=None), rounds=4)
    progress = sim.start()
    _, _, client = at_work(sim, progress)
    assert torch.allclose(client["p"], torch.full((6, 6), 1 / 6, dtype=torch.float64))
    assert torch.allclose(client["p_0"], client["p"])  # nobody has said how much it has
    pulls = [float(client["pull"][0])]
    for _ in range(3):
        progress, _ = sim.round(progress, Matrix())
        _, _, client = at_work(sim, progress)
        pulls.append(float(client["pull"][0]))
    assert pulls == pytest.approx([1.0, 0.5, 0.0, 0.0])  # 2·λ(r)·μ, L = 2
    assert torch.allclose(client["p_0"][3], torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES))
    assert torch.equal(client["is_own"], torch.eye(6, dtype=torch.float64))


@pytest.mark.slow
def test_a_new_client_of_apple_trains_its_weights_alone():
    data = tiny_federation((*SIZES, 9, 5))
    sim = made(apple(weights_lr=0.1), data=data, new_clients=2)
    progress = sim.run(Matrix())
    rnd, task, client = at_work(sim, progress, sim.new_clients, new=True)
    assert torch.allclose(client["p"], client["p_0"])
    assert not client["is_own"].any()
    kept = sim.algorithm.work(rnd, client, task).client
    for name, x in rows_of(client, "core").items():
        assert torch.equal(rows_of(kept, "core")[name], x) == rnd.layout.specs[name].trainable
    assert float((tensor_of(kept, "p") - client["p"]).abs().min()) > 1e-6
    assert score_new_clients(sim, progress, ("test",))["test.deployed"].count.tolist() == [4, 4]


# FedAMP


def layout(rows, statistics=()):
    """One layer of these tensors."""
    specs = [Spec(n, tuple(x.shape[1:]), 0, n not in statistics) for n, x in rows.items()]
    return Layout(specs, [Layer("fc", "linear", "fc", True, None, tuple(rows))])


def test_equal_models_are_at_distance_0_and_the_order_of_tensors_does_not_matter():
    row = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0))
    rows = {"a": torch.cat([row, row + 1e-3, row]), "b": torch.tensor([[1.0], [1.0], [3.0]]), "mean": torch.eye(3)}
    far = layout(rows, ["mean"]).squared_distances(rows)
    again = layout(rows, ["mean"]).squared_distances(dict(reversed(rows.items())))
    assert torch.equal(far, again)
    assert far[0, 1] == pytest.approx(1e-3, rel=1e-3)
    assert far[0, 2] == 4.0
    assert far.diagonal().tolist() == [0, 0, 0]


POINTS = {"a": torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)}  # d = 1, 4, 5


def test_attention_by_hand():
    xi = Attention(alpha=0.4, sigma=2.0)(POINTS, layout(POINTS))
    assert xi[0].tolist() == pytest.approx([0, 0.2 * exp(-0.5), 0.2 * exp(-2)])
    assert torch.equal(xi, xi.T)


def test_attention_follows_the_distances_and_leaves_a_client_its_share():
    """σ is the median, 4; the nearest weigh e^{−1/4} and e^{−1}, which is more than 1 − 1/3 together."""
    xi, raw = Attention()(POINTS, layout(POINTS)), [exp(-1 / 4), exp(-1)]
    assert xi[0].tolist() == pytest.approx([0, *(2 / 3 * x / sum(raw) for x in raw)])
    equal, alone = {"a": torch.zeros(4, 3)}, {"a": torch.zeros(1, 3)}
    assert Attention()(equal, layout(equal))[0].tolist() == pytest.approx([0, 0.25, 0.25, 0.25])
    assert Attention()(alone, layout(alone)).tolist() == [[0]]


def test_attention_by_cosines_by_hand():
    rows = {"a": torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]], dtype=torch.float64)}
    raw = [exp(0.0), exp(2 / 2**0.5)]
    xi = CosineAttention(0.4, 2.0)(rows, layout(rows))
    assert xi[0].tolist() == pytest.approx([0, *(0.6 * x / sum(raw) for x in raw)])
    alone = {"a": torch.ones(1, 2)}
    assert CosineAttention()(alone, layout(alone)).tolist() == [[0]]


def test_what_a_client_did_not_receive_it_keeps_when_it_is_met():
    client = {"met": torch.tensor([0.0, 1.0]), "theta": {"a": torch.zeros(2, 1), "mean": torch.zeros(2, 1)}}
    adopted = Adopt(("theta",), source="u")(None, {**client, "u": {"a": torch.ones(2, 1)}}, Parcel({}), None)
    assert adopted["theta"]["a"].tolist() == [[1], [0]]
    assert adopted["theta"]["mean"].tolist() == [[0], [0]]


def test_statistics_of_fedamp_never_leave_the_client():
    sim = made(fedamp())
    down = sim.algorithm.download(sim.at(0), sim.start().server, IDS)["u"].rows
    assert set(down) == set(sim.setup.layout.trainable())


# FedCAC


def test_critical_parameters_by_hand():
    """|(θ_new − θ_old)·θ_new| is 3, 2, 2, 0 for the first client, and 0 everywhere for the second."""
    new = torch.tensor([[3.0, -1.0, 2.0, 5.0], [1.0, 1.0, 1.0, 1.0]])
    old = torch.tensor([[2.0, 1.0, 1.0, 5.0], [1.0, 1.0, 1.0, 1.0]])
    assert critical(new, old, 0.3).int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0]]
    assert critical(new.reshape(2, 2, 2), old.reshape(2, 2, 2), 0.25).int().tolist() == [[[1, 0], [0, 0]]] * 2
    assert critical(new, old, 0.0).sum() == 0


def test_overlaps_by_hand():
    M = {"a": torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]).bool(), "b": torch.ones(3, 1).bool()}
    assert torch.allclose(overlaps(M) * 3, torch.tensor([[3.0, 2, 1], [2, 3, 2], [1, 2, 3]], dtype=torch.float64))
    assert overlaps({"a": torch.zeros(2, 3).bool()}).tolist() == [[0, 0], [0, 0]]


def test_collaborators_by_hand():
    o = torch.tensor([[1.0, 0.5, 0.0], [0.5, 1.0, 0.25], [0.0, 0.25, 1.0]], dtype=torch.float64)  # mean 1/4, most 1/2
    assert collaborators(o, 0.0).int().tolist() == [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    assert collaborators(o, 0.5).int().tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert collaborators(o, 1.0).int().tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert collaborators(o, 1.01).int().tolist() == torch.eye(3).int().tolist()
    assert collaborators(torch.ones(1, 1), 0.0).tolist() == [[True]]


# FedFomo


def test_a_client_is_sent_the_models_that_it_values_most():
    P = torch.tensor([[9.0, 0.0, -1.0, 0.0], [0.5, 0.0, 2.0, 0.0], [0.0] * 4, [0.0, 1.0, 0.0, 0.0]])
    assert valued(P, torch.tensor([0, 1, 2, 3]), 2).tolist() == [[1, 3], [2, 0], [0, 1], [1, 0]]
    assert valued(P, torch.tensor([1]), 9).tolist() == [[2, 0, 3]]
    assert valued(P, torch.tensor([4, 7]), 2).tolist() == [[0, 1]] * 2  # new: sums 9.5, 1, 1, 0


def test_fedfomo_says_that_it_needs_validation_data():
    x, y = torch.randn(8, 1, 6, 6, dtype=torch.float64), torch.arange(8) % 3
    data = from_clients([(x, y)] * 2, validation=0.0, test=0.25, dtype=torch.float64)
    with pytest.raises(DataError, match="'validation'"):
        made(fedfomo(), data=data)


@pytest.mark.slow
@pytest.mark.parametrize("method", [fedala(), apple(), fedamp(), fedcac(), fedfomo()], ids=lambda m: m.row)
def test_clients_have_models_of_their_own_after_some_rounds(method):
    sim = made(method, data=tiny_federation((31, 23, 14, 12, 7, 4)), rounds=3, batchnorm=False)
    rows = received_models(sim, sim.run(Matrix()), IDS)
    pairs = [difference(*({n: x[k] for n, x in rows.items()} for k in pair)) for pair in ((0, 1), (2, 3), (4, 5))]
    assert min(pairs) > 1e-5


@pytest.mark.slow
def test_momentum_and_weight_decay_are_of_the_core():
    plain, decayed = (made(apple(train=LocalTraining(weight_decay=d, momentum=0.5)), rounds=1) for d in (0.0, 0.5))
    one, two = (rows_of(sim.run(Matrix()).server, "cores") for sim in (plain, decayed))
    assert difference(one, two) > 1e-3
