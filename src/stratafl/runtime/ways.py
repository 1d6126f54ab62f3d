"""How a convolution is computed: as `run.convolutions` says, as measured, or by a rule in compiled steps.

Stacked clients turn a stock convolution into one with a group per client. Products of shifted slices have to store
their columns, which are as many times larger than the image as a kernel has taps. For few clients that costs nothing
that can be measured; for many it is most of a step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

from stratafl.runtime.kernels import Pair

Way = bool | Literal["product", "stock", "kernel"]  # True or False: as measured, a product or stock, unless compiled
FusedWay = Literal["product", "grouped", "kernel"]
LARGE = 128 * 2**20  # bytes of columns from which products are left
NARROW = 16  # channels of an image below which products are fastest
WIDE, ALIGNED = 64, 8  # channels from which, and in multiples of which, cuDNN is faster with groups than kernels


@dataclass(frozen=True)
class ConvolutionSize:
    """What the time of a convolution depends on."""

    clients: int
    batch: int
    inputs: int
    outputs: int
    kernel: Pair
    stride: Pair
    padding: Pair
    out: Pair

    @property
    def columns(self) -> int:
        """Bytes of the columns that a product stores; without slices to take, they are the image itself."""
        if self.kernel == self.stride == (1, 1) and self.padding == (0, 0):
            return 0
        return 4 * self.clients * self.batch * self.inputs * prod(self.kernel) * prod(self.out)


def fused_way(size: ConvolutionSize, *, kernels: bool) -> FusedWay:
    """The way in a compiled step on a GPU; `kernels`: whether there are Triton kernels for it.

    Measured on an H200 with 100 clients in TF32, µs for output, image and weight as a product, by cuDNN with a group
    per client and by kernels: 16,437, 2,186 and 3,943 for 3×3 on 64×32×32; 9,979, 7,177 and 2,179 with a stride of 2;
    1,408, 2,157 and 1,528 for 5×5 on 3×32×32, whose gradient is not needed, 1,396, 2,168 and 766 for 5×5 on 32×14×14
    (batches of 10; slices not fused, which takes 0.6 of it in a compiled step).
    """
    if size.columns < LARGE or size.inputs < NARROW:
        return "product"
    wide = prod(size.kernel) > 1 and all(n >= WIDE and n % ALIGNED == 0 for n in (size.inputs, size.outputs))
    if wide and size.stride == (1, 1):
        return "grouped"
    if kernels:
        return "kernel"
    return "grouped" if wide else "product"


class _Count(torch.autograd.Function):
    """Notes by how many `vmap` multiplies its arguments, which they do not show."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, note: Callable[[int], None]) -> Tensor:
        return x.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Callable[[int], None]], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor, weight: Tensor, note: Callable[[int], None]) -> tuple[Tensor, None]:
        note(info.batch_size)
        nothing: Tensor = _Count.apply(x, weight, note)  # type: ignore[no-untyped-call]
        return nothing, None


def count_clients(x: Tensor, weight: Tensor) -> int:
    """How many clients convolve at once, seen from inside `vmap`."""
    counts: list[int] = []
    _Count.apply(x.detach(), weight.detach(), counts.append)  # type: ignore[no-untyped-call]
    return prod(counts)
