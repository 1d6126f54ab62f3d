"""A study in two sentences and one picture, for readers who are new to federated learning: alone, shared, personalised.

Every client can train alone, use one model that all share, or take a personalised one. Of each kind the first method of
the ranking stands for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from stratafl.algorithms.declaration import METHODS
from stratafl.errors import counted
from stratafl.report import charts
from stratafl.report import sentences as say
from stratafl.report.client_scores import client_label
from stratafl.report.formats import listed, score_text
from stratafl.report.gains import TRAINS_ALONE
from stratafl.report.outcome import Outcome, measure, seed_labels, what_counts
from stratafl.report.paired import as_good_as
from stratafl.report.ranking import Rank, comparable_ranks, winner
from stratafl.report.sentences import Finding, finding
from stratafl.report.study import Study

MAX_AS_GOOD = 3  # methods in the first sentence
MAX_CLIENTS_DRAWN = 200
LOOKS = {"alone": ("#808080", "circle-open"), "shared": ("#D55E00", "square"), "personalised": ("#0072B2", "diamond")}


@dataclass(frozen=True)
class Kinds:
    """The first method of each kind; None if the study has none."""

    alone: Rank | None
    shared: Rank | None
    personalised: Rank | None

    def __iter__(self) -> Any:
        return iter((self.alone, self.shared, self.personalised))

    @property
    def named(self) -> dict[str, Rank]:
        return {name: rank for name, rank in zip(LOOKS, self, strict=True) if rank is not None}


def kind_of(rank: Rank) -> str:
    if rank.method == TRAINS_ALONE:
        return "alone"
    method = METHODS.get(rank.method)
    return "shared" if method is not None and method.kind == "global" else "personalised"


def kinds_of(study: Study) -> Kinds:
    unsure = study.chance.unsure if study.chance else frozenset[str]()
    usable = [rank for rank in comparable_ranks(study.ranks) if not rank.says_nothing and rank.label not in unsure]
    first = {name: next((rank for rank in usable if kind_of(rank) == name), None) for name in LOOKS}
    # What everything is compared with may be poor.
    alone, shared = (
        first[name] or next((rank for rank in comparable_ranks(study.ranks) if kind_of(rank) == name), None)
        for name in ("alone", "shared")
    )
    return Kinds(alone, shared, first["personalised"])


def suggested_method(study: Study) -> str:
    """The method to try next: the first personalised one, or else the first."""
    best = kinds_of(study).personalised or winner(study.ranks)
    return best.method.removeprefix("guarded ") if best else "fedavg"


# Two sentences


def in_short(study: Study) -> list[Finding]:
    """What the best method reaches against the other kinds, and how many clients gain."""
    kinds = kinds_of(study)
    if study.no_choice is not None:
        return [study.no_choice.why]
    if len(kinds.named) < 2:
        return []
    leader = min(kinds.named.values(), key=study.ranks.index)
    doubt = _doubt(study, leader)
    reached = {name: score_text(rank.mean("score"), study.measured) for name, rank in kinds.named.items()}
    of_kinds = {"alone": "alone", "shared": "for one shared model"}
    against = [f"{reached[name]} {words}" for name, words in of_kinds.items() if name in reached]
    if leader is kinds.personalised:
        first = finding(say.PERSONALISED_LEADS, method=leader.label, score=reached["personalised"],
            against=" and ".join(against), doubt=doubt)  # fmt: skip
        return [first, *_clients(study, leader)]
    others = {kinds.personalised.label: reached["personalised"]} if kinds.personalised else {}
    if leader is kinds.alone:
        others |= {"one shared model": reached["shared"]} if kinds.shared else {}
        sentence, score = say.ALONE_LEADS, reached["alone"]
    else:
        others |= {"training alone": reached["alone"]} if kinds.alone else {}
        sentence, score = say.SHARED_LEADS, reached["shared"]
    rest = " and ".join(f"{name} {score}" for name, score in others.items())
    first = finding(sentence, method=leader.label, score=score, others=rest, doubt=doubt)
    return [first, *_clients(study, leader if leader is kinds.shared else kinds.personalised or kinds.shared)]


def _doubt(study: Study, leader: Rank) -> str:
    """Which methods may be as good, as a clause behind a semicolon."""
    if len(leader.seeds) == 1:
        return say.ONE_SEED_CLAUSE
    rivals = as_good_as(study.ranks, study.pairs, leader)
    names = ["training alone" if rank.method == TRAINS_ALONE else rank.label for rank in rivals]
    return str(finding(say.AS_GOOD_CLAUSE, methods=listed(names, MAX_AS_GOOD))) if names else ""


def _clients(study: Study, method: Rank | None) -> list[Finding]:
    """How many clients score higher and lower than alone; of several partitions, in the mean of these."""
    gains = next((each for each in study.gains if method is not None and each.label == method.label), None)
    if gains is None or not gains.clients:
        return []
    about = "about " if gains.partitions > 1 else ""
    better, worse = (round(share * len(gains.clients) / gains.partitions) for share in (gains.better, gains.worse))
    clients = counted(round(len(gains.clients) / gains.partitions), "client")
    return [finding(say.CLIENTS_GAIN, method=gains.label, better=f"{about}{better}", worse=worse, clients=clients)]


# The picture


def kinds_chart(study: Study) -> charts.Chart | None:
    """Each client's score alone, with the shared model and with a personalised one; None with fewer than two of them.

    Where clients are the same with every seed, a point is their mean over seeds. Else each seed has clients of its own.
    """
    named = kinds_of(study).named
    if len(named) < 2:
        return None
    common = set.intersection(*({run.seeds.parts for run in rank.members} for rank in named.values()))
    runs = {name: [run for run in rank.members if run.seeds.parts in common] for name, rank in named.items()}
    if not common or not all(run.by_client() for members in runs.values() for run in members):
        return None
    labels = {name: f"{name} ({charts.plain_text(charts.shortened(rank.label))})" for name, rank in named.items()}
    first = next(iter(runs.values()))
    several = len({run.population for run in first}) > 1
    tree: charts.Figure | charts.Branches = _figure(runs, labels, study)
    if several:
        by_seed = [[_with_seeds_of(run, members) for members in runs.values()] for run in first]
        figures = [_figure(dict(zip(runs, of_seed, strict=True)), labels, study) for of_seed in by_seed]
        tree = charts.Branches(zip(seed_labels(first), figures, strict=True))
    counts = what_counts(study.outcomes, one_by_one=True)
    over = "" if several or len(common) == 1 else f" Each point is a mean of {len(common)} seeds."
    caption = (
        f"Each client's test {measure(study.measured)}, {counts}: trained alone, with one shared model, personalised. "
        f"A line joins a client's score alone and personalised.{over}"
    )
    controls = (charts.Control("seed"),) if several else ()
    return charts.Chart("kinds", "Alone, shared, personalised", caption, tree, controls, height=360)


def _with_seeds_of(run: Outcome, members: Sequence[Outcome]) -> list[Outcome]:
    return [other for other in members if other.seeds.parts == run.seeds.parts]


def _figure(runs: dict[str, list[Outcome]], labels: dict[str, str], study: Study) -> charts.Figure:
    scores = {name: _mean_scores(members) for name, members in runs.items()}
    base = next(iter(scores.values()))
    shared_clients = [client for client in base if all(client in by_client for by_client in scores.values())]
    ordered = sorted(shared_clients, key=lambda client: (base[client], client))
    clients = [ordered[at] for at in charts.thinned(len(ordered), MAX_CLIENTS_DRAWN)]
    run = next(iter(runs.values()))[0]
    names = charts.distinct([charts.plain_text(charts.shortened(client_label(run, client))) for client in clients])
    names = [name.removeprefix("client ") for name in names] if not run.client_names else names
    traces = [_joined_scores(names, clients, scores)] if {"alone", "personalised"} <= scores.keys() else []
    for name, by_client in scores.items():
        colour, symbol = LOOKS[name]
        y = [charts.rounded(by_client[client]) for client in clients]
        hover = f"%{{x}}: %{{y:{'.1%' if study.measured.percent else '.4g'}}}<extra>{labels[name]}</extra>"
        # Larger than the others, so that a ring shows where they are as good.
        size = 13 if name == "alone" else 9
        marker = {"color": colour, "symbol": symbol, "size": size, "line": {"width": 2, "color": colour}}
        traces.append(charts.scatter("markers", names, y, name=labels[name], marker=marker, hovertemplate=hover))
    values = [by_client[client] for by_client in scores.values() for client in clients]
    x = charts.category_axis("client") | {"categoryorder": "array", "categoryarray": names}
    y_axis = charts.value_axis(f"test {study.measured.title}", values, share=study.measured.percent)
    return {"data": traces, "layout": {"xaxis": x, "yaxis": y_axis}}


def _mean_scores(members: Sequence[Outcome]) -> dict[int, float]:
    """The mean over these runs of each client that all of them score."""
    by_run = [run.by_client() for run in members]
    both = [client for client in by_run[0] if all(client in scores for scores in by_run)]
    return {client: fmean(scores[client] for scores in by_run) for client in both}


def _joined_scores(names: Sequence[str], clients: Sequence[int], scores: dict[str, dict[int, float]]) -> dict[str, Any]:
    """A thin line for each client, from its score alone to its personalised one."""
    x = [place for name in names for place in (name, name, None)]
    ends = (scores["alone"], scores["personalised"])
    y = [end for client in clients for end in (*(charts.rounded(side[client]) for side in ends), None)]
    look = {"color": LOOKS["alone"][0], "width": 1}
    return charts.scatter("lines", x, y, name="", line=look, hoverinfo="skip", showlegend=False)
