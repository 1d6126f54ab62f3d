"""The tensors of a saved state: their names, types and shapes, which stay the same from round to round."""

import zlib
from dataclasses import dataclass

import numpy as np
import torch

from stratafl.core.layout import Rows
from stratafl.core.state import State, bytes_of, flatten, unflatten
from stratafl.errors import RunError


@dataclass(frozen=True)
class StatePart:
    """One tensor of a client's state."""

    path: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    bytes: int


class StateFormat:
    """How a client's state is laid out as bytes: its tensors end to end."""

    def __init__(self, state: State) -> None:
        self.parts = tuple(
            StatePart(path, x.dtype, tuple(x.shape), x.numel() * x.element_size()) for path, x in flatten(state).items()
        )
        self.size = sum(part.bytes for part in self.parts)
        # Files have these checksums: the text must stay as it is, whatever the class is called.
        parts = ", ".join(repr(part).replace("StatePart(", "Part(", 1) for part in self.parts)
        self._sum = zlib.crc32(f"({parts}{',' * (len(self.parts) == 1)})".encode())

    def sum(self, data: bytes) -> int:
        """A checksum that also depends on the layout."""
        return zlib.crc32(data, self._sum)

    def encode(self, state: State) -> bytes:
        flat = flatten(state)
        layout = tuple((path, x.dtype, tuple(x.shape)) for path, x in flat.items())
        if layout != tuple((part.path, part.dtype, part.shape) for part in self.parts):
            raise RunError("a client's state changed its shape, but states on disk cannot: use run.store=ram")
        return b"".join(bytes_of(x).numpy().tobytes() for x in flat.values())

    def decode(self, data: bytes) -> State:
        """The state, each tensor in memory of its own."""
        flat: Rows = {}
        start = 0
        for part in self.parts:
            whole = torch.empty(part.bytes, dtype=torch.uint8)
            whole.numpy()[:] = np.frombuffer(data, np.uint8, part.bytes, start)
            flat[part.path] = whole.view(part.dtype).reshape(part.shape)
            start += part.bytes
        return unflatten(flat)
