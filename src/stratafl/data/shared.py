"""Federations that runs of one process share: read once, and held only while a run uses them.

Runs of a comparison that read the same data would each read, divide and check it, and hold a copy on the device.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from weakref import WeakValueDictionary

import torch

from stratafl.data.cache import cache_folder, fingerprint
from stratafl.data.federation import Federation
from stratafl.data.loading import is_place
from stratafl.data.outliers import outliers

_shared: WeakValueDictionary[Hashable, Federation] = WeakValueDictionary()


def shared_federation(
    name: str, path: str | None, settings: Hashable, device: torch.device | str, read: Callable[[], Federation]
) -> Federation:
    """The data on a device, as `read` gives it, or the same object if another run uses it. Do not write to it.

    `settings` are all it depends on besides the files at `name` or `path`, which must not have changed since.
    """
    # The key is taken before and after reading: a file that changes in between must not be shared.
    before = _key(name, path, settings, device)
    federation = None if before is None else _shared.get(before)
    if federation is None:
        loaded = read()
        federation = replace(loaded, outliers=outliers(loaded)).to(device)  # found once, for all runs
        if before is not None and _key(name, path, settings, device) == before:
            _shared[before] = federation
    return federation


def _key(name: str, path: str | None, settings: Hashable, device: torch.device | str) -> Hashable:
    """Everything that the data depends on; None where the files cannot be looked at, which reading explains."""
    places = [place for place in (path, name if is_place(name) else None) if place is not None]
    try:
        files = tuple(tuple(file) for place in places for file in fingerprint(Path(place)))
    except OSError:
        return None
    return name, path, settings, str(device), files, str(cache_folder()), torch.get_default_dtype()
