"""What was done to the data of a run, stored beside it, so that whoever is given the run need not find it out."""

from pathlib import Path

from stratafl.data import Federation
from stratafl.data.preprocessing import preprocessing_from
from stratafl.errors import RunError
from stratafl.runs.files import read_json, write_json

PREPROCESSING = "preprocessing.json"


def write_preprocessing(folder: Path, federation: Federation) -> None:
    """Write it into a run directory."""
    write_json(folder / PREPROCESSING, federation.preprocessing.to_table())


def check_preprocessing(folder: Path, federation: Federation) -> None:
    """Refuse a run whose file says something else than its data; runs of before have no such file."""
    path = folder / PREPROCESSING
    if not path.exists():
        return
    try:
        stored = preprocessing_from(read_json(path))
    except ValueError as error:
        raise RunError(f"'{path}' is damaged: {error}") from error
    if stored != federation.preprocessing:
        raise RunError(
            f"'{path}' was changed: it is not what was done to the data of this run; remove it, or put it back"
        )
