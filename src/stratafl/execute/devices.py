"""The device that a simulation computes on, by name."""

import torch

from stratafl.errors import RecordError


def device_of(name: str) -> str:
    """The name, if the device is there; `auto` is a GPU where there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    there = "cpu, cuda" if torch.cuda.is_available() else "cpu"
    missing = RecordError(f"there is no device '{name}' on this machine; choose one of: auto, {there}")
    try:
        if torch.empty(0, device=name).device.type not in ("cpu", "cuda", "mps", "xpu"):
            raise missing
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # what torch raises for a missing device
        raise missing from error
    return name


def device_or_cpu(name: str) -> str:
    try:
        return device_of(name)
    except RecordError:
        return "cpu"
