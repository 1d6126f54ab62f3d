"""Advice in sentences: the answer, facts about the data, the methods tried, the cost, and the basis of the answer.

The console and `advice.md` show the same sentences. The words stand first, with a name for each value in them.
"""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import ceil, floor, isfinite, log10
from pathlib import Path
from statistics import median

from stratafl.advice.advice import Advice, Expectation
from stratafl.advice.candidate_methods import TRAINS_ALONE
from stratafl.advice.cuts import Cut
from stratafl.advice.forecast import BY_ANSWERS, best_value, constant, is_perfect
from stratafl.advice.look import STRONG, Effect
from stratafl.advice.measured import MeasuredFederation, is_sure, most_similar
from stratafl.algorithms.declaration import METHODS
from stratafl.errors import counted
from stratafl.evaluation.metrics import METRICS
from stratafl.report.formats import listed, markdown_table, minus, size_text
from stratafl.report.guards import guard_option
from stratafl.report.jackknife import Difference
from stratafl.report.sentences import Finding, finding
from stratafl.runs.logistic import WHY

MAX_CLIENT_NAMES = 5  # in a sentence
SHOWN_LAYERS = 6  # the last ones
SHOWN_FEDERATIONS = 2  # with their gains; of more only the method that was chosen

FEDERATE = "Federate with {method}: {forecast}."
FEDERATE_PERHAPS = (
    "Federate with {method}, but its lead may be due to chance: {forecast}. With --guard, each client keeps its own "
    "model where that is better."
)
NOT_CLEARLY_BETTER = "Train alone, or collect more data: no method is clearly better. The best is {method}: {forecast}."
TRAIN_ALONE = "Train alone. The best method is {method}: {forecast}."
PERFECT_ALONE = (
    "Train alone: after {tried} of {rounds} its validation {metric} is {score}, and nothing can be better. If that "
    "surprises you, look for a column that gives the label away (strata data show)."
)
FORECAST = (
    "after {rounds} it should be {expected} than training alone (90 % interval {low} to {high}); after {tried} of "
    "{rounds} it was {so_far}"
)
NOTHING_LEARNED = (
    "No advice yet: after {tried} of {rounds} no model, local or shared, is clearly better than a constant "
    "prediction. The best {metric} is {best}; chance is {chance}."
)
TRY_AUROC = "The predicted probabilities may be informative: try again with --metric auroc."
TRY_MORE = "Try again with a larger --budget, more rounds, another learning rate, or more data."
NO_FORECAST = (
    "No advice yet: {tried} of {rounds} is not enough for a forecast. {method} was {so_far} than training alone."
)
MORE_EPOCHS = "Its models trained for {epochs}, the local models for {alone}."
ASK_AGAIN = "Try again with {option}."
CONFLICTS = "After one round, client updates conflict most often in '{layer}' (share of conflicting pairs: {shares})."
NO_CONFLICTS = "After one round, client updates conflict in no layer."
CUTS = "Two rules of thumb for where to cut the model, by the first epoch: {where}."
SIMILAR = "Most like yours in labels, features and samples, of the federations measured on MNIST: {federations}."
CANNOT_TELL = "These facts cannot tell the {count} apart, so the trial on your own data decides."
LOOKS_LIKE = "'{kind}' ({samples} samples per client: {method})"
NOT_TRIED = "This advice does not try {methods}: compare with strata compare."
MEASURED = "'{kind}' with {samples} training samples per client, where validation samples chose {method} ({gains})"
MAY_GAIN = "With {method}, {count} of {clients} can expect a gain larger than its standard error."
TOO_FEW_SAMPLES = "With {method}, no client has enough validation samples to be sure of a gain."
BETTER_ALONE = "Better alone: {names}."
NONE_BETTER_ALONE = "No client is clearly better alone."
SENDS = "{rounds} of {method} send {total} up and down: {per_round} per round, {per_client} per client."
SENDS_NOTHING = "It sends nothing."
ADVICE_COST = (
    "This advice took {steps:,} client-steps, {share:.1%} of the {full:,} that all {methods} comparable methods take."
)
RESTS_ON = (
    "Judged by {metric} on {samples} after {tried} of {rounds}, with one seed and one learning rate. No test sample "
    "was used."
)
NO_BEST_VALUE = "The best value of your own metric is unknown, so the forecast assumes that scores stay the same."
TRAINED_BEFORE_USE = "{method} fine-tunes its models for {epochs} before use; training alone does not."
SWITCHED = (
    "Judged by {metric}, as the recommended run will be, because the predicted classes are no better than chance. "
    "Choose another metric with --metric."
)
LAYERS = {
    "head": "The head stays with each client, the base is shared.",
    "base": "The base stays with each client, the head is shared.",
    "last:2": "The last two layers stay with each client.",
    "batchnorm": "The BatchNorm layers stay with each client.",
    "head.prior": "Only the class frequencies stay with each client.",
    "head.personal": "A second head stays with each client.",
    "all": "Each client has its own model in addition to the shared one.",
    "": "All layers are shared.",
}
LAYERS_BY_METHOD = {
    "local": "All layers stay with each client.",
    "flayer": "All layers are shared, and each client mixes the shared head with its own.",
    "heurfedamp": "Each client gets its own mixture of all layers, mostly from clients with similar models.",
    "ifca": "Each group of clients shares all layers of its own model.",
    "fedavgft": "All layers are shared, and each client trains all of them for one more epoch before use.",
    "fedavglpft": "All layers are shared; before use each client trains its head, then all layers, for an epoch each.",
}


