"""What was decoded is kept and noticed when damaged; shards come back bit by bit, with numpy alone."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from data_files import image_file, pictures, table

import stratafl.data.loading as loading
from stratafl.data import Reading, Samples, Scaling, load_samples, read_shards, write_shards
from stratafl.data.cache import cached, entries
from stratafl.data.shards import MANIFEST, MAX_SHARD_BYTES
from stratafl.errors import DataError
from stratafl.files import cache_folder


def samples(count=20, **more):
    told = {"names": tuple("abcde"), "columns": ("left", "right"), "standardise": ("x",)}
    given = told | {"tests": np.arange(count) >= count - 4, "owner": np.array(["ann", "bob"] * (count // 2))}
    scaling = Scaling((0.1, 0.2, 1 / 3), (0.5, 0.25, 0.7))
    return Samples(
        pictures(count), np.arange(count) % 5, **given | {"classes": 5, "scaling": scaling, "name": "mine"} | more
    )


def same(a, b):
    for name in ("x", "y", "tests", "owner"):
        one, other = getattr(a, name), getattr(b, name)
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == other.dtype
            assert np.array_equal(one, other)
    for name in ("classes", "names", "scaling", "name", "columns", "standardise"):
        assert getattr(a, name) == getattr(b, name)


# The cache


class Built:
    """Samples that count how often they are built."""

    def __init__(self, given):
        self.given, self.times = given, 0

    def __call__(self):
        self.times += 1
        return self.given


@pytest.mark.parametrize("more", [{}, {"tests": None, "owner": None, "scaling": None, "classes": None}])
def test_what_was_built_is_kept_as_it_was(more):
    build = Built(samples(**more))
    for _ in range(2):
        found = cached("mine", {"a": 1}, build)
        same(found, build.given)
        assert isinstance(found.x, np.memmap)
        found.x[0] = 0  # a private copy of the page
    same(cached("mine", {"a": 1}, build), build.given)
    assert build.times == 1
    cached("mine", {"a": 2}, build)
    assert build.times == 2
    assert len(entries("mine")) == 2
    assert not list(cache_folder().glob(".*"))


def _cut(entry):
    os.truncate(entry / "x.npy", 1000)


def _flip(entry):
    data = bytearray((entry / "x.npy").read_bytes())
    data[-1] ^= 1
    (entry / "x.npy").write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        _cut,
        _flip,
        lambda entry: (entry / "y.npy").unlink(),
        lambda entry: (entry / "y.npy").write_bytes(b""),
        lambda entry: (entry / "entry.json").write_text("{}"),
        lambda entry: (entry / "entry.json").write_text("{"),
        lambda entry: (entry / "entry.json").unlink(),
    ],
)
def test_a_damaged_entry_is_built_again(damage):
    build = Built(samples())
    cached("mine", 1, build)
    damage(next(cache_folder().glob("mine-*")))
    same(cached("mine", 1, build), build.given)
    same(cached("mine", 1, build), build.given)
    assert build.times == 2


def test_without_a_place_to_keep_it_all_works(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STRATAFL_CACHE", str(tmp_path / "file"))
    same(cached("mine", 1, samples), samples())


def test_the_cache_is_in_the_home_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv("STRATAFL_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "stratafl"


def test_files_and_options_decide_what_is_read_again(tmp_path, monkeypatch):
    built = []
    original = loading.user_samples
    monkeypatch.setattr(loading, "user_samples", lambda *given: built.append(1) or original(*given))
    path = table(tmp_path / "mine" / "train.csv", ["a", "b", "label"], [[1, 0, 0], [2, 1, 1]])
    place = f"{tmp_path}/mine/"
    load_samples(place)
    load_samples(place)
    assert len(built) == 1
    assert load_samples(place, Reading(label="b")).x.tolist() == [[1, 0], [2, 1]]
    assert len(built) == 2
    table(path, ["a", "b", "label"], [[9, 0, 0], [2, 1, 1]])  # of the same size
    os.utime(path, ns=(1, 1))
    assert load_samples(place).x.tolist() == [[9, 0], [2, 1]]
    image_file(tmp_path / "more" / "cat" / "0.png", pictures(1)[0])
    load_samples(f"{tmp_path}/more/")
    load_samples(f"{tmp_path}/more/", Reading(normalise="unit"))
    assert len(built) == 4  # a scaling needs nothing decoded
    assert [load_samples(f"{tmp_path}/more/", Reading(size=size)).x.shape[-1] for size in (4, 6)] == [4, 6]


# Shards


@pytest.mark.parametrize("more", [{}, {"tests": None, "owner": None, "scaling": None, "classes": None}])
def test_shards_come_back_bit_by_bit(tmp_path, more):
    given = samples(**more)
    files = write_shards(given, tmp_path / "out", largest=4000)
    assert len(files) > 1
    assert all(file.stat().st_size <= 4000 for file in files)
    assert sorted(tmp_path.joinpath("out").iterdir()) == sorted([*files, tmp_path / "out" / MANIFEST])
    same(read_shards(tmp_path / "out"), given)
    same(load_samples(f"{tmp_path}/out/"), given)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_no_shard_is_larger_than_30_mb():
    assert MAX_SHARD_BYTES == 30_000_000


def test_other_kinds_of_samples_come_back_too(tmp_path):
    rng = np.random.default_rng(0)
    for name, x in (("floats", rng.standard_normal((6, 3), np.float32)), ("tokens", rng.integers(0, 9, (6, 200)))):
        given = Samples(x, rng.standard_normal(6), name=name)
        write_shards(given, tmp_path / name)
        same(read_shards(tmp_path / name), given)


def test_shards_pass_for_the_data_set_that_they_are(tmp_path):
    given = samples(name="cifar10", owner=None)
    write_shards(given, tmp_path / "out")
    same(load_samples("cifar10", Reading(path=str(tmp_path / "out"))), given)
    with pytest.raises(
        DataError,
        match=r"data.size.*'.*out'",
    ):
        load_samples("cifar10", Reading(path=str(tmp_path / "out"), size=4))
    with pytest.raises(DataError, match=r"cifar10,.*cifar100"):
        load_samples("cifar100", Reading(path=str(tmp_path / "out")))


def test_owners_may_be_chosen_among_shards(tmp_path):
    write_shards(samples(), tmp_path / "out")
    found = load_samples(f"{tmp_path}/out/", Reading(owners=1))
    assert (len(found.x), len(set(found.owner))) == (10, 1)
    same(load_samples(f"{tmp_path}/out/", Reading(normalise="channel")), samples(scaling=found_scaling(samples())))


def found_scaling(given):
    values = given.x[~given.tests].astype(float).transpose(1, 0, 2, 3).reshape(3, -1) / 255
    from stratafl.data.reading import channel_scaling

    made = channel_scaling(given)
    assert made.mean == pytest.approx(values.mean(1))
    assert made.deviation == pytest.approx(values.std(1))
    return made


def test_shards_that_are_missing_or_damaged(tmp_path):
    files = write_shards(samples(), tmp_path / "out", largest=4000)
    whole = files[1].read_bytes()
    files[1].write_bytes(whole[:-1])
    with pytest.raises(DataError, match=rf"{files[1].name}' is damaged: copy it again"):
        read_shards(tmp_path / "out")
    files[1].unlink()
    with pytest.raises(DataError, match=rf"lacks the shard '{files[1].name}', one of {len(files)}: copy it there"):
        read_shards(tmp_path / "out")
    files[1].write_bytes(whole)
    manifest = tmp_path / "out" / MANIFEST
    told = json.loads(manifest.read_text())
    for text in ("{", "[]", "{}", json.dumps(told | {"samples": 3}), json.dumps(told | {"shards": []})):
        manifest.write_text(text)
        with pytest.raises(DataError, match=MANIFEST):
            read_shards(tmp_path / "out")
    manifest.write_text(json.dumps(told | {"format": 9}))
    with pytest.raises(DataError, match="has format 9, but only format 1 can be read"):
        read_shards(tmp_path / "out")


def test_shards_need_a_new_folder_and_room_for_a_sample(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=f"'{tmp_path}'"):
        write_shards(samples(), tmp_path)
    with pytest.raises(DataError, match="file'"):
        write_shards(samples(), tmp_path / "file")
    with pytest.raises(DataError, match="cannot write"):
        write_shards(samples(), tmp_path / "file" / "out")
    with pytest.raises(DataError, match=r"'mine'.*100"):
        write_shards(samples(), tmp_path / "out", largest=100)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.slow  # a process of its own
def test_shards_are_read_with_numpy_alone(tmp_path):
    write_shards(samples(), tmp_path / "out")
    program = f"""
