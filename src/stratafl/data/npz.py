"""A person's own samples in one file: `x`, `y` and, if samples belong to somebody, `client`."""

from pathlib import Path

from stratafl.data.formats.tables import npz_arrays
from stratafl.data.labels import targets
from stratafl.data.reading import Reading, check_group
from stratafl.data.samples import Samples
from stratafl.errors import DataError, choices


def npz_samples(path: str | Path, reading: Reading | None = None) -> Samples:
    """The samples in a file, and whose they are if it says so."""
    reading = reading or Reading()
    arrays = npz_arrays(Path(path), reading.limit)
    label, client = reading.label or "y", reading.client or "client"
    check_group(reading.group, label, client)
    for name in ("x", label, *([client] if reading.client else []), *([reading.group] if reading.group else [])):
        if name not in arrays:
            raise DataError(f"'{path}' has no array '{name}' ({choices(arrays)})")
    x, y, owner = arrays["x"], arrays[label], arrays.get(client)
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise DataError(f"'{path}': x has shape {x.shape} and y {y.shape}; both count samples along their first axis")
    if len(x) == 0:
        raise DataError(f"'{path}' holds no samples: x has shape {x.shape}")
    if owner is not None and owner.shape != (len(x),):
        raise DataError(f"'{path}': {client} has shape {owner.shape}, but there are {len(x)} samples")
    group = arrays[reading.group] if reading.group else None
    if group is not None and group.shape != (len(x),):
        raise DataError(f"'{path}': {reading.group} has shape {group.shape}, but there are {len(x)} samples")
    y, names = targets(y, reading.targets, str(path))
    return Samples(
        x,
        y,
        classes=None if names is None else len(names),
        names=names,
        owner=owner,
        name=Path(path).stem,
        group=group,
        group_name=reading.group,
    )
