"""Traced steps: a function of tensors as the list of plain operations that it amounts to.

Replaying them gives the same bits without differentiating and batching anew, and releases the interpreter, so that
lanes of clients run side by side. Measured on 2 ARM cores (20 clients, batch 10): the step of a small MLP falls from
5.8 to 2.7 ms, before lanes.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx


def trace(function: Callable[..., Any], leaves: Sequence[Tensor]) -> Callable[..., Any]:
    """The function for tensors of these shapes, as plain operations."""
    graph = make_fx(function)(*leaves)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def patience(leaves: Sequence[Tensor]) -> float:
    """How often a step is taken before it is traced: tracing costs seconds, and gains least where a step is long."""
    if get_proxy_mode() is not None:
        return float("inf")  # somebody else is tracing just now
    return 8 + sum(x.numel() for x in leaves) / 2**19
