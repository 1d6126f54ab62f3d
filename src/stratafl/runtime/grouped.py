"""Convolutions of stacked clients as one convolution with a group per client, in channels-last memory.

On a GPU cuDNN computes it without storing columns: for ResNet-20 with 100 clients it takes less than half of the time
of the kernels in `kernels.py` and a ninth of a product's, as long as nothing is copied. So images lie in memory as
`[B, h, w, C, channels]` from one convolution to the next, and the compiler writes what is between them in that order.
"""

from dataclasses import dataclass
from functools import partial
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from stratafl.runtime.kernels import Convolution, Kind, Pair

ORDER = (1, 4, 0, 3, 2)  # of the axes of `[C, B, channels, h, w]` in memory, the innermost is 0
MANY_CHANNELS = 256  # channels from which gradients of weights are not left to cuDNN
MAX_COLUMN_BYTES = 2**30  # bytes that the columns of such a gradient may have


@dataclass(frozen=True)
class ConvolutionShape:
    """What a convolution of one client is apart from its tensors."""

    image: tuple[int, ...]  # [B, in, h, w]
    weight: tuple[int, ...]  # [out, in / groups, kh, kw]
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int

    @property
    def margin(self) -> Pair:
        """The padding of the convolution that gives the gradient of the image, if this one has a stride of 1."""
        rows, cols = (d * (k - 1) - p for d, k, p in zip(self.dilation, self.weight[2:], self.padding, strict=True))
        return rows, cols

    @property
    def reads_columns(self) -> bool:
        """Whether the gradient of the weight is a product with columns instead of cuDNN's."""
        plain = self.stride == self.dilation == (1, 1) and self.groups == 1
        return plain and min(self.weight[:2]) >= MANY_CHANNELS

    def columns(self, clients: int) -> int:
        """How many numbers the columns have."""
        batch, inputs, *size = self.image
        out = (side + 2 * p - k + 1 for side, p, k in zip(size, self.padding, self.weight[2:], strict=True))
        return clients * batch * inputs * prod(self.weight[2:]) * prod(out)


def grouped_convolution(
    x: Tensor,
    weight: Tensor,
    stride: Pair,
    padding: Pair,
    dilation: Pair = (1, 1),
    groups: int = 1,
    rounded: torch.dtype | None = None,
) -> Tensor:
    """The convolution of `[B, in, h, w]` by `[out, in, kh, kw]`; `vmap` adds clients. Factors may be rounded first."""
    sizes = ConvolutionShape(tuple(x.shape), tuple(weight.shape), stride, padding, dilation, groups)
    if rounded is None or x.dtype != torch.float32:
        y: Tensor = Convolution.apply(x, weight, "output", partial(grouped_product, sizes))  # type: ignore[no-untyped-call]
        return y
    return grouped_convolution(x.to(rounded), weight.to(rounded), stride, padding, dilation, groups).to(x.dtype)


def grouped_product(sizes: ConvolutionShape, kind: Kind, a: Tensor, b: Tensor) -> Tensor:
    """One of the three products of `kernels.Convolution` for all clients; images are `[C, B, channels, h, w]`."""
    clients = len(a)
    rest = (sizes.dilation, False, (0, 0), clients * sizes.groups)
    if kind == "output":
        y = torch.ops.aten.convolution(_merged(a), _stacked(b), None, sizes.stride, sizes.padding, *rest)
        return _apart(y, clients)
    if kind == "image" and sizes.stride == (1, 1) and sizes.groups == 1 and min(sizes.margin) >= 0:
        # As another convolution: for 256 channels cuDNN takes 373 µs, and 1,287 for its own gradient (H200, TF32).
        turned = _stacked(a.flip(3, 4).transpose(1, 2))
        return _apart(torch.ops.aten.convolution(_merged(b), turned, None, (1, 1), sizes.margin, *rest), clients)
    if kind == "weight" and sizes.reads_columns and sizes.columns(clients) * a.element_size() <= MAX_COLUMN_BYTES:
        return _by_columns(sizes, clients_last(a), clients_last(b))
    # Of the tensors that this product does not need, torch only reads the sizes.
    batch, inputs, *size = sizes.image
    x = _merged(a) if kind == "weight" else _empty(b, (batch, clients * inputs, *size))
    w = _stacked(a) if kind == "image" else _empty(b, (clients * sizes.weight[0], *sizes.weight[1:]))
    wanted = [kind == "image", kind == "weight", False]
    dx: Tensor
    dw: Tensor
    dx, dw, _ = torch.ops.aten.convolution_backward(_merged(b), x, w, None, sizes.stride, sizes.padding, *rest, wanted)
    return _apart(dx, clients) if kind == "image" else dw.reshape(clients, *sizes.weight)


def _by_columns(sizes: ConvolutionShape, x: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of the weight as one product per client; both images have clients last, so neither is copied.

    For 22 clients, batches of 16 and 256 channels of 8×8 it takes an H200 211 µs. cuDNN takes 306 alone, and 1,050 in a
    step of ResNet-20, where it launches three kernels per client. For 128 channels cuDNN is faster.
    """
    (rows, cols), (height, width) = sizes.padding, sizes.weight[2:]
    windows = F.pad(x, (cols, cols, rows, rows)).unfold(3, height, 1).unfold(4, width, 1)
    columns = windows.permute(0, 1, 3, 4, 5, 6, 2).flatten(4, 6).flatten(1, 3)  # [C, places, taps · in]
    product = gradient.permute(0, 2, 1, 3, 4).flatten(2) @ columns
    gradient_by_tap: Tensor = product.unflatten(2, (height, width, -1))
    return gradient_by_tap.permute(0, 1, 4, 2, 3)


def _merged(x: Tensor) -> Tensor:
    """`[C, B, channels, h, w]` as `[B, C·channels, h, w]`, channels last."""
    laid: Tensor = clients_last(x)
    return laid.transpose(0, 1).flatten(1, 2)


def _apart(x: Tensor, clients: int) -> Tensor:
    apart: Tensor = x.unflatten(1, (clients, -1))
    return apart.transpose(0, 1)


def _stacked(weight: Tensor) -> Tensor:
    return weight.flatten(0, 1).contiguous(memory_format=torch.channels_last)


def _empty(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


@torch.library.custom_op("stratafl::clients_last", mutates_args=())
def clients_last(x: Tensor) -> Tensor:
    """A copy of `[C, B, channels, h, w]` that lies in memory as `[B, h, w, C, channels]`.

    In a compiled step it is no copy: see `teach_compiler`.
    """
    laid: Tensor = _laid_out(x)
    return laid.copy_(x)


@clients_last.register_fake
def _laid_out(x: Tensor) -> Tensor:
    clients, batch, channels, height, width = x.shape
    return x.new_empty(batch, height, width, clients, channels).permute(3, 0, 4, 1, 2)


def teach_compiler() -> None:
    """Let torch's compiler write the argument of `clients_last` in its order at once, wherever it can choose one."""
    from torch._inductor import ir
    from torch._inductor.lowering import lowerings, register_lowering

    operation = torch.ops.stratafl.clients_last.default
    if operation in lowerings:
        return

    @register_lowering(operation, type_promotion_kind=None)
    def lay_out(x: ir.TensorBox) -> ir.IRNode:
        x.realize()
        return ir.ExternKernel.require_stride_order(x, ORDER)
