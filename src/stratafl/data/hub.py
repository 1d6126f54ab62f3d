"""The Hugging Face hub: the files of a data set, downloaded into the hub's own cache."""

from pathlib import Path

from stratafl.data.formats.packages import needed
from stratafl.errors import DataError, first_line


def fetched(hub: str, files: str) -> Path:
    """The folder with the files of a data set; a DataError says why there is none."""
    package = needed("huggingface_hub", "from the hub")
    try:
        return Path(package.snapshot_download(hub, repo_type="dataset", allow_patterns=[files, f"**/{files}"]))
    except (
        Exception
    ) as error:  # no network, no such name, a full disk: the package has many errors, and so have those below
        reason = first_line(error)
        raise DataError(f"the hub has refused or cannot be reached ({type(error).__name__}: {reason[:120]})") from error
