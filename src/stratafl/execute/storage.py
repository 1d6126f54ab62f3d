"""Where client states are kept between rounds: on the device, in RAM or on disk, by size."""

from typing import Literal, get_args

import torch

from stratafl.core.machine import in_units, ram
from stratafl.errors import MemoryLimitError, unknown
from stratafl.execute.memory import device_memory

Store = Literal["auto", "device", "ram", "disk"]
STORES: tuple[str, ...] = get_args(Store)
SHARE = 4  # client states may take a quarter of the memory
FEW = 0.1  # where at most this share of the clients takes part in a round …
WHOLE = 64 * 2**20  # … states larger than this are not written again with every checkpoint


def choose_store(
    store: Store, needed: int, device: torch.device, limit: int | None, *, participation: float, saved: bool
) -> Store:
    """Where client states of `needed` bytes in all are kept; `saved` says whether checkpoints are written."""
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
            f"the states of all clients take {in_units(needed)}, and the memory limit leaves {in_units(limit)}: "
            "keep them on disk (run.store=disk), or raise the limit"
        )
    return store
