"""Federations: how arrays are split, and what is refused in one sentence."""

import numpy as np
import pytest
import torch

from stratafl.data import Federation, Ragged, federate, from_clients, from_splits
from stratafl.errors import DataError, UnknownNameError

X = np.random.default_rng(0).normal(size=(60, 3))
Y = np.arange(60) % 4
OWNERS = [np.arange(0, 10), np.arange(10, 30), np.arange(30, 60)]


def test_ragged_holds_one_list_per_client():
    ragged = Ragged.from_lists([[4, 2], [], np.array([7])])
    assert ragged.indices.tolist() == [4, 2, 7]
    assert ragged.offsets.tolist() == [0, 2, 2, 3]
    assert ragged.counts.tolist() == [2, 0, 1]
    assert len(ragged) == 3
    assert [ragged.of(client).tolist() for client in range(3)] == [[4, 2], [], [7]]
    assert ragged.clients().tolist() == [0, 0, 2]


def test_ragged_is_int64_even_when_empty():
    empty = Ragged.from_lists([[], []])
    assert (empty.indices.dtype, empty.offsets.dtype) == (torch.int64, torch.int64)
    assert empty.counts.tolist() == [0, 0]


@pytest.mark.parametrize("client", [-1, 2])
def test_ragged_refuses_a_client_that_does_not_exist(client):
    with pytest.raises(DataError, match=rf"no client {client}: choose one from 0 to 1"):
        Ragged.from_lists([[1], [2]]).of(client)


def test_ragged_refuses_offsets_that_do_not_fit():
    with pytest.raises(DataError, match=r"3, .*2"):
        Ragged(torch.tensor([1, 2]), torch.tensor([0, 3]))
    with pytest.raises(DataError, match="start at 0"):
        Ragged(torch.tensor([1, 2]), torch.tensor([0, 3, 2]))


def test_federate_cuts_each_client_by_the_fractions():
    federation = federate(X, Y, OWNERS, validation=0.1, test=0.25)
    assert federation.clients == 3
    assert federation.counts("test").tolist() == [3, 5, 8]  # 2.5, 5 and 7.5, rounded up
    assert federation.counts("validation").tolist() == [1, 2, 3]
    assert federation.counts("train").tolist() == [6, 13, 19]


def test_the_splits_of_a_client_are_its_samples_each_once():
    federation = federate(X, Y, OWNERS, validation=0.2)
    for client, mine in enumerate(OWNERS):
        held = torch.cat([federation.split(split).of(client) for split in ("train", "validation", "test")])
        assert held.sort().values.tolist() == mine.tolist()


def test_without_fractions_all_is_for_training():
    federation = federate(X, Y, OWNERS, test=0.0, minimum_test=5)
    assert federation.counts("train").tolist() == [10, 20, 30]
    assert federation.counts("test").tolist() == federation.counts("validation").tolist() == [0, 0, 0]


def test_a_fraction_that_divides_is_not_rounded_up():
    assert 0.14 * 50 > 7
    assert federate(X, Y, [range(50)], test=0.14).counts("test").tolist() == [7]


def test_minimum_test_raises_only_the_small_clients():
    assert federate(X, Y, OWNERS, test=0.1, minimum_test=3).counts("test").tolist() == [3, 3, 3]
    assert federate(X, Y, OWNERS, test=0.2, minimum_test=3).counts("test").tolist() == [3, 4, 6]


def test_the_split_of_a_client_ignores_the_other_clients():
    mine = federate(X, Y, OWNERS, seed=3).split("test").of(1)
    others = [np.array([59, 58]), OWNERS[1], *(np.array([i, i + 1]) for i in range(0, 8, 2))]
    assert torch.equal(federate(X, Y, others, seed=3).split("test").of(1), mine)


def test_the_split_ignores_the_order_of_the_indices():
    backwards = [mine[::-1] for mine in OWNERS]
    assert torch.equal(federate(X, Y, backwards).split("train").indices, federate(X, Y, OWNERS).split("train").indices)


def test_the_seed_and_the_client_decide_the_shuffle():
    def tests(seed):
        return federate(X, Y, [np.arange(30), np.arange(30, 60)], seed=seed).split("test")

    assert torch.equal(tests(0).indices, tests(0).indices)
    assert not torch.equal(tests(0).indices, tests(1).indices)
    assert not torch.equal(tests(0).of(0), tests(0).of(1) - 30)


