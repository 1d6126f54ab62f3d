"""What to know before acting on a ranking: doubts, the most serious first, and cautions about single runs."""

from collections.abc import Sequence
from math import ceil, exp, floor, inf, isclose, log
from statistics import fmean

from stratafl.errors import counted
from stratafl.evaluation.measure import local_steps
from stratafl.policies.accountant import DELTA
from stratafl.report import sentences as say
from stratafl.report.flagged_clients import flag_sentences
from stratafl.report.formats import differing, listed, minus, score_text
from stratafl.report.guards import ADVISED_VALIDATION
from stratafl.report.outcome import Outcome
from stratafl.report.ranking import INCOMPARABLE, Rank
from stratafl.report.sentences import Finding, finding
from stratafl.report.study import Study
from stratafl.runs.class_counts import counts_array
from stratafl.runs.summary import VALIDATED

FEW_SAMPLES = 50  # for validation: the standard error of a share is up to 7 points
SAME_STEPS = 1.05  # methods whose numbers of steps differ by less have trained equally long
METHOD_SETTINGS = ("algorithm.", "run.device", "run.engine")  # in which methods may differ and still be compared
MACHINES = {"device_name": "devices", "torch": "versions of torch", "commit": "commits of stratafl"}
# Who sees what the noise protects, by the model of privacy (docs/guide/privacy.md).
EVERYBODY = "the server and all others"
OBSERVERS = {"central": "all but the server", "local": EVERYBODY, "distributed": EVERYBODY}
Findings = list[Finding]


def doubts(study: Study) -> Findings:
    """What makes the ranking doubtful."""
    return [
        *doubts_of_learning(study),
        *_doubts_of_baselines(study),
        *_doubts_of_ends(study),
        *_doubts_of_fairness(study),
        *_doubts_of_selection(study),
    ]


def doubts_of_learning(study: Study) -> Findings:
    """Methods that always give one answer, and methods that are not better than the majority class."""
    scored, limits = [rank for rank in study.ranks if "score" in rank.numbers], study.chance
    one_answer = [rank.label for rank in scored if rank.one_answer]
    findings = [finding(say.ONE_ANSWER, methods=one_answer)] if one_answer else []
    if limits is None:
        return findings
    unsure = [label for label in limits.ahead if label in limits.unsure and label not in one_answer]
    below = [label for label in unsure if limits.ahead[label] <= 0]
    near = [label for label in unsure if label not in below]
    base = score_text(limits.base, study.measured)
    findings += [finding(say.NOT_BETTER, methods=below, base=base)] if below else []
    return findings + ([finding(say.NOT_CLEARLY_BETTER, methods=near, base=base)] if near else [])


def _doubts_of_baselines(study: Study) -> Findings:
    """Logistic regressions outside the federation that are better than every method."""
    sign, metric = study.measured.sign, study.measured
    best = max((sign * rank.numbers["score"].mean for rank in study.ranks if "score" in rank.numbers), default=inf)
    scores = [(rank.label, rank.numbers["score"].mean) for rank in study.baselines]
    higher = [f"{label} {score_text(score, metric)}" for label, score in scores if sign * score > best]
    return [finding(say.SIMPLER, baselines=higher)] if higher else []


def _doubts_of_ends(study: Study) -> Findings:
    """Methods that leak, that diverged, that are not at their end, or that ran once."""
    by_sentence = {
        say.LEAKING: [rank.label for rank in study.ranks if rank.leaks],
        say.DIVERGING: [rank.label for rank in study.ranks if "score" not in rank.numbers or rank.diverged],
        say.UNFINISHED: [rank.label for rank in study.ranks if _is_unfinished(rank)],
    }
    findings = [finding(sentence, methods=methods) for sentence, methods in by_sentence.items() if methods]
    ran_once = len(study.ranks) > 1 and all(len(rank.seeds) == 1 for rank in study.ranks)
    return findings + ([finding(say.RAN_ONCE)] if ran_once else [])


def _is_unfinished(rank: Rank) -> bool:
    done, requested = rank.rounds
    return done < requested and not rank.stopped


