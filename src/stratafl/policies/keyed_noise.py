"""Noise for differential privacy: numbers that follow from a secret, a round and a name; drawn again, the same bits.

The hash of `core/keys.py` would do for a simulation. But anyone who knows all uploads but one could check a guess of
that one against it, because 64 bits of it give away the rest. SHAKE-256 is a secure stream if its key is secret. It
runs on the CPU, so that all ranks and devices draw the same numbers.
"""

from collections.abc import Callable
from decimal import Decimal, localcontext
from hashlib import blake2b, shake_256

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stratafl.core.reduce import pieces
from stratafl.core.round import Setup

NOISE_PIECE = 2**18  # numbers of one stream; another size is other noise
DEVIATION_BITS = 24  # a discrete Gaussian has the deviation 2^24, so that all it is drawn from are whole numbers
DRAW_ERROR = 2.0**-110  # the statistical distance of a number from an exact discrete Gaussian, at most
Words = NDArray[np.uint64]
Draw = Callable[[int], Words]  # the next words of a stream


def noise_key(setup: Setup) -> bytes:
    """The secret of a server or a site; in a simulation it follows from the seed, which is public."""
    if setup.secret is not None:
        return setup.secret
    return blake2b(str(setup.seeds.batches).encode(), digest_size=32, person=b"stratafl noise").digest()


def client_key(setup: Setup, client: int, *content: Tensor) -> bytes:
    """The key of a client's noise in a simulation, or of what a site adds to this content.

    A site never adds the same noise to two contents, whatever it is asked for: their difference would have none.
    """
    key = blake2b(key=noise_key(setup), digest_size=32, person=b"stratafl client")
    key.update(client.to_bytes(8, "big"))
    for x in content if setup.secret is not None else ():
        key.update(x.detach().cpu().contiguous().numpy().tobytes())
    return key.digest()


def _place(t: int, name: str, number: int) -> bytes:
    return t.to_bytes(8, "big") + number.to_bytes(8, "big") + name.encode()


# Numbers of N(0, 1)


def gaussian(key: bytes, t: int, name: str, count: int) -> Tensor:
    """`count` independent numbers of N(0, 1) in float64."""
    drawn = np.empty(count)
    for number, some in enumerate(pieces(count, NOISE_PIECE)):
        data = shake_256(key + _place(t, name, number)).digest(16 * ((len(drawn[some]) + 1) // 2))
        drawn[some] = _normal(data, len(drawn[some]))
    return torch.from_numpy(drawn)


def _normal(data: bytes, count: int) -> NDArray[np.float64]:
    """Box and Muller: two numbers from two uniform ones of 53 bits, none of which is 0."""
    first, second = ((np.frombuffer(data, "<u8").reshape(2, -1) >> 11) + 0.5) * 2.0**-53
    length, angle = np.sqrt(-2 * np.log(first)), 2 * np.pi * second
    both = np.concatenate([length * np.cos(angle), length * np.sin(angle)])
    return np.asarray(both[:count], dtype=np.float64)


# Whole numbers, by Canonne, Kamath and Steinke (2020): their algorithms 1 to 3, with t = σ = 2^bits. No number in
# floating point takes part, so that no last bit tells what the noise was added to.


def discrete_gaussian(key: bytes, t: int, name: str, count: int, bits: int = DEVIATION_BITS) -> Tensor:
    """`count` independent whole numbers n with P(n) ∝ exp(−n²/2σ²), where σ is 2^bits; int64."""
    drawn = np.empty(count, dtype=np.int64)
    for number, some in enumerate(pieces(count, NOISE_PIECE)):
        drawn[some] = _discrete(_stream(key + _place(t, name, number)), len(drawn[some]), bits)
    return torch.from_numpy(drawn)


def _stream(seed: bytes) -> Draw:
    """Words of 64 bits; every request is a stream of its own."""
    requests = 0

    def draw(count: int) -> Words:
        nonlocal requests
        requests += 1
        data = shake_256(seed + b"/" + requests.to_bytes(8, "big")).digest(8 * count)
        return np.frombuffer(data, "<u8").astype(np.uint64)

    return draw


def _discrete(draw: Draw, count: int, bits: int) -> NDArray[np.int64]:
    drawn, missing, left = np.empty(count, dtype=np.int64), np.arange(count), np.ones(count, dtype=bool)
    while len(missing):
        place, y = _laplace(draw, missing, bits)
        distance = np.abs(np.abs(y) - (1 << bits))
        square = distance * distance  # γ = (|y| − σ)²/2σ², of which this is the numerator
        whole, rest = square >> (2 * bits + 1), square & ((1 << (2 * bits + 1)) - 1)
        accepted = _exp_minus(draw, rest.astype(np.uint64) << np.uint64(63 - 2 * bits))
        accepted &= _successes(draw, len(y)) >= whole  # each has the probability exp(−1)
        drawn[place[accepted]], left[place[accepted]] = y[accepted], False
        missing = missing[left[missing]]
    return drawn


def _laplace(draw: Draw, missing: NDArray[np.int64], bits: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For some of the missing numbers a whole y with P(y) ∝ exp(−|y|/2^bits)."""
    word = draw(len(missing))
    sign, low = (word & np.uint64(1)).astype(bool), (word >> np.uint64(1)) & np.uint64((1 << bits) - 1)
    valid = _exp_minus(draw, low << np.uint64(64 - bits) if bits else low)
    sign, place = sign[valid], missing[valid]
    y = low[valid].astype(np.int64) + (_successes(draw, len(place)) << bits)
    once = ~(sign & (y == 0))
    return place[once], np.where(sign, -y, y)[once]


def _exp_minus(draw: Draw, gamma: Words) -> NDArray[np.bool_]:
    """True with the probability exp(−γ), γ in units of 2^-64: the first failure of Bernoulli(γ/k) has an odd k."""
    outcome, alive, k = np.ones(len(gamma), dtype=bool), np.arange(len(gamma)), 1
    while len(alive):
        word, limit = draw(len(alive)), gamma // np.uint64(k)
        success = word < limit
        for place in (word == limit).nonzero()[0]:  # one of 2^64: the next word decides
            success[place] = int(draw(1)[0]) * k < int(gamma[place] % np.uint64(k)) << 64
        alive, gamma, k = alive[success], gamma[success], k + 1
        outcome[alive] = k % 2 == 1
    return outcome


def _powers() -> list[int]:
    """exp(−j) for j from 1, in units of 2^-128."""
    with localcontext(prec=60):
        return [int(Decimal(-j).exp() * 2**128) for j in range(1, 89)]


_POWERS = _powers()
_FIRST_WORDS = np.array([power >> 64 for power in reversed(_POWERS)], dtype=np.uint64)


def _successes(draw: Draw, count: int) -> NDArray[np.int64]:
    """How often in succession an event of the probability exp(−1) happens: j times or more with exp(−j)."""
    word = draw(count)
    at_most = np.searchsorted(_FIRST_WORDS, word, side="right")
    times = len(_FIRST_WORDS) - at_most
    for place in (_FIRST_WORDS[np.maximum(at_most, 1) - 1] == word).nonzero()[0]:
        number = int(word[place]) << 64 | int(draw(1)[0])
        times[place] = sum(power > number for power in _POWERS)
    return times