def test_samples_keep_their_values_and_targets():
    federation = federate(X, Y, OWNERS)
    assert torch.equal(federation.x, torch.from_numpy(X).float())
    assert federation.y.tolist() == Y.tolist()
    assert (federation.classes, federation.name) == (4, "arrays")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.float64, torch.float32),
        (np.float16, torch.float32),
        (">f4", torch.float32),
        (np.longdouble, torch.float32),
        (np.uint8, torch.uint8),
        (np.int32, torch.int64),
        (np.bool_, torch.uint8),
    ],
)
def test_the_kinds_of_samples(given, kept):
    federation = federate(np.arange(6).astype(given), np.zeros(6, dtype=np.int32), [range(6)])
    assert federation.x.dtype == kept
    assert federation.x.tolist() == np.arange(6).astype(given).tolist()
    assert federation.y.dtype == torch.int64


def test_float64_is_kept_when_asked_for():
    federation = federate(X, X[:, 0], OWNERS, dtype=torch.float64)
    assert torch.equal(federation.x, torch.from_numpy(X))
    assert federation.y.dtype == torch.float64
    assert federate(X, X[:, 0], OWNERS).y.dtype == torch.float32


def test_tensors_and_read_only_arrays_are_taken():
    frozen = X.astype(np.float32)
    frozen.flags.writeable = False
    from_array = federate(frozen, Y, OWNERS)
    from_tensor = federate(torch.from_numpy(X).requires_grad_(), torch.from_numpy(Y), OWNERS)
    assert torch.equal(from_array.x, from_tensor.x)
    assert not from_tensor.x.requires_grad


def test_float_targets_mean_regression():
    federation = federate(X, X[:, :2], OWNERS)
    assert federation.classes is None
    assert federation.y.shape == (60, 2)
    with pytest.raises(DataError):
        federation.class_counts("train")


def test_class_counts_count_labels_per_client():
    federation = federate(X, Y, OWNERS, classes=5)
    counts = federation.class_counts("train")
    assert counts.shape == (3, 5)
    for client in range(3):
        labels = Y[federation.split("train").of(client)]
        assert counts[client].tolist() == [(labels == label).sum() for label in range(5)]


def test_to_moves_samples_and_targets_but_not_the_splits():
    moved = federate(X, Y, OWNERS).to("meta")
    assert (moved.x.device.type, moved.y.device.type) == ("meta", "meta")
    assert moved.split("train").indices.device.type == "cpu"


def test_an_unknown_split_names_the_nearest():
    with pytest.raises(UnknownNameError, match=r"'valid'.*'validation'"):
        federate(X, Y, OWNERS).counts("valid")


def test_from_clients_equals_federate():
    pairs = [(X[mine], Y[mine]) for mine in OWNERS]
    joined, federated = from_clients(pairs, validation=0.1, seed=2), federate(X, Y, OWNERS, validation=0.1, seed=2)
    assert torch.equal(joined.x, federated.x)
    assert torch.equal(joined.y, federated.y)
    for split in ("train", "validation", "test"):
        assert torch.equal(joined.split(split).indices, federated.split(split).indices)
        assert torch.equal(joined.split(split).offsets, federated.split(split).offsets)


def test_from_splits_keeps_the_splits_given():
    federation = from_splits(
        [
            {"train": (X[:4], Y[:4]), "test": (X[4:6], Y[4:6])},
            {"train": (X[6:9], Y[6:9]), "validation": (X[9:10], Y[9:10]), "test": (np.empty(0), np.empty(0))},
        ]
    )
    assert federation.y.dtype == torch.int64
    expected = {"train": [(0, 4), (6, 9)], "validation": [(0, 0), (9, 10)], "test": [(4, 6), (0, 0)]}
    for split, ranges in expected.items():
        for client, (start, end) in enumerate(ranges):
            held = federation.split(split).of(client)
            assert torch.equal(federation.x[held], torch.from_numpy(X[start:end]).float())
            assert federation.y[held].tolist() == Y[start:end].tolist()


