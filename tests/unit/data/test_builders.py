"""Divisions that say who tests on what: validation is cut from training, and overlap must be declared."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from stratafl.data import IID, Assignment, Samples, federate, from_clients, from_samples
from stratafl.data.partitions import Owners
from stratafl.data.splitting import SplitPlan
from stratafl.errors import DataError

X, Y = np.arange(40, dtype=np.float32)[:, None], np.arange(40) % 4


def arrays(*ranges):
    return [np.arange(a, b) for a, b in ranges]


def disjoint():
    return Assignment(arrays((0, 10), (10, 30)), arrays((30, 33), (33, 40)))


def made(division, **options):
    return federate(X, Y, division, **options)


def lists(federation, split):
    return [sorted(federation.split(split).of(client).tolist()) for client in range(federation.clients)]


def test_without_validation_a_division_is_kept_as_it_is():
    federation = made(disjoint(), test=0.5)  # the share for testing is not looked at
    assert lists(federation, "train") == [list(range(10)), list(range(10, 30))]
    assert lists(federation, "test") == [list(range(30, 33)), list(range(33, 40))]
    assert lists(federation, "validation") == [[], []]


def test_validation_is_cut_from_training_and_rounded_up():
    federation = made(disjoint(), validation=0.15, seed=3)
    assert federation.counts("validation").tolist() == [2, 3]
    for client, mine in enumerate(disjoint().train):
        both = lists(federation, "train")[client] + lists(federation, "validation")[client]
        assert sorted(both) == mine.tolist()
    assert lists(federation, "test") == lists(made(disjoint()), "test")


def test_the_seed_decides_what_is_for_validation():
    once, again, other = (lists(made(disjoint(), validation=0.3, seed=seed), "validation") for seed in (1, 1, 2))
    assert once == again != other


def test_copies_of_a_sample_stay_together():
    train = [np.repeat(np.arange(10), 3)]
    federation = made(Assignment(train, [np.arange(20, 25)], overlap=True), validation=0.2)
    held_out = lists(federation, "validation")[0]
    assert len(held_out) == 6
    assert len(set(held_out)) == 2
    assert not set(held_out) & set(lists(federation, "train")[0])


def test_a_division_without_tests_is_cut_as_usual():
    owners = arrays((0, 20), (20, 40))
    plain, from_samples = made(owners, validation=0.1, seed=5), made(Assignment(owners), validation=0.1, seed=5)
    for split in ("train", "validation", "test"):
        assert torch.equal(plain.split(split).indices, from_samples.split(split).indices)


def test_clients_may_share_samples_only_if_that_is_declared():
    shared = (arrays((0, 10), (5, 15)), arrays((20, 25), (20, 25)))
    assert lists(made(Assignment(*shared, overlap=True)), "test") == [list(range(20, 25))] * 2
    with pytest.raises(DataError, match="clients 0 and 1 both hold sample 5"):
        made(Assignment(*shared))
    crossing = (arrays((0, 10), (10, 20)), arrays((10, 12), (20, 22)))  # client 0 tests on what client 1 trains on
    assert made(Assignment(*crossing, overlap=True)).clients == 2
    with pytest.raises(DataError, match="clients 0 and 1 both hold sample 10"):
        made(Assignment(*crossing))
    owners = arrays((0, 20), (10, 30))
    assert made(Assignment(owners, overlap=True)).clients == 2
    with pytest.raises(DataError, match="clients 0 and 1 both hold sample 10"):
        made(Assignment(owners))


@pytest.mark.parametrize("overlap", [False, True])
def test_nobody_tests_on_what_they_train_on(overlap):
    with pytest.raises(DataError, match="client 0 lists sample 9 twice"):
        made(Assignment(arrays((0, 10)), arrays((9, 12)), overlap=overlap))


def test_a_sample_drawn_twice_must_be_declared():
    repeated = ([np.array([1, 1, 2])], [np.array([5, 5])])
    assert made(Assignment(*repeated, overlap=True)).counts("train").tolist() == [3]
    with pytest.raises(DataError, match="client 0 lists sample 1 twice"):
        made(Assignment(*repeated))


@pytest.mark.parametrize(
    ("division", "says"),
    [
        (Assignment(arrays((0, 5), (5, 9)), arrays((9, 12))), "2 .*1 "),
        (Assignment([np.arange(3), np.arange(0)], arrays((9, 12), (12, 13))), "client 1"),
        (Assignment(arrays((0, 5)), arrays((39, 41))), r"client 0.*sample 40.*0\.\.39"),
        (Assignment([]), "0 clients"),
    ],
)
def test_what_is_wrong_with_a_division_is_said(division, says):
    with pytest.raises(DataError, match=says):
        made(division)


def test_something_must_be_left_for_training():
    with pytest.raises(DataError, match=r"client 0 .*1 .*1 "):
        made(Assignment([np.array([3])], [np.array([4])]), validation=0.1)


def test_clients_with_too_little_are_called_by_their_name():
    owner = np.array(["ann", "ann", "ann", "bob"])
    given = {"clients": 2, "partition": None, "fallback": IID(), "plan": SplitPlan()}
    few = Samples(np.zeros((4, 2)), np.arange(4) % 2, owner=owner)
    with pytest.raises(DataError, match=r"client 'bob'.*1.*1"):
        from_samples(few, **given)
    with pytest.raises(DataError, match="client 'bob'"):
        from_samples(replace(few, tests=np.array([True, False, False, True])), **given)
    with pytest.raises(DataError, match=r"client 'bob'.*1.*1"):
        from_samples(replace(few, tests=np.array([True, False, False, False])), **given | {"plan": SplitPlan(0.5)})


def test_clients_are_called_as_their_owners_where_they_are_owners():
    owner = np.array(["bob", "ann", "cem"] * 4)
    made = Samples(np.zeros((12, 2)), np.arange(12) % 2, classes=2, names=("cat", "dog"), owner=owner)
    given = {"clients": 2, "fallback": IID(), "plan": SplitPlan()}
    found = from_samples(made, partition=None, **given)
    assert (found.client_names, found.class_names) == (("ann", "bob", "cem"), ("cat", "dog"))
    assert (found.client_name(1), found.class_name(1)) == ("bob", "dog")
    chosen = from_samples(made, partition=Owners(), **given)
    assert [chosen.client_name(i) for i in (0, 1)] == [
        owner[int(chosen.split("train").of(i)[0])] for i in (0, 1)
    ]  # whose samples they hold
    drawn = from_samples(made, partition=IID(), **given)
    assert (drawn.client_names, drawn.client_name(1), drawn.class_names) == ((), "1", ("cat", "dog"))
    numbers = from_samples(replace(made, owner=np.repeat([2.0, 7.0, 30.0], 4)), partition=None, **given)
    assert numbers.client_names == ("2", "7", "30")
    tests = np.isin(owner, ["ann", "bob"]) & (np.arange(12) > 8)  # cem has none
    assert from_samples(replace(made, tests=tests), partition=None, **given).client_names == ("ann", "bob", "cem")
    with pytest.raises(DataError, match="there are 1 names for 2 classes"):
        replace(found, class_names=("cat",))


def test_names_as_labels_are_refused_with_what_to_give():
    with pytest.raises(DataError, match=r"y of client 0 has dtype <U3: .*; number the classes 0, 1, … alike"):
        from_clients([(np.zeros((2, 3), np.float32), np.array(["yes", "no"]))])
