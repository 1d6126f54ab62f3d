"""The partitions of the papers, each against its definition."""

from itertools import chain

import numpy as np
import pytest

from stratafl.core.records import from_toml, to_toml
from stratafl.data import PARTITIONS, Assignment, Classes, Dirichlet, PFLlibDirichlet
from stratafl.data.partitions import (
    ClientDirichlet,
    KClasses,
    OneClass,
    Owners,
    Pathological,
    PFedLAClasses,
    PFedLADominant,
)
from stratafl.data.partitions.classes import balanced_classes
from stratafl.errors import PartitionError, StrataError

CIFAR = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 6000))
CIFAR_TESTS = np.zeros(60_000, dtype=bool)
for label in range(10):
    CIFAR_TESTS[np.flatnonzero(label == CIFAR)[:1000]] = True
CIFAR100 = np.random.default_rng(1).permutation(np.repeat(np.arange(100), 600))
SMALL = np.random.default_rng(2).permutation(np.repeat(np.arange(4), 50))
SMALL_TESTS = np.arange(200) % 5 == 0
OWNER = np.random.default_rng(3).choice([f"user{i}" for i in range(12)], 200)

EVERY = [
    PFLlibDirichlet(alpha=0.5, replacement=True),
    Pathological(),
    Pathological(balanced=True),
    KClasses(per_client=2),
    KClasses(per_client=2, shuffled=True),
    OneClass(train_samples=10, test_samples=2),
    PFedLAClasses(per_client=2, samples=20),
    PFedLADominant(dominant=1, samples=20),
    ClientDirichlet(alpha=0.5, largest=20),
    Owners(),
]
every = pytest.mark.parametrize("partition", EVERY, ids=repr)
OVERLAPPING = (EVERY[0], EVERY[8])


def small(partition, seed=0, clients=6):
    return partition(SMALL, clients, seed, tests=SMALL_TESTS, owner=OWNER)


def parts(division):
    """The lists of a division, or the one of plain owners."""
    if not isinstance(division, Assignment):
        return [division]
    return [division.train] if division.test is None else [division.train, division.test]


def table(held, labels):
    """Samples of each class (columns) that each client (rows) holds."""
    return np.stack([np.bincount(labels[mine], minlength=labels.max() + 1) for mine in held])


# What holds for all of them


@every
def test_every_client_gets_sorted_samples(partition):
    for held in parts(small(partition)):
        assert len(held) == 6
        assert all(len(mine) and (np.diff(mine) >= 0).all() for mine in held)
        assert all(mine[0] >= 0 and mine[-1] < 200 for mine in held)


@every
def test_the_seed_decides(partition):
    once, again, other = (np.concatenate([*chain(*parts(small(partition, seed)))]) for seed in (1, 1, 2))
    assert np.array_equal(once, again)
    assert not np.array_equal(once, other)


@every
def test_samples_are_shared_only_where_that_is_declared(partition):
    division = small(partition)
    together = np.concatenate([*chain(*parts(division))])
    declared = isinstance(division, Assignment) and division.overlap
    assert declared == (partition in OVERLAPPING)
    assert declared == (len(np.unique(together)) < len(together))


@every
def test_nobody_tests_on_what_they_train_on(partition):
    division = small(partition)
    if isinstance(division, Assignment) and division.test is not None:
        assert not any(set(a) & set(b) for a, b in zip(division.train, division.test, strict=True))


@every
def test_publishers_sets_are_kept_apart_by_those_who_divide_them_one_by_one(partition):
    division = small(partition)
    if isinstance(partition, KClasses | OneClass | ClientDirichlet):
        assert not SMALL_TESTS[np.concatenate(division.train)].any()
        assert SMALL_TESTS[np.concatenate(division.test)].all()


@every
def test_it_survives_toml(partition):
    assert from_toml(to_toml(partition)) == partition


@every
def test_it_is_in_the_catalogue(partition):
    assert type(partition) in PARTITIONS.values()


@every
def test_impossible_numbers_of_clients_are_refused(partition):
    with pytest.raises(PartitionError, match="clients=0 was given"):
        small(partition, clients=0)
    with pytest.raises(PartitionError, match=r"200.*201"):
        small(partition, clients=201)


