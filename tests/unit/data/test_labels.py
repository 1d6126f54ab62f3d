"""What the labels of a person's own data are: classes with names, or numbers; the same in every format."""

import numpy as np
import pytest
from data_files import image_file, pictures, table

from stratafl.data import Reading, load_samples, read_shards, write_shards
from stratafl.data.labels import distinct_labels
from stratafl.errors import StrataError
from wording import mentions

FORMATS = ("csv", "npz", "parquet", "folder")


def stored(folder, kind, labels):
    """A table with these labels, in a file or in a folder for each of two clients."""
    import pyarrow
    import pyarrow.parquet

    if kind == "folder":
        half = len(labels) // 2
        for name, part in (("ann", labels[:half]), ("bob", labels[half:])):
            table(folder / "mine" / name / "data.csv", ["a", "label"], [[1.5, label] for label in part])
        return f"{folder}/mine/"
    path = folder / f"mine.{kind}"
    if kind == "csv":
        table(path, ["a", "label"], [[1.5, label] for label in labels])
    elif kind == "npz":
        np.savez(path, x=np.full((len(labels), 1), 1.5), y=np.array(labels))
    else:
        pyarrow.parquet.write_table(pyarrow.table({"a": [1.5] * len(labels), "label": list(labels)}), path)
    return str(path)


def refusal(place, **options):
    with pytest.raises(StrataError) as error:
        load_samples(place, Reading(**options))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("labels", "y", "names"),
    [
        ([0, 1, 2, 1], [0, 1, 2, 1], ("0", "1", "2")),
        ([0.0, 2.0, 1.0, 2.0], [0, 2, 1, 2], ("0", "1", "2")),
        ([2010, 2000, 2010, 2020], [1, 0, 1, 2], ("2000", "2010", "2020")),
        ([-1, 1, 1, -1], [0, 1, 1, 0], ("-1", "1")),
        (["dog", "cat", "emu", "dog"], [1, 0, 2, 1], ("cat", "dog", "emu")),
        ([True, False, True, True], [1, 0, 1, 1], ("False", "True")),
    ],
)
def test_names_and_whole_numbers_are_classes_in_their_order(tmp_path, kind, labels, y, names):
    found = load_samples(stored(tmp_path, kind, labels))
    assert (found.y.tolist(), found.y.dtype) == (y, np.int64)
    assert (found.classes, found.names) == (len(names), names)


@pytest.mark.parametrize("kind", FORMATS)
def test_fractions_are_numbers(tmp_path, kind):
    found = load_samples(stored(tmp_path, kind, [0.5, 1.0, 2.0, 1.0]))
    assert (found.y.tolist(), found.classes, found.names) == ([0.5, 1, 2, 1], None, None)


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_wanted_goes_before_the_guess(tmp_path, kind):
    found = load_samples(stored(tmp_path, kind, [3, 1, 5, 1]), Reading(targets="numbers"))
    assert (found.y.tolist(), found.y.dtype.kind, found.classes) == ([3, 1, 5, 1], "f", None)
    found = load_samples(stored(tmp_path, kind, [0.5, 1.0, 2.5, 1.0]), Reading(targets="classes"))
    assert (found.y.tolist(), found.names) == ([0, 1, 2, 1], ("0.5", "1", "2.5"))
    place = stored(tmp_path, kind, ["cat", "dog", "cat", "cat"])
    assert mentions(refusal(place, targets="numbers"), "data.targets = 'numbers'")


@pytest.mark.parametrize("kind", FORMATS)
def test_many_whole_numbers_are_asked_about(tmp_path, kind):
    prices = [200_000.0 + 500 * (i % 150) for i in range(600)]
    place = stored(tmp_path, kind, prices)
    assert mentions(refusal(place), "150", "200000", "274500", "600", "data.targets")
    assert load_samples(place, Reading(targets="numbers")).classes is None
    assert load_samples(place, Reading(targets="classes")).classes == 150


def test_many_classes_with_many_samples_or_counted_from_0_are_classes(tmp_path):
    assert load_samples(stored(tmp_path, "npz", np.arange(1500) % 150 + 7)).classes == 150
    assert load_samples(stored(tmp_path, "npz", np.arange(150))).classes == 150


