"""Bytes as numbers: images stay bytes wherever they are kept, and become numbers when a batch is read."""

from dataclasses import dataclass

import torch
from torch import Tensor

from stratafl.errors import DataError


@dataclass(frozen=True)
class Scaling:
    """(byte / 255 − mean) / deviation, with one number for all channels or one for each."""

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.deviation) or not self.mean or min(self.deviation) <= 0:
            raise DataError(f"a scaling has as many means as positive deviations, not {self.mean}, {self.deviation}")

    def check(self, x: Tensor) -> None:
        """Refuse samples that it does not fit."""
        if x.dtype != torch.uint8:
            raise DataError(f"only bytes are scaled when they are read, not {str(x.dtype).removeprefix('torch.')}")
        if len(self.mean) > 1 and (x.ndim < 2 or x.shape[1] != len(self.mean)):
            raise DataError(f"there are {len(self.mean)} means for samples of shape {tuple(x.shape[1:])}")

    def tensors(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Factor and shift of a byte, as they meet a batch of samples such as `x`."""
        wide = (-1, *(1,) * (x.ndim - 2)) if len(self.mean) > 1 else ()
        mean, deviation = (torch.tensor(v, dtype=torch.float64).reshape(wide) for v in (self.mean, self.deviation))
        return tuple(t.to(x.device, dtype) for t in (1 / (255 * deviation), -mean / deviation))  # type: ignore[return-value]


def numbers(x: Tensor, dtype: torch.dtype, scale: tuple[Tensor, ...] = ()) -> Tensor:
    """Samples as a model takes them: floats and bytes in its type, bytes scaled; tokens as they are."""
    if not x.is_floating_point() and x.dtype != torch.uint8:
        return x
    x = x.to(dtype)
    return x * scale[0] + scale[1] if scale else x
