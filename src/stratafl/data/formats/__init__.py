"""Formats: how samples lie on a disk, and one reader for each way."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import NamedTuple

from stratafl.data.formats.arrow import read_parquet, read_saved
from stratafl.data.formats.columns import IMAGES, ORDER, Asked, Columns, Splits, split_of, top_split
from stratafl.data.formats.folders import read_folders
from stratafl.data.formats.idx import read_idx
from stratafl.data.formats.sheets import read_sheets
from stratafl.data.formats.tables import read_csv, read_npz
from stratafl.errors import DataError

Read = Callable[[Sequence[Path], Asked], Columns]


class Format(NamedTuple):
    """The files of a format by patterns of their names, what reads those of one split, and which split a file is of."""

    says: str
    patterns: tuple[str, ...]
    read: Read
    split: Callable[[Path, Path], str] = split_of


_TABLES = (
    Format("a folder of `save_to_disk`", ("state.json",), read_saved),
    Format("parquet", ("*.parquet",), read_parquet),
    Format("idx", ("*-idx[13]-ubyte*",), read_idx),
    Format("sheets of images", ("data_batch*.png", "test_batch*.png"), read_sheets),
    Format("csv", ("*.csv",), read_csv),
    Format("npz", ("*.npz",), read_npz),
)
_FOLDERS = ("class folders of images", tuple(f"*{suffix}" for suffix in IMAGES))
SAYS = ", ".join([*(each.says for each in _TABLES), _FOLDERS[0]])
SUFFIXES = (".npz", ".csv", ".parquet")


def read(place: Path, asked: Asked, prefer: str = "*") -> Splits:
    """The columns of a file, or of the files of the first format that a folder has, split by split.

    Among files of several data sets in one folder, those are read whose names fit `prefer`.
    """
    root = place if place.is_dir() else place.parent
    files = sorted(file for file in place.rglob("*") if file.is_file()) if place.is_dir() else [place]
    files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(root).parts)]
    for each in (*_TABLES, Format(*_FOLDERS, partial(read_folders, root=root), top_split)):
        mine = [file for file in files if any(fnmatch(file.name.lower(), pattern) for pattern in each.patterns)]
        preferred = [file for file in mine if fnmatch(file.name, prefer)]
        if mine:
            return _by_split(preferred or mine, root, each, asked)
    raise DataError(f"'{place}' holds nothing that can be read: there must be {SAYS}")


def _by_split(files: Sequence[Path], root: Path, chosen: Format, asked: Asked) -> Splits:
    splits: dict[str, list[Path]] = {}
    for file in files:
        splits.setdefault(chosen.split(file, root), []).append(file)
    return {split: chosen.read(splits[split], asked) for split in sorted(splits, key=ORDER.index)}
