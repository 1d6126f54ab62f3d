"""Who gains, as tables, a chart, sentences and CSV; `gains` computes it."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from stratafl.errors import counted
from stratafl.evaluation.metrics import Metric
from stratafl.report import charts
from stratafl.report.charts import (
    Branches,
    Chart,
    Control,
    Figure,
    category_axis,
    plain_text,
    rounded,
    scatter,
    thinned,
)
from stratafl.report.client_traits import NEAREST, ClientFacts, Dependence
from stratafl.report.formats import NOTHING, apart_by, listed, minus, score
from stratafl.report.gains import ALONE, ClientGain, Gains, SeedGain, verdict
from stratafl.report.guards import is_guard
from stratafl.report.ranking import Rank
from stratafl.report.study import Study
from stratafl.report.tables import Cell, Table, as_csv, text

WORST = 3  # clients of each method in the table
SHOWN = 200  # clients in the chart at most
LOOKS = {
    "gains": ("#009E73", "triangle-up"),
    "loses": ("#D55E00", "triangle-down"),
    "cannot be told": ("#808080", "circle"),
}
CSV = (
    *(
        "method",
        "against",
        "metric",
        "seed",
        "data_seed",
        "model_seed",
        "batch_seed",
        "client",
        "name",
        "training_samples",
        "class_skew",
        "distance",
    ),
    *("test_samples", "score", "alone", "difference", "low", "high", "verdict"),
    *("client_difference", "client_low", "client_high", "client_verdict"),
)


def signed(value: float | None, metric: Metric) -> str:
    """A difference with its sign."""
    return NOTHING if value is None or not isfinite(value) else apart_by(value, metric, "+")


def with_ends(client: ClientGain, metric: Metric) -> str:
    """A client's difference, and its interval if there is one."""
    ends = "" if client.low is None else f" ({signed(client.low, metric)} to {signed(client.high, metric)})"
    return f"{signed(client.difference, metric)}{ends}"


_OVER = {"samples": "over all test samples", "clients": "over clients"}


def unit(metric: Metric) -> str:
    turned = "" if metric.larger_is_better else ", turned so that + is better"
    return f"{metric.title}, {'percentage points' if metric.percent else 'difference'}{turned}"


def shares(all_: float, sure: float, gains: Gains) -> str:
    return f"{100 * all_:.0f} % ({100 * sure:.0f} % sure)" if gains.sure else f"{100 * all_:.0f} %"


def how_to_get(ranks: Sequence[Rank]) -> str:
    """How to see who gains, for several methods without training alone; a guarded method is no other one."""
    names = {str(rank.settings["algorithm.name"]) for rank in ranks if rank.members and not is_guard(rank.members[0])}
    if len(names) < 2 or ALONE in names:
        return ""
    return f"To see which clients gain, add {ALONE} to --algorithms: every method is then compared with it."


def mean_words(found: Gains) -> str:
    """The mean difference, which is that of the ranking; that over clients too where it points the other way."""
    mean, each = signed(found.mean, found.metric), signed(found.client_mean, found.metric)
    other = f", but over clients {each}" if {mean[0], each[0]} == {"+", "−"} else ""
    return f"the mean {_OVER[found.average]} is {mean}{' points' if found.metric.percent else ''}{other}"


def reading(found: Sequence[Gains]) -> list[str]:
    """What the numbers mean, and what they leave out, in sentences."""
    found = [each for each in found if each.clients]
    said = [f"Mean: {_OVER[each.average]}, as in the ranking." for each in found[:1]]
    once = all(len(client.seeds) == 1 for each in found for client in each.clients)
    partitions = max((each.partitions for each in found), default=1)
    if any(each.sure for each in found):
        over = "its test samples" if once else "its test samples and the seeds"
        chance = "by chance alone about 2.5 % of clients are surely better and 2.5 % surely worse"
        said.append(f"Sure: the 95 % interval of the client's difference over {over} excludes 0; {chance}.")
    if partitions > 1:
        apart = "client 0 of one is not client 0 of another: each is counted with its partition"
        said.append(f"There are {partitions} partitions, so {apart}.")
    if once and any(each.sure for each in found):
        said.append("Each client has one seed, so intervals leave out the noise of training.")
    undefined = max((each.undefined for each in found), default=0)
    if undefined:
        have = "has" if undefined == 1 else "have"
        said.append(f"{counted(undefined, 'client')} {have} no {found[0].metric.title} and {have} no difference.")
    return said


