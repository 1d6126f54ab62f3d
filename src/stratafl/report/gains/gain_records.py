"""The gains of clients as records: with one seed, over seeds, and of all clients of a method.

Differences are turned so that positive is better, whatever the metric.
"""

from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Literal, NamedTuple

from stratafl.core.keys import Seeds
from stratafl.core.reprs import short_repr
from stratafl.evaluation.metrics import Metric
from stratafl.report.gains.traits import TRAITS, Dependence, dependences
from stratafl.report.intervals import LEVEL

Outlook = Literal["gains", "loses", "unclear"]


class SeedGain(NamedTuple):
    """One client with one seed: both scores, and the difference with its interval over test samples."""

    seeds: Seeds
    score: float
    alone: float
    difference: float
    low: float | None
    high: float | None
    test_samples: int


@short_repr
@dataclass(frozen=True)
class ClientGain:
    """One client over its seeds; limits are None if there are no stored predictions."""

    client: int
    name: str
    seeds: tuple[SeedGain, ...]
    low: float | None
    high: float | None
    training_samples: float | None = None
    skew: float | None = None
    distance: float | None = None

    @property
    def difference(self) -> float:
        return fmean(each.difference for each in self.seeds)

    @property
    def score(self) -> float:
        return fmean(each.score for each in self.seeds)

    @property
    def alone(self) -> float:
        return fmean(each.alone for each in self.seeds)

    @property
    def test_samples(self) -> int:
        return self.seeds[0].test_samples

    @property
    def verdict(self) -> Outlook:
        return verdict(self.low, self.high)

    @property
    def label(self) -> str:
        return self.name or f"client {self.client}"

    @property
    def traits(self) -> dict[str, float | None]:
        return dict(zip(TRAITS, (self.training_samples, self.skew, self.distance), strict=True))


def verdict(low: float | None, high: float | None) -> Outlook:
    if low is None or high is None or low <= 0 <= high:
        return "unclear"
    return "gains" if low > 0 else "loses"


@short_repr
@dataclass(frozen=True)
class Gains:
    """A method against training alone. Clients without a score, such as AUROC of a single class, are left out.

    The mean is that of the ranking: the difference of the scores, over all samples or over clients as these are.
    """

    label: str
    alone: str  # the label of the configuration that it is compared with
    metric: Metric
    average: str  # what scores are means over: "samples" or "clients"
    mean: float = float("nan")
    clients: tuple[ClientGain, ...] = ()
    partitions: int = 1  # each with clients of its own
    undefined: int = 0  # clients that are left out
    why: str = ""  # there are no differences, or no intervals

    @property
    def client_mean(self) -> float:
        """Over clients, each counted once, whatever the average of the scores."""
        return fmean(each.difference for each in self.clients)

    @property
    def median(self) -> float:
        return median(each.difference for each in self.clients)

    @property
    def better(self) -> float:
        """The share of clients whose model scores better than alone, however little."""
        return fmean(each.difference > 0 for each in self.clients)

    @property
    def worse(self) -> float:
        return fmean(each.difference < 0 for each in self.clients)

    @property
    def surely_better(self) -> float:
        return fmean(each.verdict == "gains" for each in self.clients)

    @property
    def surely_worse(self) -> float:
        return fmean(each.verdict == "loses" for each in self.clients)

    @property
    def by_chance(self) -> int:
        """How many clients would seem to gain, and as many to lose, if none did: each interval covers one client."""
        return round((1 - LEVEL) / 2 * sum(each.low is not None for each in self.clients))

    def surely(self, outlook: Outlook) -> list[ClientGain]:
        """The clients with this verdict; none unless they are twice as many as chance alone would give."""
        clients = [each for each in self.clients if each.verdict == outlook]
        return clients if len(clients) >= 2 * self.by_chance else []

    @property
    def sure(self) -> bool:
        """Whether there are intervals."""
        return any(each.low is not None for each in self.clients)

    @property
    def worst(self) -> ClientGain:
        return min(self.clients, key=lambda each: each.difference)

    def client_label(self, client: ClientGain) -> str:
        """Its name or number, and of which partition it is if there are several."""
        if self.partitions == 1:
            return client.label
        seeds = client.seeds[0].seeds
        follows = len(client.seeds) == 1 and seeds.partition == seeds.run
        return f"{client.label}, {'seed' if follows else 'data.seed'} {seeds.partition}"

    @cached_property
    def dependences(self) -> list[Dependence]:
        """How gains depend on the size, class skew and distance of clients."""
        values = {name: [each.traits[name] for each in self.clients] for name in TRAITS}
        return dependences([each.difference for each in self.clients], values)
