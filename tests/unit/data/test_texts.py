"""Texts: tokens by hashing or by a trained tokenizer, from files to federations and back."""

from hashlib import blake2b

import numpy as np
import pytest

from stratafl.data import Reading, SplitPlan, from_samples, load_samples
from stratafl.data.partitions import IID
from stratafl.data.preprocessing import preprocessing_from
from stratafl.data.sample_format import SampleFormat
from stratafl.data.site_samples import new_samples, site_federation
from stratafl.data.texts import TextEncoding, text_encoding_from, tokens
from stratafl.errors import DataError

ILL, WELL = "the patient has a high fever", "a routine visit all is well"
ROWS = [(f"{ILL if n < 12 else WELL} {n}", "admit" if n < 12 else "go", f"c{n % 2}") for n in range(20)]


def table(path, rows=ROWS, header=("text", "label", "client")):
    path.write_text("\n".join(",".join(row) for row in (header, *rows)) + "\n")
    return str(path)


def hashed(word, vocabulary=8192):
    return 4 + int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "big") % (vocabulary - 4)


def test_words_are_hashed_to_the_same_tokens_everywhere():
    encoding = TextEncoding(length=6)
    coded = encoding.applied(["Fever, and cough", "", None, "a b c d e f g"])
    assert coded[0].tolist() == [1, *map(hashed, ("fever", ",", "and", "cough")), 0]
    assert hashed("fever") == 7217  # blake2b of b"fever" with 8 bytes, mod 8188, plus 4: never Python's hash()
    assert coded[1].tolist() == coded[2].tolist() == [1, 0, 0, 0, 0, 0]
    assert coded[3].tolist() == [1, *map(hashed, "abcde")]
    assert text_encoding_from(encoding.to_table()) == encoding


@pytest.mark.parametrize("kind", ["csv", "npz", "parquet"])
def test_a_table_of_texts_is_read(tmp_path, kind):
    path = tmp_path / f"notes.{kind}"
    texts, labels, clients = (list(column) for column in zip(*ROWS, strict=True))
    if kind == "csv":
        table(path)
    elif kind == "npz":
        np.savez(path, x=np.array(texts), y=np.array(labels), client=np.array(clients))
    else:
        arrow = pytest.importorskip("pyarrow")
        import pyarrow.parquet

        pyarrow.parquet.write_table(arrow.table({"text": texts, "label": labels, "client": clients}), path)
    samples = load_samples(str(path), Reading())
    assert samples.names == ("admit", "go")
    assert samples.text == TextEncoding(length=8, column="x" if kind == "npz" else "text")  # 7 words and <cls>
    assert np.array_equal(samples.x, samples.text.applied(texts))
    federation = from_samples(samples, SplitPlan(), clients=2, partition=None, fallback=IID())
    assert federation.preprocessing.text == samples.text
    assert preprocessing_from(federation.preprocessing.to_table()) == federation.preprocessing


def test_settings_of_texts(tmp_path):
    samples = load_samples(table(tmp_path / "notes.csv"), Reading(vocabulary=50, length=4))
    assert (samples.x.shape, samples.x.max() < 50, samples.text.length) == ((20, 4), True, 4)
    assert "data.length" in samples.remark
    numbers = table(tmp_path / "numbers.csv", [("1.5", "a", "c"), ("2.5", "b", "c")])
    with pytest.raises(DataError, match=r"data\.length"):
        load_samples(numbers, Reading(length=4))


def test_a_tokenizer_knows_the_words_of_training_texts_alone(tmp_path):
    pytest.importorskip("tokenizers")
    path = table(tmp_path / "notes.csv", [*ROWS, *[(f"zyzzyva zyzzyva alone {n}", "go", "new") for n in range(4)]])
    samples = load_samples(path, Reading(tokens="trained", vocabulary=60))
    plan = {"clients": 3, "partition": None, "fallback": IID(), "new_clients": 1}
    federation = from_samples(samples, SplitPlan(), **plan)
    again = from_samples(samples, SplitPlan(), **plan)
    encoding = federation.text
    assert encoding == again.text
    assert "fever" in encoding.tokenizer
    assert "zy" not in encoding.tokenizer  # of a client that never trains
    assert federation.x.shape == (24, encoding.length)
    assert encoding.applied([ILL]).max() < 60
    assert text_encoding_from(encoding.to_table()).applied([ILL]).tolist() == encoding.applied([ILL]).tolist()


def test_new_texts_are_taken_by_the_name_of_their_column(tmp_path):
    form = SampleFormat.of(
        from_samples(
            load_samples(table(tmp_path / "notes.csv"), Reading()),
            SplitPlan(),
            clients=2,
            partition=None,
            fallback=IID(),
        )
    )
    place = tmp_path / "new.csv"
    table(place, [("3", ILL), ("4", "ok")], ("bed", "text"))
    assert new_samples(place, Reading(), form).x.tolist() == form.preprocessing.text.applied([ILL, "ok"]).tolist()
    table(place, [("3", ILL)], ("bed", "note"))
    with pytest.raises(DataError, match=r"'text'.*bed, note"):
        new_samples(place, Reading(), form)


def test_a_site_pads_its_texts_to_the_longest_of_all_sites(tmp_path):
    samples = load_samples(table(tmp_path / "notes.csv", [row for row in ROWS if row[2] == "c0"]), Reading())
    federation = from_samples(samples, SplitPlan(), clients=1, partition=None, fallback=IID())
    form = SampleFormat.of(federation)
    longer = SampleFormat.from_table(
        {
            **form.to_table(),
            "preprocessing": {
                **form.preprocessing.to_table(),
                "shape": [16],
                "text": {**form.preprocessing.text.to_table(), "length": 16},
            },
        }
    )
    site = site_federation(samples, longer, SplitPlan(), client=0)
    assert site.x.shape[1] == 16
    order = np.concatenate([federation.splits[name].of(0).numpy() for name in ("train", "validation", "test")])
    assert np.array_equal(site.x[:, :8], federation.x[order])
    assert not site.x[:, 8:].any()


def test_words_and_signs():
    given, expected = 'Don\'t,he;(n)!so?"Yes."a:b<br />c\t\n d', "don ' t , he ( n ) ! so ? yes . a b c d"
    assert " ".join(tokens(given)) == expected
