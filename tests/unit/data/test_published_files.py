"""The data sets of the catalogue, from small files in the formats that they are published in."""

import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from data_files import dataset, encoded, idx, image_file, parquet, pictures, sheets, table

from stratafl.data import DATASETS, Reading, digits_arrays, load_samples
from stratafl.data.reading import HALF
from stratafl.data.texts import tokens
from stratafl.errors import DataError, StrataError
from wording import mentions

IMAGES = [name for name, record in DATASETS.items() if not record.text and name not in ("digits", "flickr-aes")]


def load(name, path, **options):
    return load_samples(name, Reading(path=str(path), **options))


def refusal(name, path, **options):
    with pytest.raises(StrataError) as error:
        load(name, path, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def parts(name, train=6, tests=4):
    """Images and labels of a small copy of a data set: all of its publishers' channels, first and last class."""
    record = DATASETS[name]
    images = pictures(train + tests, channels=record.shape[0], seed=len(name))
    labels = np.array([0, record.classes - 1] * ((train + tests) // 2))
    return record, images, labels, train


def check(found, name, images, labels, train):
    assert np.array_equal(found.x, images)
    assert found.y.tolist() == labels.tolist()
    assert (found.x.dtype, found.y.dtype) == (np.uint8, np.int64)
    assert found.tests.tolist() == [False] * train + [True] * (len(images) - train)
    assert (found.classes, found.scaling, found.name, found.owner) == (DATASETS[name].classes, HALF, name, None)


def published(name, kind="PNG"):
    """The two splits of a small copy as `datasets` has them, the training part in two pieces."""
    record, images, labels, train = parts(name)
    cells = [encoded(image, kind) for image in images]

    def piece(start, end):
        return dataset(record.content, cells[start:end], record.label, labels[start:end], record.classes)

    return record, images, labels, train, piece


@pytest.mark.parametrize("name", IMAGES)
def test_parquet_as_the_hub_has_it(tmp_path, name):
    record, images, labels, train, piece = published(name)
    parquet(
        tmp_path,
        {
            "train-00000-of-00002": piece(0, 3),
            "train-00001-of-00002": piece(3, train),
            f"{record.tests}-00000-of-00001": piece(train, 10),
        },
    )
    check(load(name, tmp_path), name, images, labels, train)


def test_a_part_of_a_data_set_is_called_a_part(tmp_path, caplog, monkeypatch):
    _, images, _, train, piece = published("mnist")
    folder = parquet(tmp_path, {"train": piece(0, train), "test": piece(train, len(images))})
    load("mnist", folder)
    assert mentions(caplog.text, "10", "70,000", "mnist")
    caplog.clear()
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], train=6, test=4))
    load("mnist", folder)
    assert caplog.text == ""


def test_other_encodings_and_other_splits(tmp_path):
    _, images, labels, train, piece = published("cifar100", "WEBP")
    given = {"train-0": piece(0, train), "test-0": piece(train, 10), "validation-0": piece(0, 2)}
    check(load("cifar100", parquet(tmp_path, given)), "cifar100", images, labels, train)


def test_a_folder_of_several_data_sets(tmp_path):
    for name in ("mnist", "cifar10"):
        _, images, _, train, piece = published(name)
        parquet(tmp_path / name, {"train": piece(0, train), "test": piece(train, len(images))})
    for name in ("mnist", "cifar10"):
        _, images, labels, train = parts(name)
        check(load(name, tmp_path), name, images, labels, train)


@pytest.mark.parametrize("name", ["mnist", "tiny-imagenet"])
def test_a_folder_that_save_to_disk_wrote(tmp_path, name):
    import datasets

    record, images, labels, train, piece = published(name)
    turned = piece(0, train).select([5, 4, 3, 2, 1, 0]).select([5, 4, 3, 2, 1, 0])  # an order beside the data
    datasets.DatasetDict({"train": turned, record.tests: piece(train, 10)}).save_to_disk(str(tmp_path / "saved"))
    check(load(name, tmp_path / "saved"), name, images, labels, train)


