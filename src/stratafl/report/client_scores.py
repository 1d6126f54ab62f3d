"""Scores client by client: their distribution for each method, and the clients with the worst scores."""

from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean
from typing import Any

from stratafl.errors import counted
from stratafl.evaluation.measure import Line
from stratafl.evaluation.metrics import Metric
from stratafl.report.charts import (
    COLOURS,
    Chart,
    Figure,
    category_axis,
    line_style,
    plain_text,
    rounded,
    scatter,
    value_axis,
)
from stratafl.report.formats import NO_VALUE, listed, score_text
from stratafl.report.outcome import measure, seed_labels, what_counts
from stratafl.report.ranking import Rank
from stratafl.report.report_tables import Cell, ReportTable, text
from stratafl.report.study import RunRecord, Study

STRIP = 500  # with more clients of a method, lines replace points
BINS = 20
WORST_CLIENTS = 3  # clients of each method in the table
BOX = {"type": "box", "orientation": "h", "boxpoints": "all", "jitter": 0.6, "pointpos": 0, "line": {"width": 1.5}}
BOX |= {"fillcolor": "rgba(128,128,128,0.12)", "hoverinfo": "text+x"}
CLASSES = "classes in training"  # a column that is left out if it is empty
Scored = tuple[RunRecord, Line, str]  # a run, the line of a client, and the key of its score


def client_scores(records: Sequence[RunRecord], metric: str) -> list[tuple[str, float]]:
    """A label and the test score of every client that took part, over all seeds."""
    outcomes = [record.outcome for record in records]
    seeds = {run.folder: label for run, label in zip(outcomes, seed_labels(outcomes), strict=True)}
    return [
        (f"{client_label(record, line)}, seed {seeds[record.outcome.folder]}", float(line[key]))
        for record, line, key in _scored(records, metric)
    ]


def _scored(records: Sequence[RunRecord], metric: str) -> list[Scored]:
    """The lines of clients that took part and have a score, with the key of the score."""
    keyed = [(record, f"test.{record.outcome.evaluate.stage}.{metric}") for record in records]
    lines = [(record, line, key) for record, key in keyed for line in record.clients if not line.get("new")]
    return [(record, line, key) for record, line, key in lines if line.get(key) is not None]


def client_label(record: RunRecord, line: Line) -> str:
    """The name of a client in the data, or its number."""
    names, client = record.class_counts.clients, int(line["client"])
    return names[client] if client < len(names) else f"client {client}"


def clients_chart(study: Study) -> Chart | None:
    labels = [plain_text(label) for label in study.labels]
    scores = [client_scores(study.of(rank), study.metric) for rank in study.ranks]
    scored = {label: values for label, values in zip(labels, scores, strict=True) if values}
    if not scored:
        return None
    many = max(map(len, scored.values())) > STRIP
    figure = (_steps if many else _boxes)(scored, labels, study.measured)
    what = _what_is_drawn(study, many)
    counts = what_counts(study.outcomes, one_by_one=True)
    caption = f"Test {measure(study.measured)} by client, {counts}. {what}"
    return Chart("clients", "Scores of clients", caption, figure, height=420 if many else 130 + 52 * len(scored))


def _what_is_drawn(study: Study, many: bool) -> str:
    """What a point is and how many there are, for the method with the most of them."""
    clients, seeds, points = 0, 0, 0
    for rank in study.ranks:
        counts = [len(_scored([record], study.metric)) for record in study.of(rank)]
        if sum(counts) > points:
            clients, seeds, points = max(counts), len(counts), sum(counts)
    if seeds == 1:
        what, total = "client", counted(points, "client")
    else:
        same = f"{counted(clients, 'client')} × {seeds} seeds = {points}"
        what = "client with one seed"
        total = same if clients * seeds == points else f"{points} in {seeds} seeds"
    if many:
        return f"Each line shows the share of clients by score ({total})."
    return f"Each point is a {what} ({total}); the box holds the middle half of the points."


