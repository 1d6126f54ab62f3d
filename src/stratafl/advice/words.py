"""Advice in plain words: the answer, what was seen, what was tried, what it costs, and what it cannot know.

The console and `advice.md` show the same sentences.
"""

import shlex
from math import ceil, floor, isfinite, log10
from pathlib import Path
from statistics import median

from stratafl.advice.advice import Advice, Expectation
from stratafl.advice.candidates import Candidate
from stratafl.advice.chance import BY_ANSWERS, constant
from stratafl.advice.curves import best_value
from stratafl.advice.look import STRONG, Effect
from stratafl.algorithms.methods import METHODS
from stratafl.errors import counted
from stratafl.report.formats import listed, minus, size
from stratafl.report.jackknife import Difference

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
    """Federate or not, with what, how sure that is; in a few sentences."""
    if advice.doubt == "nothing learned":
        return _nothing_learned(advice)
    if advice.doubt == "no forecast":
        return _no_forecast(advice)
    label, later = advice.best_federated.label, _later(advice)
    so_far = f"{against_alone(advice.over_local, advice)} after {_rounds(advice)} of {_all_rounds(advice)}"
    if advice.federate and advice.doubt:
        return (
            f"Federate with {label}, but its lead may be chance: it is expected to be {later}, and was {so_far}. With "
            "--guard each client keeps the model of its own where that is better."
        )
    if advice.federate:
        return f"Federate with {label}: it is expected to be {later}, and was {so_far}."
    if advice.doubt or advice.expected.value > 0:
        return (
            f"Train alone, or collect more data: no method is clearly better. The best, {label}, is expected to be "
            f"{later}, and was {so_far}."
        )
    return f"Train alone: the best method, {label}, is expected to be {later}, and was {so_far}."


def _later(advice: Advice) -> str:
    return f"{against_alone(advice.expected, advice)} than training alone after {_all_rounds(advice)}"


def _all_rounds(advice: Advice) -> str:
    return counted(advice.experiment.run.rounds, "round")


def _nothing_learned(advice: Advice) -> str:
    """That every model is at chance, and what may show more."""
    problem, metric = advice.tryout.problem, advice.metric
    best = max(advice.tryout.finalists, key=lambda each: each.score)
    chance = score(problem.score(constant(problem, best.predictions)), advice)
    said = (
        f"No advice yet: after {_rounds(advice)} of {_all_rounds(advice)} no model, alone or shared, is clearly better "
        f"than the same prediction for every sample: the best {metric.title} is {score(best.score, advice)}, and "
        f"{chance} is chance."
    )
    if metric.name in BY_ANSWERS:
        return f"{said} The most likely class shows nothing here; its probability may: ask again with --metric auroc."
    return f"{said} Ask again with more rounds, another learning rate, or more data."


def _no_forecast(advice: Advice) -> str:
    """What was seen in too few rounds, and how many are needed."""
    best, tried = advice.best_federated, _rounds(advice)
    needed = ceil(10 * advice.budget_needed) / 10
    more = f"--budget {needed:g}" if needed <= 1 else "more rounds"
    return (
        f"No advice yet: {tried} of {_all_rounds(advice)} {'was' if tried == 1 else 'were'} tried, which is no "
        f"forecast. {best.label} was {against_alone(advice.over_local, advice)} than training alone"
        f"{_unequal(advice)}. Ask again with {more}."
    )


def _unequal(advice: Advice) -> str:
    """That its models were trained for longer than those of training alone."""
    best, rounds, epochs = advice.best_federated, _rounds(advice), advice.experiment.train.epochs
    own = round((best.epochs * rounds + best.tuning) * epochs)
    if own == rounds * epochs:
        return ""
    return f", with {counted(own, 'epoch')} of training against {rounds * epochs}"


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
    where = f"most often in '{most.layer}' (share of pairs: {seen})" if most.conflicts else "in no layer"
    return f"{said}. After one round, updates of two clients point apart {where}."


def seen(advice: Advice) -> list[tuple[str, str]]:
    """The facts, each with its name."""
    facts = advice.facts
    low, high = min(facts.sizes), max(facts.sizes)
    rows = [
        ("clients", f"{facts.clients:,}, with {low:,} to {high:,} training samples, median {median(facts.sizes):,.0f}")
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
    return "; ".join(listed(names, NAMED) for names in found.values())


def clients(advice: Advice) -> str:
    """Who gains, who should stay alone."""
    sides: dict[str, list[Expectation]] = {}
    for each in advice.clients:
        sides.setdefault(each.verdict, []).append(each)
    gaining, alone = sides.get("gains", []), sides.get("better alone", [])
    label, total = advice.best_federated.label, counted(len(advice.clients), "client")
    parts = [f"With {label}, {len(gaining):,} of {total} may expect a gain above its standard error"]
    if advice.federate and not gaining:
        parts = [f"With {label}, no client has enough validation samples to be sure of a gain of its own"]
    if alone:
        parts.append(f"{listed([each.name for each in alone], NAMED)} should rather stay alone")
    else:
        parts.append("none is clearly better alone")
    return f"{'; '.join(parts)}."


def cost(advice: Advice) -> str:
    """Bytes of the recommended run, and what the advice itself took."""
    tryout = advice.tryout
    one = tryout.of(advice.candidate.name).bytes_per_round
    sent = f"{_all_rounds(advice)} of {advice.candidate.label} send {size(advice.bytes)}, {size(one)} in a round, "
    sent += f"{size(advice.bytes / advice.facts.clients)} per client, up and down together."
    sent = "" if not advice.told else f"{sent} " if one else "It sends nothing. "
    return (
        f"{sent}This advice took {tryout.steps:,} client-steps, {tryout.steps / max(1, tryout.full):.1%} of the "
        f"{tryout.full:,} that all {len(advice.comparable)} comparable methods take in full."
    )


def unknown(advice: Advice) -> str:
    """What the answer rests on."""
    samples, best = sum(each.validation_samples for each in advice.clients), advice.best_federated
    said = [
        f"Judged by {advice.metric.title} on {counted(samples, 'validation sample')} after {_rounds(advice)} of "
        f"{_all_rounds(advice)}, one seed, one learning rate. Test samples were not looked at."
    ]
    if best_value(advice.tryout.problem) is None:
        said.append("A metric of your own has no known best value, so its scores are expected to stay as they are.")
    if best.tuning:
        more = counted(round(best.tuning * advice.experiment.train.epochs), "more epoch")
        said.append(f"Models of {best.label} are trained for {more} before use, which training alone does not have.")
    return " ".join(said)


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
        for each in advice.tryout.results
    ]