def test_from_splits_refuses_what_it_cannot_place():
    good = {"train": (X, Y)}
    with pytest.raises(UnknownNameError, match=r"client 1.*'tests'.*'test'"):
        from_splits([good, {"train": (X, Y), "tests": (X, Y)}])
    with pytest.raises(DataError, match=r"client 1 .*test"):
        from_splits([good, {"test": (X, Y)}])
    with pytest.raises(DataError, match="client 0"):
        from_splits([{"train": (X[:0], Y[:0])}])
    with pytest.raises(DataError, match=r"client 1.*0.*60.*'test'"):
        from_splits([good, {"train": (X, Y), "test": (X[:0], Y)}])
    with pytest.raises(DataError, match=r"label 9.*sample 1.*client 1.*0\.\.3"):
        from_splits([good, {"train": (X[:2], np.array([0, 9]))}], classes=4)


@pytest.mark.parametrize("build", [from_clients, from_splits, lambda none: federate(X, Y, none)])
def test_zero_clients_are_refused(build):
    with pytest.raises(DataError, match="0 clients were given"):
        build([])


def test_a_client_must_be_a_pair():
    with pytest.raises(DataError, match=r"client 0 is a ndarray: give a pair \(x, y\)"):
        from_clients((X, Y))
    with pytest.raises(DataError, match=r"split 'train' of client 0 is a ndarray: give a pair \(x, y\)"):
        from_splits([{"train": X}])


def test_a_client_without_data_is_refused():
    with pytest.raises(DataError, match="client 1 has no data"):
        federate(X, Y, [OWNERS[0], [], OWNERS[2]])
    with pytest.raises(DataError, match="client 2 has no data"):
        from_clients([(X, Y), (X, Y), (X[:0], Y[:0])])


def test_a_client_without_a_training_sample_is_refused():
    with pytest.raises(DataError, match=r"client 1 .*2 .*1 .*1 "):
        federate(X, Y, [range(10), range(10, 12)], validation=0.25)
    with pytest.raises(DataError, match=r"client 0.*10.*10"):
        federate(X, Y, OWNERS, minimum_test=10)


@pytest.mark.parametrize(("label", "classes", "last"), [(-1, None, 3), (-1, 4, 3), (4, 4, 3), (3, 2, 1)])
def test_labels_out_of_range_are_refused(label, classes, last):
    y = Y % 2 if classes == 2 else Y.copy()
    y[17] = label
    with pytest.raises(DataError, match=rf"label {label} of sample 17 in y is outside 0\.\.{last}"):
        federate(X, y, OWNERS, classes=classes)
    with pytest.raises(DataError, match=rf"label {label} of sample 7 in y of client 1 is outside 0\.\.{last}"):
        from_clients([(X[mine], y[mine]) for mine in OWNERS], classes=classes)


def test_classes_must_fit_the_targets():
    with pytest.raises(DataError, match=r"classes=3.*float32"):
        federate(X, X[:, 0], OWNERS, classes=3)
    with pytest.raises(DataError, match="classes=0 was given"):
        federate(X, Y, OWNERS, classes=0)


def test_nan_and_infinity_are_refused_wherever_they_are():
    x = X.copy()
    x[41, 1], x[50] = np.nan, np.inf
    with pytest.raises(DataError, match=r"4.*NaN.*float32.*sample 41"):
        federate(x, Y, OWNERS)
    with pytest.raises(DataError, match=r"client 2.*4.*NaN.*float32.*sample 11"):
        from_clients([(x[mine], Y[mine]) for mine in OWNERS])
    with pytest.raises(DataError, match="y holds 4 NaN or infinite values"):
        federate(X, x, OWNERS)


def test_nan_is_found_beyond_the_first_chunk():
    x = np.zeros((9000, 2))
    x[8999, 1] = np.nan
    with pytest.raises(DataError, match=r"1.*NaN.*float32.*sample 8999"):
        federate(x, np.zeros(9000, dtype=int), [range(9000)])


def test_values_too_large_for_the_dtype_are_refused():
    x = X.copy()
    x[3, 0] = 1e300
    with pytest.raises(DataError, match=r"1.*NaN.*float32.*sample 3"):
        federate(x, Y, OWNERS)
    assert federate(x, Y, OWNERS, dtype=torch.float64).x[3, 0] == 1e300


def test_lengths_must_agree():
    with pytest.raises(DataError, match=r"60.*59"):
        federate(X, Y[:-1], OWNERS)
    with pytest.raises(DataError, match=r"60.*0"):
        federate(X, np.empty(0), OWNERS)
    with pytest.raises(DataError, match=r"client 1.*5.*client 1.*4"):
        from_clients([(X[:5], Y[:5]), (X[:5], Y[:4])])


