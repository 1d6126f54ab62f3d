"""Who gains: each method is paired with `local` of the same study, seed by seed and test sample by test sample."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stratafl.evaluation.metrics import Metric
from stratafl.report.gains.intervals import Limits, Noise, limits
from stratafl.report.gains.records import ClientGain, Gains, SeedGain
from stratafl.report.gains.resampling import ClientScores, bound_of, paired_noise, replicates_for
from stratafl.report.gains.traits import ClientFacts
from stratafl.report.outcome import Outcome
from stratafl.report.ranking import Rank
from stratafl.runs.summary import VALIDATED, counting, prefix_of, quality

ALONE = "local"  # the method that trains every client alone
Array = NDArray[np.float64]


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
    pairs = [(rank, _reference(rank, ranks, reference)) for rank in ranks if not _is(rank, reference)]
    return [_gains(rank, alone, runs) for rank, alone in pairs if alone is not None]


class _Runs:
    """What runs left behind, read once."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self.metric = ranks[0].members[0].metric
        self.imported = ":" in self.metric.name  # your own code, which no report runs
        runs = [] if self.imported else [one for rank in ranks for one in rank.members]
        found = {one.folder: one.predictions for one in runs}
        there = {folder: each for folder, each in found.items() if each is not None and len(each)}
        replicates = replicates_for(self.metric, list(there.values()))
        self._facts = dict[Path, ClientFacts]()
        self._scores = {folder: ClientScores(each, self.metric, replicates) for folder, each in there.items()}

    def scores(self, one: Outcome) -> ClientScores | None:
        return self._scores.get(one.folder)

    def facts(self, one: Outcome) -> ClientFacts:
        if one.folder not in self._facts:
            self._facts[one.folder] = ClientFacts(one.class_counts)
        return self._facts[one.folder]


def _is(rank: Rank, reference: str) -> bool:
    return str(rank.settings["algorithm.name"]) == reference


def _reference(rank: Rank, ranks: Sequence[Rank], reference: str) -> Rank | None:
    """Of several configurations of the reference on the same data the one with the best validation score.

    Without validation scores it is the one with the most settings of the method; test scores decide nothing.
    """

    def common(other: Rank, table: str = "") -> list[bool]:
        keys = {key for key in {**rank.settings, **other.settings} if key.startswith(table)}
        return [rank.settings.get(key) == other.settings.get(key) for key in keys]

    there = [other for other in ranks if _is(other, reference) and all(common(other, "data."))]
    there.sort(key=lambda other: other.label)
    validated = {other.label: _validated(other) for other in there}
    if not all(map(isfinite, validated.values())):
        return max(there, key=lambda other: sum(common(other)), default=None)
    return max(there, key=lambda other: validated[other.label], default=None)


def _validated(rank: Rank) -> float:
    """The mean over seeds of the validation score of the selected round, larger is better; not finite without one."""
    each = [(counting(one.lines, one.selection), one.selection) for one in rank.members]
    return fmean(quality(line, VALIDATED, prefix_of(evaluate), evaluate) for line, evaluate in each)


