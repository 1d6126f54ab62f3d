"""Modules as the engine runs them: the same mathematics, made fit for stacked clients and padded batches.

They are swapped in by class, so that names and tensors of the model stay as they are.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from stratafl.core import keys
from stratafl.core.reprs import short_repr
from stratafl.errors import ModelError


@short_repr
@dataclass
class Context:
    """What a step tells the modules besides their input, and what they tell the step."""

    weight: Tensor | None = None  # [B]: 1 for real samples, 0 for padding
    key: Tensor | None = None  # this client's random key in this step
    statistics: dict[str, Tensor] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)

    def clear(self) -> None:
        """Forget the step: what it told are wrappers, behind which all of its tensors are."""
        self.weight = self.key = None
        self.statistics.clear()


class MaskedBatchNorm(_BatchNorm):
    """BatchNorm whose batch statistics see the real samples only, and which returns running statistics.

    Zero padding would shift mean and variance; stock BatchNorm would write into the buffers it is given.
    """

    context: Context
    path: str

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, and leave the new running statistics in the context."""
        wide = (-1, *(1,) * (x.ndim - 2))
        if self.training or self.running_mean is None:
            mean, variance, count = self._batch_statistics(x)
            if self.training and self.running_mean is not None:
                self._remember("running_mean", mean)
                self._remember("running_var", variance * (count / (count - 1)))
        else:
            assert self.running_var is not None
            mean, variance = self.running_mean, self.running_var
        scale = torch.rsqrt(variance + self.eps)
        if self.affine:
            scale = scale * self.weight
        y = (x - mean.reshape(wide)) * scale.reshape(wide)
        return y + self.bias.reshape(wide) if self.affine else y

    def _batch_statistics(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat = x.reshape(*x.shape[:2], -1)
        positions = flat.shape[2]
        weight = self.context.weight
        if weight is not None and len(weight) != len(x):
            raise ModelError(f"'{self.path}' normalises {len(x)} rows for a batch of {len(weight)} samples")
        share = x.new_ones(len(x)) if weight is None else weight
        count = share.sum() * positions
        mean = (share[:, None] * flat.sum(2)).sum(0) / count
        squares = (flat - mean[:, None]).square().sum(2)
        return mean, (share[:, None] * squares).sum(0) / count, count

    def _remember(self, name: str, value: Tensor) -> None:
        path, momentum = f"{self.path}.{name}", self.momentum
        assert momentum is not None
        old = self.context.statistics.get(path, getattr(self, name))
        self.context.statistics[path] = (1 - momentum) * old + momentum * value.detach()


class KeyedDropout(_DropoutNd):
    """Dropout whose mask is a function of the step's key: the same on every device and for every C."""

    context: Context
    path: str
    spatial: bool

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements, or whole channels for the spatial kinds."""
        if not self.training or self.p == 0:
            return x
        assert self.context.key is not None
        shape = (*x.shape[:2], *(1,) * (x.ndim - 2)) if self.spatial else x.shape
        call = self.context.calls[self.path]
        self.context.calls[self.path] += 1
        key = keys.fold(keys.fold(self.context.key, keys.purpose_number(self.path)), call)
        index = torch.arange(torch.Size(shape).numel(), device=x.device).reshape(shape)
        if _fusing:  # the compiler would multiply the places themselves by the key's numbers, which overflow there
            index = index ^ (key ^ key)
        kept = keys.stream(key, index) >= keys.threshold(self.p)
        return x * kept / (1 - self.p) if self.p < 1 else x * 0


@dataclass(frozen=True)
class _Axis:
    """One spatial axis of a convolution: which taps of the kernel ever meet the input, and where."""

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def out(self) -> int:
        """The number of outputs."""
        return (self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    @property
    def taps(self) -> range:
        """The taps that are not in the padding at every output: on a 1×1 map a padded 3×3 kernel has one."""
        reach = self.stride * (self.out - 1)
        meets = [t for t in range(self.kernel) if self._start(t) < self.size and self._start(t) + reach >= 0]
        return range(meets[0], meets[-1] + 1) if meets else range(1)

    def _start(self, tap: int) -> int:
        return tap * self.dilation - self.padding

    @property
    def reach(self) -> slice:
        """What all taps together see of the padded input; with a dilation of 1."""
        return slice(self.taps.start, self.taps.stop + self.stride * (self.out - 1))

    def slice(self, tap: int) -> slice:
        """What a tap sees of the padded input."""
        start = tap * self.dilation
        return slice(start, start + self.stride * (self.out - 1) + 1, self.stride)


_fusing = False


@contextmanager
def fusing() -> Iterator[None]:
    """While a step is traced for the compiler, which likes other slices than those that are fast without it."""
    global _fusing
    _fusing = True
    try:
        yield
    finally:
        _fusing = False


_rounded: torch.dtype | None = None


@contextmanager
def rounding(kind: torch.dtype | None) -> Iterator[None]:
    """While factors of products are rounded to a type with fewer digits."""
    global _rounded
    before, _rounded = _rounded, kind
    try:
        yield
    finally:
        _rounded = before


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
        """Pad and stack."""
        if rows.padding or cols.padding:
            x = F.pad(x, (cols.padding, cols.padding, rows.padding, rows.padding))
        return torch.stack([x[:, :, rows.slice(i), cols.slice(j)] for i in rows.taps for j in cols.taps], 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, _Axis, _Axis], output: Tensor) -> None:
        """Keep the geometry."""
        ctx.axes = inputs[1:]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Add every slice back to where it came from."""
        rows, cols = ctx.axes
        channels, batch = gradient.shape[0], gradient.shape[2]
        padded = gradient.new_zeros(channels, batch, rows.size + 2 * rows.padding, cols.size + 2 * cols.padding)
        taps = [(i, j) for i in rows.taps for j in cols.taps]
        for place, (i, j) in enumerate(taps):
            padded[:, :, rows.slice(i), cols.slice(j)] += gradient[:, place]
        inside = padded[:, :, rows.padding : rows.padding + rows.size, cols.padding : cols.padding + cols.size]
        return inside, None, None


class _FusedColumns(torch.autograd.Function):
    """The same for the compiler, which makes one kernel of each direction.

    Of a stack of 25 slices it would make 25 kernels, of slices added in place as many; measured on an H200 with the
    CNN: 0.53 ms per step of 15 clients against 0.48.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, rows: _Axis, cols: _Axis) -> Tensor:
        """Windows are views, which one copy lays out."""
        if rows.padding or cols.padding:
            x = F.pad(x, (cols.padding, cols.padding, rows.padding, rows.padding))
        windows = (
            x[:, :, rows.reach, cols.reach]
            .unfold(2, len(rows.taps), rows.stride)
            .unfold(3, len(cols.taps), cols.stride)
        )
        return windows.permute(0, 4, 5, 1, 2, 3).flatten(1, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, _Axis, _Axis], output: Tensor) -> None:
        """Keep the geometry."""
        ctx.axes = inputs[1:]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Every slice in an image of its own, and these added up, which the compiler never lays out."""
        rows, cols = ctx.axes
        taps = [(i, j) for i in rows.taps for j in cols.taps]
        images = [_image(gradient[:, place], rows, cols, i, j) for place, (i, j) in enumerate(taps)]
        padded = sum(images[1:], images[0])
        inside = padded[:, :, rows.padding : rows.padding + rows.size, cols.padding : cols.padding + cols.size]
        return inside, None, None


def _image(part: Tensor, rows: _Axis, cols: _Axis, i: int, j: int) -> Tensor:
    """Zeros with a slice put where it came from: what torch makes of a slice's gradient, as one operation each way."""
    for dim, axis, tap in ((3, cols, j), (2, rows, i)):
        sizes = [*part.shape]
        sizes[dim] = axis.size + 2 * axis.padding
        where = axis.slice(tap)
        part = torch.ops.aten.slice_backward(part, sizes, dim, where.start, where.stop, where.step)
    return part


class _GpuProduct(torch.autograd.Function):
    """The product of kernels and columns, whose derivative by the kernels is taken the other way round.

    Few rows times many columns make slow kernels of cuBLAS: for the first convolution of the CNN, 32 × 7,840 by 75 of
    15 clients, 78 µs against 28, for the stem of ResNet-18 45 against 11 (H200, TF32). Where there are more taps than
    places it would only turn the gradient of large kernels, which then move at 40 % of the memory's speed.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, columns: Tensor) -> Tensor:
        """The product of `[out, taps]` and `[taps, places]`."""
        return _multiplied(weight, columns)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep both factors."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of the factors that need one."""
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


class MatmulConv2d(nn.Conv2d):
    """Convolution as shifted slices and one product, which stacked clients turn into one batched product.

    On the CPU stock convolutions of stacked clients become grouped ones, which are slow and whose bits depend on C. On
    a GPU they may be faster for some shapes, as long as nothing is fused.
    """

    product = True

    def forward(self, x: Tensor) -> Tensor:
        """The convolution of `[B, in, h, w]`."""
        if not (self.product or _fusing):
            return super().forward(x)
        batch = len(x)
        padding = _pair(self.padding)
        rows, cols = (
            _Axis(x.shape[2 + d], self.kernel_size[d], self.stride[d], padding[d], self.dilation[d]) for d in (0, 1)
        )
        weight = self.weight
        if (len(rows.taps), len(cols.taps)) != self.kernel_size:  # a slice of everything would still be differentiated
            weight = weight[:, :, rows.taps.start : rows.taps.stop, cols.taps.start : cols.taps.stop]
        # Channels first, so that stacking slices is the only copy.
        slices = _FusedColumns if _fusing and self.dilation == (1, 1) else _Columns
        columns: Tensor = slices.apply(x.transpose(0, 1), rows, cols)  # type: ignore[no-untyped-call]
        columns = columns.reshape(self.groups, weight[0].numel(), -1)
        weight = weight.reshape(self.groups, self.out_channels // self.groups, -1)
        product = _product(weight[0], columns[0]) if self.groups == 1 else _multiplied(weight, columns)
        y = product.reshape(self.out_channels, batch, rows.out, cols.out)
        y = y if self.bias is None else y + self.bias[:, None, None, None]
        return y.transpose(0, 1)


class _LinearProduct(torch.autograd.Function):
    """x·Wᵀ without ever multiplying by a transposed matrix on the right.

    On ARM each product of a stack with a transposed right-hand side costs 60 µs more than one without (torch 2.13):
    for small layers that is five times the product itself.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        """The product of `[B, in]` and `[out, in]`."""
        return _multiplied(weight, x.mT.contiguous()).mT.contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep both factors."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of the factors that need one."""
        x, weight = ctx.saved_tensors
        return (
            _multiplied(gradient, weight) if ctx.needs_input_grad[0] else None,
            _multiplied(gradient.mT, x) if ctx.needs_input_grad[1] else None,
        )


class MatmulLinear(nn.Linear):
    """A linear layer on matrices whose products stay fast when clients are stacked."""

    def forward(self, x: Tensor) -> Tensor:
        """x·Wᵀ + b for inputs `[…, in]`."""
        y: Tensor = _LinearProduct.apply(x.reshape(-1, x.shape[-1]), self.weight)  # type: ignore[no-untyped-call]
        y = y if self.bias is None else y + self.bias
        return y.reshape(*x.shape[:-1], self.out_features)


def _pair(padding: str | tuple[int, ...]) -> tuple[int, int]:
    assert not isinstance(padding, str)
    return padding[0], padding[1]


_DROPOUTS = {nn.Dropout: False, nn.Dropout1d: True, nn.Dropout2d: True, nn.Dropout3d: True}
_BATCHNORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def prepare(
    module: nn.Module, context: Context, *, stacked: bool, device: torch.device, rounded: bool = False
) -> nn.Module:
    """Swap modules in place for the ones above; without stacking, BatchNorm, convolutions and products stay stock.

    Only torch's own classes are swapped: a subclass may have a forward of its own.
    """
    for path, sub in module.named_modules():
        kind = type(sub)
        if kind in _DROPOUTS:
            _swap(sub, KeyedDropout, context, path)
            sub.spatial = _DROPOUTS[kind]
        elif stacked and kind in _BATCHNORMS:
            _swap(sub, MaskedBatchNorm, context, path)
        elif stacked and isinstance(sub, _BatchNorm):
            raise ModelError(f"'{path}' is a {kind.__name__}, of which only torch's own kinds know about padding")
        elif stacked and may_be_product(sub):
            sub.__class__ = MatmulConv2d
        elif stacked and (rounded or device.type == "cpu") and kind is nn.Linear:
            sub.__class__ = MatmulLinear
    return module


def _swap(sub: nn.Module, cls: type[nn.Module], context: Context, path: str) -> None:
    sub.__class__ = cls
    sub.context, sub.path = context, path  # type: ignore[assignment]


def may_be_product(sub: nn.Module) -> bool:
    """Whether this is a convolution that `MatmulConv2d` can take the place of."""
    return type(sub) is nn.Conv2d and sub.padding_mode == "zeros" and not isinstance(sub.padding, str)
