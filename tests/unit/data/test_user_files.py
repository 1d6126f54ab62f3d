"""A person's own data: one table, or a folder for each client, and what is refused in one sentence."""

import numpy as np
import pytest
from data_files import dataset, encoded, image_file, parquet, pictures, table

from stratafl.config.assemble import federation_of
from stratafl.config.experiment import from_tables
from stratafl.data import Reading, load_samples
from stratafl.data.federation import SPLITS
from stratafl.data.reading import HALF
from stratafl.errors import StrataError
from wording import mentions

ROWS = [("ann", 1.5, 2, 0), ("bob", -1, 3, 1), ("ann", 0, 4, 2)]


def load(place, **options):
    return load_samples(f"{place}/" if place.is_dir() else str(place), Reading(**options))


def refusal(place, **options):
    with pytest.raises(StrataError) as error:
        load(place, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def check_rows(found):
    assert found.x.tolist() == [[1.5, 2], [-1, 3], [0, 4]]
    assert (found.x.dtype, found.y.tolist()) == (np.float32, [0, 1, 2])
    assert found.owner.tolist() == ["ann", "bob", "ann"]
    assert (found.scaling, found.tests, found.name) == (None, None, "mine")


# One table


def test_a_csv_of_features(tmp_path):
    check_rows(load(table(tmp_path / "mine.csv", ["client", "a", "b", "label"], ROWS)))


def test_a_parquet_of_features(tmp_path):
    import pyarrow
    import pyarrow.parquet

    columns = dict(zip(["client", "a", "b", "label"], map(list, zip(*ROWS, strict=True)), strict=True))
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "mine.parquet")
    check_rows(load(tmp_path / "mine.parquet"))


def test_columns_of_other_names(tmp_path):
    path = table(tmp_path / "mine.csv", ["who", "a", "b", "kind"], ROWS)
    check_rows(load(path, label="kind", client="who"))


def test_lists_in_a_column_are_the_samples(tmp_path):
    import pyarrow
    import pyarrow.parquet

    columns = {"signal": [[[1.0, 2.0]], [[3.0, 4.0]]], "label": [1, 0]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "mine.parquet")
    found = load(tmp_path / "mine.parquet")
    assert found.x.tolist() == [[[1, 2]], [[3, 4]]]
    assert found.owner is None


def test_an_npz_with_names_of_its_own(tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.eye(3), y=[5, 5, 5], kind=[0, 1, 2], who=["a", "b", "a"])
    found = load(tmp_path / "mine.npz", label="kind", client="who")
    assert (found.y.tolist(), found.owner.tolist(), found.name) == ([0, 1, 2], ["a", "b", "a"], "mine")
    assert load(tmp_path / "mine.npz").owner is None
    assert load(tmp_path / "mine.npz", client="who", fewest=2).x.tolist() == [[1, 0, 0], [0, 0, 1]]


def test_images_of_bytes_in_an_npz_are_scaled_as_other_images_are(tmp_path):
    np.savez(tmp_path / "mine.npz", x=pictures(2), y=[0, 1])
    assert load(tmp_path / "mine.npz").scaling == HALF
    assert load(tmp_path / "mine.npz", normalise="none").scaling is None
    np.savez(tmp_path / "rows.npz", x=pictures(2).reshape(2, -1), y=[0, 1])
    assert load(tmp_path / "rows.npz").scaling is None


def test_an_image_column(tmp_path):
    images = pictures(3)
    parquet(tmp_path, {"train-0": dataset("photo", [encoded(image) for image in images], "label", [1, 0, 1], 2)})
    found = load(tmp_path / "data" / "train-0.parquet")
    assert np.array_equal(found.x, images)
    assert (found.y.tolist(), found.scaling) == ([1, 0, 1], HALF)


def test_names_are_labels_too_and_float_targets_are_numbers(tmp_path):
    found = load(table(tmp_path / "mine.csv", ["a", "label"], [[1, "dog"], [2, "cat"], [3, "dog"]]))
    assert (found.x.tolist(), found.y.tolist(), found.classes) == ([[1], [2], [3]], [1, 0, 1], 2)
    found = load(table(tmp_path / "other.csv", ["a", "y"], [[1, 0.5], [2, 1.5]]))
    assert (found.y.tolist(), found.classes) == ([0.5, 1.5], None)


def test_a_folder_with_train_and_test(tmp_path):
    table(tmp_path / "mine" / "train.csv", ["a", "label"], [[1, 0], [2, 1]])
    table(tmp_path / "mine" / "test.csv", ["a", "label"], [[3, 1]])
    found = load(tmp_path / "mine")
    assert (found.x.tolist(), found.tests.tolist()) == ([[1], [2], [3]], [False, False, True])


