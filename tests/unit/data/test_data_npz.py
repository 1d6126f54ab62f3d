"""A person's own samples in one file: who holds what, and what is refused in one sentence."""

import zipfile

import numpy as np
import pytest
import torch

from stratafl.data import IID, Classes, Dirichlet, federate
from stratafl.data.builders import from_samples
from stratafl.data.splitting import SplitPlan
from stratafl.data.user_files import npz_samples
from stratafl.errors import DataError, PartitionError, StrataError
from wording import mentions

X = np.arange(24, dtype=np.float32).reshape(12, 2)
Y = np.array([0, 1, 2] * 4)


def read(path, **options):
    plan = {"validation": 0.25, "seed": 1}
    plan |= {key: options.pop(key) for key in ("validation", "seed") if key in options}
    given = {"clients": 3, "partition": None, "fallback": IID()}
    return from_samples(npz_samples(path), SplitPlan(**plan), **given | options)


def stored(folder, **arrays):
    path = folder / "samples.npz"
    np.savez(path, **arrays)
    return path


def held(federation, client):
    splits = (federation.split(split).of(client) for split in ("train", "validation", "test"))
    return sorted(torch.cat(list(splits)).tolist())


def same(a, b):
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.y, b.y)
    for split in ("train", "validation", "test"):
        assert torch.equal(a.split(split).indices, b.split(split).indices)
        assert torch.equal(a.split(split).offsets, b.split(split).offsets)


