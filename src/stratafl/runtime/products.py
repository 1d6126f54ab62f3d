"""Convolutions and linear layers as products that stay fast, and keep their bits, when clients are stacked."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stratafl.runtime import grouped, kernels
from stratafl.runtime.ways import ConvolutionSize, FusedWay, Way, count_clients, fused_way

LARGE_PRODUCT = 2**23  # multiplications from which a transposed matrix on the right is fastest
OUTER = 16  # samples of a batch whose outer products are added


@dataclass(frozen=True)
class _Axis:
    """One spatial axis of a convolution: which taps of the kernel ever see the input, and where."""

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def out(self) -> int:
        return (self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    @property
    def taps(self) -> range:
        """The taps that see more than padding: on a 1×1 map a padded 3×3 kernel has one."""
        reach = self.stride * (self.out - 1)
        meets = [t for t in range(self.kernel) if self._start(t) < self.size and self._start(t) + reach >= 0]
        return range(meets[0], meets[-1] + 1) if meets else range(1)

    @property
    def start(self) -> int:
        """The pixel that the first of these taps sees first; negative in the padding."""
        return self._start(self.taps.start)

    def _start(self, tap: int) -> int:
        return tap * self.dilation - self.padding

    @property
    def reach(self) -> slice:
        """The part of the padded input that the taps see together, with a dilation of 1."""
        return slice(self.taps.start, self.taps.stop + self.stride * (self.out - 1))

    def slice(self, tap: int) -> slice:
        start = tap * self.dilation
        return slice(start, start + self.stride * (self.out - 1) + 1, self.stride)


_fusing = False


@contextmanager
def fusing() -> Iterator[None]:
    """While a step is traced for the compiler, for which other slices are fast."""
    global _fusing
    _fusing = True
    try:
        yield
    finally:
        _fusing = False


def is_fusing() -> bool:
    return _fusing


_rounded: torch.dtype | None = None


@contextmanager
def rounding(kind: torch.dtype | None) -> Iterator[None]:
    """While factors of products are rounded to a narrower type."""
    global _rounded
    before, _rounded = _rounded, kind
    try:
        yield
    finally:
        _rounded = before


def _factors() -> kernels.Factors:
    if _rounded is not None:
        return "bf16"
    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def is_rounding() -> bool:
    return _rounded is not None


def _multiplied(a: Tensor, b: Tensor) -> Tensor:
    if _rounded is None or a.dtype != torch.float32:
        return a @ b
    return (a.to(_rounded) @ b.to(_rounded)).to(a.dtype)


class _Columns(torch.autograd.Function):
    """The shifted slices of `[in, B, h, w]` as columns `[in, taps, B, out_h, out_w]`.

    Torch would differentiate each slice into a zeroed image of its own and add them up; here they are added into one.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, rows: _Axis, cols: _Axis) -> Tensor:
        x = _padded(x, rows, cols)
        return torch.stack([x[:, :, rows.slice(i), cols.slice(j)] for i in rows.taps for j in cols.taps], 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, _Axis, _Axis], output: Tensor) -> None:
        ctx.axes = inputs[1:]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        rows, cols = ctx.axes
        channels, batch = gradient.shape[0], gradient.shape[2]
        padded = gradient.new_zeros(channels, batch, rows.size + 2 * rows.padding, cols.size + 2 * cols.padding)
        taps = [(i, j) for i in rows.taps for j in cols.taps]
        for place, (i, j) in enumerate(taps):
            padded[:, :, rows.slice(i), cols.slice(j)] += gradient[:, place]
        return _inside(padded, rows, cols), None, None


class _FusedColumns(_Columns):
    """The same for the compiler, which makes one kernel of each direction.

    From a stack of 25 slices, or 25 slices added in place, it would make 25 kernels; on an H200 a step of the CNN with
    15 clients takes 0.48 ms instead of 0.53.
    """

    @staticmethod
    def forward(x: Tensor, rows: _Axis, cols: _Axis) -> Tensor:
        """Windows are views, which one copy lays out."""
        windows = (
            _padded(x, rows, cols)[:, :, rows.reach, cols.reach]
            .unfold(2, len(rows.taps), rows.stride)
            .unfold(3, len(cols.taps), cols.stride)
        )
        return windows.permute(0, 4, 5, 1, 2, 3).flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Every slice in an image of its own, and their sum: the compiler never stores the images."""
        rows, cols = ctx.axes
        taps = [(i, j) for i in rows.taps for j in cols.taps]
        images = [_image(gradient[:, place], rows, cols, i, j) for place, (i, j) in enumerate(taps)]
        return _inside(sum(images[1:], images[0]), rows, cols), None, None


def _padded(x: Tensor, rows: _Axis, cols: _Axis) -> Tensor:
    if not (rows.padding or cols.padding):
        return x
    return F.pad(x, (cols.padding, cols.padding, rows.padding, rows.padding))


def _inside(padded: Tensor, rows: _Axis, cols: _Axis) -> Tensor:
    return padded[:, :, rows.padding : rows.padding + rows.size, cols.padding : cols.padding + cols.size]


def _image(part: Tensor, rows: _Axis, cols: _Axis, i: int, j: int) -> Tensor:
    """Zeros with a slice where it came from: what torch makes of a slice's gradient, as one operation each way."""
    for dim, axis, tap in ((3, cols, j), (2, rows, i)):
        sizes = [*part.shape]
        sizes[dim] = axis.size + 2 * axis.padding
        where = axis.slice(tap)
        part = torch.ops.aten.slice_backward(part, sizes, dim, where.start, where.stop, where.step)
    return part