@pytest.mark.parametrize("kind", ["digits", "balanced", "byclass"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_emnist_in_nists_own_files(tmp_path, kind, suffix):
    name = f"emnist-{kind}"
    _, images, labels, train = parts(name)
    for stem, part in (("train", slice(0, train)), ("test", slice(train, None))):
        idx(tmp_path / "gzip" / f"emnist-{kind}-{stem}-images-idx3-ubyte{suffix}", images[part, 0])
        idx(tmp_path / "gzip" / f"emnist-{kind}-{stem}-labels-idx1-ubyte{suffix}", labels[part])
        idx(tmp_path / "gzip" / f"emnist-letters-{stem}-images-idx3-ubyte{suffix}", images[:2, 0])  # the same folder
        idx(tmp_path / "gzip" / f"emnist-letters-{stem}-labels-idx1-ubyte{suffix}", labels[:2])
    check(load(name, tmp_path), name, images, labels, train)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_files_that_mnist_began_with(tmp_path, name):
    _, images, labels, train = parts(name)
    for stem, part in (("train", slice(0, train)), ("t10k", slice(train, None))):
        idx(tmp_path / f"{stem}-images-idx3-ubyte.gz", images[part, 0])
        idx(tmp_path / f"{stem}-labels-idx1-ubyte.gz", labels[part])
    check(load(name, tmp_path), name, images, labels, train)


def test_sheets_with_an_image_per_row(tmp_path):
    images, labels = pictures(10, size=32), np.arange(10)
    sheets(tmp_path, images[:6], labels[:6], images[6:], labels[6:])
    check(load("cifar10", tmp_path), "cifar10", images, labels, 6)


def test_class_folders(tmp_path):
    images = pictures(6, channels=1)
    for at, (split, label) in enumerate([("train", 10), ("train", 2), ("test", 10), ("train", 9), ("test", 2)]):
        image_file(tmp_path / split / str(label) / f"{at}_test.png", images[at])
    found = load("emnist-balanced", tmp_path)
    assert found.y.tolist() == [10, 2, 9, 10, 2]  # numbers are the labels themselves
    assert np.array_equal(found.x, images[[0, 1, 3, 2, 4]])
    assert found.tests.tolist() == [False] * 3 + [True] * 2


def test_tiny_imagenet_as_it_is_unpacked(tmp_path):
    images = pictures(6)
    image_file(tmp_path / "train" / "n02" / "images" / "n02_0.png", images[0])
    image_file(tmp_path / "train" / "n01" / "images" / "n01_0.png", images[1])
    image_file(tmp_path / "val" / "images" / "val_0.png", images[2])
    image_file(tmp_path / "val" / "images" / "val_1.png", images[3])
    image_file(tmp_path / "test" / "images" / "test_0.png", images[4])  # nobody knows its class
    (tmp_path / "val" / "val_annotations.txt").write_text("val_0.png\tn02\t0\t0\t9\t9\nval_1.png\tn01\t0\t0\t9\t9\n")
    found = load("tiny-imagenet", tmp_path)
    assert found.y.tolist() == [0, 1, 1, 0]
    assert np.array_equal(found.x, images[[1, 0, 2, 3]])
    assert found.tests.tolist() == [False, False, True, True]


@pytest.mark.parametrize("axes", ["height, width", "height, width, channels", "channels, height, width"])
def test_npz_with_the_same_columns(tmp_path, axes):
    name = "mnist" if axes == "height, width" else "cifar10"
    record, images, labels, train = parts(name)
    stored = {"height, width": images[:, 0], "height, width, channels": images.transpose(0, 2, 3, 1)}.get(axes, images)
    for stem, part in (("train", slice(0, train)), ("test", slice(train, None))):
        np.savez(tmp_path / f"{stem}.npz", **{record.content: stored[part], record.label: labels[part], "more": labels})
    check(load(name, tmp_path), name, images, labels, train)


def test_csv_that_names_images(tmp_path):
    images = pictures(4, channels=1)
    for at, image in enumerate(images):
        image_file(tmp_path / "images" / f"{at}.png", image)
    table(tmp_path / "train.csv", ["image", "label"], [["images/2.png", 7], ["0.png", 1]])
    table(tmp_path / "test.csv", ["image", "label"], [["1.png", 3]])
    found = load("mnist", tmp_path)
    assert np.array_equal(found.x, images[[2, 0, 1]])
    assert (found.y.tolist(), found.tests.tolist()) == ([7, 1, 3], [False, False, True])


# AG News


TEXTS = ["Stocks (Reuters) fell. Stocks!", "It's a 'goal'", 'He said: "a goal"']


def test_texts_are_tokens(tmp_path):
    train = dataset("text", TEXTS[:2], "label", [2, 1], 4)
    found = load(
        "ag-news", parquet(tmp_path, {"train-0": train, "test-0": dataset("text", TEXTS[2:], "label", [3], 4)})
    )
    assert (found.x.shape, found.x.dtype, found.scaling, found.classes) == ((3, 200), np.int64, None, 4)
    assert (found.y.tolist(), found.tests.tolist()) == ([2, 1, 3], [False, False, True])
    # by frequency and then by alphabet: ' 3, stocks 2, then ! ( ) . a fell goal it reuters s
    words = ["<pad>", "<cls>", "<unk>", "<eos>", "'", "stocks", *"!().", "a", "fell", "goal", "it", "reuters", "s"]
    ids = {word: at for at, word in enumerate(words)}
    expected = [["<cls>", *tokens(text)] for text in TEXTS]
    assert expected[2] == ["<cls>", "he", "said", "a", "goal"]
    for row, sequence in zip(found.x, expected, strict=True):
        assert row.tolist() == [ids.get(word, 2) for word in sequence] + [0] * (200 - len(sequence))


def test_a_vocabulary_may_be_capped_and_long_texts_are_cut(tmp_path):
    table(tmp_path / "train.csv", ["text", "label"], [["b " * 300, 0], ["b c", 1]])
    found = load("ag-news", tmp_path, vocabulary=5)
    assert found.x[0].tolist() == [1] + [4] * 199
    assert found.x[1].tolist() == [1, 4, 2] + [0] * 197
    assert found.tests is None


# FLICKR-AES


def ratings(folder):
    """Four photographs of different sizes, rated by ann (3 times), bob (2) and cem (1)."""
    for at, size in enumerate((8, 10, 12, 14)):
        image_file(folder / "40K" / f"farm{at}_b.jpg", pictures(1, size, seed=at)[0])
    rows = [("ann", 0, 5), ("bob", 1, 1), ("ann", 2, 3), ("cem", 0, 4), ("ann", 3, 2), ("bob", 3, 5)]
    cells = [(worker, f" farm{at}_b.jpg", score) for worker, at, score in rows]
    table(folder / "FLICKR-AES_image_labeled_by_each_worker.csv", [" worker", " imagePair", " score"], cells)
    return folder


def test_ratings_belong_to_those_who_gave_them(tmp_path):
    found = load("flickr-aes", ratings(tmp_path), size=8)
    assert found.x.shape == (6, 3, 8, 8)
    assert found.y.tolist() == [4, 0, 2, 3, 1, 4]
    assert found.owner.tolist() == ["ann", "bob", "ann", "cem", "ann", "bob"]
    assert (found.classes, found.tests, found.scaling) == (5, None, HALF)
    assert np.array_equal(found.x[0], found.x[3])
    assert not np.array_equal(found.x[4], found.x[3])


def test_photographs_are_resized_to_224(tmp_path):
    assert load("flickr-aes", ratings(tmp_path)).x.shape == (6, 3, 224, 224)


def test_some_of_those_who_rated(tmp_path):
    folder = ratings(tmp_path)
    assert load("flickr-aes", folder, size=8, fewest=2, most=2).owner.tolist() == ["bob", "bob"]
    chosen = {tuple(sorted({*load("flickr-aes", folder, size=8, owners=2, seed=s).owner.tolist()})) for s in range(8)}
    assert len(chosen) > 1
    assert all(len(names) == 2 for names in chosen)
    says = refusal("flickr-aes", folder, fewest=2, owners=3)
    assert mentions(says, "2 owners", "3", "2 to 6", "3")


def test_a_photograph_that_is_missing(tmp_path):
    (ratings(tmp_path) / "40K" / "farm2_b.jpg").unlink()
    assert mentions(refusal("flickr-aes", tmp_path), "'farm2_b.jpg'")


# The digits, sizes and scalings


def test_the_digits_are_as_they_were():
    x, y = digits_arrays()
    found = load_samples("digits")
    assert np.array_equal(found.x, x)
    assert np.array_equal(found.y, y)
    assert (found.classes, found.name, found.scaling) == (10, "digits", None)


def test_images_are_resized_if_asked(tmp_path):
    _, images, labels, _ = parts("mnist")
    np.savez(tmp_path / "train.npz", image=images[:, 0], label=labels)
    assert load("mnist", tmp_path, size=4).x.shape == (10, 1, 4, 4)
    image_file(tmp_path / "folder" / "3" / "a.png", images[0])
    assert load("mnist", tmp_path / "folder", size=16).x.shape == (1, 1, 16, 16)


def test_bytes_as_numbers(tmp_path):
    images = np.zeros((3, 3, 2, 2), np.uint8)
    images[0, 0], images[1, 1], images[2] = 255, 51, 200
    np.savez(tmp_path / "train.npz", img=images[:2], label=[0, 1])
    np.savez(tmp_path / "test.npz", img=images[2:], label=[0])  # takes no part in means
    scaling = {way: load("cifar10", tmp_path, normalise=way).scaling for way in ("auto", "half", "unit", "none")}
    assert scaling["auto"] == scaling["half"] == HALF
    assert (HALF.mean, HALF.deviation) == ((0.5,), (0.5,))
    assert (scaling["unit"].mean, scaling["unit"].deviation, scaling["none"]) == ((0.0,), (1.0,), None)
    channel = load("cifar10", tmp_path, normalise="channel").scaling
    assert channel.mean == pytest.approx((0.5, 0.1, 0.0))
    assert channel.deviation == pytest.approx((0.5, 0.1, 1e-6))


# What is refused


def test_files_that_are_not_what_the_data_set_is(tmp_path):
    _, images, labels, _ = parts("mnist")
    np.savez(tmp_path / "a.npz", img=images, label=labels)
    assert mentions(refusal("mnist", tmp_path / "a.npz"), "a.npz'", "'image'", "img, label")
    np.savez(tmp_path / "b.npz", image=images, label=labels + 1)
    assert mentions(refusal("mnist", tmp_path / "b.npz"), "label 10", "0..9")
    np.savez(tmp_path / "c.npz", image=images, label=labels / 2)
    assert "are float64 [10], not whole numbers" in refusal("mnist", tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", image=images / 2, label=labels)
    assert "are float64 [10, 1, 8, 8]: give uint8" in refusal("mnist", tmp_path / "d.npz")
    np.savez(tmp_path / "e.npz", image=images, label=labels[:3])
    assert re.search("10 .*'image', 3 .*'label'", refusal("mnist", tmp_path / "e.npz"))
    np.savez(tmp_path / "test.npz", image=images, label=labels)
    assert mentions(refusal("mnist", tmp_path / "test.npz"), "mnist", "only: test")
    table(tmp_path / "f.csv", ["text", "label"], [["1", 1], ["2", 0]])
    assert mentions(refusal("ag-news", tmp_path / "f.csv"), "'text'")


def test_files_that_are_damaged(tmp_path):
    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    assert mentions(refusal("mnist", tmp_path / "train.parquet"), "train.parquet")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").write_text("{}")
    assert "saved'" in refusal("mnist", tmp_path / "saved")
    (tmp_path / "img" / "3").mkdir(parents=True)
    (tmp_path / "img" / "3" / "a.png").write_bytes(b"no image")
    assert mentions(refusal("mnist", tmp_path / "img"), "a.png")
    whole = encoded(pictures(1, 32, 1)[0])
    (tmp_path / "img" / "3" / "a.png").write_bytes(whole[: len(whole) // 2])
    assert "cannot be decoded" in refusal("mnist", tmp_path / "img")
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "a.png").write_bytes(whole)
    assert mentions(refusal("mnist", tmp_path / "alone"), "a.png'", "train/CLASS/")
    (tmp_path / "none").mkdir()
    assert mentions(refusal("mnist", tmp_path / "none"), "none'", "parquet")


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a-idx3-ubyte", b"\0\0\x0d\x01\0\0\0\x01\0", "is not an idx file of unsigned bytes"),
        ("a-idx3-ubyte", b"\0\0\x08\x01\0\0\0\x02\0", "its length does not fit its header"),
        ("a-idx3-ubyte.gz", b"\0\0\x08\x01", "cannot be read"),
        ("a-idx3-ubyte", b"", "is not an idx file"),
    ],
)
def test_idx_files_that_are_damaged(tmp_path, name, data, says):
    (tmp_path / name).write_bytes(data)
    assert mentions(refusal("mnist", tmp_path), "idx3", "idx1")
    idx(tmp_path / "a-labels-idx1-ubyte", np.zeros(1))
    assert says in refusal("mnist", tmp_path)


def test_sheets_that_are_damaged(tmp_path):
    images, labels = pictures(4, size=32), np.arange(4)
    sheets(tmp_path, images, labels, images, labels)
    (tmp_path / "train_lables.json").write_text("{")
    assert "is not a JSON list of labels" in refusal("cifar10", tmp_path)
    (tmp_path / "train_lables.json").unlink()
    assert "0 JSON" in refusal("cifar10", tmp_path)
    image_file(tmp_path / "data_batch_1.png", pictures(1)[0])
    (tmp_path / "train_lables.json").write_text("[1]")
    assert mentions(refusal("cifar10", tmp_path), "8 pixels", "1024")
    (tmp_path / "data_batch_1.png").write_bytes(b"")
    assert "data_batch_1.png" in refusal("cifar10", tmp_path)


def test_options_that_mean_nothing_are_refused(tmp_path):
    np.savez(tmp_path / "train.npz", image=pictures(1, channels=1), label=[1])
    said = refusal("mnist", tmp_path, vocabulary=9)
    assert mentions(said, "data.vocabulary", "'mnist'", "path, normalise, size")
    assert mentions(refusal("digits", tmp_path), "data.path", "'digits'")
    with pytest.raises(StrataError, match=r"Reading\.normalise.*'hlaf'.*'half'"):
        Reading(normalise="hlaf")
    table(tmp_path / "train.csv", ["text", "label"], [["b", 0]])
    assert mentions(refusal("ag-news", tmp_path, normalise="unit"), "data.normalise", "'ag-news'")


# The hub

PUBLISHED = {  # id, columns, publishers' test split, sizes
    "mnist": ("ylecun/mnist", "image", "label", "test", 60_000, 10_000),
    "fashion-mnist": ("zalando-datasets/fashion_mnist", "image", "label", "test", 60_000, 10_000),
    "emnist-digits": ("Royc30ne/emnist-digits", "image", "label", "test", 240_000, 40_000),
    "emnist-balanced": ("Royc30ne/emnist-balanced", "image", "label", "test", 112_800, 18_800),
    "emnist-byclass": ("Royc30ne/emnist-byclass", "image", "label", "test", 697_932, 116_323),
    "cifar10": ("uoft-cs/cifar10", "img", "label", "test", 50_000, 10_000),
    "cifar100": ("uoft-cs/cifar100", "img", "fine_label", "test", 50_000, 10_000),
    "tiny-imagenet": ("zh-plus/tiny-imagenet", "image", "label", "valid", 100_000, 10_000),
    "ag-news": ("fancyzhx/ag_news", "text", "label", "test", 120_000, 7_600),
    "flickr-aes": (None, "imagePair", "score", "test", 193_208, 0),
}


def test_the_catalogue_is_what_was_published():
    found = {name: (r.hub, r.content, r.label, r.tests, r.train, r.test) for name, r in DATASETS.items()}
    assert found.pop("digits")[0] is None
    assert found == PUBLISHED
    assert [DATASETS[name].classes for name in PUBLISHED] == [10, 10, 10, 47, 62, 10, 100, 200, 4, 5]


@pytest.fixture
def small_mnist(tmp_path, monkeypatch):
    """The hub with a small MNIST; the calls it gets."""
    import huggingface_hub

    record, images, labels, train, piece = published("mnist")
    parquet(tmp_path / "snapshot", {"train-0": piece(0, train), "test-0": piece(train, 10)})
    monkeypatch.setitem(DATASETS, "mnist", replace(record, train=train, test=10 - train))
    calls = []

    def download(*given, **options):
        calls.append((given, options))
        return str(tmp_path / "snapshot")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return calls, images, labels, train


def test_by_name_from_the_hub_and_the_second_time_from_the_cache(small_mnist):
    calls, images, labels, train = small_mnist
    for _ in range(2):
        check(load_samples("mnist"), "mnist", images, labels, train)
    [(given, options)] = calls
    assert given == ("ylecun/mnist",)
    assert options["repo_type"] == "dataset"
    assert "**/*.parquet" in options["allow_patterns"]


def test_a_download_that_is_not_whole_is_refused(small_mnist, monkeypatch):
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], train=60_000))
    with pytest.raises(DataError, match=r"snapshot' has 10 of the 60,004 samples of mnist: delete it"):
        load_samples("mnist")


