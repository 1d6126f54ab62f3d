"""Whether scores are better than chance, and what probabilities show where answers show nothing.

Chance is the majority class: every client always gets the class that it has most in training. With 12 % positives
hardly any probability is above one half, so the answers of a good model are nearly those. A ranking by answers then
ranks noise, and the AUROC of the stored predictions tells more.
"""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from stratafl.errors import RunError
from stratafl.evaluation.metrics import METRICS, Metric
from stratafl.report import sentences as say
from stratafl.report.bootstrap import ALPHA, Uncertainty, sharing
from stratafl.report.formats import score_text
from stratafl.report.majority import majority_predictions, majority_values
from stratafl.report.outcome import OF_ANSWERS, is_imported, measured_by, numbers_of
from stratafl.report.paired import Paired, holm, pair_of, pairs, with_first
from stratafl.report.pairing import Couple, ScoredRun, StoredScores, pair_uncertainty
from stratafl.report.ranking import Rank, comparable_ranks, ranking
from stratafl.report.sentences import Finding, finding

OF_PROBABILITIES = ("log_loss", "brier", "ece")  # constant shares of the classes are calibrated, and still useless
MIN_LEAD = 0.002  # a method that is ahead of the majority class by less is no better
SLIGHT_LEAD = 0.1  # of the way from the majority class to a perfect score: answers that say little
LARGE_LEAD = 0.25  # of that way: no chance, however few the seeds, if test samples are enough
AUROC = METRICS["auroc"]


class Chance(NamedTuple):
    """The score of the majority class, and how far methods are above it."""

    base: float
    ahead: Mapping[str, float]  # by label, as a share of the way to a perfect score
    unsure: frozenset[str]  # labels of methods that are not significantly better


def chance(ranks: Sequence[Rank]) -> Chance | None:
    """None where there is no majority class to compare with: numbers, your own metrics, metrics of calibration."""
    scored = [rank for rank in ranks if "score" in rank.numbers and rank.members]
    metric = scored[0].members[0].metric if scored else None
    if metric is None or not metric.classes or is_imported(metric) or metric.name in OF_PROBABILITIES:
        return None
    stored = StoredScores([run for rank in scored for run in rank.members])
    couples = [_couples(rank, stored) for rank in scored]
    leads = [lead for pairs_of_rank in couples if (lead := pair_uncertainty(pairs_of_rank)) is not None]
    if len(leads) < len(scored):
        return None
    base = fmean(majority.score for _, majority in couples[0])
    ahead = {
        rank.label: metric.sign * lead.mean / max(1 - base, 1e-9) for rank, lead in zip(scored, leads, strict=True)
    }
    significant = _significant(sharing(leads), metric)
    with_these_seeds = _significant([replace(lead, between_seeds=0.0) for lead in leads], metric)
    above = set()
    for (label, way), lead, is_significant, is_here in zip(
        ahead.items(), leads, significant, with_these_seeds, strict=True
    ):
        # Noisy seeds do not hide a large lead, unless few test samples of named clients could have made it.
        is_large = way >= LARGE_LEAD and (is_here or not lead.about_these_clients)
        if metric.sign * lead.mean > MIN_LEAD and (is_significant or is_large):
            above.add(label)
    return Chance(base, ahead, frozenset(ahead.keys() - above))


def _significant(leads: Sequence[Uncertainty], metric: Metric) -> list[bool]:
    """Which are above 0, one-sided, at 5 % for all together."""
    adjusted, _ = holm([lead.p / 2 if metric.sign * lead.mean > 0 else 1.0 for lead in leads])
    return [p < ALPHA for p in adjusted]


def _couples(rank: Rank, stored: StoredScores) -> list[Couple]:
    """Each run with a score, and what the majority class gives for its test samples."""
    couples = []
    for run in rank.members:
        values = majority_values(run)
        numbers = {} if values is None else numbers_of(values, run.evaluate)
        if values is None or "score" not in numbers or "score" not in run.numbers():
            continue
        tested = stored.predictions.get(run.folder)
        predicted = None if tested is None else majority_predictions(run, tested)
        scores = None if predicted is None else stored.scores(run, predicted)
        couples.append((stored.run(run), ScoredRun(run, numbers["score"], values.clients, scores)))
    return couples


