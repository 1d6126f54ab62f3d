"""Who gains, on the page: tables, their CSV, and a chart of each client's difference with its interval."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from stratafl.evaluation.metrics import Metric
from stratafl.report import charts
from stratafl.report.formats import NO_VALUE, minus, score_text
from stratafl.report.gains import ClientGain, Gains, SeedGain, verdict
from stratafl.report.gains.gain_records import Outlook
from stratafl.report.gains.gain_text import gain_unit, reading, share_text, signed, with_ends
from stratafl.report.gains.traits import NEAREST, ClientFacts, Dependence
from stratafl.report.ranking import Rank
from stratafl.report.report_tables import Cell, ReportTable, as_csv, text, without_empty_columns
from stratafl.report.study import Study

WORST_CLIENTS = 3  # clients of each method in the table
CSV = (
    *("method", "against", "metric", "seed", "data_seed", "model_seed", "batch_seed"),
    *("client", "name", "training_samples", "class_skew", "distance", "test_samples"),
    *("score", "alone", "difference", "low", "high", "verdict"),
    *("client_difference", "client_low", "client_high", "client_verdict"),
)
MAX_CLIENTS_DRAWN = 200  # clients at most
LOOKS: dict[Outlook, tuple[str, str]] = {
    "gains": ("#009E73", "triangle-up"),
    "loses": ("#D55E00", "triangle-down"),
    "unclear": ("#808080", "circle"),
}


def gains_table(study: Study) -> ReportTable | None:
    """One row per method; None without the reference."""
    all_gains = [gains for gains in study.gains if gains.clients]
    if not all_gains:
        return None
    head = ("method", "clients", "mean", "median", "better", "worse", "unclear", "worst client")
    rows = []
    for gains in all_gains:
        open_ = 1 - gains.surely_better - gains.surely_worse
        cells = [text(gains.label), text(len(gains.clients))]
        cells += [Cell(signed(gains.mean, gains.metric), gains.mean, "strong")]
        cells += [Cell(signed(gains.median, gains.metric), gains.median)]
        cells += [Cell(share_text(gains.better, "gains", gains), gains.better)]
        cells += [Cell(share_text(gains.worse, "loses", gains), gains.worse)]
        cells += [Cell(f"{100 * open_:.0f} %", open_) if gains.sure else Cell(NO_VALUE)]
        worst = f"{gains.client_label(gains.worst)}: {signed(gains.worst.difference, gains.metric)}"
        rows.append((*cells, Cell(worst, gains.client_label(gains.worst))))
    against = ", ".join(dict.fromkeys(gains.alone for gains in all_gains))
    caption = " ".join([f"Clients against {against}: {gain_unit(all_gains[0].metric)}.", *map(str, reading(all_gains))])
    return ReportTable("gains", caption, head, tuple(rows), written=summary_csv(all_gains), stacked=True)


def summary_csv(all_gains: Sequence[Gains]) -> str:
    names = ("mean", "client_mean", "median", "better", "worse", "surely_better", "surely_worse")
    head = ("method", "against", "metric", "clients", "undefined", *names, "worst_client", "worst_difference")
    rows = [
        [gains.label, gains.alone, gains.metric.name, len(gains.clients), gains.undefined]
        + [_written(getattr(gains, name)) for name in names]
        + [gains.client_label(gains.worst), _written(gains.worst.difference)]
        for gains in all_gains
        if gains.clients
    ]
    return as_csv(head, rows)


def losers_table(study: Study) -> ReportTable | None:
    """The clients of each method that lose most; its CSV has all clients."""
    all_gains = [gains for gains in study.gains if gains.clients]
    head = ("method", "client", "difference", "verdict", "score", "alone", "test", "training", "skew", "distance")
    rows = list[tuple[Cell, ...]]()
    for gains in all_gains:
        losers = sorted(gains.clients, key=lambda client: client.difference)[:WORST_CLIENTS]
        rows += [_loser(gains, client) for client in losers]
    caption = (
        f"The {WORST_CLIENTS} clients of each method that gain least or lose most, with their test and training "
        "samples; the CSV has all clients"
    )
    written = clients_csv(study.ranks, all_gains)
    return without_empty_columns(ReportTable("losers", caption, head, tuple(rows), 2, written)) if rows else None


def _loser(gains: Gains, client: ClientGain) -> tuple[Cell, ...]:
    metric = gains.metric
    look = {"gains": "holds", "loses": "fails"}.get(client.verdict, "unrun")
    cells = [text(gains.label), text(gains.client_label(client))]
    cells += [Cell(with_ends(client, metric), client.difference, "strong")]
    cells += [Cell(client.verdict, client.verdict, look)]
    cells += [Cell(score_text(value, metric), value) for value in (client.score, client.alone)]
    cells += [Cell(str(client.test_samples) if client.test_samples else NO_VALUE, client.test_samples)]
    return (*cells, *(Cell(trait_value(name, value), value) for name, value in client.traits.items()))


def trait_value(name: str, value: float | None) -> str:
    if value is None:
        return NO_VALUE
    return f"{value:,.0f}" if name == "training samples" else f"{value:.2f}"


def dependence_table(study: Study) -> ReportTable | None:
    """How gains depend on size, class skew and distance: Spearman's correlation, and mean gains in thirds."""
    head = ("method", "by", "correlation", "first third", "middle third", "last third")
    rows = [
        (text(gains.label), text(dependence.trait), _correlation(dependence), *_thirds(dependence, gains.metric))
        for gains in study.gains
        for dependence in gains.dependences
    ]
    caption = (
        "Differences by traits of clients. Correlation: Spearman's over clients with its 95 % bootstrap interval. "
        "Thirds: the mean difference of the clients with the smallest, middle and largest values. Class skew: total "
        "variation distance from the classes of all clients; distance from the others: its mean to the "
        f"{NEAREST} nearest clients. Small clients have noisy differences, which weakens correlations."
    )
    return ReportTable("dependence", caption, head, tuple(rows), left=2) if rows else None


