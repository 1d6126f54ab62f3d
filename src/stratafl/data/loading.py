"""Samples by name: of the catalogue, or a person's own file or folder."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from stratafl.data import cache, formats
from stratafl.data.decoding import decoded
from stratafl.data.hub import fetched
from stratafl.data.npz import npz_samples
from stratafl.data.own import own_samples
from stratafl.data.published import DATASETS, Published
from stratafl.data.reading import Reading
from stratafl.data.samples import Samples
from stratafl.data.shards import is_sharded, read_shards
from stratafl.errors import DataError, choices, shown, unknown

_DECODING = 2  # another number wherever images or tables are read otherwise, so that what was kept is not believed
_DECODED = ["normalise", "owners", "fewest", "most"]  # what can be asked of samples that are decoded already
_NOT_DECODED = ("path", "normalise", "targets", "limit")  # what makes no difference to what is kept
_OWN = [*_DECODED, "label", "client", "group", "targets", "size"]
log = logging.getLogger("stratafl")
OWN = ("FILE.npz", "FILE.csv", "FILE.parquet", "FOLDER/")


def is_place(name: str) -> bool:
    """Whether data is named by where it is, and not by the catalogue."""
    return name.endswith(formats.SUFFIXES) or "/" in name


def check_name(name: str) -> None:
    """Refuse what is neither in the catalogue nor a file or folder."""
    if name in DATASETS or is_place(name):
        return
    if _is_folder(name):
        raise DataError(f"data.name = '{name}' is no data set with a name, but a folder here: call it './{name}'")
    if suffix := Path(name).suffix:
        near = get_close_matches(suffix.lower(), formats.SUFFIXES, n=1)
        hint = f"; did you mean '{shown(Path(name).with_suffix(near[0]))}'?" if near else ""
        known = ", ".join(formats.SUFFIXES)
        raise DataError(f"data.name = '{shown(name)}': files of data end in {known}, not {shown(suffix)}{hint}")
    raise unknown("data.name", name, [*DATASETS, *OWN])


def _is_folder(name: str) -> bool:
    try:
        return Path(name).is_dir()
    except OSError:  # a name that is too long for a file
        return False


def load_samples(name: str, reading: Reading | None = None) -> Samples:
    """The samples of a data set of the catalogue, or of a file or folder."""
    check_name(name)
    reading = reading or Reading()
    _check_options(reading, DATASETS[name].options if name in DATASETS else _OWN, name)
    found = _published(name, DATASETS[name], reading) if name in DATASETS else _own(Path(name), reading)
    if found.remark:
        log.warning("'%s': %s", name, found.remark)
    return reading.scaled(found)


def _check_options(reading: Reading, known: Sequence[str], name: str) -> None:
    for option in reading.given():
        if option not in known:
            heard = f"which listens to: {', '.join(known)}" if known else "which comes with the package as it is"
            raise DataError(f"data.{option} means nothing to '{name}', {heard}")


def _own(place: Path, reading: Reading) -> Samples:
    if place.exists() and not (place.is_file() or place.is_dir()):
        raise DataError(f"'{place}' is neither a file nor a folder but a pipe or a device: save the data to a file")
    if place.suffix == ".npz":
        return reading.of_owners(npz_samples(place, reading))
    if not place.exists():
        raise DataError(f"there is no data file or folder '{place}'")
    if is_sharded(place):
        return _shards(place, reading)
    key = _key(reading, files=cache.fingerprint(place), targets=reading.targets)
    return cache.kept(place.stem or "own", key, lambda: own_samples(place, reading), reading.limit)


def _published(name: str, record: Published, reading: Reading) -> Samples:
    if record.bundled is not None:
        return record.bundled()
    if reading.path is None:
        return cache.kept(name, _key(reading, hub=record.hub), lambda: _from_hub(name, record, reading), reading.limit)
    whole = Path(reading.path)
    place = whole / name if (whole / name).is_dir() else whole  # a folder of several data sets
    others = [other for other in DATASETS if (whole / other).is_dir()]
    if place is whole and others:
        raise DataError(f"data.path = '{whole}' has no folder '{name}' ({choices(others)})")
    if not place.exists():
        raise DataError(f"{name} is not at data.path = '{place}', which does not exist: {_advice(name, record)}")
    if is_sharded(place):
        return _of_this_name(_shards(place, reading), name, place)
    key = _key(reading, files=cache.fingerprint(place))
    return cache.kept(name, key, lambda: decoded(name, record, place, reading), reading.limit)


def _shards(place: Path, reading: Reading) -> Samples:
    _check_options(reading, [*_DECODED, "path"], str(place))
    return reading.of_owners(read_shards(place, reading.limit))


def _key(reading: Reading, **source: Any) -> dict[str, Any]:
    options = {key: value for key, value in asdict(reading).items() if key not in _NOT_DECODED}
    options = options if reading.owners is not None else options | {"seed": 0}
    if reading.group is None:
        del options["group"]  # what was kept before there were groups is still found
    decoding = {"decoding": _DECODING} if "files" in source else {}  # what the hub has is read as it always was
    return {"format": 1, "options": options, **decoding, **source}


def _of_this_name(samples: Samples, name: str, place: Path) -> Samples:
    if samples.name != name:
        raise DataError(f"'{place}' holds {samples.name}, not {name}")
    return samples


def _from_hub(name: str, record: Published, reading: Reading) -> Samples:
    looked = f"{name} is not here: data.path is not set and there is nothing of it in '{cache.cache_folder()}'"
    if record.hub is None:
        raise DataError(f"{looked}; it is not on the hub: {_advice(name, record)}")
    try:
        place = fetched(record.hub, record.files)
    except DataError as error:
        raise DataError(f"{looked}; from the hub ({record.hub}): {error}; {_advice(name, record)}") from error
    samples = decoded(name, record, place, reading)
    if len(samples.x) != record.samples:  # a download that was interrupted looks whole to the hub's cache
        raise DataError(f"'{place}' has {len(samples.x):,} of the {record.samples:,} samples of {name}: delete it")
    return samples


def is_fetched(name: str) -> bool:
    """Whether a data set of the catalogue can be had without a path and without a network."""
    record = DATASETS[name]
    return record.bundled is not None or cache.entry_of(name, _key(Reading(), hub=record.hub)).is_dir()


def _advice(name: str, record: Published) -> str:
    if record.hub is None:
        return f"{record.otherwise}, and set data.path to the folder"
    else_ = f" ({record.otherwise})" if record.otherwise else ""
    return (
        f"where there is a network, run 'strata data export {name} OUT/', copy OUT/ and set data.name to 'OUT/', or "
        f"download https://huggingface.co/datasets/{record.hub} and set data.path to it{else_}"
    )
