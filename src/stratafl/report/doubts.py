"""Doubts about a ranking, the gravest first: what a reader must know before acting on it."""

from collections.abc import Sequence
from math import isclose
from statistics import fmean

from stratafl.evaluation.measure import local_steps
from stratafl.report.formats import listed, minus, score
from stratafl.report.guards import ENOUGH
from stratafl.report.outcome import Outcome
from stratafl.report.ranking import INCOMPARABLE, Rank
from stratafl.report.study import RunRecord, Study
from stratafl.runs.summary import VALIDATED

FEW = 50  # validation samples: the standard error of a share is up to 7 points
SAME_STEPS = 1.05  # methods whose numbers of steps differ by less have trained equally long


def doubts(study: Study) -> list[str]:
    """Sentences on what makes the ranking doubtful."""
    return [
        *of_learning(study),
        *_of_leaks(study),
        *_of_ends(study),
        *_of_seeds(study),
        *_of_tuning(study),
        *_of_stages(study),
        *_of_steps(study),
        *_of_selection(study),
    ]


def of_learning(study: Study) -> list[str]:
    """Methods that always give one answer, and methods that are not better than the majority class."""
    scored, limits = [rank for rank in study.ranks if "score" in rank.numbers], study.chance
    one = [rank.label for rank in scored if rank.one_answer]
    said = [f"{_says(one, scored, 'gives', 'give')} one answer for all samples of a client."] if one else []
    if limits is None:
        return said
    most = f"always giving a client its most frequent class ({score(limits.base, study.measured)})"
    others = [label for label in limits.ahead if label in limits.unsure and label not in one]
    low = [label for label in others if limits.ahead[label] <= 0]
    near = [label for label in others if label not in low]
    none = len(scored) > 1
    lower = f"{_says(low, scored, 'is', 'are')} no" if len(low) < len(scored) or not none else "No method is"
    told = f"{listed(near, 6)} cannot" if len(near) < len(scored) or not none else "No method can"
    return said + [f"{lower} better than {most}."] * bool(low) + [f"{told} be told from {most}."] * bool(near)


def _says(labels: Sequence[str], ranks: Sequence[Rank], one: str, several: str) -> str:
    """Subject and verb."""
    if len(labels) == len(ranks) > 1:
        return f"Every method {one}"
    return f"{listed(list(labels), 6)} {one if len(labels) == 1 else several}"


def _of_leaks(study: Study) -> list[str]:
    leaking = [rank.label for rank in study.ranks if rank.leaks]
    return [f"{listed(leaking)}: {INCOMPARABLE}, so it is not considered."] if leaking else []


def _of_ends(study: Study) -> list[str]:
    """Methods that diverged, and runs that are not at their end."""
    lost = [rank.label for rank in study.ranks if "score" not in rank.numbers or rank.diverged]
    short = [rank.label for rank in study.ranks if rank.rounds[0] < rank.rounds[1] and not rank.stopped]
    said = [f"{listed(lost)} diverged: training went out of control; try a smaller learning rate."] if lost else []
    are = "is" if len(short) == 1 else "are"
    return said + ([f"{listed(short)} {are} not finished; the order may still change."] if short else [])


def _of_seeds(study: Study) -> list[str]:
    if len(study.ranks) < 2 or any(len(rank.seeds) > 1 for rank in study.ranks):
        return []
    return ["Every method ran once: how much of a difference is chance is unknown. Repeat with --seeds 3 or more."]


def _of_tuning(study: Study) -> list[str]:
    """One learning rate for all methods says little about any of them."""
    rates = {rank.settings.get("train.lr") for rank in study.ranks}
    names = {rank.settings["algorithm.name"] for rank in study.ranks}
    if study.tuned or study.own_rates or len(names) < 2 or len(rates) > 1:
        return []
    (rate,) = rates
    shown = f" ({minus(f'{rate:g}')})" if isinstance(rate, int | float) else ""
    return [f"All methods used one learning rate{shown}; with a rate tuned for each, the order may change."]


def tuned_before_use(rank: Rank) -> bool:
    """Whether a client trains its model once more before it is used: it then differs from the one as received."""
    found = [one.numbers() for one in rank.members]
    pairs = [(each["received"], each["deployed"]) for each in found if {"received", "deployed"} <= each.keys()]
    return any(not isclose(received, deployed, abs_tol=1e-9) for received, deployed in pairs)


def _of_stages(study: Study) -> list[str]:
    if any(one.evaluate.stage != "deployed" for one in study.outcomes):
        return []
    found = [rank.label for rank in study.ranks if tuned_before_use(rank)]
    if not found or len(found) == len(study.ranks):
        return []
    verb, them = ("trains", "It has") if len(found) == 1 else ("train", "They have")
    return [
        f"{listed(found)} {verb} each client's model once more before it is used; the other methods do not. "
        f"{them} an advantage that any method could have."
    ]


def _of_steps(study: Study) -> list[str]:
    steps = {rank.label: _steps(rank) for rank in study.ranks}
    known = {label: count for label, count in steps.items() if count}
    if len(known) < 2 or max(known.values()) <= SAME_STEPS * min(known.values()):
        return []
    most, least = (choose(known, key=lambda label: known[label]) for choose in (max, min))
    ratio = known[most] / known[least]
    return [f"A round of {most} has {ratio:.1f} times the training steps of a round of {least}."]


def _steps(rank: Rank) -> float | None:
    """Training steps of all clients in a round, the mean over rounds and seeds; None if they are not recorded."""
    counts = [local_steps(line) for one in rank.members for line in one.lines]
    return fmean(counts) if counts and all(counts) else None


def _of_selection(study: Study) -> list[str]:
    return [*_of_few_samples(study), *_of_metrics(study)]


def _of_few_samples(study: Study) -> list[str]:
    """Rounds that so few validation samples selected that another few would have selected others."""
    selected = [one for one in study.outcomes if not one.is_guarded and _selected_by_validation(one)]
    counts = [count for one in selected if (count := _validation_samples(study.records[one.folder]))]
    if not counts or min(counts) >= FEW:
        return []
    many = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    low = min(float(one.config["data"]["validation"]) for one in selected) < ENOUGH
    more = f"; set data.validation={ENOUGH:g}" if low else ""
    few = f"Rounds were selected on {many} validation samples of all clients together"
    return [f"{few}, so which round counts is partly chance{more}."]


def _selected_by_validation(one: Outcome) -> bool:
    """Whether its round is one of several, chosen by their validation scores."""
    lines = [line for line in one.lines if f"{VALIDATED}.loss" in line]
    return one.selection.select == "validation" and len(lines) > 1


def _validation_samples(record: RunRecord) -> int:
    """Of the clients that took part; 0 if it is unknown."""
    rows = record.class_counts.counts.get("validation", ())
    return sum(map(sum, rows[: record.outcome.clients or None]))


def _of_metrics(study: Study) -> list[str]:
    best = [one for one in study.outcomes if one.evaluate.select == "best"]
    said = ["The round was chosen by its test score, which is optimistic."] if best else []
    if any(one.values is not None for one in study.outcomes):
        chosen, shown = study.outcomes[0].recorded.title, study.measured.title
        said.append(f"Rounds were selected by {chosen}; methods are ranked by {shown} of the stored predictions.")
    return said