def sentences(advice: Advice) -> list[str]:
    """What follows the answer: the method, its layers, who gains, what it costs; the last alone if nothing is told."""
    about = [method(advice.candidate), layers(advice), clients(advice)] if advice.told else []
    return [*_switched(advice), *about, cost(advice)]


def _switched(advice: Advice) -> list[str]:
    """Why the metric is another one than the data suggested."""
    if not advice.tryout.switched:
        return []
    title = advice.metric.title
    return [
        f"Judged by {title}, as the recommended run will be: the classes that the models find most likely show no more "
        "than chance, so their probabilities are compared. Choose another metric with --metric."
    ]


def commands(advice: Advice, config: Path) -> list[str]:
    """What to type next."""
    return [*([command(advice, config)] if advice.told else []), check_command(advice, config)]


def command(advice: Advice, config: Path) -> str:
    """The recommended run; with the guard where it is not sure that sharing helps."""
    guard = " --guard" if advice.federate and advice.doubt else ""
    return f"strata run --config {shlex.quote(str(config))}{guard}"


def check_command(advice: Advice, config: Path) -> str:
    """What compares it with training alone on test samples."""
    best = advice.best_federated
    own = (
        ""
        if advice.federate
        else "".join(  # else the file has them
            f" --set {shlex.quote(f'{best.method}.{key}={value}')}" for key, value in best.options.items()
        )
    )
    return f"strata compare --config {shlex.quote(str(config))} --algorithms local,{best.method}{own} --seeds 3"


def method(candidate: Candidate) -> str:
    return f"{candidate.label}: {METHODS[candidate.method].idea}"


def score(value: float, advice: Advice) -> str:
    if not isfinite(value):
        return "–"
    value *= advice.metric.sign
    return f"{value:.1%}" if advice.metric.percent else minus(f"{value:.4g}")


def against_alone(gain: Difference, advice: Advice) -> str:
    """A difference with its standard error, in words that also fit a loss: better by 0.03 ± 0.01 in log-loss."""
    better, unit = "better" if gain.value >= 0 else "worse", gain_unit(advice)
    unit = unit if advice.metric.percent else f"in {unit}"
    return f"{better} by {gain_number(abs(gain.value), gain.error, advice)} {unit}"


def gain_number(value: float, error: float, advice: Advice, plus: str = "") -> str:
    """Both in points of a percentage, or with as many digits as the error has to show."""
    factor = 100 if advice.metric.percent else 1
    if not isfinite(error):
        return minus(f"{factor * value:{plus}.3g} ± unknown")
    digits = 1 if advice.metric.percent else max(0, 1 - floor(log10(error))) if error else 3
    shown = round(factor * value, digits) + 0.0  # which has no −0
    return minus(f"{shown:{plus}.{digits}f} ± {factor * error:.{digits}f}")


def clients_title(advice: Advice) -> str:
    unit = gain_unit(advice) if advice.metric.larger_is_better else f"{gain_unit(advice)}, where + is better"
    label, after = advice.best_federated.label, _all_rounds(advice)
    return f"What each client may expect of {label} over training alone after {after}, in {unit}"


def gain_unit(advice: Advice) -> str:
    """What gains are counted in: points of a percentage, or the metric as it is; larger is always better."""
    return f"points of {advice.metric.title}" if advice.metric.percent else advice.metric.title


def _rounds(advice: Advice) -> int:
    return advice.tryout.of(advice.best_federated.name).rounds


def markdown(advice: Advice, config: Path) -> str:
    """The whole advice as a page."""
    lines = [f"# Advice for {advice.federation.name}", "", f"**{answer(advice)}**", ""]
    lines += [line for said in sentences(advice) for line in (said, "")]
    lines += ["## Do next", "", "```", *commands(advice, config), "```", ""]
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
    if advice.told:
        lines += ["", f"## {clients_title(advice)}", ""]
        lines += ["| client | training samples | validation samples | gain | |", "|---|---|---|---|---|"]
        lines += [f"| {' | '.join(client_row(each, advice))} |" for each in advice.clients]
    return "\n".join([*lines, "", unknown(advice), ""])


def client_row(each: Expectation, advice: Advice) -> tuple[str, str, str, str, str]:
    gain = "–"
    if each.gain is not None and each.error is not None:
        gain = gain_number(each.gain, each.error, advice, plus="+")
    return each.name, f"{each.train_samples:,}", f"{each.validation_samples:,}", gain, each.verdict