def _correlation(dependence: Dependence) -> Cell:
    correlation = dependence.correlation
    if correlation is None:
        return Cell(NO_VALUE)
    return Cell(minus(f"{correlation.mean:+.2f} ({correlation.low:+.2f} to {correlation.high:+.2f})"), correlation.mean)


def _thirds(dependence: Dependence, metric: Metric) -> list[Cell]:
    cells = [Cell(NO_VALUE)] * (3 - len(dependence.thirds))
    for third in dependence.thirds:
        span = " to ".join(dict.fromkeys(trait_value(dependence.trait, end) for end in (third.least, third.most)))
        cells.append(Cell(signed(third.gain, metric), third.gain, below=f"{third.name}: {span}"))
    return cells


def clients_csv(ranks: Sequence[Rank], all_gains: Sequence[Gains]) -> str:
    """One line per method, seed and client: scores, the difference of that seed, and that of the client over seeds."""
    lines = list[list[Any]]()
    by_label = {gains.label: gains for gains in all_gains}
    for rank in ranks:
        gains = by_label.get(rank.label)
        compared = gains.clients if gains else ()
        pairs = {(line.seeds, each.client): (each, line) for each in compared for line in each.seeds}
        for outcome in rank.members:
            facts = ClientFacts(outcome.class_counts)
            for client, value in outcome.by_client().items():
                pair = pairs.get((outcome.seeds, client))
                against = gains.alone if pair and gains else None
                about = [rank.label, against, outcome.metric.name, *outcome.seeds, client]
                cells = [facts.name(client), *facts.traits(client), facts.test_samples(client) or None]
                cells += [pair[1].score if pair else value, *(_pair_cells(*pair) if pair else [None] * 9)]
                lines.append([*about, *map(_written, cells)])
    return as_csv(CSV, lines)


def _pair_cells(client_gain: ClientGain, line: SeedGain) -> list[Any]:
    of_seed = [line.alone, line.difference, line.low, line.high, verdict(line.low, line.high)]
    return [*of_seed, client_gain.difference, client_gain.low, client_gain.high, client_gain.verdict]