def test_a_folder_as_it_is_downloaded_is_one_table_and_no_client(tmp_path):
    parts = {"train-0": dataset("photo", [encoded(image) for image in pictures(3)], "label", [1, 0, 1], 2)}
    found = load(parquet(tmp_path / "mine", parts))
    assert (len(found.x), found.owner) == (3, None)


def test_a_name_that_two_images_have_is_refused(tmp_path):
    path = table(tmp_path / "mine.csv", ["photo", "label"], [["a.png", 0]])
    for folder in ("one", "two"):
        image_file(tmp_path / folder / "a.png", pictures(1)[0])
    assert mentions(refusal(path), "'a.png'", "2")


# A folder for each client


def test_class_folders_of_images_without_clients(tmp_path):
    images = pictures(3, channels=1)
    for at, label in enumerate(("10", "9", "10")):
        image_file(tmp_path / "mine" / label / f"test_{at}.png", images[at])
    found = load(tmp_path / "mine")
    assert np.array_equal(found.x, images[[0, 2, 1]])
    assert (found.y.tolist(), found.classes, found.owner, found.tests) == ([1, 1, 0], 2, None, None)


def test_client_folders_with_class_folders(tmp_path):
    images = pictures(4)
    for at, place in enumerate(("ann/cat", "bob/dog", "ann/dog", "bob/emu")):
        image_file(tmp_path / "mine" / place / f"{at}.png", images[at])
    (tmp_path / "mine" / "notes.txt").write_text("ours")
    found = load(tmp_path / "mine")
    assert np.array_equal(found.x, images[[0, 2, 1, 3]])
    assert found.owner.tolist() == ["ann", "ann", "bob", "bob"]
    assert (found.y.tolist(), found.classes, found.scaling) == ([0, 1, 1, 2], 3, HALF)


def test_client_folders_with_splits(tmp_path):
    images = pictures(4)
    for at, place in enumerate(("ann/train/cat", "ann/test/cat", "bob/train/dog", "bob/test/dog")):
        image_file(tmp_path / "mine" / place / f"{at}.png", images[at])
    found = load(tmp_path / "mine")
    assert np.array_equal(found.x, images[[0, 2, 1, 3]])
    assert (found.owner.tolist(), found.tests.tolist()) == (["ann", "bob"] * 2, [False, False, True, True])


def test_clients_that_are_named_test_on_what_is_for_testing(tmp_path):
    for name, rows in (("ann", [[1, 0], [2, 1]]), ("bob", [[3, 1], [4, 0]])):
        table(tmp_path / "mine" / name / "train.csv", ["a", "label"], rows)
    table(tmp_path / "mine" / "ann" / "test.csv", ["a", "label"], [[5, 0]])
    federation = federation_of(from_tables({"data": {"name": f"{tmp_path / 'mine'}/", "validation": 0.0}}), raw=True)
    held = {split: [federation.x[federation.split(split).of(c)].flatten().tolist() for c in (0, 1)] for split in SPLITS}
    assert held == {"train": [[1, 2], [3, 4]], "validation": [[], []], "test": [[5], []]}


@pytest.mark.parametrize("kind", ["csv", "npz", "parquet"])
def test_client_folders_with_a_table_each(tmp_path, kind):
    import pyarrow
    import pyarrow.parquet

    for name, rows in (("bob", [[3, 4, 1]]), ("ann", [[1, 2, 0], [5, 6, 1]])):
        place = tmp_path / "mine" / name / f"data.{kind}"
        place.parent.mkdir(parents=True)
        columns = {"a": [r[0] for r in rows], "b": [r[1] for r in rows], "label": [r[2] for r in rows]}
        if kind == "csv":
            table(place, list(columns), rows)
        elif kind == "npz":
            np.savez(place, **columns)
        else:
            pyarrow.parquet.write_table(pyarrow.table(columns), place)
    found = load(tmp_path / "mine")
    assert (found.x.tolist(), found.y.tolist()) == ([[1, 2], [5, 6], [3, 4]], [0, 1, 1])
    assert found.owner.tolist() == ["ann", "ann", "bob"]
    assert load(tmp_path / "mine", most=1).owner.tolist() == ["bob"]


def test_grey_and_coloured_images_together_are_coloured(tmp_path):
    image_file(tmp_path / "mine" / "a" / "0.png", pictures(1, channels=1)[0])
    assert load(tmp_path / "mine").x.shape == (1, 1, 8, 8)
    image_file(tmp_path / "mine" / "b" / "1.png", pictures(1)[0])
    assert load(tmp_path / "mine").x.shape == (2, 3, 8, 8)


# What is refused


