"""Steps on the rows of an embedding table that are in use have the bits of steps on the whole table."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from stratafl.algorithms import fedavg, fedper, fedprox
from stratafl.core.task import Stack
from stratafl.data import from_splits
from stratafl.evaluation.evaluate import received
from stratafl.execute import Matrix, Messages, simulation
from stratafl.models import build
from stratafl.policies import SGD
from stratafl.policies.descent import Descent
from stratafl.policies.optimizers import Direction
from stratafl.runtime.tables import Table, table_of, with_short_table

VOCABULARY, TOKENS = 900, 6
SHORT = Table("embedding.weight", 0)


def federation(dtype=torch.float32, sizes=(17, 9, 3)):
    """Sentences with repeated words and padding; the last client is smaller than a batch."""
    draw = torch.Generator().manual_seed(3)

    def samples(count):
        x = torch.randint(0, VOCABULARY, (count, TOKENS), generator=draw)
        x[:, 0] = x[:, 1]
        x[::2, -1] = 0
        return x.numpy(), torch.randint(0, 3, (count,), generator=draw).numpy()

    clients = [{"train": samples(n), "test": samples(4)} for n in sizes]
    return from_splits(clients, classes=3, dtype=dtype, name="sentences")


def model(padding=0):
    torch.manual_seed(5)
    return build("embedding", shape=(TOKENS,), classes=3, vocabulary=VOCABULARY, width=4, padding=padding)


def ended(algorithm, executor=None, *, short=True, engine="stacked", padding=0):
    sim = simulation(algorithm, federation(), model(padding), rounds=3, participation=1.0, engine=engine)
    if not short:
        sim = replace(sim, runtime=replace(sim.runtime, table=None))
    return received(sim, sim.run(executor or Matrix()), torch.arange(3))


def assert_same(a, b):
    assert set(a) == set(b)
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("executor", [Matrix(), Matrix(chunk=2), Messages()], ids=["matrix", "chunks", "messages"])
def test_the_bits_are_those_of_the_whole_table(executor, engine, padding, steps_taken):
    short = ended(fedper(train=SGD(epochs=2)), executor, engine=engine, padding=padding)
    assert steps_taken, "no step took the short table"
    assert_same(short, ended(fedper(train=SGD(epochs=2)), executor, short=False, engine=engine, padding=padding))


@pytest.fixture
def steps_taken(monkeypatch):
    """The lengths of the short tables that steps took."""
    found, taken = [], Table.rows_in_use

    def noted(self, tokens, whole):
        used = taken(self, tokens, whole)
        found.extend([] if used is None else [used.found.shape[1]])
        return used

    monkeypatch.setattr(Table, "rows_in_use", noted)
    return found


@pytest.mark.parametrize(
    "algorithm",
    [
        fedavg(train=SGD(momentum=0.9)),
        fedavg(train=SGD(weight_decay=0.1)),
        fedavg(train=SGD(optimizer="adam")),
        fedavg(train=SGD(clip=1.0)),
        fedprox(strength=0.1),
    ],
    ids=["momentum", "weight decay", "adam", "clip", "proximal"],
)
def test_a_descent_that_moves_other_rows_takes_the_whole_table(algorithm, steps_taken):
    ended(algorithm)
    assert steps_taken == []


def test_only_plain_descents_leave_numbers_without_a_gradient_alone():
    assert Descent(Direction()).is_still
    for direction in (Direction(momentum=0.5), Direction(weight_decay=0.1), Direction("adam")):
        assert not Descent(direction).is_still
    assert not Descent(Direction(), clip=1.0).is_still


def test_rows_by_hand():
    whole = torch.arange(80.0).reshape(2, 40, 1)
    used = SHORT.rows_in_use(torch.tensor([[[7, 3, 7]], [[0, 0, 39]]]), whole)
    assert used.tokens.tolist() == [[[2, 1, 2]], [[0, 0, 1]]]
    short = used.taken(whole)
    assert short.shape == (2, 4, 1)
    assert short[0, :3, 0].tolist() == [0, 3, 7]
    assert short[1, :2, 0].tolist() == [40, 79]
    short[0, 2], short[1, 1] = -1.0, -2.0
    used.put_back(whole, short)
    assert whole[:, :, 0].lt(0).nonzero().tolist() == [[0, 7], [1, 39]]
    expected = torch.arange(80.0).reshape(2, 40, 1)
    expected[0, 7], expected[1, 39] = -1.0, -2.0
    assert torch.equal(whole, expected)


@pytest.mark.parametrize(("rows", "few"), [(16, True), (15, False)])
def test_many_rows_in_use_are_the_whole_table(rows, few):
    used = SHORT.rows_in_use(torch.tensor([[[1, 2, 3]]]), torch.zeros(1, rows, 2))
    assert (used is not None) == few


def test_a_step_writes_the_rows_that_it_names_and_that_of_the_padding_into_the_table():
    table = torch.zeros(1, 40, 1)

    def step(carry, held, stack):
        carry["row"]["embedding.weight"] += 1
        return carry

    stack = Stack(torch.tensor([[[5, 9, 5]]]), torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1), (1,))
    after = with_short_table(step, SHORT)({"row": {"embedding.weight": table}}, {}, stack)
    assert after["row"]["embedding.weight"] is table
    assert table[0, :, 0].nonzero().flatten().tolist() == [0, 5, 9]


def test_a_model_says_what_it_looks_up():
    assert table_of(model(padding=2)) == Table("embedding.weight", 2)
    assert table_of(nn.Embedding(5, 2)) is None
    limited = model()
    limited.embedding = nn.Embedding(VOCABULARY, 4, max_norm=1.0)
    assert table_of(limited) is None
