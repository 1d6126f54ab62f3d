"""Who gains: for every client, the score of a method's model against that of the model it trains alone.

Each method is paired with `local` of the same study, seed by seed and test sample by test sample. `gain_intervals` has
the statistics, `client_traits` what gains depend on, `gains_charts` the table and the chart. Differences are turned so
that positive is better, whatever the metric.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stratafl.core.reprs import short_repr
from stratafl.evaluation.metrics import Metric
from stratafl.report.client_traits import TRAITS, ClientFacts, Dependence, dependences
from stratafl.report.gain_intervals import Limits, Noise, limits
from stratafl.report.outcome import Outcome
from stratafl.report.ranking import Rank
from stratafl.report.resampling import ClientScores, bound_of, paired_noise, replicates_for
from stratafl.runs.predictions import read_predictions

ALONE = "local"  # the method that trains every client alone
Outlook = Literal["gains", "loses", "cannot be told"]
Array = NDArray[np.float64]


class SeedGain(NamedTuple):
    """One client with one seed: both scores, and the difference with its interval over test samples."""

    seed: int
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
        return "cannot be told"
    return "gains" if low > 0 else "loses"


@short_repr
@dataclass(frozen=True)
class Gains:
    """A method against training alone. Clients without a score, such as AUROC of a single class, are left out."""

    label: str
    alone: str  # the label of the configuration that it is compared with
    metric: Metric
    seeds: tuple[int, ...]
    clients: tuple[ClientGain, ...]
    by_seed: bool = False  # every seed has a partition of its own, so a client has one seed
    undefined: int = 0  # clients that are left out
    why: str = ""  # there are no differences, or no intervals

    @property
    def mean(self) -> float:
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
    def sure(self) -> bool:
        """Whether there are intervals."""
        return any(each.low is not None for each in self.clients)

    @property
    def worst(self) -> ClientGain:
        return min(self.clients, key=lambda each: each.difference)

    def client_label(self, client: ClientGain) -> str:
        return f"{client.label}, seed {client.seeds[0].seed}" if self.by_seed and len(self.seeds) > 1 else client.label

    @cached_property
    def dependences(self) -> list[Dependence]:
        """How gains depend on the size, class skew and distance of clients."""
        values = {name: [each.traits[name] for each in self.clients] for name in TRAITS}
        return dependences([each.difference for each in self.clients], values)


class Ranked(Protocol):
    """A study, which imports this module."""

    @property
    def ranks(self) -> Sequence[Rank]: ...


def client_gains(study: Ranked, reference: str = ALONE) -> list[Gains]:
    """The gains of every method of a study against the reference, best first; empty if that was not run."""
    return gains_of(study.ranks, reference)


def gains_of(ranks: Sequence[Rank], reference: str = ALONE) -> list[Gains]:
    """The gains of every configuration in the order of the ranking."""
    ranks = [rank for rank in ranks if rank.members]
    if not any(_is(rank, reference) for rank in ranks):
        return []
    runs = _Runs(ranks)
    pairs = [(rank, _reference(rank, ranks, reference, runs)) for rank in ranks if not _is(rank, reference)]
    return [_gains(rank, alone, runs) for rank, alone in pairs if alone is not None]


class _Runs:
    """What runs left behind, read once."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self.metric = ranks[0].members[0].metric
        self.imported = ":" in self.metric.name  # your own code, which no report runs
        folders = [] if self.imported else [one.folder for rank in ranks for one in rank.members]
        found = {folder: read_predictions(folder) for folder in folders}
        there = {folder: each for folder, each in found.items() if each is not None and len(each)}
        replicates = replicates_for(self.metric, list(there.values()))
        self._facts = dict[Path, ClientFacts]()
        self._scores = {folder: ClientScores(each, self.metric, replicates) for folder, each in there.items()}

    def scores(self, one: Outcome) -> ClientScores | None:
        return self._scores.get(one.folder)

    def facts(self, one: Outcome) -> ClientFacts:
        if one.folder not in self._facts:
            self._facts[one.folder] = ClientFacts(one.folder)
        return self._facts[one.folder]

    def validated(self, rank: Rank) -> float:
        """The mean over seeds of the validation score, larger is better; −∞ without one."""
        found = [] if self.imported else [read_predictions(one.folder, "validation") for one in rank.members]
        values = [each.value(self.metric) for each in found if each is not None and len(each)]
        value = fmean(values) if values and len(values) == len(found) else float("nan")
        return self.metric.sign * value if isfinite(value) else float("-inf")


def _is(rank: Rank, reference: str) -> bool:
    return str(rank.settings["algorithm.name"]) == reference


def _reference(rank: Rank, ranks: Sequence[Rank], reference: str, runs: _Runs) -> Rank | None:
    """Of several configurations of the reference on the same data the one with the best validation score."""

    def data(other: Rank) -> dict[str, Any]:
        return {key: value for key, value in other.settings.items() if key.startswith("data.")}

    there = [other for other in ranks if _is(other, reference) and data(other) == data(rank)]
    return max(there, key=runs.validated) if len(there) > 1 else next(iter(there), None)


