"""Advice in plain words: the answer, what was seen, what was tried, what it costs, and what it cannot know.

The console and `advice.md` show the same sentences.
"""

import shlex
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from statistics import median

from stratafl.advice.advice import Advice, Expectation
from stratafl.advice.candidates import Candidate
from stratafl.advice.look import STRONG, Effect
from stratafl.advice.trial import Difference
from stratafl.algorithms.catalogue import METHODS
from stratafl.errors import counted
from stratafl.report.formats import minus, size

NAMED = 5  # clients that a sentence names
_PERSONAL = {
    "head": "the head stays with each client, the base is shared",
    "base": "the base stays with each client, the head is shared",
    "last:2": "the last two layers stay with each client",
    "batchnorm": "the BatchNorm layers stay with each client",
    "head.prior": "only the class frequencies stay with each client",
    "head.personal": "a second head stays with each client",
}
_BY_METHOD = {
    "flayer": "All layers are shared, and each client mixes the shared head with its own",
    "heurfedamp": "Each client has its own mixture of all layers, mostly of clients whose models are like its own",
    "ifca": "Each group of clients has its own model, and shares all layers of it",
    "fedavgft": "All layers are shared, and each client trains all of them for one more epoch before use",
    "fedavglpft": "All layers are shared; before use each client trains its head, then all layers, for an epoch each",
}


def answer(advice: Advice) -> str:
    """Federate or not, with what, in one or two sentences."""
    after, all_of = counted(_rounds(advice), "round"), counted(advice.experiment.run.rounds, "round")
    so_far, later = points(advice.over_local, advice), points(advice.expected, advice)
    label = advice.best_federated.label
    if advice.federate:
        return (
            f"Federate with {label}: on validation samples it is {so_far} above training alone after {after}, "
            f"and {later} are to be expected after {all_of}."
        )
    return (
        f"Train alone, or collect more data: no method is clearly better. The best, {label}, is at {so_far} against "
        f"training alone after {after}, and {later} are to be expected after {all_of}."
    )


def layers(advice: Advice) -> str:
    """Which layers are personal, and what the conflicts say."""
    personal = advice.candidate.personal
    by_method = _BY_METHOD.get(advice.candidate.method)
    if by_method is not None and advice.federate:
        said = by_method
    elif not advice.federate:
        said = "All layers stay with each client"
    elif personal == "all":
        said = "Each client has a model of its own beside the shared one"
    else:
        said = _PERSONAL.get(personal, "no layer stays with a client: all are shared")
        said = said[0].upper() + said[1:]
    if not advice.facts.layers:
        return f"{said}."
    seen = ", ".join(f"{each.layer} {each.conflicts:.0%}" for each in advice.facts.layers[-6:])
    most = max(advice.facts.layers, key=lambda each: each.conflicts)
    return (
        f"{said}. After one epoch, updates of two clients point apart most often in '{most.layer}' "
        f"(share of pairs: {seen})."
    )


def seen(advice: Advice) -> list[tuple[str, str]]:
    """The facts, each with its name."""
    facts = advice.facts
    low, high = min(facts.sizes), max(facts.sizes)
    rows = [
        ("clients", f"{facts.clients:,}, with {low:,} to {high:,} training samples, median {median(facts.sizes):g}")
    ]
    if facts.skew is not None:
        rows.append(("labels", _labels(facts.skew, facts.classes is None)))
    if facts.shift is not None:
        rows.append(("features", _features(facts.shift, facts.classes is None)))
    else:
        rows.append(("features", "cannot be compared: no two clients share a class"))
    if facts.groups:
        rows.append(("groups", _groups(advice)))
    return rows


def _labels(skew: Effect, regression: bool) -> str:
    what = "targets" if regression else "class frequencies"
    if not skew.there:
        return f"{what} differ no more than by accident (distance {skew.value:.2f}, by accident {skew.accident:.2f})"
    much = "much" if skew.value > 0.5 else "clearly" if skew.value > 0.25 else "a little"
    return f"{what} differ {much}: mean distance {skew.value:.2f} of 1, by accident {skew.accident:.2f}"


def _features(shift: Effect, regression: bool) -> str:
    within = "among samples with similar targets" if regression else "within a class"
    share = f"{shift.value:.0%} of the scatter {within} is between clients"
    if not shift.there:
        return f"alike: {share}, as accident gives (p = {shift.p:.2f})"
    return f"{'differ' if shift.value >= STRONG else 'differ a little'}: {share} (p = {shift.p:.2f})"


def _groups(advice: Advice) -> str:
    found: dict[int, list[str]] = {}
    for client, group in enumerate(advice.facts.groups):
        found.setdefault(group, []).append(advice.federation.client_name(client))
    return "; ".join(listed(names) for names in found.values())