def refusal(kind, path, **options):
    with pytest.raises(kind) as error:
        read(path, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


# Who holds what


def test_clients_that_the_file_names_hold_their_samples(tmp_path):
    client = np.array([7, 7, 2, 2, 2, 7, 30, 30, 30, 30, 2, 7])
    federation = read(stored(tmp_path, x=X, y=Y, client=client))
    assert (federation.clients, federation.classes, federation.name) == (3, 3, "samples")
    assert [held(federation, k) for k in range(3)] == [
        [2, 3, 4, 10],
        [0, 1, 5, 11],
        [6, 7, 8, 9],
    ]  # 2, 7, 30
    assert federation.counts("test").tolist() == federation.counts("validation").tolist() == [1, 1, 1]
    assert torch.equal(federation.x, torch.from_numpy(X))
    assert torch.equal(federation.y, torch.from_numpy(Y))


def test_clients_may_have_names(tmp_path):
    client = np.array(["bob", "anna", "cleo"] * 4)
    federation = read(stored(tmp_path, x=X, y=Y, client=client), clients=99)  # the file decides how many
    assert [held(federation, k) for k in range(3)] == [[1, 4, 7, 10], [0, 3, 6, 9], [2, 5, 8, 11]]


def test_a_partition_that_is_asked_for_goes_before_the_clients_of_the_file(tmp_path):
    path = stored(tmp_path, x=X, y=Y, client=np.repeat([0, 1], 6))
    partition = Classes(per_client=1)
    owners = partition(Y, 3, 1)
    same(read(path, partition=partition), federate(X, Y, owners, validation=0.25, test=0.25, seed=1))
    assert read(path, partition=partition).clients == 3
    assert read(path).clients == 2


def test_without_clients_in_the_file_the_fallback_divides(tmp_path):
    path = stored(tmp_path, x=X, y=Y)
    same(read(path), federate(X, Y, IID()(Y, 3, 1), validation=0.25, test=0.25, seed=1))
    fallback = Dirichlet(alpha=1.0, minimum=3)
    federation = read(path, fallback=fallback, clients=2, validation=0.0)
    same(federation, federate(X, Y, fallback(Y, 2, 1), validation=0.0, test=0.25, seed=1))


def test_the_seed_draws_division_and_cut(tmp_path):
    path = stored(tmp_path, x=X, y=Y)
    same(read(path, seed=4), read(path, seed=4))
    assert not torch.equal(read(path, seed=4).split("test").indices, read(path, seed=5).split("test").indices)


def test_other_arrays_in_the_file_are_left_alone(tmp_path):
    path = stored(tmp_path, x=X, y=Y, client=np.repeat([0, 1], 6), more=np.array("text"))
    assert read(str(path)).clients == 2


def test_images_of_bytes_and_float_targets(tmp_path):
    images = np.zeros((12, 1, 2, 2), dtype=np.uint8)
    federation = read(stored(tmp_path, x=images, y=Y / 2))
    assert (federation.x.dtype, federation.y.dtype, federation.classes) == (torch.uint8, torch.float32, None)
    compressed = tmp_path / "other.npz"
    np.savez_compressed(compressed, x=images, y=Y / 2)
    same(read(compressed), federation)


# What is refused


def test_a_file_that_is_not_there(tmp_path):
    path = tmp_path / "none.npz"
    assert f"'{path}'" in refusal(DataError, path)


@pytest.mark.parametrize(
    ("arrays", "values"),
    [
        ({"y": Y}, ("'x'", ": y")),
        ({"x": X, "labels": Y}, ("'y'", ": x, labels")),
        ({}, ("'x'", ": none")),
        ({"x": X, "y": Y[:5]}, ("(12, 2)", "(5,)")),
        ({"x": np.array(3.0), "y": Y}, ("()", "(12,)")),
        ({"x": X, "y": np.array(1)}, ("(12, 2)", "()")),
        ({"x": X, "y": Y, "client": Y[:5]}, ("client", "(5,)", "12")),
        ({"x": X, "y": Y, "client": X}, ("client", "(12, 2)", "12")),
    ],
)
def test_arrays_that_are_missing_or_do_not_fit(tmp_path, arrays, values):
    path = stored(tmp_path, **arrays)
    assert mentions(refusal(DataError, path), f"'{path}'", *values)


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 and no more", b"\x93NUMPY"])
def test_a_file_that_is_no_npz(tmp_path, content):
    path = tmp_path / "samples.npz"
    path.write_bytes(content)
    assert refusal(DataError, path).startswith(f"'{path}'")


def test_a_file_of_one_array(tmp_path):
    path = tmp_path / "samples.npz"
    with path.open("wb") as file:
        np.save(file, X)
    assert refusal(DataError, path).startswith(f"'{path}'")


def test_a_file_that_was_cut(tmp_path):
    path = stored(tmp_path, x=X, y=Y)
    path.write_bytes(path.read_bytes()[:-40])
    assert refusal(DataError, path)


def test_values_that_were_changed(tmp_path):
    path = stored(tmp_path, x=X, y=Y)
    data = bytearray(path.read_bytes())
    data[180] ^= 1
    path.write_bytes(data)
    assert "CRC-32" in refusal(DataError, path)


def test_arrays_of_objects_are_never_unpickled(tmp_path):
    path = stored(tmp_path, x=np.array([{}, {}]), y=np.array([0, 1]))
    assert refusal(DataError, path)


def test_a_folder_is_no_file(tmp_path):
    assert refusal(DataError, tmp_path)


def test_values_are_checked_as_everywhere(tmp_path):
    assert "NaN" in refusal(DataError, stored(tmp_path, x=np.full((12, 2), np.nan), y=Y))
    assert "client '1' has 1 sample," in refusal(DataError, stored(tmp_path, x=X, y=Y, client=np.array([0] * 11 + [1])))
    assert "'iid'" in refusal(PartitionError, stored(tmp_path, x=X, y=Y / 2), fallback=Dirichlet(minimum=1))


# What should be


def test_a_compressed_file_that_was_changed(tmp_path):
    path = tmp_path / "samples.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).random(1000), y=np.zeros(1000, dtype=int))
    data = bytearray(path.read_bytes())
    data[60:100] = b"\xff" * 40
    path.write_bytes(data)
    refusal(StrataError, path)


def test_no_samples_at_all(tmp_path):
    refusal(StrataError, stored(tmp_path, x=X[:0], y=Y[:0], client=Y[:0]))


def test_members_that_are_no_arrays(tmp_path):
    path = tmp_path / "samples.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", "1,2,3")
        archive.writestr("y", "0,1,2")
    refusal(StrataError, path)
