"""Many clients are split at once exactly as one by one, and drawn as numpy draws."""

import numpy as np
import pytest

from stratafl.data import many_splits, splitting
from stratafl.data.many_splits import Generators, seed_words
from stratafl.data.partitions.base import IID, Assignment, Pieces, Pool, by_owner
from stratafl.data.splitting import SplitPlan, Splitter
from stratafl.errors import DataError

CLIENTS = 300


def assignment(sizes, rng, shuffled=True):
    order = rng.permutation(sum(sizes)) if shuffled else np.arange(sum(sizes))
    return Assignment(np.split(order, np.cumsum(sizes)[:-1]))


@pytest.mark.parametrize("seed", [0, 7, 2**40 + 3, 2**62 + 5])
def test_seeds_and_shuffles_are_those_of_numpy(seed):
    clients, sizes = np.arange(3, 9), np.array([5, 1, 9, 2, 6, 70])
    sequences = [np.random.SeedSequence(seed, spawn_key=(client,)) for client in clients.tolist()]
    words = np.stack([each.generate_state(4, np.uint64) for each in sequences], 1)
    assert np.array_equal(seed_words(seed, clients), words)
    flat = np.concatenate([np.arange(size) for size in sizes])
    generators, starts = Generators(seed, clients), np.cumsum(sizes) - sizes
    for _ in range(2):  # the second shuffle begins in the middle of a draw
        generators.shuffle(flat, starts, sizes)
    for sequence, start, size in zip(sequences, starts, sizes, strict=True):
        rng = np.random.default_rng(sequence)
        assert np.array_equal(flat[start : start + size], rng.permutation(rng.permutation(int(size))))


@pytest.mark.parametrize(
    ("plan", "classes"),
    [
        (SplitPlan(validation=0.2, seed=5), 4),
        (SplitPlan(validation=0.3, test=0.3, minimum_test=2), 40),
        (SplitPlan(validation=0.1, split="random"), 3),
        (SplitPlan(validation=0.2, split="ordered"), 3),
        (SplitPlan(test=0.0), 2),
    ],
)
def test_many_clients_are_split_as_one_by_one(plan, classes, monkeypatch):
    rng = np.random.default_rng(1)
    sizes = np.append(rng.integers(5, 20, CLIENTS - 1), 90)
    whole, labels = assignment(sizes, rng), rng.integers(-1, classes, sizes.sum()) * rng.integers(0, 2, sizes.sum())
    splitter = Splitter(labels, plan, first=3)
    monkeypatch.setattr(many_splits, "CLIENTS_IN_CACHE", 128)  # in blocks, the last of which is smaller
    many = splitter.split_assignment(whole)
    assert all(isinstance(split, Pieces) for split in many.values())
    monkeypatch.setattr(splitting, "MIN_CLIENTS_AT_ONCE", CLIENTS + 1)
    one_by_one = splitter.split_assignment(whole)
    for name, split in one_by_one.items():
        assert [each.tolist() for each in many[name]] == [each.tolist() for each in split], name


def test_another_numpy_splits_one_by_one(monkeypatch):
    sizes, rng = np.full(CLIENTS, 6), np.random.default_rng(0)
    splitter, whole = Splitter(rng.integers(0, 3, sizes.sum()), SplitPlan()), assignment(sizes, rng)
    right = splitter.split_assignment(whole)
    monkeypatch.setattr(splitting, "split_many", lambda flat, sizes, stratum, held_out, seed, first: (flat, flat % 3))
    assert [each.tolist() for each in splitter.split_assignment(whole)["test"]] == [e.tolist() for e in right["test"]]


@pytest.mark.parametrize(
    ("change", "value", "word"),
    [((7, 0), -1, "-1"), ((7, 0), 10**6, "1000000"), ((7, 0), None, "twice"), ((7, slice(0, 0)), 0, "data")],
)
def test_wrong_indices_are_refused_as_of_few_clients(change, value, word):
    whole = assignment(np.full(CLIENTS, 6), np.random.default_rng(0))
    client, place = change
    if place == slice(0, 0):
        whole.train[client] = whole.train[client][place]
    else:
        whole.train[client][place] = whole.train[client][1] if value is None else value
    with pytest.raises(DataError) as error:
        Splitter(np.zeros(6 * CLIENTS, np.int64), SplitPlan()).split_assignment(whole)
    assert "client 7" in str(error.value)
    assert word in str(error.value)


def test_samples_of_two_clients_are_refused():
    whole = assignment(np.full(CLIENTS, 6), np.random.default_rng(0))
    whole.train[9][:] = whole.train[8]
    with pytest.raises(DataError, match="clients 8 and 9"):
        Splitter(np.zeros(6 * CLIENTS, np.int64), SplitPlan()).split_assignment(whole)


def test_equal_parts_and_owners_are_pieces():
    drawn = IID().draw(Pool(np.zeros(17)), 5, np.random.default_rng(0))
    whole = np.array_split(np.random.default_rng(0).permutation(17), 5)
    assert [each.tolist() for each in drawn] == [sorted(part.tolist()) for part in whole]
    owned = by_owner(np.array(["b", "a", "b", "c"]))
    assert ([each.tolist() for each in owned], owned[-1].tolist()) == ([[1], [0, 2], [3]], [3])
    assert [each.tolist() for each in owned[1:]] == [[0, 2], [3]]
