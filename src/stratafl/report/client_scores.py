"""Scores client by client: their distribution for each method, and the clients with the worst scores."""

from collections.abc import Mapping, Sequence
from typing import Any

from stratafl.evaluation.measure import Line
from stratafl.report.charts import COLOURS, Chart, Figure, category_axis, line_style, plain_text, rounded, scatter
from stratafl.report.formats import NOTHING, listed, score
from stratafl.report.outcome import SQUARED, measure, what_counts
from stratafl.report.ranking import Rank
from stratafl.report.study import RunRecord, Study
from stratafl.report.tables import Cell, Table, text

STRIP = 500  # with more clients of a method, lines replace points
BINS = 20
WORST = 3  # clients of each method in the table
BOX = {"type": "box", "orientation": "h", "boxpoints": "all", "jitter": 0.6, "pointpos": 0, "line": {"width": 1.5}}
BOX |= {"fillcolor": "rgba(128,128,128,0.12)", "hoverinfo": "text+x"}
NAME, CLASSES = "name", "classes in training"  # columns that are left out if they are empty


def client_scores(records: Sequence[RunRecord], metric: str) -> list[tuple[str, float]]:
    """A label and the test score of every client that took part, over all seeds."""
    found = []
    for record, line, key in _scored(records, metric):
        who = _name(record, line) or line["client"]
        found.append((f"client {who}, seed {record.outcome.seed}", float(line[key])))
    return found


def _scored(records: Sequence[RunRecord], metric: str) -> list[tuple[RunRecord, Line, str]]:
    """The lines of clients that took part and have a score, with the key of the score."""
    keyed = [(record, f"test.{record.outcome.evaluate.stage}.{metric}") for record in records]
    found = [(record, line, key) for record, key in keyed for line in record.clients if not line.get("new")]
    return [(record, line, key) for record, line, key in found if line.get(key) is not None]


def _name(record: RunRecord, line: Line) -> str:
    names, client = record.class_counts.clients, int(line["client"])
    return names[client] if client < len(names) else ""


def clients_chart(study: Study) -> Chart | None:
    labels = [plain_text(label) for label in study.labels]
    scores = [client_scores(study.of(rank), study.metric) for rank in study.ranks]
    there = {label: values for label, values in zip(labels, scores, strict=True) if values}
    if not there:
        return None
    many = max(map(len, there.values())) > STRIP
    figure = (_steps if many else _boxes)(there, labels, study.regression)
    boxes = "Each point is a client; the box contains the middle half of them."
    what = "Each line shows the share of clients by score." if many else boxes
    counts = what_counts(study.outcomes, one_by_one=True)
    caption = f"Test {measure(study.regression)} by client, {counts}, all seeds together. {what}"
    return Chart("clients", "Scores of clients", caption, figure, height=420 if many else 130 + 52 * len(there))


def _boxes(there: Mapping[str, Sequence[tuple[str, float]]], labels: Sequence[str], loss: bool) -> Figure:
    traces = []
    for label, clients in there.items():
        marker = {"color": COLOURS[labels.index(label) % len(COLOURS)], "size": 4, "opacity": 0.55}
        x, texts = [rounded(value) for _, value in clients], [plain_text(who) for who, _ in clients]
        traces.append({**BOX, "name": label, "x": x, "y": [label] * len(x), "text": texts, "marker": marker})
    layout = {"xaxis": _axis(loss), "yaxis": category_axis(down=True), "showlegend": False}
    return {"data": traces, "layout": layout}


def _steps(there: Mapping[str, Sequence[tuple[str, float]]], labels: Sequence[str], loss: bool) -> Figure:
    scores = {label: [value for _, value in clients] for label, clients in there.items()}
    every = [value for values in scores.values() for value in values]
    low, high = (min(every), max(every)) if loss else (0.0, 1.0)
    width = (high - low) / BINS or 1.0
    centres = [rounded(low + (i + 0.5) * width) for i in range(BINS)]
    traces = []
    for label, values in scores.items():
        shares = [rounded(share) for share in histogram(values, low, width)]
        line = {**line_style(labels.index(label))["line"], "shape": "hvh"}
        traces.append(scatter("lines", centres, shares, name=label, line=line))
    y = {"title": {"text": "share of clients"}, "tickformat": ".0%", "rangemode": "tozero"}
    return {"data": traces, "layout": {"xaxis": _axis(loss), "yaxis": y}}


def histogram(values: Sequence[float], low: float, width: float) -> list[float]:
    """The share of values in each bin from `low` on; the last bin includes its upper end."""
    counts = [0] * BINS
    for value in values:
        counts[max(0, min(int((value - low) / width), BINS - 1))] += 1
    return [count / len(values) for count in counts]


def _axis(loss: bool) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": SQUARED if loss else "accuracy"}}
    return axis if loss else axis | {"tickformat": ".0%", "range": [-0.02, 1.02]}


def worst_table(study: Study) -> Table | None:
    head = ("method", "seed", "client", NAME, study.metric, "test samples", "training samples", CLASSES)
    rows, sign = list[tuple[Cell, ...]](), -1 if study.regression else 1
    for rank in study.ranks:
        found = sorted(_scored(study.of(rank), study.metric), key=lambda each: sign * each[1][each[2]])
        rows += [_client(rank, *each, study.regression) for each in found[:WORST]]
    empty = [title for title in (NAME, CLASSES) if all(row[head.index(title)].shown == NOTHING for row in rows)]
    kept = [at for at, title in enumerate(head) if title not in empty]
    caption = f"The {WORST} clients of each method with the worst test {study.metric} in the selected round"
    shown = tuple(tuple(row[at] for at in kept) for row in rows)
    return Table("worst", caption, tuple(head[at] for at in kept), shown) if rows else None


def _client(rank: Rank, record: RunRecord, line: Line, key: str, loss: bool) -> tuple[Cell, ...]:
    client, counts = int(line["client"]), record.class_counts.counts.get("train", ())
    held = counts[client] if client < len(counts) else ()
    names = record.class_counts.classes or list(map(str, range(len(held))))
    classes = [name for name, count in zip(names, held, strict=True) if count] if len(held) > 1 else []
    who = (rank.label, record.outcome.seed, line["client"], _name(record, line) or NOTHING)
    samples = (line.get("test.samples", NOTHING), sum(held) if held else NOTHING)
    told = (*samples, listed(classes, 8) if classes else NOTHING)
    return (*map(text, who), Cell(score(line[key], loss), line[key], "strong"), *map(text, told))
