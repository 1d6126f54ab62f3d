"""Files that a person asks for: refused before anything is computed in vain."""

from collections.abc import Sequence
from pathlib import Path

from stratafl.errors import RunError


def check_new(paths: Sequence[Path | None]) -> None:
    """Refuse files that exist, or whose folder does not: nothing is overwritten."""
    for path in paths:
        if path is not None and path.exists():
            raise RunError(f"'{path}' exists: choose another name, or remove it")
        if path is not None:
            check_folder(path)


def check_folder(path: Path) -> None:
    """Refuse a file whose folder is not there."""
    if not path.absolute().parent.is_dir():
        raise RunError(f"cannot write '{path}': there is no folder '{path.parent}'")
