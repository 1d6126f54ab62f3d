"""Traced steps: a function of tensors as the list of plain operations that it amounts to.

Replaying them gives the same bits without differentiating and batching anew, and releases the interpreter, so that
lanes of clients run side by side. Measured on 2 ARM cores (20 clients, batch 10): the step of a small MLP falls from
5.8 to 2.7 ms, before lanes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

PATIENCE = 32
Likeness = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]


def trace(function: Callable[..., Any], likeness: Sequence[Likeness]) -> Callable[..., Any]:
    """The function for tensors of these shapes, strides, types and devices, as plain operations."""
    examples = [torch.empty_strided(s, stride, dtype=t, device=d).zero_() for s, stride, t, d in likeness]
    graph = make_fx(function)(*examples)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def patience(leaves: Sequence[Tensor]) -> int:
    """How often a step is taken before it is traced: tracing costs seconds, and gains least where a step is long."""
    if get_proxy_mode() is not None:
        return -1  # never: somebody else is tracing just now
    return PATIENCE + sum(x.numel() for x in leaves) // 2**19