def test_tests_and_owners_must_tell_of_every_sample():
    with pytest.raises(PartitionError, match="there are 200 labels, but 'tests' has 199 values"):
        KClasses()(SMALL, 2, 0, tests=SMALL_TESTS[1:])
    with pytest.raises(PartitionError, match="there are 200 labels, but 'owner' has 1 values"):
        Owners()(SMALL, 2, 0, owner=OWNER[:1])


@pytest.mark.parametrize("partition", [OneClass(), ClientDirichlet()], ids=repr)
def test_publishers_sets_must_be_known(partition):
    with pytest.raises(PartitionError, match=r"the partition '(oneclass|perclient)'"):
        partition(SMALL, 4, 0)


# D1, D9: PFLlib's Dirichlet, with replacement


def test_with_replacement_clients_hold_as_many_samples_but_share_them():
    settings = {"alpha": 0.3, "minimum": 5}
    plain = PFLlibDirichlet(**settings)(CIFAR, 20, 0)
    shared = PFLlibDirichlet(**settings, replacement=True)(CIFAR, 20, 0)
    assert np.array_equal(table(shared.train, CIFAR), table(plain, CIFAR))
    assert all(len(np.unique(mine)) == len(mine) for mine in shared.train)  # none twice for one client
    assert shared.test is None
    held = len(np.unique(np.concatenate(shared.train)))
    assert 0.5 * 60_000 < held < 0.95 * 60_000


def test_pfllib_caps_the_size_of_clients_with_many_classes():
    sizes = np.array([len(mine) for mine in PFLlibDirichlet(alpha=0.1)(CIFAR100, 20, 0)])
    assert sizes.sum() == 60_000
    assert sizes.max() < 3000 + 600  # below the even share before its last class, of which it gets all at most
    assert np.array([len(mine) for mine in Dirichlet(alpha=0.1)(CIFAR100, 20, 0)]).max() > sizes.max()


# D2: PFLlib's pathological