def _doubts_of_fairness(study: Study) -> Findings:
    """One learning rate for all methods, training before use, and unequal numbers of steps."""
    findings, rates = Findings(), {rank.settings.get("train.lr") for rank in study.ranks}
    is_tuned = study.tuned or study.own_rates or len(rates) > 1
    if not is_tuned and len({rank.method for rank in study.ranks}) > 1:
        (rate,) = rates
        findings.append(finding(say.ONE_RATE, rate=minus(f"{rate:g}") if isinstance(rate, int | float) else rate))
    tuning = [rank.label for rank in study.ranks if tuned_before_use(rank)]
    deployed = all(run.evaluate.stage == "deployed" for run in study.outcomes)
    if deployed and 0 < len(tuning) < len(study.ranks):
        findings.append(finding(say.TRAINED_BEFORE_USE, methods=tuning))
    steps = {rank.label: count for rank in study.ranks if (count := _steps(rank))}
    if steps and max(steps.values()) > SAME_STEPS * min(steps.values()):
        most, least = (choose(steps, key=lambda label: steps[label]) for choose in (max, min))
        findings.append(finding(say.UNEQUAL_STEPS, most=most, least=least, ratio=f"{steps[most] / steps[least]:.1f}"))
    return findings


def tuned_before_use(rank: Rank) -> bool:
    """Whether a client trains its model once more before it is used: it then differs from the one as received."""
    numbers = [run.numbers() for run in rank.members]
    stages = [(each["received"], each["deployed"]) for each in numbers if {"received", "deployed"} <= each.keys()]
    return any(not isclose(received, deployed, abs_tol=1e-9) for received, deployed in stages)


def _steps(rank: Rank) -> float | None:
    """Training steps of all clients in a round, the mean over rounds and seeds; None if they are not recorded."""
    counts = [local_steps(line) for run in rank.members for line in run.lines]
    return fmean(counts) if counts and all(counts) else None


def _doubts_of_selection(study: Study) -> Findings:
    """Few validation samples, a round that was chosen by its test score, and a ranking by another metric."""
    findings = _few_validation_samples(study)
    findings += [finding(say.BEST_TEST_ROUND)] if any(run.evaluate.select == "best" for run in study.outcomes) else []
    if any(run.values is not None for run in study.outcomes):
        selected, ranked = study.outcomes[0].recorded.title, study.measured.title
        findings.append(finding(say.OTHER_METRIC, selected=selected, ranked=ranked))
    return findings


def _few_validation_samples(study: Study) -> Findings:
    """So few validation samples selected a round that another few would have selected another one."""
    selected = [run for run in study.outcomes if not run.is_guarded and _is_selected_by_validation(run)]
    counts = [count for run in selected if (count := _validation_samples(run))]
    if not counts or min(counts) >= FEW_SAMPLES:
        return []
    span = " to ".join(dict.fromkeys(map(str, (min(counts), max(counts)))))
    share = min(float(run.config["data"]["validation"]) for run in selected)
    more = [finding(say.MORE_VALIDATION, share=f"{ADVISED_VALIDATION:g}")] if share < ADVISED_VALIDATION else []
    return [finding(say.FEW_VALIDATION_SAMPLES, count=span), *more]


def _is_selected_by_validation(run: Outcome) -> bool:
    """Whether its round is one of several, chosen by their validation scores."""
    lines = [line for line in run.lines if f"{VALIDATED}.loss" in line]
    return run.selection.select == "validation" and len(lines) > 1


def _validation_samples(run: Outcome) -> int:
    """Of the clients that took part; 0 if it is unknown."""
    return int(counts_array(run.split_counts.counts.get("validation", ())[: run.clients or None]).sum())


# Cautions


def cautions(study: Study) -> list[str]:
    """Warnings on runs that are unfinished, diverged, flagged, unlike the others, or not comparable."""
    flagged = [f"{sentence[0].upper()}{sentence[1:]}." for sentence in flag_sentences(study.outcomes)]
    left_out = [finding(say.NOT_EVALUATED, folder=folder) for folder in study.empty]
    left_out += [finding(say.REPEATED, folder=folder) for folder in study.repeated]
    unlike = [*_unchecked(study), *_resumed(study), *_unlike(study), *_unvalidated(study)]
    return [*map(str, _of_methods(study)), *flagged, *study.not_started, *map(str, (*left_out, *unlike))]


