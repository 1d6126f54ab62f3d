"""Scores of received, trained and deployed models against plain PyTorch; nothing that evaluation does is kept."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from stratafl.algorithms import fedavg, fedper
from stratafl.core.layerwise import Layerwise
from stratafl.core.parcel import Field, Parcel
from stratafl.core.state import flatten
from stratafl.core.task import Scores
from stratafl.data import from_splits
from stratafl.errors import DataError
from stratafl.evaluation.evaluate import (
    accuracy,
    deployed,
    join_scores,
    received_models,
    score,
    score_new_clients,
    score_stages,
    score_trained,
    state_dict,
)
from stratafl.execute import Matrix, simulation
from stratafl.models import build
from stratafl.policies import Exponential, LocalTraining
from stratafl.runtime import CohortTask
from stratafl.runtime.speed import Speed

TRAIN = LocalTraining(lr=0.1, batch=4, shuffle=False)  # in the order of the samples, so that a plain loop needs no keys
TUNE = LocalTraining(lr=0.3, batch=5, epochs=2, momentum=0.9, shuffle=False, purpose="tune")
SIZES = {"train": (10, 7, 6, 4, 11), "validation": (2, 3, 0, 1, 4), "test": (5, 1, 3, 4, 6)}
EVERYBODY = torch.arange(5)
SPLITS = ("validation", "test")


def samples(rng, count):
    y = rng.integers(0, 3, count)
    return rng.standard_normal((count, 6)) + y[:, None] / 2, y


def ragged():
    rng = np.random.default_rng(4)
    clients = [{split: samples(rng, sizes[k]) for split, sizes in SIZES.items() if sizes[k]} for k in range(5)]
    return from_splits(clients, classes=3, dtype=torch.float64)


def normed():
    torch.manual_seed(2)
    return build("mlp", shape=(6,), classes=3, hidden=(5,), norm=True).double()


def made(alg=None, **options):
    options = {"rounds": 2, "dtype": torch.float64} | options
    return simulation(alg or fedper(train=TRAIN), ragged(), normed(), **options)


def tuned(alg):
    return replace(alg, tune=(TUNE,))


def plain_module(*states):
    """A stock module with these tensors, the later ones on top of the earlier ones."""
    net = normed()
    for state in states:
        net.load_state_dict(state, strict=False)
    return net.eval()


def plain_received(sim, progress, client):
    """The shared base from the server on the client's own head, put together by hand."""
    return plain_module(progress.server["theta"], progress.clients[client]["theta"])


def plain_training(net, client, sgd):
    """A stock training loop over the client's own samples, on a copy."""
    federation, net = ragged(), copy.deepcopy(net).train()
    optimiser = torch.optim.SGD(net.parameters(), sgd.lr, momentum=sgd.momentum)
    for _ in range(sgd.epochs):
        for batch in federation.split("train").of(client).split(sgd.batch):
            if len(batch) == 1:  # which BatchNorm refuses
                continue
            optimiser.zero_grad()
            cross_entropy(net(federation.x[batch]), federation.y[batch]).backward()
            optimiser.step()
    return net.eval()


def plain_scores(nets, ids, split):
    """Hits, summed loss and number of samples of one stock module per client."""
    federation, found = ragged(), []
    for net, client in zip(nets, ids, strict=True):
        mine = federation.split(split).of(client)
        with torch.no_grad():
            z = net(federation.x[mine])
        hits = int((z.argmax(1) == federation.y[mine]).sum())
        found.append((hits, float(cross_entropy(z, federation.y[mine], reduction="sum")), len(mine)))
    hits, loss, count = zip(*found, strict=True)
    return Scores(torch.tensor(hits).double(), torch.tensor(loss, dtype=torch.float64), torch.tensor(count))


def assert_scores(given, expected):
    assert given.hits.tolist() == expected.hits.tolist()
    assert given.count.tolist() == expected.count.tolist()
    torch.testing.assert_close(given.loss, expected.loss, rtol=0, atol=1e-12)


def copied(progress):
    return {name: tensor.clone() for name, tensor in progress.tensors().items()}


