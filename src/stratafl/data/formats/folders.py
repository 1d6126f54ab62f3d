"""A folder of images for each class."""

from collections.abc import Sequence
from pathlib import Path

from stratafl.data.formats.columns import Asked, Columns, is_split
from stratafl.errors import DataError

_ANNOTATIONS = "*_annotations.txt"  # Tiny-ImageNet lists the classes of its validation images in a file


def read_folders(files: Sequence[Path], asked: Asked, root: Path) -> Columns:
    """The images of a split, and the name of the class folder of each."""
    listed: dict[str, str] = {}
    for lines in sorted({found for file in files for found in file.parent.parent.glob(_ANNOTATIONS)}):
        rows = [line.split("\t") for line in lines.read_text(encoding="utf-8").splitlines()]
        listed |= {row[0]: row[1] for row in rows if len(row) > 1}
    return {asked.content: list(files), asked.label: [listed.get(file.name) or _class(file, root) for file in files]}


def _class(file: Path, root: Path) -> str:
    folders = file.relative_to(root).parts[:-1]
    folders = folders[1:] if folders and is_split(folders[0]) else folders
    if not folders:
        raise DataError(f"'{file}' is in no class folder: images lie in CLASS/ or in train/CLASS/ and test/CLASS/")
    return folders[0]