import sys
sys.modules.update(dict.fromkeys(("datasets", "pyarrow", "PIL", "huggingface_hub", "typer", "rich", "scipy", "pandas")))
from stratafl.data import load_samples
found = load_samples({str(tmp_path / "out")!r} + "/")
print(len(found.x), found.name, found.classes)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["20", "mine", "5"]


@pytest.mark.parametrize("place", ["mine.csv", "mine.parquet"])
def test_an_image_that_a_table_names_may_change(tmp_path, place):
    import pyarrow
    import pyarrow.parquet

    path, names = tmp_path / place, [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    if place.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.table({"photo": names, "label": [0, 1]}), path)
    else:
        table(path, ["photo", "label"], [["a.png", 0], ["b.png", 1]])
    first, second, third = pictures(3)
    for name, picture in (("a.png", first), ("b.png", second)):
        image_file(tmp_path / name, picture)
    before = load_samples(f"{tmp_path}/{place}", Reading()).x
    image_file(tmp_path / "b.png", third)
    after = load_samples(f"{tmp_path}/{place}", Reading()).x
    assert np.array_equal(before[0], after[0])
    assert np.array_equal(after[1], third)


@pytest.mark.parametrize("way", ["../mine too/a.png", "{}/mine too/a.png", "sub/../../mine too/a.png", "/etc/a.png"])
@pytest.mark.parametrize("place", ["mine/", "mine/data.csv"])
def test_images_that_are_not_in_the_folder_of_their_table_are_refused(tmp_path, way, place):
    image_file(tmp_path / "mine too" / "a.png", pictures(1)[0])
    table(tmp_path / "mine" / "data.csv", ["photo", "label"], [[way.format(tmp_path), 0]])
    with pytest.raises(DataError, match=r"'.*a\.png'"):
        load_samples(f"{tmp_path}/{place}")