class _Product(torch.autograd.Function):
    """A product of two matrices, which its derivatives need."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)


class _PerClient(torch.autograd.Function):
    """A tensor that all clients share, as if each had its own; no memory is taken for it.

    Torch would make one product of the samples of all clients, whose bits depend on how many there are.
    """

    @staticmethod
    def forward(shared: Tensor, x: Tensor) -> Tensor:
        return shared.view_as(shared)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, dims: Any, shared: Tensor, x: Tensor) -> tuple[Tensor, int]:
        return (shared, dims[0]) if dims[0] is not None else (shared.expand(info.batch_size, *shared.shape), 0)


def per_client(shared: Tensor, x: Tensor) -> Tensor:
    result: Tensor = _PerClient.apply(shared, x.detach())  # type: ignore[no-untyped-call]
    return result


class _GpuProduct(_Product):
    """The product of kernels and columns, whose derivative by the kernels is computed transposed.

    cuBLAS is slow for few rows times many columns: for the first convolution of the CNN (32 × 7,840 by 75, 15 clients)
    78 µs against 28, for the stem of ResNet-18 45 against 11 (H200, TF32). With more taps than places it would only
    transpose the gradient of large kernels, which then move at 40 % of the memory's speed.
    """

    @staticmethod
    def forward(weight: Tensor, columns: Tensor) -> Tensor:
        return _multiplied(weight, columns)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        weight, columns = ctx.saved_tensors
        return (
            _multiplied(columns, gradient.mT).mT if ctx.needs_input_grad[0] else None,
            _multiplied(weight.mT, gradient) if ctx.needs_input_grad[1] else None,
        )


def _product(weight: Tensor, columns: Tensor) -> Tensor:
    if not columns.is_cuda or columns.shape[-1] <= columns.shape[-2]:
        return _multiplied(weight, columns)
    product: Tensor = _GpuProduct.apply(weight, columns)  # type: ignore[no-untyped-call]
    return product


def _has_rule(x: Tensor) -> bool:
    """Whether `fused_way` chooses: on a GPU with rounded factors, for which it was measured."""
    return _fusing and x.is_cuda and x.dtype == torch.float32 and _factors() != "fp32"


class MatmulConv2d(nn.Conv2d):
    """A convolution of `[B, in, h, w]` as shifted slices and one product, which becomes a batched product when stacked.

    On the CPU, stock convolutions of stacked clients become grouped ones, which are slow and whose bits depend on C. On
    a GPU they may be faster for some shapes, or kernels may be: see `ways.py`.
    """

    product: Way = True
    frozen = False  # whether all clients share its weight

    def forward(self, x: Tensor) -> Tensor:
        if not _fusing and self.product in (False, "stock"):
            return super().forward(x)
        assert not isinstance(self.padding, str)
        geometry = zip(x.shape[2:], self.kernel_size, self.stride, self.padding, self.dilation, strict=True)
        rows, cols = (_Axis(*axis) for axis in geometry)
        way = self._way(x, rows, cols)
        stride, weight = (rows.stride, cols.stride), per_client(self.weight, x) if self.frozen else self.weight
        if way == "grouped":
            padding, dilation = (rows.padding, cols.padding), (rows.dilation, cols.dilation)
            y = grouped.grouped_convolution(x, weight, stride, padding, dilation, self.groups, _rounded)
            return y if self.bias is None else y + self.bias[:, None, None]
        if (len(rows.taps), len(cols.taps)) != self.kernel_size:  # a slice of everything would still be differentiated
            weight = weight[:, :, rows.taps.start : rows.taps.stop, cols.taps.start : cols.taps.stop]
        if way == "kernel":
            start = (rows.start, cols.start)
            y = kernels.convolve(x.transpose(0, 1), weight, stride, start, (rows.out, cols.out), _factors())
        else:
            y = self._multiplied(x, weight, rows, cols)
        y = y if self.bias is None else y + self.bias[:, None, None, None]
        return y.transpose(0, 1)

    def _way(self, x: Tensor, rows: _Axis, cols: _Axis) -> FusedWay:
        plain = self.groups == 1 and self.dilation == (1, 1)
        taps = (len(rows.taps), len(cols.taps))
        usable = plain and kernels.usable(x, taps)
        if self.product == "kernel":
            return "kernel" if usable else "product"
        if self.product == "stock":
            return "grouped"
        if self.product == "product" or not (plain and _has_rule(x)):
            return "product"
        channels, out = (self.in_channels, self.out_channels), (rows.out, cols.out)
        stride, padding = (rows.stride, cols.stride), (rows.padding, cols.padding)
        size = ConvolutionSize(count_clients(x, self.weight), len(x), *channels, taps, stride, padding, out)
        return fused_way(size, kernels=usable)

    def _multiplied(self, x: Tensor, weight: Tensor, rows: _Axis, cols: _Axis) -> Tensor:
        # Channels first, so that stacking slices is the only copy.
        slices = _FusedColumns if _fusing and self.dilation == (1, 1) else _Columns
        columns: Tensor = slices.apply(x.transpose(0, 1), rows, cols)  # type: ignore[no-untyped-call]
        columns = columns.reshape(self.groups, weight[0].numel(), -1)
        weight = weight.reshape(self.groups, self.out_channels // self.groups, -1)
        product = _product(weight[0], columns[0]) if self.groups == 1 else _multiplied(weight, columns)
        return product.reshape(self.out_channels, len(x), rows.out, cols.out)


class _LinearProduct(_Product):
    """x·Wᵀ for `[B, in]` and `[out, in]`, never with a transposed matrix on the right.

    On ARM each product of a stack with a transposed right-hand side costs 60 µs more than one without (torch 2.13):
    for small layers that is five times the product itself.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return _multiplied(weight, x.mT.contiguous()).mT.contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        return (
            _multiplied(gradient, weight) if ctx.needs_input_grad[0] else None,
            _by_weight(gradient, x) if ctx.needs_input_grad[1] else None,
        )


