"""Gaussian noise that follows from a key, a round and the name of a tensor: drawn again, it has the same bits.

The hash of `core/keys.py` would do for a simulation. But whoever knows all uploads but one could check a guess of that
one against it, since 64 bits of it give away the rest. So the numbers are those of SHAKE-256, which is a secure stream
if the key is secret, on the CPU, so that all ranks and devices have the same.
"""

from hashlib import blake2b, shake_256

import numpy as np
import torch
from torch import Tensor

from stratafl.core.reduce import pieces
from stratafl.core.round import Setup

PIECE = 2**18  # numbers of one stream; another size is other noise


def noise_key(setup: Setup) -> bytes:
    """The server's secret; in a simulation, where everybody may know it, it follows from the seed."""
    if setup.secret is not None:
        return setup.secret
    return blake2b(str(setup.seeds.batches).encode(), digest_size=32, person=b"stratafl noise").digest()


def gaussian(key: bytes, t: int, name: str, count: int) -> Tensor:
    """So many independent numbers of N(0, 1) in float64."""
    drawn = np.empty(count)
    for number, some in enumerate(pieces(count, PIECE)):
        place = t.to_bytes(8, "big") + number.to_bytes(8, "big") + name.encode()
        drawn[some] = _normal(shake_256(key + place).digest(16 * ((len(drawn[some]) + 1) // 2)), len(drawn[some]))
    return torch.from_numpy(drawn)


def _normal(data: bytes, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Box and Muller: two numbers from two uniform ones of 53 bits, none of which is 0."""
    first, second = ((np.frombuffer(data, "<u8").reshape(2, -1) >> 11) + 0.5) * 2.0**-53
    length, angle = np.sqrt(-2 * np.log(first)), 2 * np.pi * second
    both = np.concatenate([length * np.cos(angle), length * np.sin(angle)])
    return np.asarray(both[:count], dtype=np.float64)
