"""Where the memories of clients are kept between rounds: on the device, in RAM or on disk, by size."""

from typing import Literal, get_args

import torch

from stratafl.core.machine import ram
from stratafl.errors import MemoryLimitError, unknown
from stratafl.execute.memory import device_memory

Store = Literal["auto", "device", "ram", "disk"]
STORES: tuple[str, ...] = get_args(Store)
SHARE = 4  # memories may take a quarter of the memory there is
FEW = 0.1  # where at most this share of the clients takes part in a round …
WHOLE = 64 * 2**20  # … more than this is not written again with every checkpoint


def chosen(
    store: Store, needed: int, device: torch.device, limit: int | None, *, participation: float, saved: bool
) -> Store:
    """Where memories of so many bytes in all are kept; `saved` says whether checkpoints are written."""
    if store not in STORES:
        raise unknown("store", str(store), STORES)
    on_device = min(device_memory(device), limit or device_memory(device)) // SHARE
    in_ram = min(ram(), limit or ram()) // SHARE
    if store == "auto":
        if saved and participation <= FEW and needed > WHOLE:
            return "disk"
        fits = needed <= on_device
        return ("ram" if device.type == "cpu" else "device") if fits else "ram" if needed <= in_ram else "disk"
    if store == "device" and device.type == "cpu":
        store = "ram"
    if limit is not None and store != "disk" and needed > limit:
        raise MemoryLimitError(
            f"the memories of all clients take {needed:,} bytes, the limit leaves {limit:,}: "
            "keep them on disk (run.store = disk), or raise it"
        )
    return store
