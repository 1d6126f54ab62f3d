"""A partition in which clients differ in how many samples they have."""

from decimal import Decimal, localcontext
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from stratafl.core.annotations import Range
from stratafl.core.records import record
from stratafl.data.partitions.base import Indices, Partition, Pool, Some, draw_counts
from stratafl.data.partitions.classes import balanced_classes
from stratafl.errors import PartitionError

_BITS = 20  # of a weight; sums of whole numbers are the same on every machine
_UNIFORMS = 12  # whose sum, less 6, is nearly normal


@record
class UnevenSizes(Partition):
    """Sizes of clients are log-normal: a client's share of each class is in proportion to w = exp(spread · z).

    z is nearly normal (the sum of twelve uniform numbers, less six). Every client has all classes, or with `per_client`
    as many random ones, and at least `minimum` samples.
    """

    spread: Annotated[float, Range(least=0, most=5)] = 1.0
    per_client: Some | None = None
    minimum: Annotated[int, Range(least=0)] = 10

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Indices]:
        classes = pool.classes()
        weights = self._weights(clients, rng)
        has = np.ones((clients, len(classes)), dtype=np.bool_)
        if self.per_client is not None:
            has = balanced_classes(clients, len(classes), self.per_client, rng)
        least = -(-self.minimum // np.maximum(has.sum(axis=1), 1))  # of each class that a client has
        rows = []
        for members, owners in zip(classes, has.T, strict=True):
            rest = len(members) - int(least[owners].sum())
            if owners.any() and rest < 0:
                wrong = f"{len(members)} samples of a class cannot give {owners.sum()} clients {least.max()} each"
                raise PartitionError(f"{wrong}: set data.clients or data.minimum lower")
            row = least * owners
            row[owners] += _divided(rest, weights[owners], rng)
            rows.append(row)
        return draw_counts(classes, np.stack(rows), rng)

    def _weights(self, clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        sums = rng.integers(0, 1 << _BITS, (clients, _UNIFORMS)).sum(axis=1) - _UNIFORMS * (1 << _BITS) // 2
        with localcontext() as context:  # the exponential of a decimal is rounded alike everywhere, that of a float not
            context.prec = 28
            scaled = [(Decimal(repr(self.spread)) * int(z) / (1 << _BITS)).exp() for z in sums]
            largest = max(scaled)
            return np.array([max(1, int(w / largest * (1 << _BITS))) for w in scaled], dtype=np.int64)


def _divided(total: int, weights: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """`total` in proportion to whole weights, by largest remainders; equal ones in random order."""
    whole = int(weights.sum())
    shares, order = total * weights // max(whole, 1), rng.permutation(len(weights))
    remainders = total * weights - shares * whole
    shares[order[np.argsort(-remainders[order], kind="stable")][: total - int(shares.sum())]] += 1
    return shares
