"""Every client the same."""

import numpy as np

from stratafl.core.records import record
from stratafl.data.cutting import Indices
from stratafl.data.partitions.base import Partition, Pool


@record
class IID(Partition):
    """Every client gets the same number of samples, give or take one, whatever their labels."""

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Indices]:
        """One sorted array of sample indices per client."""
        return [np.sort(part) for part in np.array_split(rng.permutation(len(pool.labels)), clients)]