def test_what_is_missing_is_said_with_where_it_was_looked_for(own_cache, tmp_path, monkeypatch):
    with pytest.raises(DataError) as error:
        load_samples("cifar100")
    says = str(error.value)
    assert "\n" not in says
    for words in (
        str(own_cache),
        "uoft-cs/cifar100",
        "ConnectionError",
        "strata data export cifar100 OUT/",
        "data.path",
    ):
        assert words in says
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DataError, match=r"'huggingface_hub'.*'stratafl\[data\]'"):
        load_samples("cifar100")
    with pytest.raises(DataError, match="FLICKR-AES"):
        load_samples("flickr-aes")
    assert mentions(refusal("cifar100", tmp_path / "nowhere"), "nowhere'", "strata data export cifar100")


def test_without_pillow_or_pyarrow_it_is_said(tmp_path, monkeypatch):
    _, images, _, train, piece = published("mnist")
    parquet(tmp_path, {"train-0": piece(0, train)})
    image_file(tmp_path / "images" / "3" / "a.png", images[0])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert mentions(refusal("mnist", tmp_path), "'pyarrow'")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert mentions(refusal("mnist", tmp_path / "images"), "'PIL'")


def test_a_folder_of_other_data_sets_is_not_read_as_this_one(tmp_path):
    (tmp_path / "all" / "mnist").mkdir(parents=True)
    with pytest.raises(DataError, match=r"'fashion-mnist'.*: mnist"):
        load_samples("fashion-mnist", Reading(path=str(tmp_path / "all")))
