"""Loading: from `data.name` to samples.

A data set of the catalogue comes from `data.path`, the cache or the hub; any other name is a user's own file or folder.
Runs of one process that use the same data share one federation (`shared_federation`), which is held only while a run
uses it: otherwise each would read, divide and check the data, and hold a copy on the device.
"""

import logging
import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch

from stratafl.data import cache, formats
from stratafl.data.catalogue import DATASETS, Dataset
from stratafl.data.digits import digits_arrays
from stratafl.data.federation import Federation
from stratafl.data.formats.columns import IMAGES, import_extra
from stratafl.data.formats.npz_files import has_numbers
from stratafl.data.memory_limit import USUAL_LIMIT
from stratafl.data.outliers import outliers
from stratafl.data.published_files import published_samples
from stratafl.data.reading import CHOOSING, Reading
from stratafl.data.samples import Samples
from stratafl.data.shards import is_sharded, read_shards
from stratafl.data.texts import TextEncoding
from stratafl.data.user_files import npz_samples, user_samples
from stratafl.errors import DataError, StrataError, first_line, shown, unknown
from stratafl.files import cache_folder

_DECODER_VERSION = 2  # raised when images or tables are decoded differently, so that old cache entries are not used
# Settings that do not change a cache entry; `targets` do with a user's files, whose keys have them besides.
_NOT_IN_KEY = ("path", "normalise", "targets", "limit", "flip", "crop", *CHOOSING)
_SHARD_OPTIONS = [
    "normalise",
    "flip",
    "crop",
    "owners",
    "fewest",
    "most",
]  # settings that apply to samples decoded before, too
_TEXT_OPTIONS = ["vocabulary", "tokens", "length"]
_USER_OPTIONS = [*_SHARD_OPTIONS, "label", "client", "group", "columns", "ignore", "targets", "size", *_TEXT_OPTIONS]
log = logging.getLogger("stratafl")
USER_PLACES = ("FILE.npz", "FILE.csv", "FILE.parquet", "FOLDER/")
_shared: WeakValueDictionary[Hashable, Federation] = WeakValueDictionary()


def is_place(name: str) -> bool:
    """Whether a name is a file or folder and not one of the catalogue."""
    return name.endswith(formats.SUFFIXES) or "/" in name


def check_name(name: str) -> None:
    if name in DATASETS or is_place(name):
        return
    if os.path.isdir(name):
        raise DataError(f"data.name = '{name}' is not in the catalogue, but it is a folder: write './{name}'")
    if suffix := Path(name).suffix:
        near = get_close_matches(suffix.lower(), formats.SUFFIXES, n=1)
        hint = f" (did you mean '{shown(Path(name).with_suffix(near[0]))}'?)" if near else ""
        allowed = f"choose a file that ends in {', '.join(formats.SUFFIXES)}"
        raise DataError(f"data.name = '{shown(name)}' ends in {shown(suffix)}{hint}: {allowed}")
    raise unknown("data.name", name, [*DATASETS, *USER_PLACES])


def load_samples(name: str, reading: Reading | None = None) -> Samples:
    check_name(name)
    reading = reading or Reading()
    _check_options(reading, DATASETS[name].options if name in DATASETS else _USER_OPTIONS, name)
    samples = _published(name, DATASETS[name], reading) if name in DATASETS else _user(Path(name), reading)
    if samples.remark:
        log.warning("'%s': %s", name, samples.remark)
    if samples.text is None and name not in DATASETS:
        without = [option for option in _USER_OPTIONS if option not in _TEXT_OPTIONS]
        _check_options(reading, without, name)
    return reading.scaled(reading.chosen(samples))


def own_texts(name: str, reading: Reading) -> TextEncoding | None:
    """How the texts of a user's own table become tokens; None if it has none, or cannot be read."""
    place = Path(name)
    if name in DATASETS or not is_place(name) or _has_images(place):
        return None
    try:
        if place.suffix == ".npz" and place.is_file() and has_numbers(place):
            return None
        return _texts_at(name, replace(reading, limit=USUAL_LIMIT), str(cache.fingerprint(place)))
    except (StrataError, OSError):  # said when it is read to be used
        return None


def _has_images(place: Path) -> bool:
    """Whether a folder has images, which take long to read."""
    return place.is_dir() and any(file.suffix.lower() in IMAGES for file in place.rglob("*"))


@lru_cache(16)
def _texts_at(name: str, reading: Reading, files: str) -> TextEncoding | None:
    return _user(Path(name), reading).text


def _check_options(reading: Reading, allowed: Sequence[str], name: str) -> None:
    for option in reading.given():
        if option not in allowed:
            hint = f"settings with an effect: {', '.join(allowed)}" if allowed else "it comes with the package"
            raise DataError(f"data.{option} has no effect with '{name}': leave it out ({hint})")


def _user(place: Path, reading: Reading) -> Samples:
    if place.exists() and not (place.is_file() or place.is_dir()):
        raise DataError(f"'{place}' is a pipe or a device: save the data to a file or folder")
    if place.suffix == ".npz":
        return reading.of_owners(npz_samples(place, reading))
    if not place.exists():
        raise DataError(f"there is no data file or folder '{place}'")
    if is_sharded(place):
        return _shards(place, reading)
    key = _key(reading, files=cache.fingerprint(place), targets=reading.targets)
    return cache.cached(place.stem or "own", key, lambda: user_samples(place, reading), reading.limit)