def advice_answer(advice: Advice) -> str:
    """Federate or not, with which method, and how sure that is."""
    if advice.doubt == "nothing learned":
        return _joined(_nothing_learned(advice))
    if advice.doubt == "no forecast":
        return _joined(_no_forecast(advice))
    differences = {
        "expected": _against_alone(advice.expected, advice),
        "so_far": _against_alone(advice.over_local, advice),
    }
    if is_perfect(advice.tryout.problem, alone := advice.tryout.of(TRAINS_ALONE)):
        score = {"metric": advice.metric.title, "score": _score_text(alone.score, advice)}
        return str(finding(PERFECT_ALONE, tried=alone.rounds, rounds=_all_rounds(advice), **score))
    low, high = (gain_bound(bound, advice) for bound in advice.interval)
    rounds = {"rounds": _all_rounds(advice), "tried": _tried_rounds(advice)}
    forecast = finding(FORECAST, **rounds, low=low, high=high, **differences)
    if advice.federate:
        sentence = FEDERATE_PERHAPS if advice.doubt else FEDERATE
    else:
        sentence = NOT_CLEARLY_BETTER if advice.doubt or advice.expected.value > 0 else TRAIN_ALONE
    return str(finding(sentence, method=advice.best_federated.label, forecast=forecast))


def _joined(findings: list[Finding]) -> str:
    return " ".join(map(str, findings))


def _nothing_learned(advice: Advice) -> list[Finding]:
    """Every model is at chance; what may show more."""
    problem, metric = advice.tryout.problem, advice.metric
    best = max(advice.tryout.finalists, key=lambda result: result.score)
    chance = problem.score(constant(problem, best.predictions))
    scores = {"best": _score_text(best.score, advice), "chance": _score_text(chance, advice), "metric": metric.title}
    rounds = {"tried": _tried_rounds(advice), "rounds": _all_rounds(advice)}
    ranked = replace(problem, metric=METRICS["auroc"], over="clients")  # as --metric auroc averages
    may_rank = metric.name in BY_ANSWERS and not is_perfect(ranked, advice.tryout.of(TRAINS_ALONE).judged(ranked))
    remedy = TRY_AUROC if may_rank else TRY_MORE
    return [finding(NOTHING_LEARNED, **rounds, **scores), finding(remedy)]


def _no_forecast(advice: Advice) -> list[Finding]:
    """What was seen in too few rounds, and how many are needed."""
    best, tried, epochs = advice.best_federated, _tried_rounds(advice), advice.experiment.train.epochs
    budget = ceil(10 * advice.budget_needed) / 10
    so_far = _against_alone(advice.over_local, advice)
    seen = finding(NO_FORECAST, method=best.label, tried=tried, rounds=_all_rounds(advice), so_far=so_far)
    trained, alone = round((best.epochs * tried + best.tuning) * epochs), tried * epochs
    unequal = [finding(MORE_EPOCHS, epochs=counted(trained, "epoch"), alone=alone)] if trained != alone else []
    return [seen, *unequal, finding(ASK_AGAIN, option=f"--budget {budget:g}" if budget <= 1 else "more rounds")]


