"""Whether scores are better than chance, and what probabilities show if predicted classes show nothing.

Chance is the majority class, as if it were a method: every client always gives the class that it has most in training,
and its probabilities are the shares of the classes there. A ranking shows what that scores below the methods. With 12 %
positives hardly any probability is above one half, so the answers of a good model are nearly those. A ranking by
answers then ranks noise, and the AUROC of the stored predictions tells more.
"""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from stratafl.errors import RunError
from stratafl.evaluation.measure import MetricValues
from stratafl.evaluation.metrics import METRICS, Metric
from stratafl.evaluation.predictions import Predictions
from stratafl.report import sentences as say
from stratafl.report.bootstrap import ALPHA, Uncertainty, sharing
from stratafl.report.formats import score_text
from stratafl.report.gains.sample_noise import ClientScores
from stratafl.report.intervals import Spread
from stratafl.report.outcome import OF_ANSWERS, Outcome, is_imported, measured_by, numbers_of
from stratafl.report.paired import (
    Couple,
    Paired,
    ScoredRun,
    holm,
    pair_of,
    pair_uncertainty,
    pairs,
    scored_runs,
    with_first,
)
from stratafl.report.ranking import Rank, comparable_ranks, ranking
from stratafl.report.sentences import Finding, finding
from stratafl.runs.class_counts import counts_array
from stratafl.runs.logistic import FOLDERS, baseline_folder
from stratafl.runs.prediction_file import read_predictions

OF_PROBABILITIES = ("log_loss", "brier", "ece")  # constant shares of the classes are calibrated, and still useless
MIN_LEAD = 0.002  # a method that is ahead of the majority class by less is no better
SLIGHT_LEAD = 0.1  # of the way from the majority class to a perfect score: answers that say little
LARGE_LEAD = 0.25  # of that way: no chance, however few the seeds, if test samples are enough
AUROC = METRICS["auroc"]
MAJORITY = "majority class"
MAX_MAJORITY_SAMPLES = 2_000_000  # of larger federations its score is not computed


# The majority class


def majority(ranks: Sequence[Rank]) -> Rank | None:
    """The row of the majority class, for the seeds of the first method; None for numbers and for your own metrics."""
    members = ranks[0].members if ranks else ()
    by_run = [numbers_of(values, run.evaluate) if (values := majority_values(run)) else {} for run in members]
    names = [name for name in by_run[0] if all(name in numbers for numbers in by_run)] if by_run else []
    if "score" not in names:
        return None
    spreads = {name: Spread.of([numbers[name] for numbers in by_run]) for name in names if name != "client_mean"}
    return Rank(MAJORITY, ranks[0].seeds, (0, 0), False, spreads)


def baselines(ranks: Sequence[Rank]) -> list[Rank]:
    """The rows of logistic regressions outside the federation, for the seeds of the first method, if there are any."""
    members, rows = ranks[0].members if ranks else (), list[Rank]()
    if not members or is_imported(members[0].metric):
        return []
    for name in FOLDERS:
        stored = [(run, _evaluated(run, read_predictions(baseline_folder(run.folder, name)))) for run in members]
        by_run = [numbers_of(MetricValues.of(run.metric, each), run.evaluate) for run, each in stored if each]
        if len(by_run) == len(members) and all("score" in numbers for numbers in by_run):
            names = [key for key in by_run[0] if all(key in numbers for numbers in by_run) and key != "client_mean"]
            spreads = {key: Spread.of([numbers[key] for numbers in by_run]) for key in names}
            rows.append(Rank(name, ranks[0].seeds, (0, 0), False, spreads))
    return rows


def _evaluated(run: Outcome, predicted: Predictions | None) -> Predictions | None:
    """Those of the clients that the run evaluates."""
    if predicted is None:
        return None
    return predicted.at(torch.isin(predicted.client, torch.tensor([*run.test_samples()])).nonzero()[:, 0])


def majority_values(run: Outcome) -> MetricValues | None:
    """What the majority class scores on the test samples of a run, by the metric of the run."""
    predicted = majority_predictions(run) if run.metric.classes and not is_imported(run.metric) else None
    return None if predicted is None else MetricValues.of(run.metric, predicted)


def majority_predictions(run: Outcome, tested: Predictions | None = None) -> Predictions | None:
    """What the majority class gives for the test samples of the clients that took part; in the order of `tested`."""
    class_counts = run.class_counts
    if class_counts is None or class_counts["classes"] is None:
        return None
    train, test = (_rows(class_counts["counts"][split], run.clients) for split in ("train", "test"))
    if int(test.sum()) > MAX_MAJORITY_SAMPLES:
        return None
    evaluated = run.test_samples()
    test[~torch.isin(torch.arange(len(test)), torch.tensor([*evaluated]))] = 0
    clients, classes = test.shape
    y = torch.arange(classes).repeat(clients).repeat_interleave(test.flatten())
    client = torch.arange(clients).repeat_interleave(test.sum(1))
    if tested is not None:
        client, y = tested.client, tested.y
    return Predictions(client, y, class_shares(train)[client])


def _rows(rows: Sequence[Sequence[int]], clients: int) -> Tensor:
    """The counts of the clients that took part, to be changed."""
    return torch.from_numpy(counts_array(rows).copy())[: clients or None]


def class_shares(train: Tensor) -> Tensor:
    """The shares of the classes in each client's training data; those of all clients for one without any."""
    counts = torch.where(train.sum(1, keepdim=True) > 0, train, train.sum(0, keepdim=True)).double()
    return counts / counts.sum(1, keepdim=True)


# Better than that


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
    runs = scored_runs(scored)
    couples = [_couples([runs[run.folder] for run in rank.members if run.folder in runs]) for rank in scored]
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


def _couples(runs: Sequence[ScoredRun]) -> list[Couple]:
    """Each run, and what the majority class gives for its test samples."""
    couples = []
    for scored in runs:
        run, values = scored.outcome, majority_values(scored.outcome)
        numbers = {} if values is None else numbers_of(values, run.evaluate)
        if values is not None and "score" in numbers:
            couples.append((scored, ScoredRun(run, numbers["score"], values.clients, _majority_tested(scored))))
    return couples


def _majority_tested(scored: ScoredRun) -> ClientScores | None:
    """What the majority class gives for the stored test samples of a run."""
    if scored.tested is None:
        return None
    predicted = majority_predictions(scored.outcome, scored.tested.predictions)
    return ClientScores(predicted, scored.outcome.metric, scored.tested.max_scores) if predicted else None


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
    guessing = [rank for rank in rivals if rank.says_nothing or (limits and rank.label in limits.unsure)]
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