def _boxes(scored: Mapping[str, Sequence[tuple[str, float]]], labels: Sequence[str], metric: Metric) -> Figure:
    traces = []
    for label, clients in scored.items():
        marker = {"color": COLOURS[labels.index(label) % len(COLOURS)], "size": 4, "opacity": 0.55}
        x, texts = [rounded(value) for _, value in clients], [plain_text(who) for who, _ in clients]
        traces.append({**BOX, "name": label, "x": x, "y": [label] * len(x), "text": texts, "marker": marker})
    every = [value for clients in scored.values() for _, value in clients]
    layout = {"xaxis": _axis(every, metric), "yaxis": category_axis(down=True), "showlegend": False}
    return {"data": traces, "layout": layout}


def _steps(scored: Mapping[str, Sequence[tuple[str, float]]], labels: Sequence[str], metric: Metric) -> Figure:
    scores = {label: [value for _, value in clients] for label, clients in scored.items()}
    every = [value for values in scores.values() for value in values]
    low, high = min(every), max(every)
    width = (high - low) / BINS or 1.0
    centres = [rounded(low + (i + 0.5) * width) for i in range(BINS)]
    traces = []
    for label, values in scores.items():
        shares = [rounded(share) for share in histogram(values, low, width)]
        line = {**line_style(labels.index(label))["line"], "shape": "hvh"}
        traces.append(scatter("lines", centres, shares, name=label, line=line))
    y = {"title": {"text": "share of clients"}, "tickformat": ".0%", "rangemode": "tozero"}
    return {"data": traces, "layout": {"xaxis": _axis(every, metric), "yaxis": y}}


def histogram(values: Sequence[float], low: float, width: float) -> list[float]:
    """The share of values in each bin from `low` on; the last bin includes its upper end."""
    counts = [0] * BINS
    for value in values:
        counts[max(0, min(int((value - low) / width), BINS - 1))] += 1
    return [count / len(values) for count in counts]


def _axis(values: Sequence[float], metric: Metric) -> dict[str, Any]:
    return value_axis(metric.title, values, share=metric.percent)


def worst_table(study: Study) -> ReportTable | None:
    """The clients with the worst scores; a client that every seed has counts once, with its mean."""
    metric = study.measured
    head = ("method", "client", "seed", metric.title, "test samples", "training samples", CLASSES)
    rows = list[tuple[Cell, ...]]()
    for rank in study.ranks:
        groups: dict[tuple[Hashable, int], list[Scored]] = {}
        for record, line, key in _scored(study.of(rank), study.metric):
            who = (record.outcome.population, int(line["client"]))
            groups.setdefault(who, []).append((record, line, key))
        worst_first = sorted(groups.values(), key=lambda group: metric.sign * _mean(group))
        rows += [_client(rank, group, metric) for group in worst_first[:WORST_CLIENTS]]
    columns = [
        at for at, title in enumerate(head) if title != CLASSES or any(row[at].shown != NO_VALUE for row in rows)
    ]
    caption = f"The {WORST_CLIENTS} clients of each method with the worst test {metric.title} in the selected round"
    shown = tuple(tuple(row[at] for at in columns) for row in rows)
    return ReportTable("worst", caption, tuple(head[at] for at in columns), shown, left=2) if rows else None


def _mean(group: Sequence[Scored]) -> float:
    return fmean(line[key] for _, line, key in group)


def _client(rank: Rank, group: Sequence[Scored], metric: Metric) -> tuple[Cell, ...]:
    (record, line, _), value = group[0], _mean(group)
    client, counts = int(line["client"]), record.class_counts.counts.get("train", ())
    class_counts = counts[client] if client < len(counts) else ()
    names = record.class_counts.classes or list(map(str, range(len(class_counts))))
    classes = [name for name, count in zip(names, class_counts, strict=True) if count] if len(class_counts) > 1 else []
    seed = record.outcome.seed if len(group) == 1 else f"mean of {len(group)}"
    samples = (line.get("test.samples", NO_VALUE), sum(class_counts) if class_counts else NO_VALUE)
    about = (*samples, listed(classes, 8) if classes else NO_VALUE)
    who = (rank.label, client_label(record, line), seed)
    return (*map(text, who), Cell(score_text(value, metric), value, "strong"), *map(text, about))