def _of_methods(study: Study) -> Findings:
    leaks = dict.fromkeys((rank.label, run.leaks) for rank in study.ranks for run in rank.members if run.leaks)
    findings = [finding(say.LEAKS, method=method, incomparable=INCOMPARABLE, reason=why) for method, why in leaks]
    for rank in study.ranks:
        done, requested = rank.rounds
        if _is_unfinished(rank):
            findings.append(finding(say.BEHIND, method=rank.label, done=done, rounds=counted(requested, "round")))
        if "score" not in rank.numbers or rank.diverged:
            findings.append(finding(say.BECAME_NAN, method=rank.label))
        if rank.one_answer:
            findings.append(one_class(rank))
    return findings


def one_class(rank: Rank) -> Finding:
    """What it means for a method's score that it gives every client one class."""
    sentence = say.SAME_CLASS if rank.says_nothing else say.SAME_CLASS_RANKED
    return finding(sentence, method=rank.label, metric=rank.members[0].metric.title)


def privacy_findings(ranks: Sequence[Rank]) -> Findings:
    """What the ε of each method that adds noise means, and against whom."""
    findings = [
        finding(
            say.EPSILON_MEANS,
            method=rank.label,
            epsilon=f"{rank.numbers['epsilon'].mean:.3g}",
            delta=f"{rank.members[0].lines[-1][DELTA]:g}",
            observers=OBSERVERS[rank.settings.get("algorithm.dp", "central")],
            factor=_factor(rank.numbers["epsilon"].mean),
        )
        for rank in ranks
        if "epsilon" in rank.numbers
    ]
    return [*findings, finding(say.EPSILON_SIMULATED)] if findings else []


def _factor(epsilon: float) -> str:
    """e^ε, rounded up to two digits."""
    if epsilon > log(1e6):
        return "more than a million"
    step = 10.0 ** (floor(epsilon / log(10)) - 1)
    return f"{ceil(exp(epsilon) / step) * step:,.6g}"


def _unchecked(study: Study) -> Findings:
    older = sum(not run.checked for run in study.outcomes)
    return [finding(say.UNCHECKED, runs=counted(older, "run"))] if older else []


def _resumed(study: Study) -> Findings:
    resumed = [(run.folder, run.environment.get("resumed") or []) for run in study.outcomes]
    changed = [(folder, entry["changed"]) for folder, entries in resumed for entry in entries if entry.get("changed")]
    return [finding(say.RESUMED_ELSEWHERE, folder=folder, changes="; ".join(changes)) for folder, changes in changed]


def _unlike(study: Study) -> Findings:
    """Settings other than the method's own, seeds, devices and versions that differ."""
    keys = [key for key in differing([rank.settings for rank in study.ranks]) if not key.startswith(METHOD_SETTINGS)]
    findings = [finding(say.UNLIKE_SETTINGS, keys=listed(keys))] if keys else []
    seeds = {tuple(sorted(run.seeds.parts for run in rank.members)) for rank in study.ranks}
    findings += [finding(say.UNLIKE_SEEDS)] if len(seeds) > 1 else []
    for key, what in MACHINES.items():
        values = list(dict.fromkeys(str(run.environment.get(key)) for run in study.outcomes))
        findings += [finding(say.UNLIKE_MACHINES, what=what, values=listed(values))] if len(values) > 1 else []
    return findings


def _unvalidated(study: Study) -> Findings:
    validated = (f"{VALIDATED}.loss" in line for run in study.outcomes for line in run.lines[-1:])
    if all(validated) or any(run.config["data"]["validation"] for run in study.outcomes):
        return []
    selections: Sequence[str] = sorted({run.config["evaluate"]["select"] for run in study.outcomes})
    return [finding(say.BEST_ROUND if selections == ["best"] else say.LAST_ROUND)]