def _published(name: str, dataset: Dataset, reading: Reading) -> Samples:
    if dataset.bundled:
        return Samples(*digits_arrays(), classes=10, name="digits")
    if reading.path is None:
        key = _key(reading, hub=dataset.hub)
        return cache.cached(name, key, lambda: _from_hub(name, dataset, reading), reading.limit)
    place = _dataset_folder(name, dataset, Path(reading.path))
    if is_sharded(place):
        samples = _shards(place, reading)
        if samples.name != name:
            raise DataError(f"'{place}' has samples of {samples.name}, not of {name}")
    else:
        key = _key(reading, files=cache.fingerprint(place))
        samples = cache.cached(name, key, lambda: published_samples(name, dataset, place, reading), reading.limit)
    if len(samples.x) != dataset.samples and dataset.owner is None:  # owners may have been chosen
        log.warning("'%s' has %s of the %s samples of %s", place, f"{len(samples.x):,}", f"{dataset.samples:,}", name)
    return samples


def _dataset_folder(name: str, dataset: Dataset, path: Path) -> Path:
    """The folder of a data set at `data.path`, which may also have a folder for each of several data sets."""
    if (path / name).is_dir():
        return path / name
    if others := [other for other in DATASETS if (path / other).is_dir()]:
        raise DataError(f"data.path = '{path}' has no folder '{name}', only: {', '.join(others)}")
    if not path.exists():
        raise DataError(f"data.path = '{path}' does not exist, so {name} cannot be read: {_advice(name, dataset)}")
    return path


def _shards(place: Path, reading: Reading) -> Samples:
    _check_options(reading, [*_SHARD_OPTIONS, "path"], str(place))
    return reading.of_owners(read_shards(place, reading.limit))


def _key(reading: Reading, **source: Any) -> dict[str, Any]:
    options = {key: value for key, value in asdict(reading).items() if key not in _NOT_IN_KEY}
    # The seed matters only where owners are drawn; otherwise all seeds share one entry.
    options = options if reading.owners is not None else options | {"seed": 0}
    for name in ("group", "columns", "ignore", "tokens", "length"):
        if name not in reading.given():
            del options[name]  # so that entries of older versions are still found
    # How files of the hub are decoded has never changed, so their keys have no version.
    decoding = {"decoding": _DECODER_VERSION} if "files" in source else {}
    return {"format": 1, "options": options, **decoding, **source}


def _from_hub(name: str, dataset: Dataset, reading: Reading) -> Samples:
    problem = f"{name} is not on this machine: data.path is not set, and it is not in '{cache_folder()}'"
    if dataset.hub is None:
        raise DataError(f"{problem}; it is not on the hub: {_advice(name, dataset)}")
    try:
        place = _download(dataset.hub, dataset.files)
    except DataError as error:
        raise DataError(f"{problem}; from the hub ({dataset.hub}): {error}; {_advice(name, dataset)}") from error
    samples = published_samples(name, dataset, place, reading)
    if len(samples.x) != dataset.samples:  # the hub's cache does not notice an interrupted download
        share = f"{len(samples.x):,} of the {dataset.samples:,} samples of {name}"
        raise DataError(f"'{place}' has {share}: delete it and try again")
    return samples


def _download(hub: str, files: str) -> Path:
    package = import_extra("huggingface_hub", "from the hub")
    try:
        return Path(package.snapshot_download(hub, repo_type="dataset", allow_patterns=[files, f"**/{files}"]))
    except Exception as error:  # no network, no such name, a full disk: all raise errors of their own
        raise DataError(f"the download failed ({type(error).__name__}: {first_line(error)[:120]})") from error


def fetched_entry(name: str) -> str | None:
    """The folder in the cache in which a data set of the catalogue is once it was fetched; None if it comes with the
    package."""
    dataset = DATASETS[name]
    return None if dataset.bundled else cache.entry_of(name, _key(Reading(), hub=dataset.hub)).name


def _advice(name: str, dataset: Dataset) -> str:
    if dataset.hub is None:
        return f"{dataset.otherwise}, and set data.path to the folder"
    alternative = f" ({dataset.otherwise})" if dataset.otherwise else ""
    return (
        f"on a machine that is online, run 'strata data export {name} OUT/', copy OUT/ and set data.name to 'OUT/', or "
        f"download https://huggingface.co/datasets/{dataset.hub} and set data.path to it{alternative}"
    )


def shared_federation(
    name: str, path: str | None, settings: Hashable, device: torch.device | str, read: Callable[[], Federation]
) -> Federation:
    """The data on a device, as `read` gives it, or the same object if another run uses it. Do not write to it.

    `settings` are all it depends on besides the files at `name` or `path`, which must not have changed since.
    """
    # The key is taken before and after reading: a file that changes in between must not be shared.
    before = _sharing_key(name, path, settings, device)
    federation = None if before is None else _shared.get(before)
    if federation is None:
        loaded = read()
        federation = replace(loaded, outliers=outliers(loaded)).to(device)  # found once, for all runs
        if before is not None and _sharing_key(name, path, settings, device) == before:
            _shared[before] = federation
    return federation


def _sharing_key(name: str, path: str | None, settings: Hashable, device: torch.device | str) -> Hashable:
    """Everything that the data depends on; None if the files cannot be listed: reading them then raises the error."""
    places = [place for place in (path, name if is_place(name) else None) if place is not None]
    try:
        files = tuple(tuple(file) for place in places for file in cache.fingerprint(Path(place)))
    except OSError:
        return None
    return name, path, settings, str(device), files, str(cache_folder()), torch.get_default_dtype()
