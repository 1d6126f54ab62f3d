"""Values as they travel between processes: JSON of known types, and one buffer with all tensors.

What arrives can only become None, numbers, text, lists, tuples, dictionaries, tensors, dtypes, and the records declared
with `sendable`: nothing else is created from received data.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from stratafl.core.state import bytes_of
from stratafl.errors import WireError

_KINDS: dict[str, type[Any]] = {}


def sendable(*kinds: type[Any]) -> None:
    """Declare dataclasses that may be sent."""
    _KINDS.update({kind.__name__: kind for kind in kinds})


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str  # its type, such as cuda: every process has a device of its own

    @staticmethod
    def of(tensor: Tensor) -> "TensorSpec":
        return TensorSpec(tuple(tensor.shape), tensor.dtype, tensor.device.type)

    @property
    def size(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Label:
    """A value without its tensors, sent before them."""

    body: str
    specs: tuple[TensorSpec, ...]

    @property
    def size(self) -> int:
        return sum(spec.size for spec in self.specs)


sendable(TensorSpec, Label)


def words(value: object) -> str:
    label, tensors = pack(value)
    if tensors:
        raise WireError("this value holds tensors: send it with pack")
    return label.body


def pack(value: object) -> tuple[Label, list[Tensor]]:
    tensors: list[Tensor] = []

    def plain(value: Any) -> Any:
        if value is None or isinstance(value, str | bool | int | float):
            return value
        if isinstance(value, list):
            return [plain(each) for each in value]
        if isinstance(value, tuple):
            return {"tuple": [plain(each) for each in value]}
        if isinstance(value, dict):
            return {"dict": [[plain(key), plain(each)] for key, each in value.items()]}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, Tensor):
            tensors.append(value)
            return {"tensor": len(tensors) - 1}
        if type(value) in _KINDS.values():
            fields = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return {"record": type(value).__name__, "fields": fields}
        raise WireError(f"a {type(value).__name__} cannot be sent to other processes")

    body = json.dumps(plain(value))
    return Label(body, tuple(map(TensorSpec.of, tensors))), tensors


def value_of(text: str, tensors: Sequence[Tensor] = ()) -> Any:
    def made(value: Any) -> Any:
        if isinstance(value, list):
            return [made(each) for each in value]
        if not isinstance(value, dict):
            return value
        if "tuple" in value:
            return tuple(made(each) for each in value["tuple"])
        if "dict" in value:
            return {made(key): made(each) for key, each in value["dict"]}
        if "dtype" in value:
            dtype = getattr(torch, value["dtype"], None)
            if not isinstance(dtype, torch.dtype):
                raise WireError(f"unknown type '{value['dtype']}' of a tensor from another process")
            return dtype
        if "tensor" in value:
            return tensors[value["tensor"]]
        if value.get("record") not in _KINDS:
            raise WireError(f"unknown record '{value.get('record')}' from another process")
        return _KINDS[value["record"]](**{name: made(each) for name, each in value["fields"].items()})

    return made(json.loads(text))


def to_buffer(tensors: Sequence[Tensor], size: int, device: str) -> Tensor:
    """The bytes of all tensors one after the other, padded to `size`."""
    buffer = torch.zeros(size, dtype=torch.uint8, device=device)
    start = 0
    for tensor in tensors:
        plain = bytes_of(tensor)
        buffer[start : start + len(plain)] = plain
        start += len(plain)
    return buffer


def from_buffer(buffer: Tensor, specs: Sequence[TensorSpec]) -> list[Tensor]:
    """The tensors, each in memory of its own."""
    tensors, start = [], 0
    for spec in specs:
        plain = buffer[start : start + spec.size].clone()
        tensors.append(plain.view(spec.dtype).reshape(spec.shape).to(spec.device))
        start += spec.size
    return tensors