def _gains(rank: Rank, alone: Rank, runs: _Runs) -> Gains:
    mine, theirs = ({one.seeds.parts: one for one in each.members} for each in (rank, alone))
    pairs = [_Pair(mine[parts], theirs[parts], runs) for parts in sorted(set(mine) & set(theirs))]
    average, seeds = rank.members[0].evaluate.average, tuple(pair.method.seeds for pair in pairs)
    empty = Gains(rank.label, alone.label, runs.metric, average, seeds)
    if not pairs:
        return replace(empty, why=f"it has no seed in common with {alone.label}")
    unlike = [pair.alone.seed for pair in pairs if not pair.fits]
    if unlike:
        where = ", ".join(map(str, unlike))
        return replace(empty, why=f"its test samples are not those of {alone.label} (seed {where})")
    groups: dict[Hashable, list[_Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.alone.population, []).append(pair)
    found = [_clients(group, runs.metric) for group in groups.values()]
    clients = tuple(each for group, _ in found for each in group)
    mean, undefined = fmean(pair.difference for pair in pairs), sum(count for _, count in found)
    made = replace(empty, clients=clients, mean=mean, partitions=len(groups), undefined=undefined)
    return replace(made, why=_why(made, pairs, runs))


def _why(found: Gains, pairs: Sequence["_Pair"], runs: _Runs) -> str:
    """Why there are no differences, or no intervals."""
    if not found.clients:
        return f"no client has a defined {found.metric.title}"
    if found.sure:
        return ""
    if runs.imported:
        return "reports do not run your own metric, so there are no intervals of clients"
    if all(pair.scores is not None for pair in pairs):
        return f"{found.metric.title} takes too long to resample for so many runs and clients"
    if any(one.evaluate.stage == "trained" for pair in pairs for one in (pair.method, pair.alone)):
        return "models right after training (evaluate.stage) are not kept, so there are no intervals of clients"
    return "its runs or those of training alone have no stored predictions: finish them with strata resume"


class _Pair:
    """A method and training alone with the same seeds; without predictions of both, as their journals have them."""

    def __init__(self, method: Outcome, alone: Outcome, runs: _Runs) -> None:
        self.method, self.alone, self.facts = method, alone, runs.facts(alone)
        mine, theirs = runs.scores(method), runs.scores(alone)
        self.scores = None if mine is None or theirs is None else (mine, theirs)

    @property
    def fits(self) -> bool:
        return self.scores is None or self.scores[0].pairs_with(self.scores[1])

    @property
    def difference(self) -> float:
        """Of the two scores in the ranking, positive is better; NaN where one is missing."""
        mine, theirs = (one.numbers().get("score", float("nan")) for one in (self.method, self.alone))
        return self.method.metric.sign * (mine - theirs)

    @cached_property
    def samples(self) -> dict[int, int]:
        """The test samples of the clients that have some."""
        if self.scores is not None:
            return dict(zip(self.scores[0].ids.tolist(), self.scores[0].samples.tolist(), strict=True))
        scored = self.method.by_client()
        return {client: count for client, count in self.method.test_samples().items() if count or client in scored}

    def values(self, clients: NDArray[np.int64]) -> Array:
        """The scores of both for these clients `[2, K]`, NaN where they are undefined."""
        if self.scores is not None:
            each = [dict(zip(one.ids.tolist(), one.values.tolist(), strict=True)) for one in self.scores]
        else:
            each = [self.method.by_client(), self.alone.by_client()]
        return np.array([[one.get(client, np.nan) for client in clients.tolist()] for one in each])


def _clients(pairs: Sequence[_Pair], metric: Metric) -> tuple[list[ClientGain], int]:
    """The gains of the clients of these pairs, who are the same with every seed, and how many have no score."""
    ids = np.array(sorted({client for pair in pairs for client in pair.samples}), dtype=np.int64)
    values = np.stack([pair.values(ids) for pair in pairs])
    gains = metric.sign * (values[:, 0] - values[:, 1])
    over = _limits(pairs, gains, ids, metric)
    each = [_limits([pair], row[None], ids, metric) for pair, row in zip(pairs, gains, strict=True)]
    found = []
    for at, client in enumerate(ids.tolist()):
        lines = tuple(
            SeedGain(pair.method.seeds, score, alone, float(gain[at]), *_ends(own, at), pair.samples[client])
            for pair, (score, alone), gain, own in zip(pairs, values[..., at].tolist(), gains, each, strict=True)
            if isfinite(gain[at])
        )
        if lines:
            name, own = pairs[0].facts.name(client), _traits(pairs, client)
            found.append(ClientGain(client, name, lines, *_ends(over, at), *own))
    return found, len(ids) - len(found)


def _limits(pairs: Sequence[_Pair], gains: Array, ids: NDArray[np.int64], metric: Metric) -> Limits | None:
    """The intervals of all clients, NaN for those that are undefined with some seed; None without resamples."""
    scores, whole = [pair.scores for pair in pairs if pair.scores], np.asarray(np.isfinite(gains).all(axis=0))
    noise = paired_noise(scores, ids) if len(scores) == len(pairs) else None
    if noise is None or not whole.any():
        return None
    found = limits(gains[:, whole], Noise(*(part[whole] for part in noise)), bound_of(metric), metric.percent)
    low, high = np.full(len(whole), np.nan), np.full(len(whole), np.nan)
    low[whole], high[whole] = found.low, found.high
    return Limits(low, high)


def _ends(given: Limits | None, at: int) -> tuple[float | None, float | None]:
    if given is None or not isfinite(given.low[at]):
        return None, None
    return float(given.low[at]), float(given.high[at])


def _traits(pairs: Sequence[_Pair], client: int) -> list[float | None]:
    """The mean over seeds, since a seed may split the samples of a client in another way."""
    columns = zip(*(pair.facts.traits(client) for pair in pairs), strict=True)
    known = [[value for value in column if value is not None] for column in columns]
    return [fmean(values) if values else None for values in known]
