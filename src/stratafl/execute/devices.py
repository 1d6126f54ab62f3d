"""Where a simulation computes."""

import torch

from stratafl.errors import RecordError


def device_of(name: str) -> str:
    """The device by its name; `auto` is a GPU where there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    there = "cpu, cuda" if torch.cuda.is_available() else "cpu"
    missing = RecordError(f"there is no device '{name}' on this machine; choose one of: auto, {there}")
    try:
        if torch.empty(0, device=name).device.type not in ("cpu", "cuda", "mps", "xpu"):
            raise missing
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch's words for a device that is not there
        raise missing from error
    return name


def device_or_cpu(name: str) -> str:
    """The device by its name if it is here, or else the CPU."""
    try:
        return device_of(name)
    except RecordError:
        return "cpu"
