"""Samples to predict: tables, arrays and images, with or without labels."""

import numpy as np
import pytest

from stratafl.data import Reading
from stratafl.data.preprocessing import Preprocessing
from stratafl.data.sample_format import SampleFormat
from stratafl.data.site_samples import new_samples
from stratafl.errors import DataError

TABLE = SampleFormat(Preprocessing("float32", (2,)), 2, columns=("b", "a"))
IMAGES = SampleFormat(Preprocessing("uint8", (3, 4, 4)), 2)


def test_columns_come_in_the_agreed_order_and_others_are_not_looked_at(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("name,a,label,b\nx,1,dog,2\ny,3,cat,4\n")
    found = new_samples(path, Reading(), TABLE)
    assert found.x.tolist() == [[2, 1], [4, 3]]
    assert found.names == ("1", "2")


def test_a_table_without_labels_of_arrays_is_read_without_clients(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("value,client,label\n1,me,2\n")
    one = SampleFormat(Preprocessing("float32", (1,)), 2)
    assert new_samples(path, Reading(), one).x.tolist() == [[1]]


def test_an_npz_needs_no_labels(tmp_path):
    np.savez(tmp_path / "new.npz", x=np.ones((3, 2)))
    assert new_samples(tmp_path / "new.npz", Reading(), TABLE).x.shape == (3, 2)
    np.savez(tmp_path / "odd.npz", z=np.ones((3, 2)))
    with pytest.raises(DataError, match=r"'x'.*z"):
        new_samples(tmp_path / "odd.npz", Reading(), TABLE)


def test_images_need_no_class_folders_and_are_called_by_their_files(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "scans" / "ward").mkdir(parents=True)
    for place, value in (("ward/b.png", 7), ("a.png", 5)):
        image.fromarray(np.full((4, 4), value, np.uint8)).save(tmp_path / "scans" / place)
    found = new_samples(tmp_path / "scans", Reading(), IMAGES)
    assert found.names == ("a.png", "ward/b.png")
    assert found.x.shape == (2, 3, 4, 4)  # as many channels as were agreed on, though these are grey
    assert found.x[:, 0, 0, 0].tolist() == [5, 7]
    alone = new_samples(tmp_path / "scans" / "a.png", Reading(size=4), IMAGES)
    assert (alone.names, alone.x.shape) == (("a.png",), (1, 3, 4, 4))


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(DataError, match=r"no.csv"):
        new_samples(tmp_path / "no.csv", Reading(), TABLE)