def test_a_folder_that_is_called_like_a_data_set_with_a_name(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StrataError, match=r"'mine'.*'./mine'"):
        load_samples("mine")


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"no image"])
def test_a_broken_image_is_named(tmp_path, damage):
    import pyarrow
    import pyarrow.parquet

    images = [encoded(image) for image in pictures(3)]
    images[1] = damage(images[1])
    for at, image in enumerate(images):
        place = tmp_path / "mine" / "cat" / f"{at}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(image)
    assert refusal(tmp_path / "mine").startswith(f"'{tmp_path / 'mine' / 'cat' / '1.png'}' ")
    pyarrow.parquet.write_table(pyarrow.table({"photo": images, "label": [0, 1, 0]}), tmp_path / "mine.parquet")
    assert refusal(tmp_path / "mine.parquet").startswith(f"the image in row 2 of '{tmp_path / 'mine.parquet'}' ")


def test_places_that_are_not_there(tmp_path):
    assert "none.csv" in refusal(tmp_path / "none.csv")
    assert "none.npz" in refusal(tmp_path / "none.npz")
    (tmp_path / "mine").mkdir()
    assert "mine" in refusal(tmp_path / "mine")
    with pytest.raises(StrataError, match=r"data.name.*'minst'.*'mnist'.*FILE.csv"):
        load_samples("minst")


def test_columns_that_are_not_there(tmp_path):
    path = table(tmp_path / "mine.csv", ["who", "a", "kind"], [["ann", 1, 0]])
    assert mentions(refusal(path), "'label'", "who, a, kind", "data.label")
    assert mentions(refusal(path, label="sort"), "'sort'")
    assert mentions(refusal(path, label="a", client="owner"), "data.client = 'owner'")
    assert mentions(refusal(path, label="kind"), "'who'")
    assert "b.csv" in refusal(table(tmp_path / "b.csv", ["label"], [[1]]))
    assert "data.owners" in refusal(table(tmp_path / "c.csv", ["a", "label"], [[1, 1]]), owners=1)


def test_tables_that_are_not_tables(tmp_path):
    assert "has 1 values for 2 columns" in refusal(table(tmp_path / "a.csv", ["a", "label"], [[1, 1], [2]]))
    assert "has no values" in refusal(table(tmp_path / "b.csv", ["a", "label"], []))
    assert "(a, a)" in refusal(table(tmp_path / "c.csv", ["a", "a"], [[1, 1]]))
    (tmp_path / "d.csv").write_bytes(b"\xff\xfe\x00")
    assert "d.csv" in refusal(tmp_path / "d.csv")


def test_folders_that_do_not_fit_together(tmp_path):
    table(tmp_path / "a" / "ann" / "x.csv", ["a", "label"], [[1, 1]])
    table(tmp_path / "a" / "bob" / "x.csv", ["b", "label"], [[1, 1]])
    assert "have different columns (a, client, label; b, client, label)" in refusal(tmp_path / "a")
    table(tmp_path / "b" / "ann" / "x.csv", ["a", "label"], [[1, 1], [0, 1]])
    table(tmp_path / "b" / "bob" / "x.csv", ["a", "label"], [["red", 1], ["0", 1]])
    assert load(tmp_path / "b").codes[0].values == ("0", "1", "red")  # one site's code is a text of the column
    table(tmp_path / "c" / "ann" / "x.csv", ["client", "a", "label"], [[1, 1, 1]])
    table(tmp_path / "c" / "bob" / "x.csv", ["client", "a", "label"], [[1, 1, 1]])
    assert mentions(refusal(tmp_path / "c"), "'client'")
    for at, size in enumerate((8, 10)):
        image_file(tmp_path / "d" / "cat" / f"{at}.png", pictures(1, size)[0])
    assert mentions(refusal(tmp_path / "d"), "8 × 8", "10 × 10", "data.size")
    assert load(tmp_path / "d", size=4).x.shape == (2, 3, 4, 4)


def test_features_beside_images_and_scalings_of_floats(tmp_path):
    image_file(tmp_path / "0.png", pictures(1)[0])
    path = table(tmp_path / "a.csv", ["photo", "age", "label"], [["0.png", 4, 1]])
    assert mentions(refusal(path), "'photo'", "age")
    path = table(tmp_path / "b.csv", ["a", "label"], [[1, 1]])
    assert mentions(refusal(path, normalise="unit"), "'unit'", "'b'", "float32")
    assert mentions(refusal(path, path="elsewhere"), "data.path")
    np.savez(tmp_path / "c.npz", x=np.eye(2), z=np.eye(2), label=[0, 1])
    (tmp_path / "mine").mkdir()
    (tmp_path / "c.npz").rename(tmp_path / "mine" / "c.npz")
    assert "mine" in refusal(tmp_path / "mine")
