"""A part of the samples for a quick try: some classes, and so many samples, in proportion to clients and classes."""

import numpy as np
import pytest

from stratafl.config.assemble import federation_of
from stratafl.config.deployment import federation_from
from stratafl.config.experiment import Experiment, with_values
from stratafl.data import Reading, Samples, load_samples
from stratafl.data.reading import client_sizes, of_classes, subset_rows
from stratafl.errors import DataError, RecordError, UnknownNameError

OWNED = Samples(
    np.arange(110.0)[:, None],
    np.r_[np.zeros(40, np.int64), np.ones(20, np.int64), np.ones(50, np.int64)],
    owner=np.repeat(["a", "b", "c"], [60, 30, 20]),
)


def test_sizes_of_clients_by_hand():
    # Shares of 40 are 21, 11, 7 and 1 of 113 samples. The last two would have too few and keep 8 and 3, so that the
    # first two share 29 as 60 to 30.
    assert client_sizes(np.array([60, 30, 20, 3]), 40).tolist() == [19, 10, 8, 3]


def test_a_subset_is_in_proportion_to_clients_and_classes_and_follows_from_the_seed():
    rows = subset_rows(OWNED, 55, seed=0)
    assert len(set(rows.tolist())) == 55
    assert np.unique(OWNED.owner[rows], return_counts=True)[1].tolist() == [30, 15, 10]
    assert np.bincount(OWNED.y[rows[OWNED.owner[rows] == "a"]]).tolist() == [20, 10]
    assert (rows == subset_rows(OWNED, 55, seed=0)).all()
    assert (rows != subset_rows(OWNED, 55, seed=1)).any()


def test_a_run_on_some_classes_and_samples():
    settings = {"data.classes": "0..3,7", "data.subset": 100, "data.clients": 4, "data.partition": "iid"}
    federation = federation_of(with_values(Experiment(), settings))
    assert (federation.classes, len(federation.x), federation.class_names) == (5, 100, ("0", "1", "2", "3", "7"))
    assert federation.class_counts("train").sum(0).min() > 5


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("cat", ("cat",)),  # by name
        ("1..2", ("cow", "dog")),  # by place, because names are no numbers
        ("dog, cat", ("cat", "dog")),  # in the order of the data
    ],
)
def test_classes_by_name_and_place(wanted, names):
    animals = Samples(np.zeros((4, 1)), np.array([0, 1, 2, 1]), names=("cat", "cow", "dog"))
    chosen = of_classes(animals, wanted)
    assert chosen.names == names
    assert chosen.classes == len(names) == len(np.unique(chosen.y))


def test_a_range_of_classes_is_by_their_own_numbers():
    years = Samples(np.zeros((3, 1)), np.array([0, 1, 2]), names=("2019", "2020", "2021"))
    assert of_classes(years, "2020..2030").names == ("2020", "2021")


@pytest.mark.parametrize(
    ("reading", "error"),
    [
        (Reading(classes="cat"), UnknownNameError),
        (Reading(classes="20..30"), DataError),
        (Reading(classes=""), UnknownNameError),
        (Reading(classes="3..1"), DataError),
        (Reading(classes="-1..3"), UnknownNameError),
        (Reading(subset=3), DataError),
    ],
)
def test_what_cannot_be_chosen_is_refused(reading, error):
    with pytest.raises(error):
        load_samples("digits", reading)


def test_numbers_have_no_classes_to_choose_and_sites_use_all_their_samples():
    with pytest.raises(DataError, match="numbers"):
        of_classes(Samples(np.zeros((2, 1)), np.array([0.5, 1.5])), "0")
    with pytest.raises(RecordError, match=r"data\.subset"):
        federation_from({"data": {"subset": 20}, "deploy": {"sites": ["a", "b"]}})
