"""Who gains, as tables of the page and as CSV."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from stratafl.evaluation.metrics import Metric
from stratafl.report.formats import NOTHING, minus, score
from stratafl.report.gains import ClientGain, Gains, SeedGain, verdict
from stratafl.report.gains.gain_text import gain_unit, reading, share_text, signed, with_ends
from stratafl.report.gains.traits import NEAREST, ClientFacts, Dependence
from stratafl.report.ranking import Rank
from stratafl.report.study import Study
from stratafl.report.tables import Cell, Table, as_csv, text

WORST = 3  # clients of each method in the table
CSV = (
    *("method", "against", "metric", "seed", "data_seed", "model_seed", "batch_seed"),
    *("client", "name", "training_samples", "class_skew", "distance", "test_samples"),
    *("score", "alone", "difference", "low", "high", "verdict"),
    *("client_difference", "client_low", "client_high", "client_verdict"),
)


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
        cells += [Cell(share_text(each.better, each.surely_better, each), each.better)]
        cells += [Cell(share_text(each.worse, each.surely_worse, each), each.worse)]
        cells += [Cell(f"{100 * open_:.0f} %", open_) if each.sure else Cell(NOTHING)]
        worst = f"{each.client_label(each.worst)}: {signed(each.worst.difference, each.metric)}"
        rows.append((*cells, Cell(worst, each.client_label(each.worst))))
    against = ", ".join(dict.fromkeys(each.alone for each in found))
    caption = " ".join([f"Clients against {against}: {gain_unit(found[0].metric)}.", *map(str, reading(found))])
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


def clients_csv(ranks: Sequence[Rank], found: Sequence[Gains]) -> str:
    """One line per method, seed and client: scores, the difference of that seed, and that of the client over seeds."""
    lines = list[list[Any]]()
    by_label = {each.label: each for each in found}
    for rank in ranks:
        each = by_label.get(rank.label)
        pairs = {(line.seeds, one.client): (one, line) for one in (each.clients if each else ()) for line in one.seeds}
        for outcome in rank.members:
            facts = ClientFacts(outcome.class_counts)
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
    """A number with six digits, a whole one with all of its digits and no point; numbers, because texts are quoted."""
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() else float(f"{value:.6g}") if isfinite(value) else None