def unpaired(found: Sequence[Gains]) -> list[str]:
    """Why some methods have no differences or no intervals, each reason once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for each in found:
        reasons.setdefault((each.alone, each.why), []).append(each.label)
    return [f"{listed(labels)} against {alone}: {why}." for (alone, why), labels in reasons.items() if why]


def gains_table(study: Study) -> Table | None:
    """One row per method; None without the reference."""
    found = [each for each in study.gains if each.clients]
    if not found:
        return None
    head = ("method", "clients", "mean", "median", "better", "worse", "cannot be told", "worst client")
    rows = []
    for each in found:
        open_ = 1 - each.surely_better - each.surely_worse
        cells = [text(each.label), text(len(each.clients)), Cell(signed(each.mean, each.metric), each.mean, "strong")]
        cells += [Cell(signed(each.median, each.metric), each.median)]
        cells += [Cell(shares(each.better, each.surely_better, each), each.better)]
        cells += [Cell(shares(each.worse, each.surely_worse, each), each.worse)]
        cells += [Cell(f"{100 * open_:.0f} %", open_) if each.sure else Cell(NOTHING)]
        worst = f"{each.client_label(each.worst)}: {signed(each.worst.difference, each.metric)}"
        rows.append((*cells, Cell(worst, each.client_label(each.worst))))
    against = ", ".join(dict.fromkeys(each.alone for each in found))
    caption = " ".join([f"Clients against {against}: {unit(found[0].metric)}.", *reading(found)])
    return Table("gains", caption, head, tuple(rows), written=summary_csv(found), stacked=True)


def summary_csv(found: Sequence[Gains]) -> str:
    names = ("mean", "client_mean", "median", "better", "worse", "surely_better", "surely_worse")
    head = ("method", "against", "metric", "clients", "undefined", *names, "worst_client", "worst_difference")
    rows = [
        [each.label, each.alone, each.metric.name, len(each.clients), each.undefined]
        + [_written(getattr(each, name)) for name in names]
        + [each.client_label(each.worst), _written(each.worst.difference)]
        for each in found
        if each.clients
    ]
    return as_csv(head, rows)


def losers_table(study: Study) -> Table | None:
    """The clients of each method that lose most; its CSV has all clients."""
    found = [each for each in study.gains if each.clients]
    head = ("method", "client", "difference", "verdict", "score", "alone", "test", "training", "skew", "distance")
    rows = list[tuple[Cell, ...]]()
    for each in found:
        rows += [_loser(each, client) for client in sorted(each.clients, key=lambda one: one.difference)[:WORST]]
    empty = [title for title in head if all(row[head.index(title)].shown == NOTHING for row in rows)]
    kept = [at for at, title in enumerate(head) if title not in empty]
    shown = tuple(tuple(row[at] for at in kept) for row in rows)
    caption = (
        f"The {WORST} clients of each method that gain least or lose most, with their test and training samples; "
        "the CSV has all clients"
    )
    written = clients_csv(study.ranks, found)
    return Table("losers", caption, tuple(head[at] for at in kept), shown, left=2, written=written) if rows else None


def _loser(each: Gains, client: ClientGain) -> tuple[Cell, ...]:
    metric = each.metric
    look = {"gains": "holds", "loses": "fails"}.get(client.verdict, "unrun")
    cells = [
        text(each.label),
        text(each.client_label(client)),
        Cell(with_ends(client, metric), client.difference, "strong"),
    ]
    cells += [text(client.verdict, look)]
    cells += [Cell(score(value, metric), value) for value in (client.score, client.alone)]
    cells += [Cell(str(client.test_samples) if client.test_samples else NOTHING, client.test_samples)]
    return (*cells, *(Cell(trait_value(name, value), value) for name, value in client.traits.items()))


def trait_value(name: str, value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if name == "training samples" else f"{value:.2f}"


def dependence_table(study: Study) -> Table | None:
    """How gains depend on size, class skew and distance: Spearman's correlation, and mean gains in thirds."""
    head = ("method", "by", "correlation", "first third", "middle third", "last third")
    rows = [
        (text(each.label), text(one.trait), _correlation(one), *_thirds(one, each.metric))
        for each in study.gains
        for one in each.dependences
    ]
    caption = (
        "What the differences go with. Correlation: Spearman's over clients with its 95 % bootstrap interval. Thirds: "
        "the mean difference of the clients with the smallest, middle and largest values. Class skew: total variation "
        "distance from the classes of all clients; distance from the others: its mean to the "
        f"{NEAREST} nearest clients. Small clients have noisy differences, which weakens correlations."
    )
    return Table("dependence", caption, head, tuple(rows), left=2) if rows else None


def _correlation(one: Dependence) -> Cell:
    given = one.correlation
    if given is None:
        return Cell(NOTHING)
    return Cell(minus(f"{given.mean:+.2f} ({given.low:+.2f} to {given.high:+.2f})"), given.mean)


def _thirds(one: Dependence, metric: Metric) -> list[Cell]:
    cells = [Cell(NOTHING)] * (3 - len(one.thirds))
    for third in one.thirds:
        span = " to ".join(dict.fromkeys(trait_value(one.trait, end) for end in (third.least, third.most)))
        cells.append(Cell(signed(third.gain, metric), third.gain, below=f"{third.name}: {span}"))
    return cells