def sentences(advice: Advice) -> list[str]:
    """What follows the answer: the method, its layers, who gains, what it costs; the last alone if nothing is told."""
    switched = [finding(SWITCHED, metric=advice.metric.title)] if advice.tryout.switched else []
    method = f"{advice.candidate.label}: {METHODS[advice.candidate.method].idea}"
    about = [method, layers_text(advice), _joined(_clients(advice))] if advice.is_conclusive else []
    similar, tried = most_similar(advice.facts), {each.method for each in advice.comparable}
    return [*map(str, switched), *about, *([similar_text(similar, tried)] if similar else []), cost_text(advice)]


def similar_text(similar: Sequence[MeasuredFederation], tried: Collection[str]) -> str:
    """What was best on the measured federations that are most like these clients, and what of it advice cannot try."""
    text = _measured_text if len(similar) <= SHOWN_FEDERATIONS else _short_text
    findings = [finding(SIMILAR, federations="; ".join(map(text, similar)))]
    if len(similar) > 1:
        findings.append(finding(CANNOT_TELL, count=len(similar)))
    others = sorted({each.methods[0].method for each in similar}.difference(tried))
    return _joined([*findings, *([finding(NOT_TRIED, methods=listed(others, len(others)))] if others else [])])


def _measured_text(similar: MeasuredFederation) -> str:
    best = similar.methods[0]
    bases = {TRAINS_ALONE: ("training alone", best.over_local), "fedavg": ("fedavg", best.over_fedavg)}
    gains = [f"{_points(gain)} against {name}" for base, (name, gain) in bases.items() if base != best.method]
    values = {"kind": similar.kind, "samples": similar.samples, "method": best.method, "gains": " and ".join(gains)}
    return str(finding(MEASURED, **values))


def _short_text(similar: MeasuredFederation) -> str:
    method = similar.methods[0].method
    return str(finding(LOOKS_LIKE, kind=similar.kind, samples=similar.samples, method=method))


def _points(gain: Difference) -> str:
    noise = "" if is_sure(gain) else " (within noise)"
    return minus(f"{100 * gain.value:+.1f} ± {100 * gain.error:.1f} points{noise}")


def layers_text(advice: Advice) -> str:
    """Which layers are personal, and in which ones clients conflict."""
    candidate = advice.candidate
    personal = LAYERS_BY_METHOD.get(candidate.method) or LAYERS.get(candidate.personal, LAYERS[""])
    conflicts = advice.facts.layers
    if not conflicts:
        return personal
    most = max(conflicts, key=lambda layer: layer.conflicts)
    shares = ", ".join(f"{each.layer} {each.conflicts:.0%}" for each in conflicts[-SHOWN_LAYERS:])
    where = finding(CONFLICTS, layer=most.layer, shares=shares) if most.conflicts else finding(NO_CONFLICTS)
    return f"{personal} {where}{_cuts(advice)}"


def _cuts(advice: Advice) -> str:
    """Where each rule would cut the model."""
    if not advice.facts.cuts:
        return ""
    where = "; ".join(f"{cut.rule} {_shared_layers(cut)}" for cut in advice.facts.cuts)
    return f" {finding(CUTS, where=where)}"


def _shared_layers(cut: Cut) -> str:
    if cut.personal in ("all", "none"):
        return "shares no layer" if cut.shared == 0 else "shares all layers"
    return f"shares the layers up to '{cut.layers[cut.shared - 1]}' (fedper.personal={cut.personal})"


def _clients(advice: Advice) -> list[Finding]:
    """Who gains, and who is better alone."""
    gaining = [client for client in advice.clients if client.verdict == "gains"]
    alone = [client.name for client in advice.clients if client.verdict == "better alone"]
    method, clients = advice.best_federated.label, counted(len(advice.clients), "client")
    gains = finding(MAY_GAIN, method=method, count=f"{len(gaining):,}", clients=clients)
    if advice.federate and not gaining:
        gains = finding(TOO_FEW_SAMPLES, method=method)
    names = listed(alone, MAX_CLIENT_NAMES)
    return [gains, finding(BETTER_ALONE, names=names) if alone else finding(NONE_BETTER_ALONE)]


