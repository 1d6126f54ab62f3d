"""The decision that a study supports: what to use and why, who gains, how sure that is, and one chart.

`decision` chooses; `sentences` has the words, `notes` the doubts that stand before the answer. The best method is the
first whose score is not chance. Among methods whose difference from it is small and not significant, the cheapest is
recommended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import Any

from stratafl.algorithms.declaration import KINDS, METHODS
from stratafl.core.reprs import short_repr
from stratafl.errors import counted
from stratafl.evaluation.metrics import Metric
from stratafl.report import sentences as say
from stratafl.report.chance import NoChoice, common_folder, how_to_rank
from stratafl.report.charts import COLOURS, Chart, category_axis, plain_text, rounded, scatter, value_axis
from stratafl.report.formats import apart_by, listed, over_seeds, score_text, size_text
from stratafl.report.gains import TRAINS_ALONE, ClientGain, Gains
from stratafl.report.gains.gain_text import mean_text
from stratafl.report.notes import doubts, doubts_of_learning
from stratafl.report.outcome import OF_ANSWERS
from stratafl.report.paired import MAX_FORECAST_SEEDS, Paired, as_good_as, pair_of, with_first
from stratafl.report.ranking import Rank, comparable_ranks
from stratafl.report.sentences import Finding, finding
from stratafl.report.study import Study

EQUAL_SCORES = 0.01  # methods that differ by less, and not significantly, are equally good
MAX_DOUBTS = 4  # in a decision; the notes have all of them
MAX_CLIENT_NAMES = 4  # in a sentence
MAX_RIVALS = 4  # that the lead compares the first method with
MAX_CHARTED = 12  # methods in the picture
Findings = list[Finding]


@short_repr
@dataclass(frozen=True)
class Decision:
    """What to use (None if nothing can be recommended), as a headline and answers by question; doubts come first."""

    use: Rank | None
    headline: Sequence[Finding]
    answers: Mapping[str, Sequence[Finding]] = field(default_factory=dict)
    cautions: Sequence[Finding] = ()


def decision(study: Study) -> Decision:
    if not study.ranks:
        return Decision(None, [finding(say.NO_RUNS)])
    cautions = _cautions(study)
    rivals = comparable_ranks(study.ranks)
    if not rivals:
        return Decision(None, [finding(say.NO_SCORE)], cautions=cautions)
    if study.no_choice is not None:
        return _no_recommendation(study.no_choice, study, cautions)
    choice = _choose(rivals, study)
    answers = {
        "Why": _why(choice),
        "Who gains": _who_gains(choice),
        "How sure": _how_sure(choice),
        "What would change it": _what_would_change_it(choice),
    }
    answers = {title: findings for title, findings in answers.items() if findings}
    return Decision(choice.use, _headline(choice), answers, cautions)


def _cautions(study: Study) -> Findings:
    """The gravest doubts; that scores are chance is in the headline already if no method is recommended."""
    in_headline = doubts_of_learning(study) if study.no_choice is not None else []
    shown = [doubt for doubt in doubts(study) if doubt not in in_headline]
    more = len(shown) - MAX_DOUBTS
    rest = [finding(say.MORE_NOTES, notes=counted(more, "more note"))] if more > 0 else []
    return [*shown[:MAX_DOUBTS], *rest]


def _no_recommendation(no_choice: NoChoice, study: Study, cautions: Findings) -> Decision:
    """The scores are chance: what the probabilities of the same runs show instead."""
    metric, shown = study.measured, no_choice.shown
    answers = {"Why": [no_choice.why]}
    if metric.name not in OF_ANSWERS or (shown is not None and shown.at_chance):
        headline = finding(say.USE_NONE)
    elif shown is None:
        headline = finding(say.USE_NONE_BY, metric=metric.title)
        answers["What the probabilities show"] = [finding(say.NO_PREDICTIONS)]
    else:
        sentence = say.NOT_BY_ANSWERS if no_choice.all_at_chance else say.NOT_BY_METRIC
        headline = finding(sentence, metric=metric.title)
    if shown is not None:
        answers["What the probabilities show"] = shown.findings
        if not shown.at_chance:
            folders = common_folder([run.folder for run in study.outcomes])
            answers["What to do"] = [how_to_rank(folders, metric)]
    return Decision(None, [headline], answers, cautions)


# What to use


@dataclass(frozen=True)
class _Choice:
    """The method to use, and those that it was chosen from."""

    use: Rank
    best: Rank  # the first whose score is not chance
    skipped: Sequence[Rank]  # ranked before the best, but their answers show nothing
    others: Sequence[Rank]  # all that can be compared but `use`, in the order of the ranking
    study: Study

    @property
    def metric(self) -> Metric:
        return self.study.measured

    def score(self, rank: Rank) -> str:
        return score_text(rank.numbers["score"].mean, self.metric)

    def against(self, other: Rank) -> Paired | None:
        """The method to use compared with another one; None if that is unknown."""
        return pair_of(self.study.pairs, self.use.label, other.label)


def _choose(rivals: Sequence[Rank], study: Study) -> _Choice:
    unsure = study.chance.unsure if study.chance else frozenset[str]()
    learned = [rank for rank in rivals if not rank.says_nothing and rank.label not in unsure]
    best = learned[0]  # without one, the study has a `no_choice`
    # Where its bytes are unknown, nothing is known to be cheaper.
    cheaper = [rank for rank in learned if _cost(rank) < _cost(best) and _bytes(best) < inf]
    use = min([best, *(rank for rank in cheaper if _is_as_good(rank, best, study))], key=_cost)
    skipped, others = rivals[: rivals.index(best)], [rank for rank in rivals if rank is not use]
    return _Choice(use, best, skipped, others, study)


def _cost(rank: Rank) -> tuple[float, bool]:
    """Bytes sent. With equal bytes, a guarded method costs more, because it also trains locally."""
    return _bytes(rank), rank.is_guarded


def _bytes(rank: Rank) -> float:
    sent = rank.mean("bytes")
    return inf if sent is None else sent


def _is_as_good(rank: Rank, best: Rank, study: Study) -> bool:
    """Whether they differ by less than a point, or a hundredth of the score, and not significantly."""
    reached, top = rank.numbers["score"].mean, best.numbers["score"].mean
    is_near = abs(reached - top) < EQUAL_SCORES * (1 if study.measured.percent else abs(top))
    pair = pair_of(study.pairs, rank.label, best.label)
    return is_near and (pair is None or pair.verdict in ("unclear", "same"))


def _headline(choice: _Choice) -> Findings:
    """What to use; that its lead may be chance, whichever method leads."""
    use, others = choice.use, choice.others
    if not others:
        return [finding(say.ONLY_METHOD, method=use.label)]
    chance = _may_be_as_good(choice) if choice.use is choice.best and not choice.skipped else []
    if use.method == TRAINS_ALONE:
        verdicts = [pair.verdict if (pair := choice.against(rank)) else "unclear" for rank in others]
        is_sure = all(verdict == "better" for verdict in verdicts)
        return [finding(say.TRAIN_ALONE if is_sure else say.TRAIN_ALONE_UNCLEAR, method=use.label), *chance]
    method = METHODS.get(use.method)
    if method is None or method.kind == "controls":
        return [finding(say.USE, method=use.label), *chance]
    return [finding(say.USE_KIND, method=use.label, kind=KINDS[method.kind]), *chance]


def _may_be_as_good(choice: _Choice) -> Findings:
    """Which methods the first does not clearly lead; if it leads none, its whole lead may be chance."""
    rivals = as_good_as(choice.study.ranks, choice.study.pairs, choice.use)
    if len(rivals) == len(choice.others) and len(rivals) > 1:
        return [finding(say.LEAD_MAY_BE_CHANCE)]
    return [finding(say.MAY_BE_AS_GOOD, methods=[rank.label for rank in rivals])] if rivals else []


def _why(choice: _Choice) -> Findings:
    use, best, metric = choice.use, choice.best, choice.metric.title
    if not choice.others:
        return [finding(say.REACHES, metric=metric, score=choice.score(use))]
    skipped = [f"{rank.label} ({choice.score(rank)})" for rank in choice.skipped]
    before = [finding(say.SKIPPED, methods=skipped)] if skipped else []
    if use is not best:
        sentence = say.NEEDS_NO_GUARD if _bytes(use) == _bytes(best) else say.SENDS_LESS
        scores = {"top": choice.score(best), "score": choice.score(use), "metric": metric}
        sizes = {"size": size_text(_bytes(use)), "more": size_text(_bytes(best))}
        return [*before, finding(sentence, best=best.label, method=use.label, **scores, **sizes)]
    leads = finding(say.BEST_OF_REST if skipped else say.BEST, metric=metric, score=choice.score(use))
    behind = [rank for rank in choice.others if rank not in choice.skipped][:1]
    follows = [finding(say.RUNNER_UP, method=rank.label, score=choice.score(rank)) for rank in behind]
    return [*before, leads, *follows, *_sending(_bytes(use))]


def _sending(sent: float) -> Findings:
    if sent == inf:
        return []
    return [finding(say.SENDS, size=size_text(sent)) if sent else finding(say.SENDS_NOTHING)]


# Who gains


def _who_gains(choice: _Choice) -> Findings:
    """Which clients are better off than alone, by name; if alone is best, what the next method would do for them."""
    use, is_alone = choice.use, choice.use.method == TRAINS_ALONE
    gains = next((each for each in choice.study.gains if is_alone or each.label == use.label), None)
    if gains is None:
        return [] if is_alone else [finding(say.NO_LOCAL, local=TRAINS_ALONE)]
    if not gains.clients:
        return [finding(say.GAINS_UNKNOWN, reason=gains.why)]
    new = None if is_alone else use.mean("new_trained")
    joining = [finding(say.NEW_CLIENTS_REACH, score=score_text(new, choice.metric))] if new is not None else []
    return [*gain_counts(gains), *joining]


def gain_counts(gains: Gains) -> Findings:
    """How many clients are better and worse off, and which of them surely, if those are more than chance gives."""
    by_difference = sorted(gains.clients, key=lambda client: client.difference)
    worse = [client for client in by_difference if client.difference < 0]
    better = sum(client.difference > 0 for client in by_difference)
    clients = counted(len(by_difference), "client")
    numbers = {"better": better, "worse": len(worse), "clients": clients, "mean": mean_text(gains)}
    several = [finding(say.IN_PARTITIONS, partitions=gains.partitions)] if gains.partitions > 1 else []
    overall = [finding(say.AGAINST_ALONE, method=gains.label, **numbers), *several]
    if not gains.sure:
        named = [finding(say.LOWER_SCORES, names=_named(worse, gains))] if worse else []
        return [*overall, finding(say.CHANCE_UNKNOWN), *named]
    gaining = sorted(gains.surely("gains"), key=lambda client: -client.difference)
    losing = sorted(gains.surely("loses"), key=lambda client: client.difference)
    sides = ((gaining, say.SURELY_BETTER), (losing, say.SURELY_WORSE))
    sure = [finding(say_who, count=len(side), names=_named(side, gains)) for side, say_who in sides if side]
    if sure:
        return [*overall, *sure, *([finding(say.BY_CHANCE, count=gains.by_chance)] if gains.by_chance else [])]
    samples = median(client.test_samples for client in gains.clients)
    return [*overall, finding(say.TOO_FEW_TO_NAME, samples=f"{samples:g}")]


def _named(clients: Sequence[ClientGain], gains: Gains) -> str:
    named = [f"{gains.client_label(each)} ({apart_by(each.difference, gains.metric, '+')})" for each in clients]
    return listed(named, MAX_CLIENT_NAMES)


# How sure


def _how_sure(choice: _Choice) -> Findings:
    """What the paired comparisons say of the method against each of the others."""
    pairs = [pair for rank in choice.others if (pair := choice.against(rank)) is not None]
    if not pairs:
        return [finding(say.NO_SEED_IN_COMMON)] if choice.others else []
    sentences = {"better": say.SURELY_BETTER_THAN, "unclear": say.NOT_SIGNIFICANT, "worse": say.SURELY_WORSE_THAN}
    sentences["same"] = say.SAME_AS
    findings = []
    for verdict, sentence in sentences.items():
        methods = [pair.second for pair in pairs if pair.verdict == verdict]
        findings += [finding(sentence, methods=methods)] if methods else []
    findings = [finding(say.ONE_SEED_TELLS_NOTHING)] if all(pair.seeds == 1 for pair in pairs) else findings
    seeds, clients = max(pair.seeds for pair in pairs), counted(max(pair.clients for pair in pairs), "client")
    rests_on = say.RESTS_ON_ONE_SEED if seeds == 1 else say.RESTS_ON
    findings.append(finding(rests_on, seeds=counted(seeds, "seed"), clients=clients))
    return [*findings, *([finding(say.ABOUT_THESE_CLIENTS)] if all(pair.about_these_clients for pair in pairs) else [])]


def _what_would_change_it(choice: _Choice) -> Findings:
    """How many more seeds would tell the method from training alone, or else from the next that is unclear."""
    ordered = sorted(choice.others, key=lambda rank: rank.method != TRAINS_ALONE)
    pairs = [pair for rank in ordered if (pair := choice.against(rank)) is not None and pair.is_open]
    return [what_would_show(pairs[0])] if pairs else []


def what_would_show(pair: Paired) -> Finding:
    """What would show a difference of the first method from the second, which is not significant yet."""
    method = pair.second
    if pair.seeds == 1:
        return finding(say.REPEAT, method=method)
    if pair.limited:
        return finding(say.TOO_FEW_SAMPLES if pair.about_these_clients else say.CLIENTS_DISAGREE, method=method)
    if pair.is_constant:
        return finding(say.CONSTANT_DIFFERENCE, method=method)
    if pair.more_seeds is None:
        return finding(say.TOO_SMALL_TO_SHOW, method=method, seeds=MAX_FORECAST_SEEDS)
    return finding(say.FURTHER_SEEDS, method=method, seeds=counted(pair.more_seeds, "further seed"))


# The lead of the ranking


def ranking_lead(study: Study) -> Findings:
    """Which method comes first, which ones it is better than, and from which ones it does not differ significantly."""
    rivals = comparable_ranks(study.ranks)
    if not rivals:
        return [finding(say.NO_SCORE if study.ranks else say.NO_RUNS)]
    compared = with_first(study.pairs)
    chance = [study.no_choice.why] if study.no_choice else []
    return [_first_place(rivals[0], study, is_alone=not compared), *chance, *_against_rivals(compared)]


def _first_place(first: Rank, study: Study, is_alone: bool) -> Finding:
    metric, values = first.members[0].metric, first.scores
    tied = [rank.label for rank in study.ranks if rank.place == first.place and rank is not first]
    sentence = say.ALONE_REACHES if is_alone else say.SHARED_FIRST if tied else say.FIRST
    title = "loss" if metric.key == "loss" else metric.title
    reached = {"metric": title, "score": score_text(first.mean("score"), metric), "basis": _basis(values, metric)}
    return finding(sentence, method=first.label, others=tied, **reached)


def _basis(values: Sequence[float], metric: Metric) -> str:
    """How many seeds a mean is over, and their spread."""
    if len(values) == 1:
        return "one seed"
    return f"{'2 seeds: ' if len(values) == 2 else f'mean of {len(values)} seeds, '}{over_seeds(values, metric)}"


def _against_rivals(compared: Sequence[Paired]) -> Findings:
    sentences = {"better": say.FIRST_BETTER, "worse": say.FIRST_WORSE, "unclear": say.FIRST_UNCLEAR}
    findings = []
    for verdict, sentence in sentences.items():
        pairs = [f"{pair.second} ({pair.evidence})" for pair in compared if pair.seeds > 1 and pair.verdict == verdict]
        findings += [finding(sentence, pairs=listed(pairs, MAX_RIVALS))] if pairs else []
    by_sentence = {
        say.FIRST_SAME: [pair.second for pair in compared if pair.verdict == "same"],
        say.FIRST_APART: [pair.second for pair in compared if not pair.seeds],
        say.FIRST_ONE_SEED: [pair.second for pair in compared if pair.is_open and pair.seeds == 1],
    }
    return findings + [finding(sentence, methods=methods) for sentence, methods in by_sentence.items() if methods]


# The picture


def decision_chart(study: Study, use: Rank | None = None) -> Chart | None:
    """The first methods of the ranking, the best on top, with the one to `use` in colour; None if there is only one."""
    scored = [(label, rank) for label, rank in zip(study.labels, study.ranks, strict=True) if "score" in rank.numbers]
    shown = scored[:MAX_CHARTED]
    if len(shown) < 2:
        return None
    names, metric = [plain_text(label) for label, _ in shown], study.measured
    base = study.chance.base if study.no_choice and study.chance else None
    traces = [_seeds_trace(shown)] if any(len(rank.seeds) > 1 for _, rank in shown) else []
    traces.append(_means_trace(shown, names, use, metric))
    traces += [_chance_line(rounded(base), names)] if base is not None else []
    x_axis = value_axis(f"test {metric.title}", [x for trace in traces for x in trace["x"]], share=metric.percent)
    layout = {"xaxis": x_axis, "yaxis": category_axis(down=True), "showlegend": False}
    meaning = f" ({metric.says})" if metric.says and metric.name != "accuracy" else ""
    caption = [
        f"Test {metric.title}{meaning}: {'higher' if metric.larger_is_better else 'lower'} is better.",
        _points_drawn(shown),
        "Dotted line: always predicting a client's most frequent class." if base is not None else "",
        "The axis does not start at 0.",
        f"The first {MAX_CHARTED} of {len(scored)} methods." if len(scored) > MAX_CHARTED else "",
    ]
    figure, height = {"data": traces, "layout": layout}, 110 + 38 * len(shown)
    return Chart("decision", "The methods compared", " ".join(filter(None, caption)), figure, height=height)


def _points_drawn(shown: Sequence[tuple[str, Rank]]) -> str:
    counts = {len(rank.seeds) for _, rank in shown}
    if counts == {1}:
        return "One run of each method."
    runs = f"the mean of {counted(max(counts), 'run')}" if len(counts) == 1 else "the mean of its runs"
    return f"Large markers: {runs} with different random seeds. Small markers: single runs."


def _means_trace(
    shown: Sequence[tuple[str, Rank]], names: Sequence[str], use: Rank | None, metric: Metric
) -> dict[str, Any]:
    colours = [COLOURS[0] if rank is use else COLOURS[6] for _, rank in shown]
    symbols = ["diamond" if rank is use else "circle" for _, rank in shown]
    means = [rounded(rank.numbers["score"].mean) for _, rank in shown]
    hover = f"%{{y}}: %{{x:{'.1%' if metric.percent else '.4g'}}}<extra></extra>"
    marker = {"color": colours, "symbol": symbols, "size": 13}
    return scatter("markers", means, names, name="mean", marker=marker, hovertemplate=hover)


def _seeds_trace(shown: Sequence[tuple[str, Rank]]) -> dict[str, Any]:
    points = [(rounded(value), plain_text(label)) for label, rank in shown for value in rank.scores]
    x, y = [value for value, _ in points], [label for _, label in points]
    # Longer than the mark of the mean, so that none is hidden behind it.
    marker = {"color": COLOURS[6], "size": 10, "symbol": "line-ns-open", "line": {"width": 2}, "opacity": 0.8}
    return scatter("markers", x, y, name="seeds", marker=marker, hoverinfo="x+y")


def _chance_line(at: float | None, names: Sequence[str]) -> dict[str, Any]:
    """A vertical line through all methods."""
    look = {"color": COLOURS[6], "width": 2, "dash": "dot"}
    return scatter("lines", [at, at], [names[0], names[-1]], name="most frequent class", line=look, hoverinfo="x")