def _by_weight(gradient: Tensor, x: Tensor) -> Tensor:
    """The derivative by a linear layer's weight.

    For small batches the compiler gets a sum of outer products, which it fuses with the step of the weight: the
    gradient is never stored.
    """
    if not _fusing or is_rounding() or len(x) > OUTER:
        return _multiplied(gradient.mT, x)
    outer = [gradient[sample, :, None] * x[sample, None, :] for sample in range(len(x))]
    return sum(outer[1:], outer[0])


class _BatchProduct(_Product):
    """a·b for stacks of matrices, never with a transposed matrix on the right (see `_LinearProduct`)."""

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return _multiplied(a, b)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        return (
            _multiplied(gradient, turned(b)) if ctx.needs_input_grad[0] else None,
            _multiplied(a.mT, gradient) if ctx.needs_input_grad[1] else None,
        )


def batch_product(a: Tensor, b: Tensor) -> Tensor:
    """a·b for `[…, n, k]` and `[…, k, m]`, by products that stay fast when clients are stacked."""
    y: Tensor = _BatchProduct.apply(a, b)  # type: ignore[no-untyped-call]
    return y


def turned(x: Tensor) -> Tensor:
    """The transposed matrices, on a CPU as a copy: of 320 products of 32×16 by 16×32, each takes 6 µs instead of 80."""
    return x.mT if x.is_cuda else x.mT.contiguous()


class _RowsProduct(torch.autograd.Function):
    """x·Wᵀ + b for many rows `[n, in]` and `[out, in]`: a copy of the weight costs less than one of the rows.

    With a transposed matrix on the right, ARM takes 0.3 ms more, and less for each product: 1 ms instead of 2 for
    320×128 by 128×512.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        large = len(x) * weight.numel() >= LARGE_PRODUCT
        y = _multiplied(x, weight.mT if large else turned(weight))
        return y if bias is None else y.add_(bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        return (
            _multiplied(gradient, weight) if ctx.needs_input_grad[0] else None,
            _multiplied(gradient.mT, x) if ctx.needs_input_grad[1] else None,
            gradient.sum(0) if ctx.needs_input_grad[2] else None,
        )


def rows_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x·Wᵀ + b for samples of many rows, by products that stay fast when clients are stacked."""
    y: Tensor = _RowsProduct.apply(x.reshape(-1, x.shape[-1]), weight, bias)  # type: ignore[no-untyped-call]
    return y.reshape(*x.shape[:-1], len(weight))


class MatmulLinear(nn.Linear):
    """A linear layer on matrices whose products stay fast when clients are stacked."""

    frozen = False  # whether all clients share its weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _LinearProduct.apply(x.reshape(-1, x.shape[-1]), self._weight(x))  # type: ignore[no-untyped-call]
        y = y if self.bias is None else y + self.bias
        return y.reshape(*x.shape[:-1], self.out_features)

    def _weight(self, x: Tensor) -> Tensor:
        return per_client(self.weight, x) if self.frozen else self.weight


class RowsLinear(MatmulLinear):
    """A linear layer of a model that attends: its samples are sequences of rows."""

    def forward(self, x: Tensor) -> Tensor:
        return rows_product(x, self._weight(x), self.bias)


def may_be_product(sub: nn.Module) -> bool:
    """Whether `MatmulConv2d` can replace this module."""
    return type(sub) is nn.Conv2d and sub.padding_mode == "zeros" and not isinstance(sub.padding, str)