def listed(names: Sequence[str], most: int = NAMED) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def clients(advice: Advice) -> str:
    """Who gains, who should stay alone."""
    sides: dict[str, list[Expectation]] = {}
    for each in advice.clients:
        sides.setdefault(each.verdict, []).append(each)
    gaining, alone = sides.get("gains", []), sides.get("better alone", [])
    label, total = advice.best_federated.label, counted(len(advice.clients), "client")
    parts = [f"With {label}, {len(gaining):,} of {total} may expect a gain beyond its standard error"]
    if alone:
        parts.append(f"{listed([each.name for each in alone])} should rather stay alone")
    else:
        parts.append("nobody is clearly better alone")
    return f"{'; '.join(parts)}."


def cost(advice: Advice) -> str:
    """Bytes of the recommended run, and what the advice itself took."""
    rounds, outcome = advice.experiment.run.rounds, advice.outcome
    one = outcome.of(advice.candidate.name).bytes_per_round
    sent = (
        "It sends nothing."
        if not one
        else (
            f"{counted(rounds, 'round')} send {size(advice.bytes)}, {size(one)} in a round, "
            f"{size(advice.bytes / advice.facts.clients)} per client, up and down together."
        )
    )
    return (
        f"{sent} This advice took {outcome.steps:,} client-steps, {outcome.steps / max(1, outcome.full):.1%} of the "
        f"{outcome.full:,} that all {len(advice.comparable)} comparable methods take in full."
    )


def unknown(advice: Advice) -> str:
    """What the answer rests on."""
    samples = sum(each.validation_samples for each in advice.clients)
    return (
        f"Judged on {counted(samples, 'validation sample')} after {_rounds(advice)} of {advice.experiment.run.rounds} "
        "rounds, one seed, one learning rate. Test samples were not looked at."
    )


def tried(advice: Advice) -> list[tuple[str, str, str, str, str]]:
    """Of each candidate: its name, how far it came, its score, the score to be expected, and why it was tried."""
    return [
        (
            each.candidate.label,
            str(each.rounds),
            score(each.score, advice),
            score(each.expected, advice),
            each.candidate.why,
        )
        for each in advice.outcome.results
    ]


def command(advice: Advice, config: Path) -> str:
    """What to type next."""
    return f"strata run --config {shlex.quote(str(config))}"


def check_command(advice: Advice, config: Path) -> str:
    """What compares it with training alone on test samples."""
    other = advice.best_federated.method if not advice.federate else advice.candidate.method
    return f"strata compare --config {shlex.quote(str(config))} --algorithms local,{other} --seeds 3"


def method(candidate: Candidate) -> str:
    return f"{candidate.label}: {METHODS[candidate.method].idea}"


def score(value: float, advice: Advice) -> str:
    if not isfinite(value):
        return "–"
    value = value if advice.metric.larger_is_better else -value
    return f"{value:.1%}" if advice.metric.percent else minus(f"{value:.4g}")


def points(gain: Difference, advice: Advice) -> str:
    """A difference with its standard error: in points of a percentage."""
    what = advice.metric.title
    if advice.metric.percent:
        return minus(f"{100 * gain.value:+.1f} ± {100 * gain.error:.1f} points of {what}")
    return minus(f"{gain.value:+.3g} ± {gain.error:.2g} in {what}")


def _rounds(advice: Advice) -> int:
    return advice.outcome.of(advice.best_federated.name).rounds


def markdown(advice: Advice, config: Path) -> str:
    """The whole advice as a page."""
    lines = [f"# Advice for {advice.federation.name}", "", f"**{answer(advice)}**", "", layers(advice), ""]
    lines += [method(advice.candidate), "", clients(advice), "", cost(advice), ""]
    lines += ["## Do next", "", "```", command(advice, config), check_command(advice, config), "```", ""]
    lines += [
        "## What was seen",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {said} |" for name, said in seen(advice)),
        "",
    ]
    lines += [
        "## What was tried",
        "",
        f"| method | rounds | {advice.metric.title} | expected | why |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {' | '.join(row)} |" for row in tried(advice)]
    lines += ["", f"## What each client may expect of {advice.best_federated.label} over training alone", ""]
    lines += [
        f"| client | training samples | validation samples | gain, {gain_unit(advice)} | |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {' | '.join(client_row(each, advice))} |" for each in advice.clients]
    return "\n".join([*lines, "", unknown(advice), ""])


def gain_unit(advice: Advice) -> str:
    """What a client's gain is counted in: metrics of few samples, such as AUROC, say too little about one client."""
    if advice.federation.classes is None:
        return "squared error"
    return "points of accuracy" if advice.metric.name == "accuracy" else "points of balanced accuracy"


def client_row(each: Expectation, advice: Advice) -> tuple[str, str, str, str, str]:
    gain = "–"
    if each.gain is not None and each.error is not None:
        factor, digits = (1, "+.3g") if advice.federation.classes is None else (100, "+.1f")
        gain = minus(f"{factor * each.gain:{digits}} ± {factor * each.error:{digits[1:]}}")
    return each.name, f"{each.train_samples:,}", f"{each.validation_samples:,}", gain, each.verdict
