"""Each partition against its definition."""

import re

import numpy as np
import pytest

from stratafl.core.records import from_toml, to_toml
from stratafl.data import IID, PARTITIONS, Classes, Dirichlet, PFLlibDirichlet
from stratafl.data.partitions import UnevenSizes
from stratafl.data.partitions.dirichlet import _capped_counts, _counts, _shares_among
from stratafl.errors import PartitionError

LABELS = np.random.default_rng(3).integers(0, 6, 603)
EVERY = [IID(), Dirichlet(alpha=0.5), PFLlibDirichlet(alpha=0.5), Classes(per_client=2), UnevenSizes()]
by_name = pytest.mark.parametrize("partition", EVERY, ids=lambda partition: type(partition).__name__)


def table(owners, labels):
    """Samples of each class (columns) that each client (rows) holds."""
    return np.stack([np.bincount(labels[mine], minlength=labels.max() + 1) for mine in owners])


@by_name
def test_every_sample_belongs_to_one_client(partition):
    owners = partition(LABELS, 9, seed=1)
    assert len(owners) == 9
    assert np.array_equal(np.sort(np.concatenate(owners)), np.arange(len(LABELS)))


@by_name
def test_the_indices_of_a_client_are_sorted(partition):
    assert all((np.diff(mine) > 0).all() for mine in partition(LABELS, 9, seed=1))


