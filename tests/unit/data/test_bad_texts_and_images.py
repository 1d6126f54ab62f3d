"""Texts and images that cannot be used: one line each, that names what is wrong and where."""

import io
import json

import numpy as np
import pytest
import torch
from data_files import encoded, image_file, pictures
from PIL import Image

import stratafl
from stratafl.config.experiment import from_tables
from stratafl.config.protocols import text_options
from stratafl.data import Reading, load_samples
from stratafl.data.preprocessing import Preprocessing, preprocessing_from
from stratafl.data.sample_format import SampleFormat
from stratafl.data.site_samples import new_samples
from stratafl.data.texts import TextEncoding, text_encoding_from
from stratafl.deploy.agreement import common_format
from stratafl.errors import StrataError
from stratafl.models import build

TEXT = "the patient has a high fever today"
TEXTS = [f"{TEXT} {n}" for n in range(12)]
ENCODING = TextEncoding(length=16, column="note")
NOTES = SampleFormat(Preprocessing("int64", (16,), classes=("a", "b"), text=ENCODING), 2)
SCANS = SampleFormat(Preprocessing("uint8", (1, 8, 8), classes=("a", "b")), 2)


def table(folder, rows, header="note,label", name="t.csv"):
    (folder / name).write_text("\n".join([header, *rows, ""]))
    return str(folder / name)


def notes(folder, **more):
    return table(folder, [f"{text},{'ab'[n % 2]}" for n, text in enumerate(TEXTS)], **more)


def npz(folder, **arrays):
    np.savez(folder / "t.npz", **arrays)
    return str(folder / "t.npz")


def scans(folder, *cells):
    """A folder with two classes; the cells are pixels, or bytes of a file."""
    for number, cell in enumerate(cells):
        path = folder / "scans" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(cell) if isinstance(cell, bytes) else image_file(path, cell)
    return f"{folder / 'scans'}/"


def saved(array, kind="PNG", **options):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind, **options)
    return buffer.getvalue()


GREY, SMALL = pictures(1, 8, 1)[0], pictures(1, 5, 1)[0]
PNG = encoded(GREY)


def read(place, **options):
    return load_samples(place, Reading(**options))


def new_text(folder, *rows, header="note"):
    return new_samples(folder / table(folder, rows, header), Reading(), NOTES)


def new_image(folder, cell, name="x.png", **options):
    (folder / name).write_bytes(cell)
    return new_samples(folder / name, Reading(**options), SCANS)