def cost_text(advice: Advice) -> str:
    """Bytes of the recommended run, and what the advice itself took."""
    tryout, method = advice.tryout, advice.candidate
    share = tryout.steps / max(1, tryout.full)
    cost = finding(ADVICE_COST, steps=tryout.steps, full=tryout.full, share=share, methods=len(advice.comparable))
    if not advice.is_conclusive:
        return str(cost)
    per_round = tryout.of(method.name).bytes_per_round
    if not per_round:
        return _joined([finding(SENDS_NOTHING), cost])
    sizes = {"total": size_text(advice.bytes), "per_round": size_text(per_round)}
    sizes |= {"per_client": size_text(advice.bytes / advice.facts.clients)}
    return _joined([finding(SENDS, rounds=_all_rounds(advice), method=method.label, **sizes), cost])


def basis_text(advice: Advice) -> str:
    """What the answer rests on."""
    samples, best = sum(client.validation_samples for client in advice.clients), advice.best_federated
    rounds = {"tried": _tried_rounds(advice), "rounds": _all_rounds(advice)}
    counted_samples = counted(samples, "validation sample")
    findings = [finding(RESTS_ON, metric=advice.metric.title, samples=counted_samples, **rounds)]
    findings += [finding(NO_BEST_VALUE)] if best_value(advice.tryout.problem) is None else []
    if best.tuning:
        epochs = counted(round(best.tuning * advice.experiment.train.epochs), "more epoch")
        findings.append(finding(TRAINED_BEFORE_USE, method=best.label, epochs=epochs))
    return _joined(findings)


def _all_rounds(advice: Advice) -> str:
    return counted(advice.experiment.run.rounds, "round")


def _tried_rounds(advice: Advice) -> int:
    return advice.tryout.of(advice.best_federated.name).rounds


# Tables


def seen(advice: Advice) -> list[tuple[str, str]]:
    """The facts, each with its name."""
    facts = advice.facts
    low, high = min(facts.sizes), max(facts.sizes)
    sizes = f"{facts.clients:,}, with {low:,} to {high:,} training samples, median {median(facts.sizes):,.0f}"
    if low == high:
        sizes = f"{facts.clients:,}, with {low:,} training samples each"
    rows = [("clients", sizes)]
    if facts.skew is not None:
        rows.append(("labels", _labels(facts.skew, facts.classes is None)))
    if facts.shift is None:
        rows.append(("features", "cannot be compared: no two clients share a class"))
    else:
        rows.append(("features", _features(facts.shift, facts.classes is None)))
    return [*rows, *([("groups", _groups(advice))] if facts.groups else [])]


def _labels(skew: Effect, regression: bool) -> str:
    what = "targets" if regression else "class frequencies"
    if not skew.there:
        return f"{what} differ only as expected by chance (distance {skew.value:.2f}, by chance {skew.accident:.2f})"
    much = "strongly" if skew.value > 0.5 else "clearly" if skew.value > 0.25 else "slightly"
    return f"{what} differ {much}: mean distance {skew.value:.2f} of 1, by chance {skew.accident:.2f}"


def _features(shift: Effect, regression: bool) -> str:
    within = "among samples with similar targets" if regression else "within a class"
    share = f"{shift.value:.0%} of the variance {within} is between clients"
    if not shift.there:
        return f"similar: {share}, as expected by chance (p = {shift.p:.2f})"
    return f"{'differ' if shift.value >= STRONG else 'differ slightly'}: {share} (p = {shift.p:.2f})"


def _groups(advice: Advice) -> str:
    members: dict[int, list[str]] = {}
    for client, group in enumerate(advice.facts.groups):
        members.setdefault(group, []).append(advice.federation.client_name(client))
    return "; ".join(listed(names, MAX_CLIENT_NAMES) for names in members.values())


def tried(advice: Advice) -> list[tuple[str, str, str, str, str]]:
    """Of each candidate: its name, how far it came, its score, the score to be expected, and why it was tried."""
    rows = []
    for result in advice.tryout.results:
        scores = _score_text(result.score, advice), _score_text(result.expected, advice)
        rows.append((result.candidate.label, str(result.rounds), *scores, result.candidate.why))
    baselines = [(name, "–", _score_text(score, advice), "–", WHY[name]) for name, score in advice.baselines.items()]
    return [*rows, *baselines]