def test_numbers_as_names_are_in_the_order_of_numbers(tmp_path):
    found = load_samples(stored(tmp_path, "npz", ["10", "9", "-1"]))
    assert (found.y.tolist(), found.names) == ([2, 1, 0], ("-1", "9", "10"))


def test_several_targets_of_a_sample_are_numbers(tmp_path):
    found = load_samples(stored(tmp_path, "npz", [[0.0, 1.0], [2.0, 3.0]]))
    assert (found.y.tolist(), found.classes) == ([[0, 1], [2, 3]], None)


def test_whole_numbers_in_a_column_are_classes_as_well(tmp_path):
    found = load_samples(stored(tmp_path, "npz", [[7], [5], [7]]))
    assert (found.y.tolist(), found.names) == ([1, 0, 1], ("5", "7"))


def test_classes_that_are_asked_for_are_not_numbers_in_silence(tmp_path):
    place = stored(tmp_path, "npz", [[0.0, 1.0], [2.0, 3.0]])
    assert mentions(refusal(place, targets="classes"), "data.targets = 'classes'", "[2]", "'numbers'")
    place = stored(tmp_path, "npz", [0.0, float("nan")])
    assert "nan" in refusal(place, targets="classes")


def test_names_tell_classes_apart(tmp_path):
    """Names as bytes are texts, and no digit is lost of large numbers."""
    assert load_samples(stored(tmp_path, "npz", ["é".encode(), b"a"])).names == ("a", "é")
    assert load_samples(stored(tmp_path, "npz", [2.0**53, 2.0**53 + 2])).names == (str(2**53), str(2**53 + 2))


def test_splits_share_their_classes(tmp_path):
    table(tmp_path / "mine" / "train.csv", ["a", "label"], [[1, "dog"], [2, "emu"]])
    table(tmp_path / "mine" / "test.csv", ["a", "label"], [[3, "cat"], [4, "emu"]])
    found = load_samples(f"{tmp_path}/mine/")
    assert (found.y.tolist(), found.names) == ([1, 2, 0, 2], ("cat", "dog", "emu"))
    assert found.tests.tolist() == [False, False, True, True]


def test_clients_share_their_classes_whoever_is_chosen(tmp_path):
    for at, place in enumerate(("ann/10", "ann/9", "bob/11", "bob/11")):
        image_file(tmp_path / "mine" / place / f"{at}.png", pictures(1)[0])
    assert load_samples(f"{tmp_path}/mine/").names == ("9", "10", "11")
    rows = [["ann", 1, 5], ["bob", 2, 7], ["bob", 3, 9]]
    path = table(tmp_path / "mine.csv", ["client", "a", "label"], rows)
    found = load_samples(str(path), Reading(fewest=2))
    assert (found.y.tolist(), found.names) == ([1, 2], ("5", "7", "9"))


def test_names_are_kept_and_exported(tmp_path):
    place = stored(tmp_path, "parquet", ["dog", "cat"])
    assert load_samples(place).names == load_samples(place).names == ("cat", "dog")  # decoded, and then kept
    write_shards(load_samples(place), tmp_path / "copy")
    assert read_shards(tmp_path / "copy").names == ("cat", "dog")


def test_labels_that_are_missing_or_nothing_known(tmp_path):
    assert mentions(refusal(stored(tmp_path, "parquet", ["cat", None])), "row 2")
    assert mentions(refusal("digits", targets="clases"), "Reading.targets", "'clases'", "'classes'")
    assert mentions(refusal("digits", targets="classes"), "data.targets", "'digits'")


def test_a_client_array_that_is_asked_for_must_be_there(tmp_path):
    assert mentions(refusal(stored(tmp_path, "npz", [0, 1]), client="who"), "'who'")


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, 1, 3, 7, 1], np.uint8),
        np.array([-128, 127] * 200, np.int8),
        np.array([2**63 + 5, 2**63 + 5, 2**63 + 6], np.uint64),
        np.array([10**9, -(10**9), 0]),
        np.array([2.0, 0.5, 2.0]),
    ],
)
def test_distinct_labels_are_those_of_numpy(labels):
    values, numbers = distinct_labels(labels)
    expected = np.unique(labels, return_inverse=True)
    assert (values.dtype, values.tolist()) == (labels.dtype, expected[0].tolist())
    assert (numbers.dtype, numbers.tolist()) == (np.int64, expected[1].tolist())