class Probabilities(NamedTuple):
    """The methods ranked by the AUROC of their stored predictions, and how sure that is."""

    ranks: list[Rank]
    pairs: list[Paired]
    at_chance: bool  # of every method

    @property
    def findings(self) -> list[Finding]:
        scores = [f"{rank.label} {score_text(rank.numbers['score'].mean, AUROC)}" for rank in self.ranks]
        if self.at_chance:
            return [finding(say.AUROC_AT_CHANCE, scores=scores)]
        compared = [finding(say.COMPARED, pair=pair.sentence) for pair in with_first(self.pairs)[:3]]
        return [finding(say.AUROC_SCORES, scores=scores), *compared]


def probabilities(ranks: Sequence[Rank]) -> Probabilities | None:
    """None if answers are not what methods are ranked by, or if there are no predictions."""
    scored = comparable_ranks(ranks)
    if not scored or scored[0].members[0].metric.name not in OF_ANSWERS:
        return None
    try:
        by_auroc = ranking([measured_by(run, AUROC) for rank in scored for run in rank.members])
    except RunError:  # some run has no predictions
        return None
    defined = [rank for rank in by_auroc if "score" in rank.numbers]
    limits = chance(defined) if defined else None
    at_chance = limits is not None and all(rank.label in limits.unsure for rank in defined)
    return Probabilities(defined, pairs(defined), at_chance) if defined else None


class NoChoice(NamedTuple):
    """Why no method can be chosen by its answers, and what the probabilities of the same runs show."""

    why: Finding
    shown: Probabilities | None
    all_at_chance: bool  # or the first is slightly better, and the probabilities contradict it


def no_choice(ranks: Sequence[Rank], limits: Chance | None) -> NoChoice | None:
    """None if the first method is better than chance, and no other shows by its probabilities that it is better."""
    rivals = comparable_ranks(ranks)
    if not rivals:
        return None
    first, metric = rivals[0], rivals[0].members[0].metric
    guessing = [rank for rank in rivals if rank.one_answer or (limits and rank.label in limits.unsure)]
    if len(guessing) == len(rivals):
        methods = [rank.label for rank in rivals]
        why = finding(say.ALWAYS_ONE_ANSWER, metric=metric.title, methods=methods)
        if limits:
            why = finding(say.AT_CHANCE, metric=metric.title, base=score_text(limits.base, metric), methods=methods)
        return NoChoice(why, probabilities(ranks), all_at_chance=True)
    if not guessing or limits is None or limits.ahead.get(first.label, 1.0) >= SLIGHT_LEAD:
        return None
    shown = probabilities(ranks)
    better = _with_better_probabilities(first, guessing, shown) if shown and not shown.at_chance else []
    if not better:
        return None
    why = finding(say.CONTRADICTED, metric=metric.title, method=first.label, better=better)
    return NoChoice(why, shown, all_at_chance=False)


def _with_better_probabilities(first: Rank, guessing: Sequence[Rank], shown: Probabilities) -> list[str]:
    """Which of the methods whose answers show nothing have better probabilities than the first, beyond chance."""
    against_first = {rank.label: pair_of(shown.pairs, rank.label, first.label) for rank in guessing}
    return [label for label, pair in against_first.items() if pair is not None and pair.verdict == "better"]


def how_to_rank(folders: Iterable[Path], metric: Metric) -> Finding:
    """The command that ranks the same runs by AUROC, and what it does not do."""
    named = " ".join(shlex.quote(str(folder)) for folder in folders) or "DIR"
    return finding(say.RANK_BY_AUROC, folders=named, metric=metric.title)


def common_folder(folders: Sequence[Path]) -> list[Path]:
    """The folder that holds all these runs."""
    common = os.path.commonpath([folder.parent for folder in folders]) if folders else ""
    return [Path(common)] if common not in ("", os.sep) else []