def gains_chart(study: Study) -> Chart | None:
    """Each client's difference with its interval, method by method, by difference or by training samples."""
    found = [each for each in study.gains if each.clients]
    if not found:
        return None
    tree = Branches()
    for label, each in zip(charts.short_labels([one.label for one in found]), found, strict=True):
        orders = {"difference": sorted(each.clients, key=lambda one: one.difference)}
        if all(one.training_samples is not None for one in each.clients):
            orders["training samples"] = sorted(each.clients, key=lambda one: one.training_samples or 0)
        tree[plain_text(label)] = Branches({name: _figure(each, clients) for name, clients in orders.items()})
    most = max(len(each.clients) for each in found)
    cut = f" {SHOWN} of {most} clients, evenly spaced." if most > SHOWN else ""
    over = " Bars: 95 % intervals." if any(each.sure for each in found) else ""
    caption = (
        f"Each client's model against the one it trains alone: {unit(found[0].metric)}. Above 0 it gains.{over}{cut}"
    )
    return Chart("gains", "Who gains", caption, tree, (Control("method"), Control("order by", "switch")), 440)


def _figure(each: Gains, ordered: Sequence[ClientGain]) -> Figure:
    kept = [ordered[at] for at in thinned(len(ordered), SHOWN)]
    names = charts.distinct([plain_text(_short(each.client_label(one))) for one in kept])
    factor = 100 if each.metric.percent else 1
    traces = []
    for said, (colour, symbol) in LOOKS.items():
        some = [(name, one) for name, one in zip(names, kept, strict=True) if one.verdict == said]
        if some:
            marker = {"color": colour, "symbol": symbol, "size": 8}
            y = [rounded(factor * one.difference) for _, one in some]
            bars = _bars([one for _, one in some], factor, colour)
            hover = [_hover(one, each) for _, one in some]
            trace = scatter("markers", [name for name, _ in some], y, name=said, marker=marker, text=hover, **bars)
            traces.append(trace | {"hovertemplate": "%{x}: %{text}<extra></extra>"})
    x = category_axis("client") | {"categoryorder": "array", "categoryarray": names}
    y_axis = {"title": {"text": "percentage points" if factor == 100 else "difference"}, "zeroline": True}
    return {"data": traces, "layout": {"xaxis": x, "yaxis": y_axis}}


def _short(name: str) -> str:
    return name if len(name) <= charts.LONGEST else f"{name[: charts.LONGEST - 1]}…"


def _bars(clients: Sequence[ClientGain], factor: int, colour: str) -> dict[str, Any]:
    if any(one.low is None or one.high is None for one in clients):
        return {}
    up = [rounded(factor * max(0.0, (one.high or 0) - one.difference)) for one in clients]
    down = [rounded(factor * max(0.0, one.difference - (one.low or 0))) for one in clients]
    look = {"color": colour, "thickness": 1, "width": 0}
    return {"error_y": {"type": "data", "symmetric": False, "array": up, "arrayminus": down, **look}}


def _hover(one: ClientGain, each: Gains) -> str:
    size = "" if one.training_samples is None else f", {one.training_samples:,.0f} training samples"
    tested = f", {one.test_samples} test samples" if one.test_samples else ""
    return f"{with_ends(one, each.metric)}{tested}{size}"


def clients_csv(ranks: Sequence[Rank], found: Sequence[Gains]) -> str:
    """One line per method, seed and client: scores, the difference of that seed, and that of the client over seeds."""
    lines = list[list[Any]]()
    by_label = {each.label: each for each in found}
    for rank in ranks:
        each = by_label.get(rank.label)
        pairs = {(line.seeds, one.client): (one, line) for one in (each.clients if each else ()) for line in one.seeds}
        for outcome in rank.members:
            facts = ClientFacts(outcome.folder)
            for client, value in outcome.by_client().items():
                pair = pairs.get((outcome.seeds, client))
                about = [rank.label, each.alone if pair and each else None, outcome.metric.name, *outcome.seeds, client]
                known = [facts.name(client), *facts.traits(client), facts.test_samples(client) or None]
                known += [pair[1].score if pair else value, *(_pair_cells(*pair) if pair else [None] * 9)]
                lines.append([*about, *map(_written, known)])
    return as_csv(CSV, lines)


def _pair_cells(one: ClientGain, line: SeedGain) -> list[Any]:
    own = [line.alone, line.difference, line.low, line.high, verdict(line.low, line.high)]
    return [*own, one.difference, one.low, one.high, one.verdict]


def _written(value: Any) -> Any:
    """A number with six digits, a whole one with all of its digits and no point."""
    if not isinstance(value, float):
        return value
    return f"{value:.0f}" if value.is_integer() else f"{value:.6g}" if isfinite(value) else None