@by_name
def test_the_seed_decides_the_partition(partition):
    once, again, other = (partition(LABELS, 9, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(once, other, strict=True))


@by_name
def test_one_client_gets_everything(partition):
    labels = np.repeat([0, 1], 30)
    assert np.array_equal(partition(labels, 1, seed=0)[0], np.arange(60))


@by_name
def test_a_partition_survives_toml(partition):
    assert from_toml(to_toml(partition)) == partition


def test_the_catalogue_names_the_partitions():
    expected = {"iid": IID, "dirichlet": Dirichlet, "pfllib": PFLlibDirichlet, "classes": Classes}
    assert expected.items() <= PARTITIONS.items()


def test_iid_sizes_differ_by_at_most_one():
    sizes = [len(mine) for mine in IID()(LABELS, 10, seed=0)]
    assert sorted(sizes) == [60] * 7 + [61] * 3


def test_iid_mixes_the_classes_of_sorted_labels():
    labels = np.repeat(np.arange(4), 250)
    assert table(IID()(labels, 4, seed=0), labels).min() > 30  # 62.5 expected, standard deviation 6


def test_iid_divides_float_targets_too():
    assert [len(mine) for mine in IID()(np.zeros((7, 2)), 2, seed=0)] == [4, 3]


def test_counts_are_cut_at_the_floor_and_the_last_client_takes_the_rest():
    shares = np.array([[0.25, 0.25, 0.5], [0.0, 0.99, 0.01]])
    assert _counts(shares, np.array([7, 10])).tolist() == [[1, 2, 4], [0, 9, 1]]


def test_dirichlet_redraws_until_every_client_has_the_minimum():
    partition = Dirichlet(alpha=0.3, minimum=20)
    assert min(len(mine) for mine in partition(LABELS, 10, seed=0)) >= 20
    one_draw = [_draws_within(Dirichlet(alpha=0.3, minimum=20, draws=1), seed) for seed in range(20)]
    assert not all(one_draw)


def _draws_within(partition, seed):
    try:
        partition(LABELS, 10, seed)
    except PartitionError:
        return False
    return True


def test_dirichlet_follows_its_shares():
    """With one class and no redraw, the client sizes are the cut points of one Dirichlet draw."""
    labels = np.zeros(1000, dtype=np.int64)
    shares = np.random.default_rng(np.random.SeedSequence(4)).dirichlet([0.7] * 5)
    owners = Dirichlet(alpha=0.7, minimum=0)(labels, 5, seed=4)
    assert np.abs(np.array([len(mine) for mine in owners]) - shares * 1000).max() <= 1


def test_a_smaller_alpha_gives_more_uneven_classes():
    def largest_share(alpha):
        held = table(Dirichlet(alpha=alpha, minimum=5, draws=5000)(LABELS, 6, seed=0), LABELS)
        return (held.max(axis=0) / held.sum(axis=0)).mean()

    assert largest_share(0.2) > 0.45
    assert largest_share(1000.0) < 0.2  # an even share is 1/6


def test_dirichlet_deals_a_class_at_random():
    labels = np.zeros(1000, dtype=np.int64)
    first = Dirichlet(alpha=100.0)(labels, 2, seed=0)[0]
    assert 400 < np.median(first) < 600


@pytest.mark.parametrize("seed", range(5))
def test_pfllib_against_a_plain_reimplementation(seed):
    owners = PFLlibDirichlet(alpha=0.3)(LABELS, 5, seed)
    expected = pfllib_plainly(LABELS.tolist(), 5, 0.3, least=40, seed=seed)
    assert table(owners, LABELS).T.tolist() == expected


def pfllib_plainly(labels, clients, alpha, least, seed):
    """How many samples of each class (rows) each client gets, in plain loops."""
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    while True:
        drawn = rng.dirichlet([alpha] * clients, len(set(labels)))
        held, rows = [0] * clients, []
        for label, shares in zip(sorted(set(labels)), drawn, strict=True):
            size = labels.count(label)
            free = [share if mine < len(labels) / clients else 0.0 for share, mine in zip(shares, held, strict=True)]
            row, running, taken = [], 0.0, 0
            for share in free[:-1]:
                running += share / sum(free)
                row.append(int(running * size) - taken)
                taken = int(running * size)
            row.append(size - taken)
            held = [mine + more for mine, more in zip(held, row, strict=True)]
            rows.append(row)
        if min(held) >= least:
            return rows


def test_pfllib_gives_nothing_more_to_a_client_with_its_even_share():
    shares = np.array([[1.0, 0.0, 0.0], [0.5, 0.3, 0.2], [0.2, 0.7, 0.1]])
    sizes = np.array([10, 10, 10])
    # even share 10: client 0 is full after class 0, so the others divide class 1 at 0.6, 0.4 and class 2 at 7/8, 1/8
    assert _capped_counts(shares, sizes).tolist() == [[10, 0, 0], [0, 6, 4], [0, 8, 2]]


def test_pfllib_shares_evenly_when_only_full_clients_had_a_share():
    below = np.array([False, True, True])
    assert _shares_among(below, np.array([1.0, 0.0, 0.0])).tolist() == [0, 0.5, 0.5]


@pytest.mark.parametrize(("samples", "clients", "least"), [(1000, 10, 40), (300, 10, 15), (310, 4, 38)])
def test_pfllib_asks_by_default_for_40_or_half_the_even_share(samples, clients, least):
    labels = np.arange(samples) % 2
    with pytest.raises(PartitionError, match=f"{clients} clients {least} "):
        PFLlibDirichlet(alpha=0.001, draws=2)(labels, clients, seed=0)


def test_pfllib_takes_another_minimum():
    partition = PFLlibDirichlet(alpha=0.5, minimum=70)
    assert min(len(mine) for seed in range(8) for mine in partition(LABELS, 6, seed)) >= 70


@pytest.mark.parametrize(("clients", "per_client"), [(10, 2), (7, 3), (20, 5), (3, 6), (13, 1)])
def test_classes_gives_each_client_its_classes_and_each_class_its_owners(clients, per_client):
    owned = table(Classes(per_client)(LABELS, clients, seed=5), LABELS) > 0
    assert (owned.sum(axis=1) == per_client).all()
    owners = owned.sum(axis=0)
    assert owners.min() == clients * per_client // 6
    assert owners.max() == -(-clients * per_client // 6)


def test_classes_divides_a_class_equally_among_its_owners():
    held = table(Classes(per_client=3)(LABELS, 8, seed=0), LABELS)
    for column in held.T:
        assert np.ptp(column[column > 0]) <= 1


def test_classes_does_not_favour_the_first_clients_with_the_odd_samples():
    labels = np.zeros(7, dtype=np.int64)
    larger = {tuple(len(mine) for mine in Classes(per_client=1)(labels, 4, seed)) for seed in range(20)}
    assert len(larger) > 1


def test_classes_pairs_classes_at_random():
    pairs = {tuple(np.unique(LABELS[mine])) for mine in Classes(per_client=2)(LABELS, 60, seed=0)}
    assert len(pairs) > 8  # of the 15 there are; a rotation over the classes would make 6 at most


def test_classes_leaves_a_class_without_owner_unused():
    owners = Classes(per_client=1)(LABELS, 4, seed=0)
    held = np.concatenate(owners)
    assert len(np.unique(LABELS[held])) == 4
    assert len(held) == np.isin(LABELS, np.unique(LABELS[held])).sum()


def test_labels_need_not_be_consecutive():
    labels = np.repeat([3, 70, 900], 20)
    owners = Classes(per_client=1)(labels, 3, seed=0)
    assert sorted({int(label) for mine in owners for label in np.unique(labels[mine])}) == [3, 70, 900]
    assert [len(set(labels[mine])) for mine in owners] == [1, 1, 1]


@pytest.mark.parametrize("kind", [Dirichlet, PFLlibDirichlet])
def test_draws_are_bounded_and_the_error_says_how_close_they_came(kind):
    with pytest.raises(PartitionError) as caught:
        kind(alpha=0.05, minimum=50, draws=30)(LABELS, 10, seed=0)
    said = re.fullmatch(r"0 of 30 .*10 clients .*50 .*603 .*0\.05.* (\d+): .*data.alpha .*", str(caught.value))
    assert said is not None
    best = int(said[1])
    assert min(len(mine) for mine in kind(alpha=0.05, minimum=best, draws=30)(LABELS, 10, seed=0)) == best
    with pytest.raises(PartitionError, match=f"had {best}:"):
        kind(alpha=0.05, minimum=best + 1, draws=30)(LABELS, 10, seed=0)


@pytest.mark.parametrize("kind", [Dirichlet, PFLlibDirichlet])
def test_a_minimum_beyond_the_samples_is_refused_before_drawing(kind):
    with pytest.raises(PartitionError, match=r"603.*10.*61"):
        kind(minimum=61)(LABELS, 10, seed=0)
    with pytest.raises(PartitionError, match="0 of 1 draws"):
        kind(minimum=60, draws=1)(LABELS, 10, seed=0)


@by_name
def test_impossible_numbers_of_clients_are_refused(partition):
    with pytest.raises(PartitionError, match="clients=0 was given"):
        partition(LABELS, 0, seed=0)
    with pytest.raises(PartitionError, match=r"603.*604"):
        partition(LABELS, 604, seed=0)


@by_name
def test_a_negative_seed_is_refused(partition):
    with pytest.raises(PartitionError, match="seed=-4 was given"):
        partition(LABELS, 3, seed=-4)


@pytest.mark.parametrize("partition", EVERY[1:], ids=lambda partition: type(partition).__name__)
def test_labels_without_classes_are_refused(partition):
    with pytest.raises(PartitionError, match=r"dtype float64 and shape \(50,\) have no classes"):
        partition(np.linspace(0, 1, 50), 2, seed=0)


def test_uneven_sizes_follow_their_weights():
    labels = np.zeros(1000, dtype=np.int64)
    draw = np.random.default_rng(np.random.SeedSequence(4)).integers(0, 1 << 20, (5, 12))
    z = draw.sum(axis=1) / 2**20 - 6
    sizes = [len(mine) for mine in UnevenSizes(spread=1.5, minimum=0)(labels, 5, seed=4)]
    expected = 1000 * np.exp(1.5 * z) / np.exp(1.5 * z).sum()
    assert np.abs(np.array(sizes) - expected).max() < 1.01
    assert sum(sizes) == 1000
    assert [len(mine) for mine in UnevenSizes(spread=0.0)(labels, 5, seed=4)] == [200] * 5


def test_uneven_clients_have_the_same_class_shares_or_few_classes():
    held = table(UnevenSizes(spread=1.0, minimum=20)(LABELS, 6, seed=1), LABELS)
    shares = held / held.sum(axis=1, keepdims=True)
    assert np.abs(shares - np.bincount(LABELS) / len(LABELS)).max() < 0.05
    assert held.sum(axis=1).min() >= 20
    few = table(UnevenSizes(spread=1.0, per_client=2)(LABELS, 12, seed=1), LABELS)
    assert ((few > 0).sum(axis=1) == 2).all()
    assert (few.sum(axis=0) == np.bincount(LABELS)).all()


def test_uneven_sizes_that_cannot_be_are_refused():
    with pytest.raises(PartitionError, match="minimum"):
        UnevenSizes(minimum=90)(LABELS, 9, seed=0)
