"""Formats: how samples are stored in files. `read` finds the format of a file or folder and reads it into columns.

To add a data format: write one file here with a function `read_NAME(files, request) -> Columns` that reads the files of
one split, and add a line to `_FORMATS` below. Nothing else changes: labels, images, clients and splits are made from
columns (columns.py). Add its suffix to `SUFFIXES` if a single file can be given as `data.name`.

This package imports `data.memory_limit`, `core` and `stratafl.errors`; the rest of `data` imports it.
"""

from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from stratafl.data.formats.arrow import read_parquet, read_saved
from stratafl.data.formats.columns import IMAGES, ORDER, Columns, Request, Splits, is_split, joined, split_of, top_split
from stratafl.data.formats.csv_files import read_csv
from stratafl.data.formats.idx import read_idx
from stratafl.data.formats.image_files import read_class_folders, read_sheets
from stratafl.data.formats.npz_files import read_npz
from stratafl.errors import DataError


class Format(NamedTuple):
    """The files of a format by patterns of their names, what reads those of one split, and which split a file is of."""

    says: str
    patterns: tuple[str, ...]
    read: Callable[[Sequence[Path], Request], Columns]
    split: Callable[[Path, Path], str] = split_of


_FORMATS = (  # the first one with files in a folder is read
    Format("a folder of `save_to_disk`", ("state.json",), read_saved),
    Format("parquet", ("*.parquet",), read_parquet),
    Format("idx", ("*-idx[13]-ubyte*",), read_idx),
    Format("sheets of images", ("data_batch*.png", "test_batch*.png"), read_sheets),
    Format("csv", ("*.csv",), read_csv),
    Format("npz", ("*.npz",), read_npz),
    Format("class folders of images", tuple(f"*{suffix}" for suffix in IMAGES), read_class_folders, top_split),
)
SUFFIXES = (".npz", ".csv", ".parquet")
CLIENT = "client"  # the column of clients


def read(place: Path, request: Request, prefer: str = "*") -> Splits:
    """The columns of a file, or of the files of the first format that a folder has, split by split.

    If a folder has files of several data sets, those whose names fit `prefer` are read.
    """
    root = place if place.is_dir() else place.parent
    files = sorted(file for file in place.rglob("*") if file.is_file()) if place.is_dir() else [place]
    files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(root).parts)]
    for data_format in _FORMATS:
        matching = [
            file for file in files if any(fnmatch(file.name.lower(), pattern) for pattern in data_format.patterns)
        ]
        preferred = [file for file in matching if fnmatch(file.name, prefer)]
        if matching:
            return _by_split(preferred or matching, root, data_format, request._replace(root=root))
    raise DataError(f"'{place}' has no readable data: give one of {', '.join(each.says for each in _FORMATS)}")


def _by_split(files: Sequence[Path], root: Path, chosen: Format, request: Request) -> Splits:
    splits: dict[str, list[Path]] = {}
    for file in files:
        splits.setdefault(chosen.split(file, root), []).append(file)
    return {split: chosen.read(splits[split], request) for split in sorted(splits, key=ORDER.index)}


def has_client_folders(place: Path) -> bool:
    """Whether a folder holds only folders that are neither splits nor classes nor parts of one table."""
    if not place.is_dir():
        return False
    inside = [each for each in place.iterdir() if not each.name.startswith(".")]
    folders = [each for each in inside if each.is_dir()]
    if len(folders) < 2 or any(is_split(each.name) for each in folders) or (place / "dataset_dict.json").exists():
        return False
    files = [file for each in (place, *folders) for file in each.iterdir() if file.is_file()]
    tables = [file for file in files if file.suffix.lower() in SUFFIXES]
    images = [file for file in files if file.suffix.lower() in IMAGES]
    return not images and not any(file.parent == place for file in tables)


def read_client_folders(place: Path, request: Request) -> Splits:
    """The tables of all folders, with the folder's name as the client."""
    parts: dict[str, list[Columns]] = {}
    for folder in sorted(each for each in place.iterdir() if each.is_dir() and not each.name.startswith(".")):
        for split, columns in read(folder, request).items():
            if CLIENT in columns:
                raise DataError(f"'{folder}' is one client's folder, but its table has a column '{CLIENT}': remove it")
            count = len(next(iter(columns.values())))
            parts.setdefault(split, []).append(columns | {CLIENT: [folder.name] * count})
    return {split: joined(parts[split], place) for split in sorted(parts, key=ORDER.index)}
