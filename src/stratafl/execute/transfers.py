"""Transfers from a GPU: each waits until the GPU has finished all its work, so a round makes few of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from stratafl.core.state import bytes_of


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same tensors on the CPU, by one transfer."""
    if all(x.device.type == "cpu" for x in tensors):
        return list(tensors)
    return packed(tensors)


def packed(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies on the CPU, by way of one tensor of bytes."""
    flat = [bytes_of(x) for x in tensors]
    parts = torch.cat(flat).cpu().split([len(each) for each in flat])
    pairs = zip(parts, tensors, strict=True)
    return [part.clone().view(x.dtype).reshape(x.shape) for part, x in pairs]  # cloned, so that it is aligned
