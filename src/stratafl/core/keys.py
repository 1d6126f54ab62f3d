"""Keyed randomness: every draw is a function of (seed, round, client, purpose), never of position or ambient state.

A counter-based integer hash in tensor operations gives the same numbers on every device, for every cohort size and in
every order (`vmap(randomness="different")` does not).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from typing import NamedTuple

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)
IDS_IN_CACHE = 2**15  # ids whose keys are computed at once, so that they stay in the processor's caches


class Seeds(NamedTuple):
    """The seed of a run, and those of its parts, which follow it unless they are set apart."""

    run: int = 0
    partition: int = 0  # which client has which samples, and which clients are evaluated
    weights: int = 0  # everything that is drawn before the first round
    batches: int = 0  # everything that is drawn in rounds: batches, cohorts, dropout …

    @property
    def parts(self) -> tuple[int, int, int]:
        """What a run depends on: two runs that share them are the same, whatever `run` is."""
        return self.partition, self.weights, self.batches

    @staticmethod
    def of(run: int, partition: int | None = None, weights: int | None = None, batches: int | None = None) -> "Seeds":
        return Seeds(run, *(run if seed is None else seed for seed in (partition, weights, batches)))


def scramble(state: Tensor) -> Tensor:
    """The finaliser of splitmix64, element by element on int64."""
    state = (state ^ _shift(state, 30)) * _FIRST
    state = (state ^ _shift(state, 27)) * _SECOND
    return state ^ _shift(state, 31)


def _shift(x: Tensor, places: int) -> Tensor:
    # Torch shifts int64 arithmetically; the mask makes the shift logical.
    return (x >> places) & ((1 << (64 - places)) - 1)


@cache
def purpose_number(purpose: str) -> int:
    """A stable 64-bit number for a purpose (`hash()` changes from one process to the next)."""
    return int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "big", signed=True)


def fold(key: Tensor, part: int | Tensor) -> Tensor:
    """A new key from a key and one more number."""
    return scramble(key * 5 + part + GOLDEN)


def keys(seed: int, t: int, ids: Tensor, purpose: str) -> Tensor:
    """One key per client: int64 of the shape of `ids`."""
    base = torch.full_like(ids, (seed + (1 << 63)) % (1 << 64) - (1 << 63))
    return fold(fold(fold(scramble(base), t), purpose_number(purpose)), ids)


def stream(key: Tensor, index: Tensor) -> Tensor:
    """The numbers at `index` of the stream that belongs to `key`: int64, uniform over all 64 bits."""
    return scramble(key + (index + 1) * GOLDEN)


def uniform(key: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers from the open interval (0, 1) at `index` of a stream; 23 random bits, which float32 holds exactly."""
    return ((stream(key, index) >> 41).to(dtype) + (1 << 22) + 0.5) / (1 << 23)


def threshold(probability: float) -> int:
    """The number below which a uniform int64 falls with the given probability."""
    return min(max(int(probability * (1 << 64)) - (1 << 63), -(1 << 63)), (1 << 63) - 1)


def shuffles(key: Tensor, counts: Tensor, width: int) -> Tensor:
    """For each key a permutation of `range(count)`, padded to `width` with the indices that are left."""
    index = torch.arange(width, device=key.device)
    draws = stream(key[:, None], index) >> 1
    draws = torch.where(index < counts[:, None], draws, torch.iinfo(torch.int64).max)
    return torch.argsort(draws, dim=1, stable=True)


def sample(seed: int, t: int, clients: int, count: int) -> Tensor:
    """`count` of `clients` ids, drawn without replacement for round t, in increasing order."""
    blocks = torch.arange(clients).split(IDS_IN_CACHE)
    drawn = torch.cat([keys(seed, t, ids, "cohort") for ids in blocks])
    chosen = (drawn <= drawn.kthvalue(count).values).nonzero()[:, 0]  # a fifth of the time of sorting
    if len(chosen) > count:  # two keys are the same
        chosen = torch.argsort(drawn, stable=True)[:count].sort().values
    return chosen


def generator(seed: int, number: int, purpose: str) -> torch.Generator:
    """A CPU generator for draws that torch itself makes, such as initial weights."""
    key = keys(seed, 0, torch.tensor([number]), purpose)
    return torch.Generator().manual_seed(_seed(int(key)))


def _seed(key: int) -> int:
    return key & ((1 << 62) - 1)


_LENT = threading.RLock()


@contextmanager
def torchs_generator(seed: int | None = None) -> Iterator[torch.Generator]:
    """torch's own CPU generator, from which stock modules draw; afterwards it is as it was.

    All threads share it. It is lent to one at a time, so runs in several threads do not draw each other's numbers.
    """
    with _LENT, torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.default_generator.manual_seed(_seed(seed))
        yield torch.default_generator
