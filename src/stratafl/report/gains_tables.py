"""Who gains, as tables of the page and as CSV."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from stratafl.evaluation.metrics import Metric
from stratafl.report.formats import NO_VALUE, minus, score_text
from stratafl.report.gains import ClientGain, Gains, SeedGain, verdict
from stratafl.report.gains.gain_text import VERDICT_TEXTS, gain_unit, reading, share_text, signed, with_ends
from stratafl.report.gains.traits import NEAREST, ClientFacts, Dependence
from stratafl.report.ranking import Rank
from stratafl.report.report_tables import Cell, ReportTable, as_csv, text
from stratafl.report.study import Study

WORST_CLIENTS = 3  # clients of each method in the table
CSV = (
    *("method", "against", "metric", "seed", "data_seed", "model_seed", "batch_seed"),
    *("client", "name", "training_samples", "class_skew", "distance", "test_samples"),
    *("score", "alone", "difference", "low", "high", "verdict"),
    *("client_difference", "client_low", "client_high", "client_verdict"),
)


def gains_table(study: Study) -> ReportTable | None:
    """One row per method; None without the reference."""
    all_gains = [gains for gains in study.gains if gains.clients]
    if not all_gains:
        return None
    head = ("method", "clients", "mean", "median", "better", "worse", "unclear", "worst client")
    rows = []
    for gains in all_gains:
        open_ = 1 - gains.surely_better - gains.surely_worse
        cells = [
            text(gains.label),
            text(len(gains.clients)),
            Cell(signed(gains.mean, gains.metric), gains.mean, "strong"),
        ]
        cells += [Cell(signed(gains.median, gains.metric), gains.median)]
        cells += [Cell(share_text(gains.better, gains.surely_better, gains), gains.better)]
        cells += [Cell(share_text(gains.worse, gains.surely_worse, gains), gains.worse)]
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
    empty = [title for title in head if all(row[head.index(title)].shown == NO_VALUE for row in rows)]
    columns = [at for at, title in enumerate(head) if title not in empty]
    shown = tuple(tuple(row[at] for at in columns) for row in rows)
    caption = (
        f"The {WORST_CLIENTS} clients of each method that gain least or lose most, with their test and training "
        "samples; the CSV has all clients"
    )
    written = clients_csv(study.ranks, all_gains)
    return (
        ReportTable("losers", caption, tuple(head[at] for at in columns), shown, left=2, written=written)
        if rows
        else None
    )


def _loser(gains: Gains, client: ClientGain) -> tuple[Cell, ...]:
    metric = gains.metric
    look = {"gains": "holds", "loses": "fails"}.get(client.verdict, "unrun")
    cells = [
        text(gains.label),
        text(gains.client_label(client)),
        Cell(with_ends(client, metric), client.difference, "strong"),
    ]
    cells += [Cell(VERDICT_TEXTS[client.verdict], client.verdict, look)]
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
        "What the differences go with. Correlation: Spearman's over clients with its 95 % bootstrap interval. Thirds: "
        "the mean difference of the clients with the smallest, middle and largest values. Class skew: total variation "
        "distance from the classes of all clients; distance from the others: its mean to the "
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
                about = [
                    rank.label,
                    gains.alone if pair and gains else None,
                    outcome.metric.name,
                    *outcome.seeds,
                    client,
                ]
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
