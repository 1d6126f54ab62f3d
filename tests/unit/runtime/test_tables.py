"""Steps on the embeddings in use have the bits of steps on the whole table."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from stratafl.algorithms import fedavg, fedper, fedprox, flayer, moon, perfedavg, pfedme
from stratafl.core.task import Stack
from stratafl.data import from_splits
from stratafl.evaluation.evaluate import received_models
from stratafl.execute import Matrix, Messages, simulation
from stratafl.models import EmbeddingClassifier, build
from stratafl.policies import LocalTraining
from stratafl.policies.descent import Descent
from stratafl.policies.optimizers import Direction
from stratafl.runtime.tables import Table, table_of, with_short_table

VOCABULARY, TOKENS = 2000, 6
SHORT = Table("embedding.weight", 0)


def federation():
    """Sentences with repeated words and padding; the last client is smaller than a batch."""
    draw = torch.Generator().manual_seed(3)

    def samples(count):
        x = torch.randint(0, VOCABULARY, (count, TOKENS), generator=draw)
        x[:, 0] = x[:, 1]
        x[::2, -1] = 0
        return x.numpy(), torch.randint(0, 3, (count,), generator=draw).numpy()

    clients = [{"train": samples(n), "test": samples(4)} for n in (17, 9, 3)]
    return from_splits(clients, classes=3, dtype=torch.float32, name="sentences")


def model(padding=0):
    torch.manual_seed(5)
    return build("embedding", shape=(TOKENS,), classes=3, vocabulary=VOCABULARY, width=4, padding=padding)


def ended(algorithm, executor=None, *, short=True, engine="stacked", padding=0):
    sim = simulation(algorithm, federation(), model(padding), rounds=3, participation=1.0, engine=engine)
    if not short:
        sim = replace(sim, runtime=replace(sim.runtime, table=None))
    return received_models(sim, sim.run(executor or Matrix()), torch.arange(3))


def assert_same(a, b):
    assert set(a) == set(b)
    assert all(torch.equal(a[name].view(torch.int32), b[name].view(torch.int32)) for name in a)  # −0.0 is not 0.0


@pytest.mark.parametrize(
    ("executor", "engine", "padding"),
    [(Matrix(chunk=2), "stacked", 0), (Messages(), "loop", 2)],
)
def test_the_bits_are_those_of_the_whole_table(executor, engine, padding, steps_taken):
    short = ended(fedper(train=LocalTraining(epochs=2)), executor, engine=engine, padding=padding)
    assert steps_taken, "no step took the short table"
    assert_same(
        short, ended(fedper(train=LocalTraining(epochs=2)), executor, short=False, engine=engine, padding=padding)
    )


@pytest.fixture
def steps_taken(monkeypatch):
    """The lengths of the short tables that steps took."""
    found, taken = [], Table.in_use

    def noted(self, tokens, whole):
        used = taken(self, tokens, whole)
        found.extend([] if used is None else [used.sorted_tokens.shape[1]])
        return used

    monkeypatch.setattr(Table, "in_use", noted)
    return found


@pytest.mark.parametrize(
    "algorithm",
    [
        fedavg(train=LocalTraining(momentum=0.9)),
        fedavg(train=LocalTraining(weight_decay=0.1)),
        fedavg(train=LocalTraining(optimizer="adam")),
        fedavg(train=LocalTraining(clip=1.0)),
        fedprox(strength=0.1),
        flayer(),
        perfedavg(),
        pfedme(),
        moon(),
    ],
    ids=["momentum", "weight decay", "adam", "clip", "edits", "rates", "gradient", "follow", "frozen models"],
)
def test_a_descent_that_moves_or_reads_other_embeddings_takes_the_whole_table(algorithm, steps_taken):
    ended(algorithm)
    assert steps_taken == []


def test_only_plain_descents_leave_numbers_without_a_gradient_alone():
    assert Descent(Direction()).has_sparse_updates
    for direction in (Direction(momentum=0.5), Direction(weight_decay=0.1), Direction("adam")):
        assert not Descent(direction).has_sparse_updates
    some = object()
    shaped = [{"clip": 1.0}, {"edits": (some,)}, {"rates": (some,)}, {"gradient": some}, {"follow": (some,)}]
    for part in [*shaped, {"project": some}]:
        assert not Descent(Direction(), **part).has_sparse_updates


def test_embeddings_by_hand():
    whole = torch.arange(200.0).reshape(2, 100, 1)
    used = SHORT.in_use(torch.tensor([[[7, 3, 7]], [[0, 0, 99]]]), whole)
    assert used.tokens.tolist() == [[[2, 1, 2]], [[0, 0, 1]]]
    short = used.taken(whole)
    assert short.shape == (2, 4, 1)
    assert short[0, :3, 0].tolist() == [0, 3, 7]
    assert short[1, :2, 0].tolist() == [100, 199]
    short[0, 2], short[1, 1] = -1.0, -2.0
    used.put_back(whole, short)
    assert whole[:, :, 0].lt(0).nonzero().tolist() == [[0, 7], [1, 99]]
    expected = torch.arange(200.0).reshape(2, 100, 1)
    expected[0, 7], expected[1, 99] = -1.0, -2.0
    assert torch.equal(whole, expected)


@pytest.mark.parametrize(("rows", "few"), [(64, True), (63, False)])
def test_many_in_use_are_the_whole_table(rows, few):
    used = SHORT.in_use(torch.tensor([[[1, 2, 3]]]), torch.zeros(1, rows, 2))
    assert (used is not None) == few


def test_a_step_writes_the_embeddings_of_its_tokens_and_of_the_padding_into_the_table():
    table = torch.zeros(1, 100, 1)

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
    inherits = type("Inherits", (EmbeddingClassifier,), {})
    assert table_of(inherits(shape=(TOKENS,), classes=3, vocabulary=9)) is None
    for part in ("", "embedding"):
        hooked = model()
        hooked.get_submodule(part).register_forward_hook(lambda *given: None)
        assert table_of(hooked) is None
    limited = model()
    limited.embedding = nn.Embedding(VOCABULARY, 4, max_norm=1.0)
    assert table_of(limited) is None
