"""Scaling: images are kept as bytes or 16 bits, and become numbers only when a batch is read."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from stratafl.errors import DataError

PIXELS = {torch.uint8: 255, torch.uint16: 65535}  # what can be scaled, and its largest value


def dtype_name(kind: torch.dtype | Tensor) -> str:
    return str(kind.dtype if isinstance(kind, Tensor) else kind).removeprefix("torch.")


@dataclass(frozen=True)
class Scaling:
    """(pixel / maximum − mean) / deviation, with one number for all channels or one for each.

    `maximum` is that of the pixels' type: 255, or 65535 for 16 bits.
    """

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)
    maximum: int = field(default=255, repr=False)  # follows from the samples' type; older checksums do not have it

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.deviation) or not self.mean or min(self.deviation) <= 0:
            wrong = f"mean={self.mean} and deviation={self.deviation}"
            raise DataError(f"{wrong} do not fit: give as many positive deviations as means")
        if self.maximum not in PIXELS.values():
            raise DataError(f"maximum={self.maximum} was given: choose {' or '.join(map(str, PIXELS.values()))}")

    def check(self, x: Tensor) -> None:
        if PIXELS.get(x.dtype) != self.maximum:
            kind = "bytes" if self.maximum == 255 else "16-bit pixels"
            raise DataError(f"the samples are {dtype_name(x)}, but this scaling is for {kind}")
        if len(self.mean) > 1 and (x.ndim < 2 or x.shape[1] != len(self.mean)):
            shape = tuple(x.shape[1:])
            raise DataError(f"there are {len(self.mean)} means for samples of shape {shape}: give one per channel")

    def tensors(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Factor and shift of a pixel, shaped for a batch of samples such as `x`."""
        wide = (-1, *(1,) * (x.ndim - 2)) if len(self.mean) > 1 else ()
        mean, deviation = (torch.tensor(v, dtype=torch.float64).reshape(wide) for v in (self.mean, self.deviation))
        pair = (1 / (self.maximum * deviation), -mean / deviation)
        return tuple(t.to(x.device, dtype) for t in pair)  # type: ignore[return-value]


def samples_at(x: Tensor, places: Tensor) -> Tensor:
    """The samples at these places; torch cannot index unsigned 16 bits on a GPU, so they are viewed as signed."""
    if x.dtype == torch.uint16:
        return x.view(torch.int16)[places].view(torch.uint16)
    return x[places]


def numbers(x: Tensor, dtype: torch.dtype, scale: tuple[Tensor, ...] = ()) -> Tensor:
    """Samples as a model takes them: floats and pixels as `dtype`, pixels scaled; tokens unchanged."""
    if not x.is_floating_point() and x.dtype not in PIXELS:
        return x
    x = x.to(dtype)
    return x * scale[0] + scale[1] if scale else x