BAD = {
    # texts to train on
    "all texts missing": (lambda f: read(table(f, [",a", ",b", ",a"]), columns="note:text"), "note"),
    "two columns of texts": (
        lambda f: read(table(f, [f"{t},{t} again,a" for t in TEXTS], "note,more,label")),
        "note, more",
    ),
    "numbers called text": (lambda f: read(table(f, ["1.5,a", "2.5,b"]), columns="note:text"), "note"),
    "no label": (lambda f: read(notes(f, header="note,kind")), "label"),
    "an empty label": (lambda f: read(table(f, [f"{t},{'a' * (t != TEXTS[3])}" for t in TEXTS])), "label"),
    "length of 1": (lambda f: read(notes(f), length=1), "1"),
    "length of a million": (lambda f: read(notes(f), length=10**6), "1000000"),
    "vocabulary of 4": (lambda f: read(notes(f), vocabulary=4), "4"),
    "vocabulary of a billion": (lambda f: read(notes(f), vocabulary=10**9), "1000000000"),
    "unknown tokens": (lambda f: read(notes(f), tokens="words"), "hashed"),
    "tokens of numbers": (lambda f: read(table(f, ["1.5,a", "2.5,b"]), tokens="hashed"), "tokens"),
    "vocabulary of numbers": (lambda f: read(table(f, ["1.5,a", "2.5,b"]), vocabulary=90), "vocabulary"),
    "texts resized": (lambda f: read(notes(f), flip="both"), "flip"),
    "texts scaled": (lambda f: read(notes(f), normalise="half"), "half"),
    "a column that is not there": (lambda f: read(notes(f), columns="notes:text"), "note"),
    "texts of another length": (lambda f: read(npz(f, x=np.array(TEXTS), y=np.zeros(3))), "12"),
    "texts in two axes": (lambda f: read(npz(f, x=np.array([TEXTS]), y=np.zeros(1))), "x"),
    "objects instead of texts": (lambda f: read(npz(f, x=np.array([TEXTS, None], object), y=np.zeros(2))), "t.npz"),
    "blank texts in an npz": (lambda f: read(npz(f, x=np.array(["", " "]), y=np.array([0, 1]))), "x"),
    # texts to predict
    "another column": (lambda f: new_text(f, TEXT, header="text"), "'note'"),
    "a file that is gone": (lambda f: new_samples(f / "gone.csv", Reading(), NOTES), "gone.csv"),
    "no rows": (lambda f: new_text(f), "t.csv"),
    "numbers in an npz": (lambda f: NOTES.preprocessing.raw(torch.zeros(2, 3)), "16"),
    "a single text": (lambda f: ENCODING.coded(TEXT), "list"),
    "a number among texts": (lambda f: ENCODING.coded([TEXT, 3]), "row 2"),
    "a list among texts": (lambda f: ENCODING.coded([TEXT, [TEXT]]), "row 2"),
    "bytes among texts": (lambda f: ENCODING.coded([TEXT, b"fever"]), "row 2"),
    "fractions as tokens": (lambda f: NOTES.preprocessing.raw(torch.rand(2, 16)), "int64"),
    "a tokenizer that is none": (lambda f: TextEncoding(tokenizer="{}").applied([TEXT]), "tokenizer"),
    # images to train on
    "a truncated image": (lambda f: read(scans(f, GREY, PNG[: len(PNG) // 2])), "1.png"),
    "an empty file": (lambda f: read(scans(f, GREY, b"")), "1.png"),
    "a text called png": (lambda f: read(scans(f, GREY, TEXT.encode())), "1.png"),
    "a header alone": (lambda f: read(scans(f, GREY, PNG[:33])), "1.png"),
    "damaged pixels": (lambda f: read(scans(f, GREY, PNG[:60] + b"\0" * 20 + PNG[80:])), "1.png"),
    "mixed sizes": (lambda f: read(scans(f, GREY, SMALL)), "data.size"),
    "floats among bytes": (lambda f: read(scans(f, GREY, saved(np.ones((8, 8), np.float32), "TIFF"))), "F"),
    "deep colours": (
        lambda f: read(scans(f, GREY, b"P6 8 8 65535\n" + bytes(8 * 8 * 6))),
        "1.png",
    ),
    "two frames": (
        lambda f: read(scans(f, GREY, saved(GREY[0], "GIF", save_all=True, append_images=[Image.new("L", (8, 8))]))),
        "2 frames",
    ),
    "an image without a class": (lambda f: (image_file(f / "loose" / "x.png", GREY), read(f"{f / 'loose'}/")), "x.png"),
    "a crop as wide as the image": (lambda f: read(scans(f, GREY, GREY), crop=8), "8"),
    "an unknown flip": (lambda f: read(scans(f, GREY, GREY), flip="diagonal"), "horizontal"),
    "columns of images": (lambda f: read(scans(f, GREY, GREY), normalise="columns"), "1×8×8"),
    "tokens of images": (lambda f: read(scans(f, GREY, GREY), tokens="hashed"), "tokens"),
    "a huge image": (lambda f: read(scans(f, GREY, _bomb())), "1.png"),
    "floats by their own mean": (
        lambda f: read(scans(f, *[saved(np.ones((8, 8), np.float32), "TIFF")] * 2), normalise="image"),
        "float32",
    ),
    # images to predict
    "another size": (lambda f: SCANS.preprocessing.raw(torch.from_numpy(new_image(f, encoded(SMALL)).x)), "8"),
    "new image that is none": (lambda f: new_image(f, b"no"), "x.png"),
    "new image cut short": (lambda f: new_image(f, PNG[:50]), "x.png"),
    "16 bits for a model of 8": (
        lambda f: Preprocessing("uint8", (1, 8, 8), scaling=read(scans(f, GREY, GREY)).scaling).raw(
            torch.zeros(1, 1, 8, 8, dtype=torch.uint16)
        ),
        "uint8",
    ),
    # settings, models, stored files and sites
    "a crop of 0": (lambda f: from_tables({"data": {"crop": 0}}), "crop"),
    "a length that is a word": (lambda f: from_tables({"data": {"length": "long"}}), "length"),
    "a transformer of images": (lambda f: build("transformer", shape=(1, 8, 8), classes=2), "(1, 8, 8)"),
    "heads that do not divide": (lambda f: build("transformer", shape=(8,), classes=2, heads=5), "5"),
    "a site of texts, a site of numbers": (
        lambda f: common_format({"x": NOTES, "y": SampleFormat(Preprocessing("int64", (16,)), 2)}),
        "'y'",
    ),
    "two vocabularies": (
        lambda f: common_format(
            {"x": NOTES, "y": SampleFormat(Preprocessing("int64", (16,), text=TextEncoding(900, 16, "note")), 2)}
        ),
        "900",
    ),
}  # fmt: skip


def _bomb():
    header = PNG[:16] + (60_000).to_bytes(4, "big") * 2 + PNG[24:29]
    import zlib

    return header + zlib.crc32(header[12:29]).to_bytes(4, "big") + PNG[33:]


@pytest.mark.parametrize("case", BAD)
def test_bad_texts_and_images_are_one_line(tmp_path, case):
    make, value = BAD[case]
    with pytest.raises(StrataError) as caught:
        make(tmp_path)
    said = str(caught.value)
    assert value in said
    assert "\n" not in said
    assert len(said) < 500


@pytest.mark.parametrize("wrong", [{}, [], {"vocabulary": "9", "length": 3, "column": "", "tokenizer": ""}, None])
def test_a_stored_encoding_that_is_damaged_is_not_believed(wrong):
    with pytest.raises(ValueError, match="text"):
        text_encoding_from(wrong)
    stored = json.loads(json.dumps(NOTES.preprocessing.to_table()))
    assert preprocessing_from(stored) == NOTES.preprocessing
    if wrong:
        with pytest.raises(ValueError, match="text"):
            preprocessing_from({**stored, "text": wrong})


LETTERS = "a text of as many letters as targets"


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (LETTERS, [0, 1] * (len(LETTERS) // 2), "x of client 'a' is a str: give a list of texts"),
        (LETTERS.encode(), [0, 1] * (len(LETTERS) // 2), "x of client 'a' is a bytes"),
        (set(TEXTS), [0, 1] * 6, "x of client 'a' is a set"),
        (TEXTS, "abababababab", "y of client 'a' is a str: give a list of targets"),
        (TEXTS, None, "y of client 'a' is a NoneType"),
        (TEXTS, 1, "y of client 'a' is a int"),
    ],
)
def test_letters_of_a_text_are_no_samples_and_a_set_has_no_order(x, y, said):
    with pytest.raises(StrataError, match=said):
        stratafl.fit("fedavg", {"a": (x, y), "b": (TEXTS, [0, 1] * 6)}, "fasttext", rounds=1)


@pytest.mark.parametrize("values", ["fever", b"fever", None, [b"fever"], [3], [None, 3]])
def test_what_is_no_list_of_texts_is_refused_as_such(values):
    with pytest.raises(StrataError, match=r"give (a list of )?texts"):
        ENCODING.coded(values)


def test_a_list_without_texts_has_no_tokens_and_a_missing_text_is_empty():
    assert ENCODING.coded([]).shape == (0, 16)
    assert ENCODING.coded([None]).tolist() == ENCODING.coded([""]).tolist()


@pytest.mark.parametrize("name", ["fasttext", "embedding", "transformer"])
def test_a_model_by_name_fits_the_tokens_of_texts_and_skips_pads(name):
    """As with a table of texts: a command gives the same options."""
    model = build(name, shape=(16,), classes=2, **text_options(name, 8192))
    assert model.embedding.num_embeddings == 8192
    assert not getattr(model, "pads", False)
    fitted = stratafl.fit("local", {"a": (TEXTS, [0, 1] * 6)}, name, rounds=1)
    assert fitted.client("a").model.embedding.num_embeddings == 8192
    assert not getattr(fitted.client("a").model, "pads", False)
