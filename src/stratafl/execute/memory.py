"""How much memory one client at work takes, found out by taking one step and counting what it keeps."""

import torch
from torch import Tensor

from stratafl.objectives import Batch, default_objective
from stratafl.task import Workshop

COPIES = 6  # row, gradient, velocity, edited gradient, the memory before and after the round


def client_bytes(workshop: Workshop, batch: int) -> int:
    """Columns in all their copies, plus what a step saves for its backward pass (at a batch of `batch` samples)."""
    layout, model = workshop.layout, workshop.engine.model
    size = torch.empty((), dtype=workshop.dtype).element_size()
    columns = sum(spec.size for spec in layout.specs.values()) * size
    saved = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += tensor.numel() * tensor.element_size()
        return tensor

    x, y = workshop.federation.x[:1], workshop.federation.y[:1]
    x = x.to(workshop.dtype) if x.is_floating_point() or x.dtype == torch.uint8 else x
    x, y = (t.repeat(batch, *(1,) * (t.ndim - 1)) for t in (x, y))
    blank = torch.zeros((), dtype=workshop.dtype, device=workshop.device)
    row = {n: blank.new_zeros(s.shape).requires_grad_(s.trainable) for n, s in layout.specs.items()}
    weight = blank.new_ones(batch)
    key = torch.zeros((), dtype=torch.int64, device=workshop.device)
    net = model.net(row, {}, model.modes(layout.trainable()), weight, key)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        default_objective(workshop.federation.classes)(net, row, {}, Batch(x, y, weight), {}, {})
    return COPIES * columns + saved