@pytest.mark.parametrize("way", ["sub/a.png", "{}/mine/sub/a.png", "sub/../sub/a.png"])
def test_images_may_be_named_in_any_way_that_stays_in_the_folder(tmp_path, way):
    given = pictures(1)[0]
    image_file(tmp_path / "mine" / "sub" / "a.png", given)
    table(tmp_path / "mine" / "data.csv", ["photo", "label"], [[way.format(tmp_path), 0]])
    assert np.array_equal(load_samples(f"{tmp_path}/mine/").x[0], given)


@pytest.mark.parametrize("name", ["../{}", "/tmp/{}", "sub/../{}", ".."])
def test_shards_outside_of_their_folder_are_refused(tmp_path, name):
    (file,) = write_shards(samples(), tmp_path / "out")
    told = json.loads((tmp_path / "out" / MANIFEST).read_text())
    told["shards"][0]["file"] = name.format(file.name)
    (tmp_path / "out" / MANIFEST).write_text(json.dumps(told))
    file.rename(tmp_path / file.name)
    with pytest.raises(DataError, match=f"'{name.format(file.name)}'"):
        read_shards(tmp_path / "out")


def test_a_published_table_with_images_elsewhere_is_never_stale(tmp_path):
    head = ["worker", "imagePair", "score"]
    path = table(tmp_path / "FLICKR-AES_image_labeled_by_each_worker.csv", head, [["ann", "a.png", 3]])
    for given in pictures(2):
        image_file(tmp_path / "a.png", given)
        found = load_samples("flickr-aes", Reading(path=str(path), size=given.shape[-1]))
        assert np.array_equal(found.x[0], given)


def test_a_table_of_numbers_and_images_in_the_folder_are_kept(tmp_path):
    load_samples(str(table(tmp_path / "mine.csv", ["a", "label"], [[1, 0], [2, 1]])))
    for name in ("cat", "dog"):
        image_file(tmp_path / "photos" / name / "0.png", pictures(1)[0])
    load_samples(f"{tmp_path}/photos/")
    assert [len(entries(name)) for name in ("mine", "photos")] == [1, 1]


def test_a_change_behind_a_link_is_noticed(tmp_path):
    """Folders of clients may be elsewhere, and links may go in a circle."""
    for name, value in (("ann", 1), ("bob", 2)):
        table(tmp_path / "there" / name / "data.csv", ["a", "label"], [[value, 0], [value, 1]])
    (tmp_path / "mine").mkdir()
    (tmp_path / "there" / "ann" / "circle").symlink_to(tmp_path / "there" / "ann")
    for name in ("ann", "bob"):
        (tmp_path / "mine" / name).symlink_to(tmp_path / "there" / name)
    assert load_samples(f"{tmp_path}/mine/").x[:, 0].tolist() == [1, 1, 2, 2]
    table(tmp_path / "there" / "bob" / "data.csv", ["a", "label"], [[30, 0], [30, 1]])
    assert load_samples(f"{tmp_path}/mine/").x[:, 0].tolist() == [1, 1, 30, 30]