@pytest.mark.parametrize("balanced", [False, True])
def test_pathological_classes_go_to_the_first_clients_that_need_one(balanced):
    held = table(Pathological(per_client=2, balanced=balanced)(CIFAR, 20, 0), CIFAR)
    owners = [np.flatnonzero(column).tolist() for column in held.T]
    # ceil(20 / 10 · 2) = 4 clients a class: two classes for 0–3, two for 4–7 and so on
    assert owners == [list(range(4 * (c // 2), 4 * (c // 2) + 4)) for c in range(10)]
    assert held.sum() == 60_000


def test_pathological_balanced_parts_are_equal_and_the_last_takes_the_rest():
    labels = np.repeat([0, 1], [103, 50])
    held = table(Pathological(per_client=2, balanced=True)(labels, 4, 0), labels)
    assert held.T.tolist() == [[25, 25, 25, 28], [12, 12, 12, 14]]


def test_pathological_unbalanced_parts_are_random_from_a_tenth_to_an_equal_part():
    sizes = []
    for seed in range(15):
        held = table(Pathological(per_client=10)(CIFAR, 20, seed), CIFAR)
        assert (held.sum(axis=0) == 6000).all()
        sizes += held[:-1].flatten().tolist()  # all but the last client, which takes the rest
    assert 30 <= min(sizes) <= 34  # equal part 300; 40 / 10 = 4 samples a class at least are less than a tenth of it
    assert 296 <= max(sizes) <= 299
    assert 155 < np.mean(sizes) < 175


def test_pathological_leaves_at_least_what_pfllib_asks_for():
    labels = np.repeat(np.arange(2), 200)
    sizes = [table(Pathological(per_client=2)(labels, 4, seed), labels)[:-1].min() for seed in range(60)]
    assert min(sizes) == 20  # least 40 over 2 classes, more than a tenth of 50


def test_pathological_classes_that_nobody_needs_stay_unused():
    held = table(Pathological(per_client=1)(SMALL, 3, 0), SMALL)
    assert (held > 0).tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]


# D3: FedPer's k classes


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("k", [4, 8, 10])
def test_kclasses_of_cifar10(k, shuffled):
    division = KClasses(k, shuffled)(CIFAR, 10, 0, tests=CIFAR_TESTS)
    train, test = table(division.train, CIFAR), table(division.test, CIFAR)
    assert ((train > 0).sum(axis=1) == k).all()
    assert ((train > 0).sum(axis=0) == k).all()  # k · N / C owners
    assert (train.sum(axis=1) == 5000).all()
    assert (test.sum(axis=1) == 1000).all()
    assert train.tolist() == (5 * test).tolist()
    assert (train.sum(axis=0), test.sum(axis=0)) == (pytest.approx([5000] * 10), pytest.approx([1000] * 10))


@pytest.mark.parametrize("k", [40, 80, 100])
def test_kclasses_of_cifar100_rotate(k):
    held = table(KClasses(k)(CIFAR100, 10, 0), CIFAR100)  # without publishers' sets, as a whole
    for j, row in enumerate(held):
        assert np.flatnonzero(row).tolist() == sorted((10 * j + i) % 100 for i in range(k))
    assert (held.sum(axis=1) == 6000).all()


def test_kclasses_rotation_is_regular_whenever_that_is_possible():
    for classes in (1, 2, 3, 6, 8, 12):
        labels = np.repeat(np.arange(classes), 40)
        for clients in (1, 2, 3, 4, 6, 8, 12, 24):
            for k in range(1, classes + 1):
                if clients * k % classes == 0 and clients <= len(labels):
                    held = table(KClasses(k)(labels, clients, 0), labels)
                    assert ((held > 0).sum(axis=0) == clients * k // classes).all(), (classes, clients, k)


# D4: by owner


def test_owners_are_drawn_and_keep_all_of_their_samples():
    names = [set(OWNER[mine]) for mine in small(Owners(), clients=5)]
    assert all(len(each) == 1 for each in names)
    chosen = [each.pop() for each in names]
    assert chosen == sorted(set(chosen))
    for name, mine in zip(chosen, small(Owners(), clients=5), strict=True):
        assert mine.tolist() == np.flatnonzero(name == OWNER).tolist()


def test_all_owners_may_be_drawn():
    assert np.concatenate(small(Owners(), clients=12)).size == 200
    with pytest.raises(PartitionError, match=r"13.*12.*12"):
        small(Owners(), clients=13)


def test_owners_who_do_not_fit_are_left_out():
    owner = np.repeat([7, 8, 9, 10], [10, 20, 30, 40])
    labels = np.concatenate([np.arange(10) % 2, np.arange(20) >= 18, np.arange(30) % 2, np.arange(40) % 2]).astype(int)

    def fitting(clients, **options):
        return [int(owner[mine[0]]) for mine in Owners(**options)(labels, clients, 0, owner=owner)]

    assert fitting(3, minimum=20) == [8, 9, 10]
    assert fitting(2, minimum=20, maximum=30) == [8, 9]
    assert fitting(3, per_class=4) == [7, 9, 10]  # 8 has 2 samples of class 1
    assert fitting(1, minimum=11, maximum=39, per_class=4) == [9]
    with pytest.raises(PartitionError, match=r"2.*1.*4"):
        fitting(2, minimum=31)


# D5: pFedLA's non-IID_1


@pytest.mark.parametrize(("labels", "clients", "k"), [(CIFAR, 10, 4), (CIFAR, 100, 4), (CIFAR100, 100, 12)])
def test_pfedla1_clients_have_equal_amounts_of_their_classes(labels, clients, k):
    division = PFedLAClasses(per_client=k)(labels, clients, 0)
    train, test = table(division.train, labels), table(division.test, labels)
    assert (train.sum(axis=1) == 420).all()
    assert (test.sum(axis=1) == 180).all()
    for row, tested in zip(train, test, strict=True):
        assert sorted(set(row)) == [0, 420 // k]
        assert (row > 0).sum() == k
        assert tested.tolist() == (row * 3 // 7).tolist()
    owners = (train > 0).sum(axis=0)
    assert owners.max() - owners.min() <= 1
    if clients == 100:  # to the last sample
        assert np.array_equal(np.sort(np.concatenate(division.train + division.test)), np.arange(60_000))


def test_pfedla1_draws_classes_at_random():
    sets = {tuple(np.unique(CIFAR[mine])) for mine in PFedLAClasses()(CIFAR, 100, 0).train}
    assert len(sets) > 40


def test_pfedla1_takes_another_size():
    division = PFedLAClasses(samples=200)(CIFAR, 10, 0)
    assert [len(mine) for mine in division.train + division.test] == [140] * 10 + [60] * 10


# D6: pFedLA's non-IID_2


@pytest.mark.parametrize(("labels", "clients", "dominant"), [(CIFAR, 10, 2), (CIFAR, 100, 2), (CIFAR100, 100, 6)])
@pytest.mark.parametrize("seed", [0, 1])
def test_pfedla2_two_classes_dominate_and_all_are_there(labels, clients, dominant, seed):
    division = PFedLADominant(dominant=dominant)(labels, clients, seed)
    held = table([np.concatenate(both) for both in zip(division.train, division.test, strict=True)], labels)
    assert (held.sum(axis=1) == 600).all()
    often = 300 // dominant
    assert ((held == often).sum(axis=1) == dominant).all()
    others = held[held < often]
    assert others.min() == 300 // (held.shape[1] - dominant)
    assert others.max() <= others.min() + 1
    owners = (held == often).sum(axis=0)
    assert owners.max() - owners.min() <= 1
    if clients == 100:
        assert len(np.unique(np.concatenate(division.train + division.test))) == 60_000
    tested = table(division.test, labels)
    assert np.abs(tested - 0.3 * held).max() <= 0.5


@pytest.mark.parametrize("share", [0.4, 0.6])
def test_pfedla2_takes_another_share(share):
    division = PFedLADominant(share=share)(CIFAR, 10, 0)
    held = np.sort(table(division.train, CIFAR) + table(division.test, CIFAR), axis=1)
    assert (held[:, -2:].sum(axis=1) == share * 600).all()


# D7: one class per client


@pytest.mark.parametrize("tested", [80, 100])
def test_oneclass_of_mnist(tested):
    division = OneClass(test_samples=tested)(CIFAR, 100, 0, tests=CIFAR_TESTS)
    train, test = table(division.train, CIFAR), table(division.test, CIFAR)
    assert [np.flatnonzero(row).tolist() for row in train] == [[j % 10] for j in range(100)]
    assert (train.max(axis=1) == 500).all()
    assert (test.max(axis=1) == tested).all()
    assert ((train > 0) == (test > 0)).all()
    assert ((train > 0).sum(axis=0) == 10).all()


def test_oneclass_takes_as_many_test_samples_as_there_are():
    tests = CIFAR_TESTS.copy()
    tests[np.flatnonzero(CIFAR_TESTS & (CIFAR == 5))[:108]] = False  # 892 of the digit 5, as in MNIST
    assert OneClass(test_samples=80)(CIFAR, 100, 0, tests=tests)
    with pytest.raises(PartitionError, match="class 5 has 892 test samples, but 10 clients ask for 1000"):
        OneClass(test_samples=100)(CIFAR, 100, 0, tests=tests)


# D8: FedALP's Dirichlet


def test_perclient_sizes_are_those_of_the_paper():
    division = ClientDirichlet(alpha=0.1)(CIFAR, 100, 0, tests=CIFAR_TESTS)
    expected = [100] * 10 + [250] * 30 + [500] * 30 + [750] * 20 + [1000] * 10
    assert [len(mine) for mine in division.train] == expected
    assert [len(mine) for mine in division.test] == [size // 5 for size in expected]


def test_perclient_counts_follow_one_draw_for_training_and_testing():
    division = ClientDirichlet(alpha=0.5)(CIFAR, 100, 4, tests=CIFAR_TESTS)
    shares = np.random.default_rng(np.random.SeedSequence(4)).dirichlet([0.5] * 10, 100)
    for held, size in ((division.train, 1000), (division.test, 200)):
        counts = table(held, CIFAR)
        for q, row in zip(shares[90:], counts[90:], strict=True):
            whole = [int(share * size) for share in q]
            whole[9] += size - sum(whole)  # what is left is of class 9
            assert row.tolist() == whole


def test_perclient_draws_with_replacement():
    division = ClientDirichlet(alpha=0.001)(CIFAR, 100, 0, tests=CIFAR_TESTS)
    mine = division.train[-1]  # 1000 of the 5000 of a class: 5000 · (1 − e^(−1/5)) ≈ 906 distinct ones
    assert len(np.unique(CIFAR[mine])) == 1
    assert 870 < len(np.unique(mine)) < 940


def test_perclient_groups_of_other_numbers_of_clients():
    division = ClientDirichlet(largest=100)(CIFAR, 20, 0, tests=CIFAR_TESTS)
    assert [len(mine) for mine in division.train] == [10] * 2 + [25] * 6 + [50] * 6 + [75] * 4 + [100] * 2


def test_ownership_is_balanced():
    owned = balanced_classes(100, 10, 4, np.random.default_rng(0))
    assert (owned.sum(axis=0) == 40).all()


# What is refused


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        (Dirichlet, {"alpha": 0}, r"Dirichlet\.alpha.*0.*0\.0"),
        (Dirichlet, {"alpha": -0.5}, r"Dirichlet\.alpha.*0.*\-0\.5"),
        (Dirichlet, {"alpha": float("nan")}, r"Dirichlet\.alpha"),
        (Dirichlet, {"minimum": -1}, r"Dirichlet\.minimum.*0.*\-1"),
        (Dirichlet, {"draws": 0}, r"Dirichlet\.draws.*1.*0"),
        (PFLlibDirichlet, {"alpha": float("inf")}, r"PFLlibDirichlet\.alpha"),
        (PFLlibDirichlet, {"minimum": -1}, r"PFLlibDirichlet\.minimum.*0.*\-1"),
        (PFLlibDirichlet, {"draws": 0}, r"PFLlibDirichlet\.draws.*1.*0"),
        (ClientDirichlet, {"largest": 9}, r"ClientDirichlet\.largest.*10.*9"),
        (ClientDirichlet, {"alpha": 0}, r"ClientDirichlet\.alpha.*0.*0\.0"),
        (Classes, {"per_client": 0}, r"Classes\.per_client.*1.*0"),
        (Pathological, {"per_client": 0}, r"Pathological\.per_client.*1.*0"),
        (OneClass, {"test_samples": 0}, r"OneClass\.test_samples.*1.*0"),
        (PFedLAClasses, {"samples": 601}, "samples=601.*per_client=4"),
        (PFedLAClasses, {"held_out": 1.0}, r"PFedLAClasses\.held_out.*1.*1\.0"),
        (PFedLADominant, {"share": 0}, r"PFedLADominant\.share.*0.*0\.0"),
        (Owners, {"per_class": -1}, r"Owners\.per_class.*0.*\-1"),
        (Owners, {"minimum": 5, "maximum": 3}, "maximum=3.*minimum=5"),
    ],
)
def test_settings_that_no_data_allows(kind, settings, says):
    with pytest.raises(StrataError, match=says):
        kind(**settings)


@pytest.mark.parametrize(
    ("partition", "labels", "clients", "says"),
    [
        (Pathological(1), np.repeat([0, 1], 3), 6, "3 samples.*3 clients"),
        (KClasses(2), SMALL, 3, "3 clients.*2 classes.*4 classes"),
        (KClasses(5), SMALL, 4, "per_client=5.*4"),
        (KClasses(5, shuffled=True), SMALL, 4, "per_client=5.*4"),
        (Owners(), SMALL, 3, "'owners'"),
        (PFedLAClasses(), CIFAR, 102, "6000.*41.*6150"),
        (PFedLAClasses(samples=4), CIFAR, 4, r"held_out=0\.3"),
        (PFedLADominant(dominant=4), SMALL, 2, "dominant=4.*4"),
        (PFedLADominant(samples=100), CIFAR100, 10, "samples=100.*100"),
        (PFedLADominant(), CIFAR, 101, "60000.*101.*600"),
        (Classes(7), SMALL, 3, "per_client=7.*4"),
        (Classes(1), np.repeat([0, 1], [3, 97]), 10, "class 0.*3.*5"),
    ],
)
def test_draws_that_the_data_does_not_allow(partition, labels, clients, says):
    with pytest.raises(PartitionError, match=says):
        partition(labels, clients, 0)


def test_draws_that_the_published_sets_do_not_allow():
    with pytest.raises(PartitionError, match="class 0 has 5000 training samples, but 11 clients ask for 5500"):
        OneClass()(CIFAR, 101, 0, tests=CIFAR_TESTS)
    with pytest.raises(PartitionError, match="class 1"):
        ClientDirichlet(alpha=100.0)(np.repeat([0, 1], 50), 3, 0, tests=np.arange(100) < 20)