def clients_title(advice: Advice) -> str:
    turned = "" if advice.metric.larger_is_better else ", where + is better"
    label, after = advice.best_federated.label, _all_rounds(advice)
    return f"Expected gain of each client from {label} over training alone after {after}, in {_unit(advice)}{turned}"


def client_row(client: Expectation, advice: Advice) -> tuple[str, str, str, str, str]:
    gain = "–"
    if client.gain is not None and client.error is not None:
        gain = gain_number(client.gain, client.error, advice, plus="+")
    return client.name, f"{client.train_samples:,}", f"{client.validation_samples:,}", gain, client.verdict


def _score_text(value: float, advice: Advice) -> str:
    if not isfinite(value):
        return "–"
    value *= advice.metric.sign
    return f"{value:.1%}" if advice.metric.percent else minus(f"{value:.4g}")


def _against_alone(gain: Difference, advice: Advice) -> str:
    """A difference with its standard error, in words that also fit a loss: better by 0.03 ± 0.01 in log-loss."""
    number = gain_number(abs(gain.value), gain.error, advice)
    unit = _unit(advice) if advice.metric.percent else f"in {_unit(advice)}"
    return f"{'better' if gain.value >= 0 else 'worse'} by {number} {unit}"


def gain_number(value: float, error: float, advice: Advice, plus: str = "") -> str:
    """Both in points of a percentage, or with as many digits as the error has to show."""
    factor = 100 if advice.metric.percent else 1
    if not isfinite(error):
        return minus(f"{factor * value:{plus}.3g} ± unknown")
    scale = abs(advice.tryout.of(TRAINS_ALONE).score) or 1.0  # of a score, four digits say all
    shown = min(1 - floor(log10(error)) if error else 3, 3 - floor(log10(scale)))
    digits = 1 if advice.metric.percent else max(0, shown)
    rounded = round(factor * value, digits) + 0.0  # which has no −0
    return minus(f"{rounded:{plus}.{digits}f} ± {factor * error:.{digits}f}")


def gain_bound(value: float, advice: Advice) -> str:
    """An end of the interval, with the digits of the gain."""
    text = gain_number(value, advice.expected.error, advice, plus="+")
    return text.partition(" ±")[0]


def _unit(advice: Advice) -> str:
    """What gains are counted in: points of a percentage, or the metric as it is; larger is always better."""
    return f"points of {advice.metric.title}" if advice.metric.percent else advice.metric.title


# What to type next, and the page


def commands(advice: Advice, config: Path) -> list[str]:
    """The recommended run, with the guard where its gain may be chance; then what checks it on test samples."""
    file, best = shlex.quote(str(config)), advice.best_federated
    guard = guard_option(advice.experiment.data.validation) if advice.federate and advice.doubt else ""
    recommended = [f"strata run --config {file}{guard}"] if advice.is_conclusive else []
    # If it federates, the file has the options already.
    options = {} if advice.federate else best.options
    settings = "".join(f" --set {shlex.quote(f'{best.method}.{key}={value}')}" for key, value in options.items())
    return [*recommended, f"strata compare --config {file} --algorithms local,{best.method}{settings} --seeds 3"]


def advice_page(advice: Advice, config: Path) -> str:
    """The whole advice as Markdown."""
    lines = [f"# Advice for {advice.federation.name}", "", f"**{advice_answer(advice)}**", ""]
    lines += [line for sentence in sentences(advice) for line in (sentence, "")]
    lines += ["## Do next", "", "```", *commands(advice, config), "```", "", "## What the data shows", ""]
    lines += [*markdown_table(("", ""), seen(advice)), "", "## Methods tried", ""]
    lines += markdown_table(("method", "rounds", advice.metric.title, "expected", "why"), tried(advice))
    if advice.is_conclusive:
        rows = [client_row(client, advice) for client in advice.clients]
        lines += ["", f"## {clients_title(advice)}", ""]
        lines += markdown_table(("client", "training samples", "validation samples", "gain", ""), rows)
    return "\n".join([*lines, "", basis_text(advice), ""])