def _gains(rank: Rank, alone: Rank, runs: _Runs) -> Gains:
    mine, theirs = ({one.seed: one for one in each.members} for each in (rank, alone))
    seeds = tuple(sorted(set(mine) & set(theirs)))
    empty = Gains(rank.label, alone.label, runs.metric, seeds, ())
    if not seeds:
        return replace(empty, why=f"it has no seed in common with {alone.label}")
    pairs = [_Pair(seed, mine[seed], theirs[seed], runs) for seed in seeds]
    if not all(pair.predicted for pair in pairs):
        own = "reports do not run your own metric, so there are no intervals"
        missing = "its runs or those of training alone have no stored predictions: finish them with strata resume"
        return _without_intervals(replace(empty, why=own if runs.imported else missing), pairs)
    unlike = [pair.seed for pair in pairs if not pair.fits]
    if unlike:
        where = ", ".join(map(str, unlike))
        return replace(empty, why=f"its test samples are not those of {alone.label} (seed {where})")
    groups = [pairs] if _same_clients(pairs) else [[pair] for pair in pairs]
    found = [_clients(group, runs.metric) for group in groups]
    clients = tuple(each for group, _ in found for each in group)
    why = "" if clients else f"no client has a defined {runs.metric.title}"
    if any(each.low is None for each in clients) and not any(each.low is not None for each in clients):
        why = f"{runs.metric.title} takes too long to resample for so many runs and clients"
    undefined = sum(count for _, count in found)
    return replace(empty, clients=clients, by_seed=len(groups) == len(pairs), undefined=undefined, why=why)


class _Pair:
    """A method and training alone with the same seed."""

    def __init__(self, seed: int, method: Outcome, alone: Outcome, runs: _Runs) -> None:
        self.seed, self.method, self.alone, self.facts = seed, method, alone, runs.facts(alone)
        scores, other = runs.scores(method), runs.scores(alone)
        self.predicted = scores is not None and other is not None
        if scores is not None and other is not None:
            self.scores, self.other = scores, other

    @property
    def fits(self) -> bool:
        return self.scores.pairs_with(self.other)

    @property
    def partition_seed(self) -> int:
        data = self.alone.config["data"].get("seed")
        return self.alone.seed if data is None else int(data)


def _same_clients(pairs: Sequence[_Pair]) -> bool:
    """Whether a number is the same client with every seed: one partition, or clients that the data names."""
    first = pairs[0]
    named = bool(first.facts.names) and all(pair.facts.names == first.facts.names for pair in pairs)
    once = len({pair.partition_seed for pair in pairs}) == 1
    return (once or named) and all(np.array_equal(pair.scores.ids, first.scores.ids) for pair in pairs)


def _clients(pairs: Sequence[_Pair], metric: Metric) -> tuple[list[ClientGain], int]:
    """The gains of the clients that these pairs have in common, and how many have no score."""
    gains = metric.sign * np.stack([pair.scores.values - pair.other.values for pair in pairs])
    over = _limits(pairs, gains, metric)
    each = [_limits([pair], row[None], metric) for pair, row in zip(pairs, gains, strict=True)]
    found = []
    for at, client in enumerate(pairs[0].scores.ids.tolist()):
        lines = [_seed_gain(*one, at) for one in zip(pairs, gains, each, strict=True) if isfinite(one[1][at])]
        if lines:
            name, own = pairs[0].facts.name(client), _traits(pairs, client)
            found.append(ClientGain(client, name, tuple(lines), *_ends(over, at), *own))
    return found, gains.shape[1] - len(found)


def _limits(pairs: Sequence[_Pair], gains: Array, metric: Metric) -> Limits | None:
    """The intervals of all clients, NaN for those that are undefined with some seed; None without resamples."""
    first, whole = pairs[0].scores, np.asarray(np.isfinite(gains).all(axis=0))
    shared = all(pair.scores.pairs_with(first) for pair in pairs)
    noise = paired_noise([pair.scores for pair in pairs], [pair.other for pair in pairs], shared)
    if noise is None or not whole.any():
        return None
    found = limits(gains[:, whole], Noise(*(part[whole] for part in noise)), bound_of(metric), metric.percent)
    low, high = np.full(len(whole), np.nan), np.full(len(whole), np.nan)
    low[whole], high[whole] = found.low, found.high
    return Limits(low, high)


def _seed_gain(pair: _Pair, gains: Array, over: Limits | None, at: int) -> SeedGain:
    scores = (float(pair.scores.values[at]), float(pair.other.values[at]))
    return SeedGain(pair.seed, *scores, float(gains[at]), *_ends(over, at), int(pair.scores.samples[at]))


def _ends(given: Limits | None, at: int) -> tuple[float | None, float | None]:
    if given is None or not isfinite(given.low[at]):
        return None, None
    return float(given.low[at]), float(given.high[at])


def _traits(pairs: Sequence[_Pair], client: int) -> list[float | None]:
    """The mean over seeds, since a seed may split the samples of a client in another way."""
    columns = zip(*(pair.facts.traits(client) for pair in pairs), strict=True)
    known = [[value for value in column if value is not None] for column in columns]
    return [fmean(values) if values else None for values in known]


def _without_intervals(empty: Gains, pairs: Sequence[_Pair]) -> Gains:
    """Differences alone, of runs that are unfinished or of an older version."""
    sign, clients = empty.metric.sign, []
    for pair in pairs:
        mine, theirs = pair.method.by_client(), pair.alone.by_client()
        for client in sorted(set(mine) & set(theirs)):
            score, alone, samples = mine[client], theirs[client], pair.facts.test_samples(client)
            gain = SeedGain(pair.seed, score, alone, sign * (score - alone), None, None, samples)
            own = pair.facts.traits(client)
            clients.append(ClientGain(client, pair.facts.name(client), (gain,), None, None, *own))
    return replace(empty, clients=tuple(clients), by_seed=True)
