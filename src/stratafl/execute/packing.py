"""Values as bytes and tensors: what is small is pickled, the tensors in it travel side by side in one buffer."""

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spec:
    """A tensor without its numbers."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str  # its kind: every process has its own

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Label:
    """What is said of a value before its tensors are sent."""

    body: bytes
    specs: tuple[Spec, ...]

    @property
    def size(self) -> int:
        """How many bytes its tensors take."""
        return sum(spec.size for spec in self.specs)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, Tensor):
            return None
        self.tensors.append(value)
        return len(self.tensors) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: int) -> Tensor:
        return self._tensors[number]


def pack(value: object) -> tuple[Label, list[Tensor]]:
    """A value's label and its tensors."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return Label(file.getvalue(), tuple(map(spec_of, pickler.tensors))), pickler.tensors


def unpack(label: Label, tensors: Sequence[Tensor]) -> Any:
    """The value of a label and its tensors."""
    return _Unpickler(io.BytesIO(label.body), tensors).load()


def spec_of(tensor: Tensor) -> Spec:
    """The tensor without its numbers."""
    return Spec(tuple(tensor.shape), tensor.dtype, tensor.device.type)


def to_buffer(tensors: Sequence[Tensor], size: int, device: str) -> Tensor:
    """The bytes of all tensors one after the other, and as many more as make it `size`."""
    buffer = torch.zeros(size, dtype=torch.uint8, device=device)
    start = 0
    for tensor in tensors:
        plain = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        buffer[start : start + len(plain)] = plain
        start += len(plain)
    return buffer


def from_buffer(buffer: Tensor, specs: Sequence[Spec]) -> list[Tensor]:
    """The tensors, each in memory of its own."""
    tensors, start = [], 0
    for spec in specs:
        plain = buffer[start : start + spec.size].clone()
        tensors.append(plain.view(spec.dtype).reshape(spec.shape).to(spec.device))
        start += spec.size
    return tensors
