"""FedALP's Dirichlet partition of CIFAR-10: every client draws a distribution of classes, and samples from it."""

import numpy as np

from stratafl.core.records import record
from stratafl.data.cutting import Division, Indices
from stratafl.data.partitions.base import Partition, Pool, require_at_least, require_share
from stratafl.data.partitions.dirichlet import Shares, require_alpha
from stratafl.errors import PartitionError

_SIZES = (0.1, 0.25, 0.5, 0.75, 1.0)  # of the largest client, for groups of clients one after the other
_GROUPS = (0.1, 0.3, 0.3, 0.2, 0.1)  # and the share of the clients that are in each group


@record
class ClientDirichlet(Partition):
    """Each client has classes by shares from its own Dir(alpha · 1_C), and draws its samples of them with replacement.

    From 100 to `largest` = 1000 training samples from the publishers' training set and `test_ratio` times as many from
    their test set, by the same shares; what rounding leaves is of the last class. Clients share samples.
    """

    alpha: float = 0.1
    largest: int = 1000
    test_ratio: float = 0.2

    def __post_init__(self) -> None:
        require_alpha(self.alpha)
        require_at_least(10, largest=self.largest)
        require_share(test_ratio=self.test_ratio)

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> Division:
        """A division in which samples repeat."""
        shares = rng.dirichlet(np.full(len(pool.names), self.alpha), clients)
        train, test = (
            [_drawn(pool, classes, _counts(q, n), rng) for q, n in zip(shares, sizes, strict=True)]
            for classes, sizes in zip(pool.published("perclient"), self._sizes(clients), strict=True)
        )
        return Division(train, test, overlap=True)

    def _sizes(self, clients: int) -> tuple[list[int], list[int]]:
        """How many samples each client trains and tests on."""
        ends = np.rint(np.cumsum(_GROUPS) * clients).astype(np.int64)
        shares = np.repeat(_SIZES, np.diff(ends, prepend=0))
        train = [round(share * self.largest) for share in shares]
        return train, [max(1, round(size * self.test_ratio)) for size in train]


def _counts(shares: Shares, size: int) -> list[int]:
    counts = [int(share * size) for share in shares]
    counts[-1] += size - sum(counts)
    return counts


def _drawn(pool: Pool, classes: list[Indices], counts: list[int], rng: np.random.Generator) -> Indices:
    for name, members, n in zip(pool.names, classes, counts, strict=True):
        if n and not len(members):
            raise PartitionError(
                f"class {name} is not in both of the publishers' sets, so nobody can train and test on it"
            )
    drawn = [rng.choice(members, n) for members, n in zip(classes, counts, strict=True) if n]
    return np.sort(np.concatenate(drawn))