def _written(value: Any) -> Any:
    """A number with six digits, a whole one with all of its digits and no point; numbers, because texts are quoted."""
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() else float(f"{value:.6g}") if isfinite(value) else None


# The chart


def gains_chart(study: Study) -> charts.Chart | None:
    """Each client's difference with its interval, method by method, by difference or by training samples."""
    all_gains = [gains for gains in study.gains if gains.clients]
    if not all_gains:
        return None
    tree = charts.Branches()
    for label, gains in zip(charts.short_labels([gains.label for gains in all_gains]), all_gains, strict=True):
        orders = {"difference": sorted(gains.clients, key=lambda client: client.difference)}
        if all(client.training_samples is not None for client in gains.clients):
            orders["training samples"] = sorted(gains.clients, key=lambda client: client.training_samples or 0)
        tree[charts.plain_text(label)] = charts.Branches(
            {name: gains_figure(gains, clients) for name, clients in orders.items()}
        )
    most = max(len(gains.clients) for gains in all_gains)
    cut = f" {MAX_CLIENTS_DRAWN} of {most} clients, evenly spaced." if most > MAX_CLIENTS_DRAWN else ""
    over = " Bars: 95 % intervals." if any(gains.sure for gains in all_gains) else ""
    unit = gain_unit(all_gains[0].metric)
    caption = f"Each client's model against the one it trains alone: {unit}. Above 0, the client gains.{over}{cut}"
    return charts.Chart(
        "gains", "Who gains", caption, tree, (charts.Control("method"), charts.Control("order by", "switch")), 440
    )


def gains_figure(gains: Gains, ordered: Sequence[ClientGain], who: str = "client") -> charts.Figure:
    """Each of these clients' difference with its interval, in their order; the axis says `who` they are."""
    clients = [ordered[at] for at in charts.thinned(len(ordered), MAX_CLIENTS_DRAWN)]
    names = charts.distinct([charts.plain_text(charts.shortened(gains.client_label(client))) for client in clients])
    factor = 100 if gains.metric.percent else 1
    traces = []
    for outlook, (colour, symbol) in LOOKS.items():
        some = [(name, client) for name, client in zip(names, clients, strict=True) if client.verdict == outlook]
        if some:
            marker = {"color": colour, "symbol": symbol, "size": 8}
            y = [charts.rounded(factor * client.difference) for _, client in some]
            bars = _bars([client for _, client in some], factor, colour)
            hover = [_hover(client, gains) for _, client in some]
            trace = charts.scatter(
                "markers", [name for name, _ in some], y, name=outlook, marker=marker, text=hover, **bars
            )
            traces.append(trace | {"hovertemplate": "%{x}: %{text}<extra></extra>"})
    x = charts.category_axis(who) | {"categoryorder": "array", "categoryarray": names}
    y_axis = {"title": {"text": "percentage points" if factor == 100 else "difference"}, "zeroline": True}
    return {"data": traces, "layout": {"xaxis": x, "yaxis": y_axis}}


def _bars(clients: Sequence[ClientGain], factor: int, colour: str) -> dict[str, Any]:
    """Of those clients that have an interval; 0 for the others."""
    if all(client.low is None or client.high is None for client in clients):
        return {}
    up = [_length(each.difference, each.high, factor) for each in clients]
    down = [_length(each.low, each.difference, factor) for each in clients]
    look = {"color": colour, "thickness": 1, "width": 0}
    return {"error_y": {"type": "data", "symmetric": False, "array": up, "arrayminus": down, **look}}


def _length(low: float | None, high: float | None, factor: int) -> float | None:
    return 0.0 if low is None or high is None else charts.rounded(factor * max(0.0, high - low))


def _hover(client: ClientGain, gains: Gains) -> str:
    size = "" if client.training_samples is None else f", {client.training_samples:,.0f} training samples"
    tested = f", {client.test_samples} test samples" if client.test_samples else ""
    return f"{with_ends(client, gains.metric)}{tested}{size}"
