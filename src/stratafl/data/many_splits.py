"""Splitting many clients at once, as `Splitter` splits each of them alone: the same samples, bit for bit.

Each client's split is drawn from a generator of its own. To make a generator, permute and count takes 0.2 ms for each
client, which is minutes for a million of them. Here the generators of all clients are rows of arrays: numpy's
`SeedSequence`, its PCG64 and its shuffle, step by step. `Splitter` compares one client with numpy's own generator, and
splits one by one if they differ, as they would after a change of numpy.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stratafl.core.reprs import short_repr

Numbers = NDArray[np.int64]
Words = NDArray[np.uint64]

_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_POOL, _WORDS = 4, 8  # 32-bit numbers in the pool of a SeedSequence, and of what it gives a PCG64
_INIT_A, _MULT_A, _INIT_B, _MULT_B = 0x43B0D7E5, 0x931E8875, 0x8B51F9DD, 0x58F38DED
_MIX_LEFT, _MIX_RIGHT = 0xCA01F9DD, np.uint32(0x4973F715)
CLIENTS_IN_CACHE = 2**14  # clients that are split at once: arrays of all of them would leave the processor's caches
_MULTIPLIER = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)  # of PCG64: upper and lower half


def seed_words(seed: int, clients: Numbers) -> Words:
    """`[4, N]`: `SeedSequence(seed, spawn_key=(client,)).generate_state(4, np.uint64)` of each client."""
    seeded = max(_POOL, -(-seed.bit_length() // 32))  # the words of the seed come first, then that of the client
    const = _INIT_A * pow(_MULT_A, _POOL**2 + _POOL * (seeded - _POOL), 2**32) % 2**32
    pool, spawned = [], clients.astype(np.uint32)
    for before in np.random.SeedSequence(seed).pool:
        after, const = _hashed(spawned, const, _MULT_A)
        mixed = np.uint32(_MIX_LEFT * int(before) % 2**32) - _MIX_RIGHT * after
        pool.append(mixed ^ (mixed >> np.uint32(16)))
    const, words = _INIT_B, []
    for place in range(_WORDS):
        word, const = _hashed(pool[place % _POOL], const, _MULT_B)
        words.append(word.astype(np.uint64))
    return np.stack([low | (high << _HALF) for low, high in zip(words[::2], words[1::2], strict=True)])


def _hashed(values: NDArray[np.uint32], const: int, multiplier: int) -> tuple[NDArray[np.uint32], int]:
    after = const * multiplier % 2**32
    mixed = (values ^ np.uint32(const)) * np.uint32(after)
    return mixed ^ (mixed >> np.uint32(16)), after


class Generators:
    """One PCG64 for each client."""

    def __init__(self, seed: int, clients: Numbers) -> None:
        high, low, stream_high, stream_low = seed_words(seed, clients)
        last_bit = np.uint64(1)
        self._step = (stream_high << last_bit) | (stream_low >> np.uint64(63)), (stream_low << last_bit) | last_bit
        self._high, self._low = _sum(*self._step, high, low)  # the first step is from 0
        self._advance(slice(None))
        self._upper = np.zeros(len(clients), np.uint64)  # half of the last draw …
        self._is_kept = np.zeros(len(clients), np.bool_)  # … if it was not used yet

    def _advance(self, rows: Numbers | slice) -> None:
        high, low = self._high[rows], self._low[rows]
        upper, lower = _MULTIPLIER
        a, b, c, d = low >> _HALF, low & _LOW, lower >> _HALF, lower & _LOW
        middle = a * d + (b * d >> _HALF)
        carried = (middle & _LOW) + b * c
        product = a * c + (middle >> _HALF) + (carried >> _HALF) + low * upper + high * lower
        self._high[rows], self._low[rows] = _sum(product, low * lower, self._step[0][rows], self._step[1][rows])

    def _drawn(self, rows: Numbers) -> Words:
        """32 bits for each of these clients: the lower half of a draw, and then its upper half."""
        halves, fresh = self._upper[rows], ~self._is_kept[rows]
        new = rows[fresh]
        if len(new):
            self._advance(new)
            high, low = self._high[new], self._low[new]
            turn, folded = high >> np.uint64(58), high ^ low
            whole = (folded >> turn) | (folded << ((np.uint64(64) - turn) & np.uint64(63)))
            halves[fresh], self._upper[new] = whole & _LOW, whole >> _HALF
        self._is_kept[rows] ^= True
        return halves

    def up_to(self, rows: Numbers, limits: Numbers) -> Numbers:
        """A whole number from 0 to its limit for each of these clients: as many bits as it takes, until they fit."""
        limit = limits.astype(np.uint64)
        mask = limit.copy()
        for places in (1, 2, 4, 8, 16):
            mask |= mask >> np.uint64(places)
        values = self._drawn(rows) & mask
        while len(left := np.flatnonzero(values > limit)):
            values[left] = self._drawn(rows[left]) & mask[left]
        return values.astype(np.int64)

    def shuffle(self, flat: Numbers, starts: Numbers, sizes: Numbers) -> None:
        """Shuffle in place what each client has in `flat`, from the end to the beginning."""
        order = np.argsort(-sizes, kind="stable")
        remaining = sizes[order]
        for step in range(int(sizes.max(initial=1)) - 1):
            rows = order[: int(np.searchsorted(-remaining, -(step + 1)))]  # those with more than one place left
            last = sizes[rows] - 1 - step
            drawn = starts[rows] + self.up_to(rows, last)
            here = starts[rows] + last
            flat[here], flat[drawn] = flat[drawn], flat[here]


def _sum(high: Words, low: Words, more_high: Words, more_low: Words) -> tuple[Words, Words]:
    """Of numbers of 128 bits."""
    total = low + more_low
    return high + more_high + (total < low), total


def split_many(
    flat: Numbers, sizes: Numbers, stratum: Numbers, held_out: Numbers, seed: int, first: int
) -> tuple[Numbers, NDArray[np.int8]]:
    """The samples of all clients in random order, client by client, and the part of each, 0 to 2, as `Splitter` has it.

    The clients hold `sizes` of the samples in `flat`, which are in strata from 0. Of each, `held_out` [N, 2] samples
    are for testing, and for testing or validation.
    """
    begins, blocks = np.append(0, np.cumsum(sizes)), []
    for begin in range(0, len(sizes), CLIENTS_IN_CACHE):
        block = slice(begin, min(begin + CLIENTS_IN_CACHE, len(sizes)))
        indices = flat[begins[block.start] : begins[block.stop]]
        blocks.append(_split_block(indices, sizes[block], stratum, held_out[block], seed, first + begin))
    mixed, parts = zip(*blocks, strict=True)
    return np.concatenate(mixed), np.concatenate(parts)


def _split_block(
    flat: Numbers, sizes: Numbers, stratum: Numbers, held_out: Numbers, seed: int, first: int
) -> tuple[Numbers, NDArray[np.int8]]:
    clients = np.arange(len(sizes))
    generators, mixed = Generators(seed, first + clients), flat.copy()
    starts = np.cumsum(sizes) - sizes
    generators.shuffle(mixed, starts, sizes)
    cells = np.repeat(clients, sizes) * (int(stratum.max(initial=0)) + 1) + stratum[mixed]
    by_cell = np.argsort(cells, kind="stable")
    begins = np.flatnonzero(np.diff(cells[by_cell], prepend=-1))
    counts = np.diff(begins, append=len(flat))
    owner = np.repeat(clients, sizes)[by_cell[begins]]  # of each cell: a stratum of a client
    strata = np.bincount(owner, minlength=len(sizes))
    table = _Table.of(owner, counts, strata)
    generators.shuffle(table.order, np.cumsum(strata) - strata, strata)
    tested, taken = table.apportioned(held_out)
    cell, rank = np.empty(len(flat), np.int64), np.empty(len(flat), np.int64)
    cell[by_cell] = np.repeat(np.arange(len(counts)), counts)
    rank[by_cell] = np.arange(len(flat)) - np.repeat(begins, counts)
    tests, both = tested[cell], taken[cell]
    return mixed, 2 - (rank < tests).astype(np.int8) - (rank < both)


@short_repr
class _Table(NamedTuple):
    """The strata of all clients: whose each is, its place among theirs, its samples, and a random order of theirs."""

    owner: Numbers
    place: Numbers
    counts: Numbers
    order: Numbers
    starts: Numbers

    @classmethod
    def of(cls, owner: Numbers, counts: Numbers, strata: Numbers) -> "_Table":
        starts = np.cumsum(strata) - strata
        place = np.arange(len(owner)) - starts[owner]
        return cls(owner, place, counts, place.copy(), starts)

    def apportioned(self, held_out: Numbers) -> tuple[Numbers, Numbers]:
        """How many samples of each stratum are for testing, and for testing or validation; see `parts_of_strata`."""
        turn = np.empty_like(self.order)  # of each stratum in the random order
        turn[self.starts[self.owner] + self.order] = self.place
        tests, both = held_out.T
        room = self.counts - 1
        short = np.maximum(0, both - self._sums(room))
        room = room + (self._ranked(self.counts, turn) < short[self.owner])
        taken = self._shares(both, self.counts, room, turn)
        return self._shares(tests, taken, taken, turn), taken

    def _shares(self, total: Numbers, counts: Numbers, room: Numbers, turn: Numbers) -> Numbers:
        """`total` samples of each client over its strata in proportion to their counts; see `apportioned`."""
        whole, wanted = np.maximum(1, self._sums(counts))[self.owner], total[self.owner] * counts
        taken: Numbers = np.minimum(wanted // whole, room)
        while ((left := total - self._sums(taken)) > 0).any():
            able = taken < room
            missing = taken * whole - wanted
            key = np.where(able, missing, missing.max() + 1)
            taken = taken + (able & (self._ranked(key, turn) < left[self.owner]))
        return taken

    def _sums(self, values: Numbers) -> Numbers:
        sums: Numbers = np.add.reduceat(values, self.starts)
        return sums

    def _ranked(self, key: Numbers, turn: Numbers) -> Numbers:
        """The rank of each stratum among those of its client, by the key and then by the random order."""
        rank, low = np.empty(len(key), np.int64), int(key.min())
        spread, turns = int(key.max()) - low + 1, int(turn.max()) + 1
        if spread * turns * (int(self.owner[-1]) + 1) < np.iinfo(np.int64).max:  # a third of the time of three sorts
            order = np.argsort((self.owner * spread + (key - low)) * turns + turn)
        else:
            order = np.lexsort((turn, key, self.owner))
        rank[order] = self.place
        return rank
