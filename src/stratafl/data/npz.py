"""A person's own samples in one file: `x`, `y` and, if samples belong to somebody, `client`."""

import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from stratafl.data.cutting import Division, Indices
from stratafl.data.federation import Federation, federate
from stratafl.data.partitions import Partition, drawn
from stratafl.errors import DataError


def from_npz(
    path: str | Path,
    *,
    clients: int,
    partition: Partition | None,
    fallback: Partition,
    validation: float,
    test: float,
    seed: int,
) -> Federation:
    """The federation in a file; without a partition, the clients that it names, or else the fallback."""
    arrays = _read(Path(path))
    for name in ("x", "y"):
        if name not in arrays:
            raise DataError(f"'{path}' has no array '{name}' (there is: {', '.join(arrays) or 'none'})")
    x, y, named = arrays["x"], arrays["y"], arrays.get("client")
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise DataError(f"'{path}': x has shape {x.shape} and y {y.shape}; both count samples along their first axis")
    if len(x) == 0:
        raise DataError(f"'{path}' holds no samples: x has shape {x.shape}")
    _check_named(path, named, len(x))
    owners: list[Indices] | Division
    if partition is None and named is not None:
        owners = _named_owners(named)
    else:
        owners = drawn(partition or fallback, y, clients, seed, owner=named)
    return federate(x, y, owners, validation=validation, test=test, seed=seed, name=Path(path).stem)


def _check_named(path: str | Path, named: NDArray[np.generic] | None, samples: int) -> None:
    if named is not None and named.shape != (samples,):
        raise DataError(f"'{path}': client has shape {named.shape}, but there are {samples} samples")


def _named_owners(named: NDArray[np.generic]) -> list[Indices]:
    _, inverse, counts = np.unique(named, return_inverse=True, return_counts=True)
    return np.split(np.argsort(inverse, kind="stable"), np.cumsum(counts)[:-1])


def _read(path: Path) -> dict[str, NDArray[np.generic]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except FileNotFoundError as error:
        raise DataError(f"there is no data file '{path}'") from error
    except (OSError, ValueError, TypeError, EOFError, BadZipFile, AttributeError, zlib.error) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"'{path}' is not an npz file of plain arrays: {reason}") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise DataError(f"'{path}' is not an npz file of plain arrays: '{name}' is {type(array).__name__}")
    return arrays
