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
from stratafl.report.bootstrap import ALPHA, Uncertainty, sharing
from stratafl.report.formats import listed, score
from stratafl.report.majority import majority_predictions, majority_values
from stratafl.report.outcome import OF_ANSWERS, Outcome, measured_by, numbers_of
from stratafl.report.paired import Paired, holm, pairs, with_first
from stratafl.report.pairing import Couple, ScoredRun, StoredScores, pair_uncertainty
from stratafl.report.ranking import Rank, ranking, winner

OF_PROBABILITIES = ("log_loss", "brier", "ece")  # constant shares of the classes are calibrated, and still useless
HARDLY = 0.002  # a method that is ahead of the majority class by less is no better
SLIGHT = 0.1  # of the way from the majority class to a perfect score: answers that say little
CLEAR = 0.25  # of that way: no chance, however few the seeds, if test samples are enough
AUROC = METRICS["auroc"]


class Chance(NamedTuple):
    """The score of the majority class, and how far methods are above it."""

    base: float
    ahead: Mapping[str, float]  # by label, as a share of the way to a perfect score
    unsure: frozenset[str]  # labels of methods that cannot be told from it


def chance(ranks: Sequence[Rank]) -> Chance | None:
    """None where there is no majority class to compare with: numbers, your own metrics, metrics of calibration."""
    scored = [rank for rank in ranks if "score" in rank.numbers and rank.members]
    metric = scored[0].members[0].metric if scored else None
    if metric is None or not metric.classes or ":" in metric.name or metric.name in OF_PROBABILITIES:
        return None
    stored = StoredScores([one for rank in scored for one in rank.members])
    couples = [[_couple(one, stored) for one in rank.members if "score" in one.numbers()] for rank in scored]
    paired = [[couple for couple in each if couple is not None] for each in couples]
    known = [found for each in paired if (found := pair_uncertainty(each)) is not None]
    if len(known) < len(scored):
        return None
    base = fmean(other.score for _, other in paired[0])
    means = [metric.sign * each.mean for each in known]
    ahead = {rank.label: mean / max(1 - base, 1e-9) for rank, mean in zip(scored, means, strict=True)}
    here = _told([replace(each, between_seeds=0.0) for each in known], metric)  # with these seeds
    clear = [told or not each.about_these_clients for told, each in zip(here, known, strict=True)]
    judged = zip(ahead.items(), means, _told(sharing(known), metric), clear, strict=True)
    above = {label for (label, way), mean, told, far in judged if mean > HARDLY and (told or (far and way >= CLEAR))}
    return Chance(base, ahead, frozenset(ahead.keys() - above))


def _told(known: Sequence[Uncertainty], metric: Metric) -> list[bool]:
    """Which are above 0, one-sided, at 5 % for all together."""
    adjusted, _ = holm([each.p / 2 if metric.sign * each.mean > 0 else 1.0 for each in known])
    return [p < ALPHA for p in adjusted]


def _couple(one: Outcome, stored: StoredScores) -> Couple | None:
    """A run, and what the majority class gives for its test samples."""
    values = majority_values(one)
    if values is None or "score" not in (numbers := numbers_of(values, one.evaluate)):
        return None
    there = stored.predictions.get(one.folder)
    given = None if there is None else majority_predictions(one, there)
    scores = None if given is None else stored.scores(one, given)
    return stored.run(one), ScoredRun(one, numbers["score"], values.clients, scores)


class Probabilities(NamedTuple):
    """The methods ranked by the AUROC of their stored predictions, and how sure that is."""

    ranks: list[Rank]
    pairs: list[Paired]
    at_chance: bool  # of every method

    @property
    def sentences(self) -> list[str]:
        shown = [f"{rank.label} {score(rank.numbers['score'].mean, AUROC)}" for rank in self.ranks]
        if self.at_chance:
            return [f"By their probabilities, too, no method can be told from chance: AUROC {listed(shown, 6)}."]
        differ = "the methods differ: " if any(pair.verdict != "unclear" for pair in self.pairs) else ""
        said = f"By their probabilities, {differ}AUROC {listed(shown, 6)}."
        return [said, *(pair.sentence for pair in with_first(self.pairs)[:3])]


def probabilities(ranks: Sequence[Rank]) -> Probabilities | None:
    """None if answers are not what methods are ranked by, or if there are no predictions."""
    scored = [rank for rank in ranks if "score" in rank.numbers and not rank.leaks]
    if not scored or scored[0].members[0].metric.name not in OF_ANSWERS:
        return None
    try:
        found = ranking([measured_by(one, AUROC) for rank in scored for one in rank.members])
    except RunError:  # some run has no predictions
        return None
    known = [rank for rank in found if "score" in rank.numbers]
    limits = chance(known) if known else None
    at_chance = limits is not None and all(rank.label in limits.unsure for rank in known)
    return Probabilities(known, pairs(known), at_chance) if known else None


class NoChoice(NamedTuple):
    """Why no method can be chosen by its answers, and what the probabilities of the same runs show."""

    why: str
    shown: Probabilities | None
    all_at_chance: bool  # or the first is slightly better, and the probabilities contradict it


def no_choice(ranks: Sequence[Rank], limits: Chance | None) -> NoChoice | None:
    """None if the first method is better than chance, and no other shows by its probabilities that it is better."""
    rivals, first = [rank for rank in ranks if not rank.leaks and "score" in rank.numbers], winner(ranks)
    if first is None:
        return None
    guessing = [rank for rank in rivals if rank.one_answer or (limits and rank.label in limits.unsure)]
    metric = first.members[0].metric
    if len(guessing) == len(rivals):
        one = "no method" if len(rivals) > 1 else first.label
        verb = "can" if len(rivals) > 1 else "cannot"
        base = f" ({score(limits.base, metric)})" if limits else ""
        why = f"by {metric.title} {one} {verb} be told from always giving the most frequent class{base}"
        return NoChoice(why, probabilities(ranks), all_at_chance=True)
    if not guessing or limits is None or limits.ahead.get(first.label, 1.0) >= SLIGHT:
        return None
    shown = probabilities(ranks)
    better = _better(first, guessing, shown) if shown and not shown.at_chance else ""
    if not better:
        return None
    why = f"by {metric.title} {first.label} is hardly better than always giving the most frequent class, {better}"
    return NoChoice(why, shown, all_at_chance=False)


def _better(first: Rank, guessing: Sequence[Rank], shown: Probabilities) -> str:
    """Which of the methods whose answers show nothing have better probabilities than the first, beyond chance."""
    told = {(pair.first, pair.second) for pair in shown.pairs if pair.verdict == "better"}
    told |= {(pair.second, pair.first) for pair in shown.pairs if pair.verdict == "worse"}
    ahead = [rank.label for rank in guessing if (rank.label, first.label) in told]
    if not ahead:
        return ""
    have = "cannot be told from that but has" if len(ahead) == 1 else "cannot be told from that but have"
    return f"and {listed(ahead, 3)} {have} better probabilities"


def how_to_rank(folders: Iterable[Path], metric: Metric) -> str:
    """The command that ranks the same runs by AUROC, and what it does not do."""
    named = " ".join(shlex.quote(str(folder)) for folder in folders) or "DIR"
    return (
        f"Rank by it: strata report {named} --metric auroc. Rounds stay those that {metric.title} selected; "
        "to select them by AUROC, too, compare again with --metric auroc."
    )


def common_folder(folders: Sequence[Path]) -> list[Path]:
    """The folder that holds all these runs."""
    held = os.path.commonpath([folder.parent for folder in folders]) if folders else ""
    return [Path(held)] if held not in ("", os.sep) else []
