"""Modules as the engine runs them: the same mathematics for stacked clients and padded batches.

Only the class of a module is swapped, so that the names and tensors of the model stay as they are.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from stratafl.core.keys import torchs_generator
from stratafl.errors import ModelError
from stratafl.models import shared_copy
from stratafl.runtime.attention import (
    KeyableCalls,
    KeyedAttention,
    may_be_keyed,
    teach_transformers,
)
from stratafl.runtime.draws import Context, drop, drop_channels
from stratafl.runtime.products import MatmulConv2d, MatmulLinear, RowsLinear, is_fusing, may_be_product


class MaskedBatchNorm(_BatchNorm):
    """BatchNorm whose batch statistics see real samples only, and which leaves running statistics in the context.

    Zero padding would shift mean and variance; stock BatchNorm would write into its buffers.
    """

    context: Context
    path: str

    def forward(self, x: Tensor) -> Tensor:
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
        if is_fusing():
            return *self._fused_moments(flat, share[:, None, None] / count), count
        mean = (share[:, None] * flat.sum(2)).sum(0) / count
        squares = (flat - mean[:, None]).square().sum(2)
        return mean, (share[:, None] * squares).sum(0) / count, count

    def _fused_moments(self, x: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance in one pass for the compiler, which would make five kernels of the sums above.

        A number of the batch is close to the mean, so that little is lost when squares are subtracted.
        """
        near = x[0, :, 0].detach()
        away = x - near[:, None]
        first, second = (share * away).sum((0, 2)), (share * away * away).sum((0, 2))
        return near + first, (second - first * first).clamp(min=0)

    def _remember(self, name: str, value: Tensor) -> None:
        path, momentum = f"{self.path}.{name}", self.momentum
        assert momentum is not None
        old = self.context.statistics.get(path, getattr(self, name))
        self.context.statistics[path] = (1 - momentum) * old + momentum * value.detach()


class KeyedDropout(_DropoutNd):
    """Dropout whose mask is a function of the step's key: the same on every device and for every C."""

    context: Context
    path: str
    axes: int  # of a sample after its channels; 0 where every number is drawn for itself

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        draws = (x, self.p, self.context, self.path)
        y = drop_channels(*draws, self.axes) if self.axes else drop(*draws)
        return x.copy_(y) if self.inplace else y


_DROPOUTS = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}
_BATCHNORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def draws_by_functions(module: nn.Module, sample: Tensor) -> bool:
    """Whether a module attends, or drops by functions and not by torch's own dropout modules, when it trains."""
    if any(may_be_keyed(sub) for sub in module.modules()):
        return True
    trial = shared_copy(module).to(sample.device).train()
    for sub in trial.modules():
        if type(sub) in _DROPOUTS:
            sub.__class__ = nn.Identity
    try:
        with torch.no_grad(), torchs_generator(), KeyableCalls() as calls:
            trial(sample.clone())
    except Exception:  # a user's module may fail in any way, which is explained where it trains
        return False
    return bool(calls.count)


def prepare(
    module: nn.Module, context: Context, *, stacked: bool, device: torch.device, rounded: bool = False
) -> nn.Module:
    """Swap modules in place; without stacking, BatchNorm, convolutions and linear layers stay stock.

    Only torch's own classes are swapped, because a subclass may have a forward of its own.
    """
    teach_transformers()
    for path, sub in module.named_modules():
        kind = type(sub)
        if kind in _DROPOUTS:
            _swap(sub, KeyedDropout, context, path)
            sub.axes = _DROPOUTS[kind]
        elif may_be_keyed(sub):
            _swap(sub, KeyedAttention, context, path)
        elif stacked and kind in _BATCHNORMS:
            _swap(sub, MaskedBatchNorm, context, path)
        elif stacked and isinstance(sub, _BatchNorm):
            raise ModelError(
                f"'{path}' is a {kind.__name__}, which does not support padding: use torch's own BatchNorm"
            )
        elif stacked and may_be_product(sub):
            sub.__class__ = MatmulConv2d
        elif stacked and (rounded or device.type == "cpu") and kind is nn.Linear:
            sub.__class__ = RowsLinear if context.packed else MatmulLinear
    return module


def _swap(sub: nn.Module, cls: type[nn.Module], context: Context, path: str) -> None:
    sub.__class__ = cls
    sub.context, sub.path = context, path  # type: ignore[assignment]
