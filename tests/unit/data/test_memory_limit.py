"""Reading data is under the memory limit: what files announce is compared with it before anything is allocated."""

import gzip
import io
import zipfile

import numpy as np
import pytest
from data_files import idx, table

from stratafl.core.machine import resident
from stratafl.data import Reading, load_samples, write_shards
from stratafl.data.memory_limit import MemoryLimit
from stratafl.errors import DataError, MemoryLimitError

LARGE = 10**12  # bytes that no test may touch


def beside(more):
    """A limit that leaves so many bytes."""
    return MemoryLimit(resident() + more)


def refusal(name, limit, kind=MemoryLimitError, **options):
    with pytest.raises(kind) as error:
        load_samples(str(name), Reading(limit=limit, **options))
    assert "\n" not in str(error.value)
    return str(error.value)


def header(shape, descr="<f4", version=(1, 0)):
    buffer = io.BytesIO()
    write = np.lib.format.write_array_header_1_0 if version == (1, 0) else np.lib.format.write_array_header_2_0
    write(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def npz(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


def test_half_of_the_machine_is_the_usual_limit(monkeypatch):
    monkeypatch.setattr("stratafl.data.memory_limit.ram", lambda: 1000 * 10**9)
    assert MemoryLimit().bytes == 500 * 10**9
    MemoryLimit().check(400 * 10**9, "'x'")
    with pytest.raises(MemoryLimitError, match=r"'x'.*600GB.*500GB"):
        MemoryLimit().check(600 * 10**9, "'x'")


def test_an_npz_is_measured_before_it_is_unpacked(tmp_path):
    """60 MB of zeros in 60 kB."""
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        with file.open("x.npy", "w") as member:
            member.write(header((15_000, 1000)))
            for _ in range(60):
                member.write(bytes(10**6))
        buffer = io.BytesIO()
        np.save(buffer, np.zeros(15_000, np.int64))
        file.writestr("y.npy", buffer.getvalue())
    assert path.stat().st_size < 10**5
    said = refusal(path, beside(30 * 10**6))
    assert "60.2MB" in said
    assert "bomb.npz" in said
    assert "--memory-limit" in said


def test_a_header_that_announces_too_much_is_refused_also_without_a_limit(tmp_path):
    path = npz(tmp_path / "a.npz", {"x": header((LARGE, 1)), "y": header((4,))})
    assert "a.npz" in refusal(path, MemoryLimit())


def test_a_header_of_impossible_shape_is_one_line(tmp_path):
    for shape in ((2**62, 2**62), (-5, 3)):
        path = npz(tmp_path / "a.npz", {"x": header(shape), "y": header((4,))})
        refusal(path, MemoryLimit(), (MemoryLimitError, DataError))


def test_a_header_that_is_a_bomb_itself_is_not_read(tmp_path):
    data = b"\x93NUMPY\x02\x00" + (2 * 10**9).to_bytes(4, "little") + bytes(3 * 10**6)
    path = npz(tmp_path / "a.npz", {"x": data, "y": header((4,))})
    assert "a.npz" in refusal(path, MemoryLimit(), DataError)


def test_a_member_that_is_no_array_is_not_unpacked(tmp_path):
    path = npz(tmp_path / "a.npz", {"x": bytes(3 * 10**6), "y": header((4,))})
    assert "a.npz" in refusal(path, MemoryLimit(), DataError)


def test_numbers_that_are_converted_count_twice(tmp_path):
    """Whole numbers of 16 bits become tokens of 64."""
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 10_000), np.uint16), y=np.zeros(1000, np.int64))
    assert "100.1MB" in refusal(tmp_path / "a.npz", beside(60 * 10**6))


def test_a_gzipped_idx_file_is_measured_by_its_header(tmp_path):
    folder = tmp_path / "mnist"
    idx(folder / "train-labels-idx1-ubyte", np.zeros(4, np.uint8))
    data = bytes([0, 0, 8, 3]) + np.array([400_000, 28, 28], ">u4").tobytes() + bytes(10**7)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(data))
    assert "313.6MB" in refusal("mnist", beside(10**8), path=str(folder))
    assert "ubyte.gz" in refusal("mnist", beside(10**9), DataError, path=str(folder))


def test_images_are_measured_by_their_headers(tmp_path):
    from PIL import Image

    for at in range(4):
        file = tmp_path / "photos" / f"class{at % 2}" / f"{at}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (2000, 2000)).save(file)
    said = refusal(f"{tmp_path}/photos/", beside(30 * 10**6))
    assert "the 4 images of" in said
    found = load_samples(f"{tmp_path}/photos/", Reading(limit=beside(500 * 10**6), size=4))
    assert found.x.shape == (4, 1, 4, 4)


def test_parquet_is_measured_by_its_columns(tmp_path):
    import pyarrow
    import pyarrow.parquet

    count = 4_000_000
    columns = {"a": pyarrow.array(np.zeros(count)), "label": pyarrow.array(np.zeros(count, np.int8))}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    del columns
    assert (tmp_path / "a.parquet").stat().st_size < 10**6
    assert "a.parquet" in refusal(tmp_path / "a.parquet", beside(2 * 10**7))


@pytest.mark.parametrize("dictionary", [True, False])
def test_texts_of_a_parquet_may_stand_for_many(tmp_path, dictionary):
    """One text of 100 kB, 400 times: 40 MB in a file of a few kB."""
    import pyarrow
    import pyarrow.parquet

    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(400, np.int32)), ["a" * 10**5])
    made, path = pyarrow.table({"text": text, "label": np.arange(400)}), tmp_path / "a.parquet"
    pyarrow.parquet.write_table(made, path, store_schema=dictionary)
    assert path.stat().st_size < 10**5
    assert "a.parquet" in refusal(path, beside(10**7))


def test_a_csv_grows_only_up_to_the_limit(tmp_path, monkeypatch):
    path = table(tmp_path / "a.csv", ["a", "label"], [[i, i % 2] for i in range(25_000)])
    taken = iter([100, 300])  # after 10,000 lines, and after 20,000
    monkeypatch.setattr("stratafl.data.memory_limit.resident", lambda: next(taken))
    with pytest.raises(
        MemoryLimitError,
        match=r"'.*a\.csv'.*250B.*run.memory_limit",
    ):
        load_samples(str(path), Reading(limit=MemoryLimit(250)))


def test_shards_are_measured_too(tmp_path):
    from stratafl.data import Samples

    write_shards(Samples(np.zeros((600, 100, 100), np.float32), np.zeros(600, np.int64)), tmp_path / "copy")
    assert "copy" in refusal(f"{tmp_path}/copy/", beside(10**7))


def test_what_was_kept_is_measured_too(tmp_path):
    path = table(tmp_path / "mine.csv", ["a", "label"], [[i, i % 2] for i in range(1000)])
    load_samples(str(path))
    assert "'mine' in" in refusal(path, MemoryLimit(resident() // 2))


def test_the_limit_makes_no_other_entry_in_the_cache(tmp_path, own_cache):
    path = table(tmp_path / "mine.csv", ["a", "label"], [[1, 0], [2, 1]])
    for limit in (MemoryLimit(), beside(10**9)):
        load_samples(str(path), Reading(limit=limit))
    assert len(list(own_cache.glob("mine-*"))) == 1
