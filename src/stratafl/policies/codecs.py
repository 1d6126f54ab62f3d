"""Codecs: numbers as fewer bytes, and back. A codec sees one tensor of each client, flat: `[C, n]`.

What it gives is what travels, so that its bytes are those that are counted. Whatever arrives is decoded without an
error, because one client's numbers must not stop the others': a client that sent what no client can mean is named.
"""

from collections.abc import Callable, Mapping
from math import ceil
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from stratafl.core.annotations import Range
from stratafl.core.form import Bound
from stratafl.core.records import record
from stratafl.core.reprs import short_repr

Rounding = Literal["nearest", "stochastic"]
Share = Annotated[float, Range(above=0, most=1)]
Draws = Callable[[], Tensor]  # `[C, n]` from (0, 1); a client's draws do not depend on the others
Parts = Mapping[str, Tensor]  # what travels of one tensor, by part: `[C, …]`
INDEX = torch.int32


@short_repr
class Decoded(NamedTuple):
    """Numbers `[C, n]`, and which clients sent invalid bytes: `[C]` booleans by reason."""

    x: Tensor
    wrong: Mapping[str, Tensor]


@record
class Quantise:
    """x ≈ scale·q with whole numbers |q| ≤ 2^(bits − 1) − 1, and scale = max|x| / (2^(bits − 1) − 1) of each tensor.

    Symmetric, so that 0 is sent as 0: what did not change stays as it is. `stochastic` rounds up with the probability
    of the fraction, so that the mean of the sent numbers is x. With 32 bits numbers travel unchanged.
    """

    bits: Literal[4, 8, 32] = 8
    rounding: Rounding = "nearest"
    bounds: ClassVar[Mapping[str, Bound]] = {"scale": "nonnegative"}
    sparse: ClassVar[bool] = False

    @property
    def level(self) -> int:
        return int(2 ** (self.bits - 1) - 1)

    @property
    def parts(self) -> Mapping[str, int]:
        """What travels, and how many values each number of it stands for."""
        return {"values": 1} if self.bits == 32 else {"codes": 8 // self.bits, "scale": 0}

    def encode(self, x: Tensor, draws: Draws) -> Parts:
        if self.bits == 32:
            return {"values": x}
        scale = x.abs().amax(1) / self.level
        over = x / scale[:, None]  # NaN where all numbers are 0
        whole = over.round() if self.rounding == "nearest" else (over + draws()).floor()
        codes = whole.nan_to_num(0).clamp(-self.level, self.level) + self.level
        return {"codes": _packed(codes.to(torch.uint8), self.bits), "scale": scale}

    def decode(self, parts: Parts, n: int) -> Decoded:
        if self.bits == 32:
            return Decoded(parts["values"], {})
        codes, scale = _unpacked(parts["codes"], self.bits), parts["scale"]
        wrong = (codes[:, :n] > 2 * self.level).any(1) | (codes[:, n:] > 0).any(1)
        x = (codes[:, :n].to(scale.dtype) - self.level) * scale[:, None]
        return Decoded(x, {f"an invalid code of {self.bits} bits": wrong})


@record
class TopK:
    """The ⌈keep·n⌉ numbers of each tensor that are furthest from 0, of equals the first; all others count as 0.

    Where they are is sent as a bit for each of the n numbers, or as indices, whichever takes fewer bytes.
    """

    keep: Share = 0.1
    bounds: ClassVar[Mapping[str, Bound]] = {}
    sparse: ClassVar[bool] = True

    @property
    def parts(self) -> Mapping[str, int]:
        return {"places": 0, "values": 1}

    def count(self, n: int) -> int:
        return max(1, ceil(round(self.keep * n, 6)))  # 0.3 of ten are three

    def as_bits(self, n: int) -> bool:
        return (n + 7) // 8 <= self.count(n) * INDEX.itemsize

    def encode(self, x: Tensor, draws: Draws) -> Parts:
        clients, n = x.shape
        chosen = _largest(x.abs().nan_to_num(torch.inf, posinf=torch.inf), self.count(n))
        index = chosen.nonzero()[:, 1].reshape(clients, -1)
        places = _packed(_padded(chosen.to(torch.uint8), 8), 1) if self.as_bits(n) else index.to(INDEX)
        return {"places": places, "values": x.gather(1, index)}

    def decode(self, parts: Parts, n: int) -> Decoded:
        places, values = parts["places"], parts["values"]
        if self.as_bits(n):
            return _at_bits(_unpacked(places, 1), values, n)
        index = places.long()
        outside = ((index < 0) | (index >= n)).any(1)
        unordered = (index.diff(dim=1) <= 0).any(1)
        x = values.new_zeros(len(values), n).scatter(1, index.clamp(0, n - 1), values)
        return Decoded(x, {"an index outside its tensor": outside, "a repeated or unordered index": unordered})


Codec = Quantise | TopK


def _largest(size: Tensor, count: int) -> Tensor:
    """Booleans: the `count` largest of each row, of equals the first; a sort would take longer."""
    least = size.topk(count, dim=1, sorted=True).values[:, -1:]
    above, equal = size > least, size == least
    return above | (equal & (equal.cumsum(1) <= count - above.sum(1, keepdim=True)))


def _at_bits(bits: Tensor, values: Tensor, n: int) -> Decoded:
    chosen, count = bits[:, :n] > 0, values.shape[1]
    wrong = (chosen.sum(1) != count) | (bits[:, n:] > 0).any(1)
    nth = (chosen.cumsum(1) - 1).clamp(0, count - 1)
    x = torch.where(chosen, values.gather(1, nth), 0)
    return Decoded(x, {"more or fewer places than values": wrong})


# Several small numbers in a byte, the first in the highest bits


def _padded(x: Tensor, to: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, -x.shape[1] % to))


def _packed(x: Tensor, bits: int) -> Tensor:
    per_byte = 8 // bits
    if per_byte == 1:
        return x
    groups = _padded(x, per_byte).reshape(len(x), -1, per_byte)
    return sum((groups[..., i] << (8 - bits * (i + 1)) for i in range(1, per_byte)), groups[..., 0] << (8 - bits))


def _unpacked(x: Tensor, bits: int) -> Tensor:
    per_byte = 8 // bits
    if per_byte == 1:
        return x
    some = [(x >> (8 - bits * (i + 1))) & (2**bits - 1) for i in range(per_byte)]
    return torch.stack(some, 2).reshape(len(x), -1)
