"""How much memory there is, and how much of it one client at work takes."""

from functools import cache

import torch
from torch import Tensor

from stratafl.errors import MemoryLimitError
from stratafl.machine import ram, resident
from stratafl.objectives import Batch, default_objective
from stratafl.task import Workshop
from stratafl.task.task import EVALUATION_BATCH

COPIES = 6  # row, gradient, velocity, edited gradient, the memory before and after the round
MOMENTUM = 4  # more of them, where the velocity of one step becomes that of the next


def client_bytes(workshop: Workshop, batch: int, momentum: bool = False) -> int:
    """At work: columns in all their copies, plus what a step of `batch` samples saves for its backward pass."""
    return (COPIES + MOMENTUM * momentum) * _column_bytes(workshop) + _saved_bytes(workshop, batch)


def visitor_bytes(workshop: Workshop) -> int:
    """Being evaluated: a forward pass holds up to about three quarters of what a step of so many samples would save."""
    held_out = max(int(workshop.federation.counts(split).max()) for split in ("validation", "test"))
    width = min(EVALUATION_BATCH, held_out)
    return COPIES * _column_bytes(workshop) + (_saved_bytes(workshop, width) * 3 // 4 if width else 0)


def _column_bytes(workshop: Workshop) -> int:
    size = torch.empty((), dtype=workshop.dtype).element_size()
    return sum(spec.size for spec in workshop.layout.specs.values()) * size


def _saved_bytes(workshop: Workshop, batch: int) -> int:
    """What one step of one client saves, found out by taking it."""
    layout, model = workshop.layout, workshop.engine.model
    saved = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += tensor.numel() * tensor.element_size()
        return tensor

    x, y = workshop.federation.inputs(workshop.federation.x[:1], workshop.dtype), workshop.federation.y[:1]
    x, y = (t.repeat(batch, *(1,) * (t.ndim - 1)) for t in (x, y))
    blank = torch.zeros((), dtype=workshop.dtype, device=workshop.device)
    row = {n: blank.new_zeros(s.shape).requires_grad_(s.trainable) for n, s in layout.specs.items()}
    weight = blank.new_ones(batch)
    key = torch.zeros((), dtype=torch.int64, device=workshop.device)
    net = model.net(row, {}, model.modes(layout.trainable()), weight, key)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        default_objective(workshop.federation.classes)(net, row, {}, Batch(x, y, weight), {}, {})
    return saved


def room(limit: int | None, device: torch.device) -> int | None:
    """What a limit leaves, beside what is there already: libraries and data, in RAM or on the GPU."""
    if limit is None:
        return None
    there = resident() if device.type != "cuda" else torch.cuda.memory_allocated(device)
    if there >= limit:
        raise MemoryLimitError(f"data and libraries take {there:,} bytes before a client works, the limit is {limit:,}")
    return limit - there


@cache  # as others come and go, groups of clients would change their size, and programs their shape
def device_memory(device: torch.device) -> int:
    """The memory of a device; of a GPU, what other processes left of it when this one began."""
    if device.type != "cuda":
        return ram()
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device)