def test_owners_must_hold_samples_that_exist():
    with pytest.raises(DataError, match=r"client 1.*sample 60, .*0\.\.59"):
        federate(X, Y, [[0, 1], [2, 60]])
    with pytest.raises(DataError, match="client 0 holds sample -1"):
        federate(X, Y, [[-1, 1], [2, 3]])


def test_owners_must_be_indices():
    with pytest.raises(DataError, match=r"client 0 .*int64.*\(\)"):
        federate(X, Y, np.zeros(60, dtype=int))
    with pytest.raises(DataError, match=r"client 0.*bool"):
        federate(X, Y, [np.ones(60, dtype=bool)])


def test_a_sample_with_two_owners_needs_overlap():
    shared = [np.arange(10), np.arange(20, 30), np.arange(8, 18)]
    with pytest.raises(DataError, match=r"clients 0 and 2 both hold sample 8 \(2 samples are shared\)"):
        federate(X, Y, shared)
    assert federate(X, Y, shared, overlap=True, test=0.5).counts("train").tolist() == [5, 5, 5]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_client_may_not_list_a_sample_twice(overlap):
    with pytest.raises(DataError, match="client 1 lists sample 5 twice"):
        federate(X, Y, [[0, 1], [5, 6, 5]], overlap=overlap)


def test_clients_must_hold_the_same_kind_of_samples():
    with pytest.raises(DataError, match=r"client 1.*\(2,\).*client 0.*\(3,\)"):
        from_clients([(X, Y), (X[:, :2], Y)])
    with pytest.raises(DataError, match=r"client 1.*uint8.*client 0.*float32"):
        from_clients([(X, Y), (np.zeros((60, 3), np.uint8), Y)])
    with pytest.raises(DataError, match=r"client 1.*float32.*client 0.*int64"):
        from_clients([(X, Y), (X, Y.astype(float))])


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (X.astype(object), "object"),
        (np.full(60, "seven"), "5"),
        (X.astype(complex), "complex128"),
        ([[1.0], [2.0, 3.0]], "x "),
        (np.float64(3.0), "x "),
        (np.empty((60, 0)), r"\(60, 0\)"),
    ],
    ids=["object", "text", "complex", "rows", "number", "empty"],
)
def test_samples_that_are_not_numbers_are_refused(x, said):
    with pytest.raises(DataError, match=said):
        federate(x, Y, OWNERS)


def test_labels_must_be_one_per_sample():
    with pytest.raises(DataError, match=r"y .*\(60, 1\)"):
        federate(X, Y[:, None], OWNERS)
    with pytest.raises(DataError, match=r"y .*\(60, 1, 3\)"):
        federate(X, X[:, None], OWNERS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"test": 1.0}, "validation=0.0 and test=1.0 leave no share for training"),
        ({"validation": -0.1}, "give shares of at least 0"),
        ({"validation": 0.75}, "sum to less than 1"),
        ({"test": float("nan")}, "test=nan leave no share"),
        ({"minimum_test": -1}, "minimum_test=-1 and seed=0 were given"),
        ({"seed": -1}, "seed=-1 were given: both must be at least 0"),
        ({"dtype": torch.int32}, "int32"),
    ],
)
@pytest.mark.parametrize(
    "build", [lambda **given: federate(X, Y, OWNERS, **given), lambda **given: from_clients([(X, Y)], **given)]
)
def test_settings_that_cannot_be_used_are_refused(build, arguments, said):
    with pytest.raises(DataError, match=said):
        build(**arguments)


def test_a_federation_checks_its_splits():
    full = Ragged.from_lists([range(40), range(40, 60)])
    empty = Ragged.from_lists([[], []])
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    with pytest.raises(DataError, match=r"train, test.*validation"):
        Federation(x, y, 4, {"train": full, "test": empty})
    with pytest.raises(DataError, match="the split 'test' has 1 clients, but 'train' has 2"):
        Federation(x, y, 4, {"train": full, "validation": empty, "test": Ragged.from_lists([[]])})
    with pytest.raises(DataError, match="the split 'test' holds sample 60, but there are 60 samples"):
        Federation(x, y, 4, {"train": full, "validation": empty, "test": Ragged.from_lists([[60], []])})
    with pytest.raises(DataError, match=r"59.*60"):
        Federation(x[1:], y, 4, {"train": full, "validation": empty, "test": empty})
