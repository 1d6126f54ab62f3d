"""Who gains: each method is paired with `local` of the same study, seed by seed and test sample by test sample."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from stratafl.evaluation.metrics import Metric
from stratafl.report.gains.gain_intervals import Limits, Noise, gain_limits
from stratafl.report.gains.gain_records import ClientGain, Gains, SeedGain
from stratafl.report.gains.sample_noise import ClientScores, bound_of, paired_noise, stored_scores
from stratafl.report.gains.traits import ClientFacts
from stratafl.report.outcome import Outcome, is_imported
from stratafl.report.ranking import Rank
from stratafl.runs.summary import VALIDATED, counting, prefix_of, quality

TRAINS_ALONE = "local"  # the method that trains every client alone
Array = NDArray[np.float64]
Ids = NDArray[np.int64]


def client_gains(ranks: Sequence[Rank]) -> list[Gains]:
    """The gains of every configuration over training alone, in the order of the ranking; empty if that was not run."""
    references = [rank for rank in ranks if rank.method == TRAINS_ALONE]
    methods = [rank for rank in ranks if rank.method != TRAINS_ALONE] if references else []
    scores = stored_scores(run for rank in (*references, *methods) for run in rank.members)
    paired = [(rank, _best_reference(rank, references)) for rank in methods]
    return [_gains(rank, alone, scores) for rank, alone in paired if alone is not None]


def _best_reference(rank: Rank, references: Sequence[Rank]) -> Rank | None:
    """Of several configurations of the reference on the same data the one with the best validation score.

    Without validation scores it is the one with the most settings of the method; test scores decide nothing.
    """

    def common(other: Rank, table: str = "") -> list[bool]:
        keys = {key for key in {**rank.settings, **other.settings} if key.startswith(table)}
        return [rank.settings.get(key) == other.settings.get(key) for key in keys]

    rivals = sorted((other for other in references if all(common(other, "data."))), key=lambda other: other.label)
    validated = {other.label: _validation_quality(other) for other in rivals}
    if not all(map(isfinite, validated.values())):
        return max(rivals, key=lambda other: sum(common(other)), default=None)
    return max(rivals, key=lambda other: validated[other.label], default=None)


def _validation_quality(rank: Rank) -> float:
    """The mean over seeds of the validation score of the selected round, larger is better; not finite without one."""
    selected = [(counting(run.lines, run.selection), run.selection) for run in rank.members]
    return fmean(quality(line, VALIDATED, prefix_of(evaluate), evaluate) for line, evaluate in selected)


def _gains(rank: Rank, alone: Rank, scores: Mapping[Path, ClientScores]) -> Gains:
    with_method, trained_alone = ({run.seeds.parts: run for run in each.members} for each in (rank, alone))
    common = sorted(set(with_method) & set(trained_alone))
    pairs = [_Pair(with_method[parts], trained_alone[parts], scores) for parts in common]
    first = rank.members[0]
    empty = Gains(rank.label, alone.label, first.metric, first.evaluate.average)
    if not pairs:
        return replace(empty, why=f"it has no seed in common with {alone.label}")
    unlike = [pair.alone.seed for pair in pairs if not pair.fits]
    if unlike:
        where = ", ".join(map(str, unlike))
        return replace(empty, why=f"its test samples are not those of {alone.label} (seed {where})")
    partitions: dict[Hashable, list[_Pair]] = {}
    for pair in pairs:
        partitions.setdefault(pair.alone.population, []).append(pair)
    by_partition = [_clients(group, first.metric) for group in partitions.values()]
    gains = replace(
        empty,
        clients=tuple(client for clients, _ in by_partition for client in clients),
        mean=fmean(pair.difference for pair in pairs),
        partitions=len(partitions),
        undefined=sum(undefined for _, undefined in by_partition),
    )
    return replace(gains, why=_why(gains, pairs))


def _why(gains: Gains, pairs: Sequence["_Pair"]) -> str:
    """Why there are no differences, or no intervals."""
    if not gains.clients:
        return f"no client has a defined {gains.metric.title}"
    if gains.sure:
        return ""
    if is_imported(gains.metric):
        return "reports do not run your own metric, so clients have no intervals"
    if any(run.evaluate.stage == "trained" for pair in pairs for run in (pair.method, pair.alone)):
        return "models right after training (evaluate.stage) are not kept, so clients have no intervals"
    return "its runs or those of training alone have no stored predictions: finish them with strata resume"


class _Pair:
    """A method and training alone with the same seeds; without predictions of both, as their journals have them."""

    def __init__(self, method: Outcome, alone: Outcome, scores: Mapping[Path, ClientScores]) -> None:
        self.method, self.alone, self.facts = method, alone, ClientFacts(alone.class_counts)
        both = method.folder in scores and alone.folder in scores
        self.scores = (scores[method.folder], scores[alone.folder]) if both else None

    @property
    def fits(self) -> bool:
        return self.scores is None or self.scores[0].pairs_with(self.scores[1])

    @property
    def difference(self) -> float:
        """Of the two scores in the ranking, positive is better; NaN where one is missing."""
        method, alone = (run.numbers().get("score", float("nan")) for run in (self.method, self.alone))
        return self.method.metric.sign * (method - alone)

    @cached_property
    def samples(self) -> dict[int, int]:
        """The test samples of the clients that have some."""
        if self.scores is not None:
            return dict(zip(self.scores[0].ids.tolist(), self.scores[0].samples.tolist(), strict=True))
        scored = self.method.by_client()
        return {client: count for client, count in self.method.test_samples().items() if count or client in scored}

    def values(self, ids: Ids) -> Array:
        """The scores of both for these clients `[2, K]`, NaN where they are undefined."""
        by_client: list[Mapping[int, float]] = [self.method.by_client(), self.alone.by_client()]
        if self.scores is not None:
            by_client = [dict(zip(side.ids.tolist(), side.values.tolist(), strict=True)) for side in self.scores]
        return np.array([[side.get(client, np.nan) for client in ids.tolist()] for side in by_client])


def _clients(pairs: Sequence[_Pair], metric: Metric) -> tuple[list[ClientGain], int]:
    """The gains of the clients of these pairs, who are the same with every seed, and how many have no score."""
    ids = np.array(sorted({client for pair in pairs for client in pair.samples}), dtype=np.int64)
    values = np.stack([pair.values(ids) for pair in pairs])
    gains = metric.sign * (values[:, 0] - values[:, 1])
    over_seeds = _limits(pairs, gains, ids, metric)
    by_seed = [_limits([pair], row[None], ids, metric) for pair, row in zip(pairs, gains, strict=True)]
    clients = []
    for at, client in enumerate(ids.tolist()):
        seeds = tuple(
            SeedGain(pair.method.seeds, score, alone, float(gain[at]), *_ends(limits, at), pair.samples[client])
            for pair, (score, alone), gain, limits in zip(pairs, values[..., at].tolist(), gains, by_seed, strict=True)
            if isfinite(gain[at])
        )
        if seeds:
            name, traits = pairs[0].facts.name(client), _traits(pairs, client)
            clients.append(ClientGain(client, name, seeds, *_ends(over_seeds, at), *traits))
    return clients, len(ids) - len(clients)


def _limits(pairs: Sequence[_Pair], gains: Array, ids: Ids, metric: Metric) -> Limits | None:
    """The intervals of all clients, NaN for those that are undefined with some seed; None without predictions."""
    scores, defined = [pair.scores for pair in pairs if pair.scores], np.asarray(np.isfinite(gains).all(axis=0))
    if len(scores) < len(pairs) or not defined.any():
        return None
    noise = Noise(*(part[defined] for part in paired_noise(scores, ids)))
    limits = gain_limits(gains[:, defined], noise, bound_of(metric), metric.percent)
    low, high = np.full(len(defined), np.nan), np.full(len(defined), np.nan)
    low[defined], high[defined] = limits.low, limits.high
    return Limits(low, high)


def _ends(limits: Limits | None, at: int) -> tuple[float | None, float | None]:
    if limits is None or not isfinite(limits.low[at]):
        return None, None
    return float(limits.low[at]), float(limits.high[at])


def _traits(pairs: Sequence[_Pair], client: int) -> list[float | None]:
    """The mean over seeds, since a seed may split the samples of a client in another way."""
    by_trait = zip(*(pair.facts.traits(client) for pair in pairs), strict=True)
    recorded = [[value for value in values if value is not None] for values in by_trait]
    return [fmean(values) if values else None for values in recorded]