def same_bits(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# Received and deployed


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_received_models_score_what_stock_modules_score(split):
    sim = made()
    progress = sim.run(Matrix())
    board = score_stages(sim, progress, EVERYBODY, (split,))
    nets = [plain_received(sim, progress, k) for k in range(5)]
    assert list(board) == [f"{split}.received", f"{split}.deployed"]
    assert_scores(board[f"{split}.received"], plain_scores(nets, range(5), split))
    assert_scores(board[f"{split}.deployed"], plain_scores(nets, range(5), split))
    assert board[f"{split}.received"].count.tolist() == list(SIZES[split])


def test_scores_are_those_of_the_clients_asked_for_in_their_order():
    sim = made()
    progress = sim.run(Matrix())
    board = score_stages(sim, progress, torch.tensor([3, 0]), ("test",), ("received",))
    nets = [plain_received(sim, progress, k) for k in (3, 0)]
    assert list(board) == ["test.received"]
    assert_scores(board["test.received"], plain_scores(nets, (3, 0), "test"))


def test_rows_are_scored_on_the_clients_own_samples():
    sim = made()
    progress, ids = sim.run(Matrix()), torch.tensor([4, 1])
    scores = score(sim, progress, received_models(sim, progress, ids), ids, "test")
    assert_scores(scores, plain_scores([plain_received(sim, progress, k) for k in (4, 1)], (4, 1), "test"))


def test_a_client_that_was_never_sampled_is_scored_with_its_initial_head():
    sim = made(participation=0.4, rounds=1)
    progress = sim.run(Matrix())
    assert len(progress.clients) == 2
    idle = next(k for k in range(5) if k not in progress.clients)
    board = score_stages(sim, progress, torch.tensor([idle]), ("test",))
    net = plain_module(progress.server["theta"])  # on the initial model
    assert_scores(board["test.received"], plain_scores([net], [idle], "test"))


@pytest.mark.parametrize("builder", [fedavg, fedper])
def test_a_tuned_copy_is_deployed_and_nothing_of_it_is_kept(builder):
    sim = made(tuned(builder(train=TRAIN)))
    progress = sim.run(Matrix())
    before = copied(progress)
    board = score_stages(sim, progress, EVERYBODY, SPLITS)
    models = deployed(sim, progress, EVERYBODY)
    starts = [plain_received(sim, progress, k) for k in range(5)]
    nets = [plain_training(start, k, TUNE) for k, start in enumerate(starts)]
    for k, net in enumerate(nets):
        for name, rows in models.items():
            torch.testing.assert_close(rows[k], net.state_dict()[name], rtol=0, atol=1e-12)
    for split in SPLITS:
        assert_scores(board[f"{split}.received"], plain_scores(starts, range(5), split))
        assert_scores(board[f"{split}.deployed"], plain_scores(nets, range(5), split))
    assert not torch.allclose(board["test.received"].loss, board["test.deployed"].loss)
    assert same_bits(before, copied(progress))


def test_tuning_is_that_of_the_round_to_come():
    sim = made(replace(fedavg(train=TRAIN), tune=(replace(TUNE, schedule=Exponential(0.5)),)), rounds=4)
    progress = sim.start()
    for _ in range(2):
        progress, _ = sim.round(progress, Matrix())
    net = plain_training(plain_received(sim, progress, 0), 0, replace(TUNE, lr=0.3 * 0.5**2))
    for name, row in deployed(sim, progress, torch.tensor([0])).items():
        torch.testing.assert_close(row[0], net.state_dict()[name], rtol=0, atol=1e-12)


def test_tuning_is_never_trained_on_from():
    """A method that tunes ends where the same method without tuning ends."""
    plain, tunes = made(), made(tuned(fedper(train=TRAIN)))
    progress = tunes.start()
    for _ in range(2):
        score_stages(tunes, progress, EVERYBODY, ("test",))
        progress, _ = tunes.round(progress, Matrix())
    assert same_bits(copied(progress), copied(plain.run(Matrix())))


def test_state_dict_is_the_deployed_model_of_one_client():
    sim = made(tuned(fedper(train=TRAIN)))
    progress = sim.run(Matrix())
    given = state_dict(sim, progress, 2)
    net = plain_training(plain_received(sim, progress, 2), 2, TUNE)
    assert set(given) == {name for name in net.state_dict() if not name.endswith("num_batches_tracked")}
    for name, tensor in given.items():
        torch.testing.assert_close(tensor, net.state_dict()[name], rtol=0, atol=1e-12)


def test_accuracy_counts_samples_not_clients():
    sim = made()
    progress = sim.run(Matrix())
    scores = plain_scores([plain_received(sim, progress, k) for k in range(5)], range(5), "test")
    assert accuracy(sim, progress) == pytest.approx(float(scores.hits.sum()) / 19, abs=1e-12)
    assert accuracy(sim, progress) != pytest.approx(float((scores.hits / scores.count).mean()))


# What is not computed twice


@pytest.fixture
def scored(monkeypatch):
    """The splits that `CohortTask.scores` was asked for."""
    asked, original = [], CohortTask.scores

    def counted(self, rows, split):
        asked.append((split, len(self)))
        return original(self, rows, split)

    monkeypatch.setattr(CohortTask, "scores", counted)
    return asked


def test_the_very_same_tensors_are_scored_once(scored):
    sim = made()
    progress = sim.run(Matrix())
    board = score_stages(sim, progress, EVERYBODY, SPLITS)
    assert scored == [("validation", 5), ("test", 5)]
    for split in SPLITS:
        assert torch.equal(board[f"{split}.received"].loss, board[f"{split}.deployed"].loss)


def test_tensors_that_differ_are_scored_each(scored):
    sim = made(tuned(fedper(train=TRAIN)))
    score_stages(sim, sim.start(), EVERYBODY, SPLITS)
    assert scored == [("validation", 5)] * 2 + [("test", 5)] * 2


def test_equal_values_in_other_tensors_are_scored_each(scored):
    """Comparing values would cost as much as it saves."""
    sim = made(replace(fedper(train=TRAIN), tune=(replace(TUNE, lr=0.0, layers="head"),)))
    board = score_stages(sim, sim.start(), EVERYBODY, ("test",))
    assert len(scored) == 2
    assert torch.equal(board["test.received"].loss, board["test.deployed"].loss)


@pytest.mark.slow
def test_a_memory_limit_cuts_evaluation_into_groups_and_changes_no_bit(scored):
    sim = made(tuned(fedper(train=TRAIN)), new_clients=2)
    progress = sim.run(Matrix())
    limited = replace(sim, round_limit=sim.needs(3).evaluating(2))
    ids = torch.tensor([2, 0, 1])
    for board in (
        lambda s: score_stages(s, progress, ids, SPLITS),
        lambda s: score_new_clients(s, progress, ("test",)),
    ):
        whole, cut = board(sim), board(limited)
        assert list(whole) == list(cut)
        for place, scores in whole.items():
            for part in ("hits", "loss", "count"):
                assert torch.equal(getattr(scores, part), getattr(cut[place], part))
    assert ("test", 2) in scored
    assert ("test", 1) in scored


def test_boards_of_groups_are_joined_in_their_order():
    def board(*numbers):
        return {"test.received": Scores(*(torch.tensor([n, 10 * n]) for n in numbers))}

    whole = join_scores([board(1, 2, 3), board(4, 5, 6)])["test.received"]
    assert whole.hits.tolist() == [1, 10, 4, 40]
    assert whole.loss.tolist() == [2, 20, 5, 50]
    assert whole.count.tolist() == [3, 30, 6, 60]


# Right after training


def test_trained_models_are_those_of_a_plain_round():
    sim = made(participation=0.6)
    first, _ = sim.round(sim.start(), Matrix())
    seen = []

    def examine(ids, received, rows):
        seen.append((ids, score_trained(sim, sim.at(1), rows, ids, SPLITS)))

    _, report = sim.round(first, Matrix(chunk=2), examine=examine)
    ids = torch.cat([group for group, _ in seen]).tolist()
    board = join_scores([each for _, each in seen])
    assert ids == report.cohort.tolist()
    assert [len(group) for group, _ in seen] == [2, 1]
    start = normed().state_dict()
    nets = []
    for client in ids:
        own = first.clients[client]["theta"] if client in first.clients else start
        head = {name: own[name] for name in ("fc.weight", "fc.bias")}
        nets.append(plain_training(plain_module(first.server["theta"], head), client, TRAIN))
    assert list(board) == ["validation.trained", "test.trained"]
    for split in SPLITS:
        assert_scores(board[f"{split}.trained"], plain_scores(nets, ids, split))


# Newcomers


def test_new_clients_are_admitted_then_trained_once_from_there():
    sim = made(tuned(fedper(train=TRAIN)), new_clients=2)
    progress = sim.run(Matrix())
    before = copied(progress)
    board = score_new_clients(sim, progress, SPLITS)
    admitted = plain_module(progress.server["theta"])  # the server's base on the initial head
    stages = {
        "received": [admitted, admitted],
        "trained": [plain_training(admitted, k, TRAIN) for k in (3, 4)],
        "deployed": [plain_training(admitted, k, TUNE) for k in (3, 4)],
    }
    assert list(board) == [f"{split}.{stage}" for split in SPLITS for stage in stages]
    for split in SPLITS:
        for stage, nets in stages.items():
            assert_scores(board[f"{split}.{stage}"], plain_scores(nets, (3, 4), split))
    assert same_bits(before, copied(progress))
    assert set(progress.clients) == {0, 1, 2}


def test_new_clients_with_a_head_of_their_own_draw_it():
    sim = made(fedper(train=TRAIN, initial="own"), new_clients=1)
    progress = sim.run(Matrix())
    drawn = {name: x[0] for name, x in sim.setup.fresh(torch.tensor([4])).items() if name.startswith("fc.")}
    net = plain_module(progress.server["theta"], drawn)
    assert_scores(score_new_clients(sim, progress, ("test",))["test.received"], plain_scores([net], [4], "test"))


class Welcoming(Layerwise):
    """Serves new clients another model than those it knows; asked to serve one as if it were known, it fails."""

    def download(self, rnd, server, ids, new=False):
        assert new == (int(ids.max()) >= rnd.setup.clients)
        if not new:
            return super().download(rnd, server, ids)
        return Parcel({"theta": Field({name: x * 2 for name, x in server["theta"].items()}, common=True)})


def test_new_clients_get_what_the_server_admits_them_with():
    sim = made(Welcoming(**vars(fedavg(train=TRAIN))), new_clients=2)
    progress = sim.run(Matrix())
    board = score_new_clients(sim, progress, ("test",))
    twice = plain_module({name: x * 2 for name, x in progress.server["theta"].items()})
    trained = [plain_training(twice, k, TRAIN) for k in (3, 4)]
    assert_scores(board["test.received"], plain_scores([twice, twice], (3, 4), "test"))
    assert_scores(board["test.trained"], plain_scores(trained, (3, 4), "test"))
    known = score_stages(sim, progress, torch.arange(3), ("test",))["test.received"]
    once = plain_module(progress.server["theta"])
    assert_scores(known, plain_scores([once] * 3, range(3), "test"))


# Refusals


@pytest.mark.parametrize(
    ("ids", "says"),
    [([5], "there is no client 5: the 5 clients"), ([-1], "no client -1"), ([1, 1], "client 1 .* 2 times")],
)
def test_clients_that_are_not_there_are_refused(ids, says):
    sim = made()
    for ask in (received_models, deployed):
        with pytest.raises(DataError, match=says):
            ask(sim, sim.start(), torch.tensor(ids))
    with pytest.raises(DataError, match=says):
        score_stages(sim, sim.start(), torch.tensor(ids), ("test",))


def test_a_new_client_is_not_a_client():
    sim = made(new_clients=2)
    with pytest.raises(DataError, match=r"client 3.*3"):
        score_stages(sim, sim.start(), torch.tensor([3]), ("test",))


def test_nobody_cannot_be_scored():
    sim = made()
    with pytest.raises(DataError):
        score_stages(sim, sim.start(), torch.empty(0, dtype=torch.int64), ("test",))
    with pytest.raises(DataError):
        score_new_clients(sim, sim.start(), ("test",))


def test_flat_names_of_a_progress_are_all_its_tensors():
    """Or `same_bits` above would compare less than there is."""
    sim = made()
    progress = sim.run(Matrix())
    names = {"t", *flatten(progress.server, "server/")}
    names |= {name for k in range(5) for name in flatten(progress.clients[k], f"client/{k}/")}
    assert set(progress.tensors()) == names
    assert "client/4/theta/fc.weight" in names
    assert "server/theta/bn1.running_var" in names


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_kept_step_scores_what_a_sweep_scores(monkeypatch, split):
    """What a GPU does: three slots for five clients, one of which has no validation samples, two samples at a time."""
    monkeypatch.setattr("stratafl.runtime.cohort_task.EVALUATION_BATCH", 2)
    sim, kept = made(), made(speed=Speed(graphs="on"))
    progress = sim.run(Matrix())
    rows = received_models(sim, progress, EVERYBODY)
    expected = score(sim, progress, rows, EVERYBODY, split)
    monkeypatch.setattr(CohortTask, "sweep", None)  # not asked
    for _ in range(2):
        found = score(kept, progress, rows, EVERYBODY, split)
        for name in ("hits", "loss", "count"):
            torch.testing.assert_close(getattr(found, name), getattr(expected, name))
    assert len(kept.runtime.captured) == 1
