"""Scores client by client: their distribution for each method, and the clients with the worst scores."""

from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean
from typing import Any

from stratafl.errors import counted
from stratafl.evaluation.metrics import Metric
from stratafl.report import charts
from stratafl.report.formats import NO_VALUE, listed, score_text
from stratafl.report.outcome import Outcome, measure, seed_labels, what_counts
from stratafl.report.report_tables import Cell, ReportTable, text, without_empty_columns
from stratafl.report.study import Study

STRIP = 500  # with more clients of a method, lines replace points
BINS = 20
WORST_CLIENTS = 3  # clients of each method in the table
BOX = {"type": "box", "orientation": "h", "boxpoints": "all", "jitter": 0.6, "pointpos": 0, "line": {"width": 1.5}}
BOX |= {"fillcolor": "rgba(128,128,128,0.12)", "hoverinfo": "text+x"}


def client_scores(runs: Sequence[Outcome]) -> list[tuple[str, float]]:
    """A label and the test score of every client that took part, over all seeds."""
    labelled = zip(runs, seed_labels(runs), strict=True)
    return [
        (f"{client_label(run, client)}, seed {seed}", score)
        for run, seed in labelled
        for client, score in run.by_client().items()
    ]


def client_label(run: Outcome, client: int) -> str:
    """The name of a client in the data, or its number."""
    names = run.client_names
    return names[client] if client < len(names) else f"client {client}"


def clients_chart(study: Study) -> charts.Chart | None:
    labels = [charts.plain_text(label) for label in study.labels]
    scores = [client_scores(rank.members) for rank in study.ranks]
    scored = {label: values for label, values in zip(labels, scores, strict=True) if values}
    if not scored:
        return None
    many = max(map(len, scored.values())) > STRIP
    figure = (_steps if many else _boxes)(scored, labels, study.measured)
    what = _what_is_drawn(study, many)
    counts = what_counts(study.outcomes, one_by_one=True)
    caption = f"Test {measure(study.measured)} by client, {counts}. {what}"
    return charts.Chart("clients", "Scores of clients", caption, figure, height=420 if many else 130 + 52 * len(scored))


def _what_is_drawn(study: Study, many: bool) -> str:
    """What a point is and how many there are, for the method with the most of them."""
    clients, seeds, points = 0, 0, 0
    for rank in study.ranks:
        counts = [len(run.by_client()) for run in rank.members]
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


def _boxes(scored: Mapping[str, Sequence[tuple[str, float]]], labels: Sequence[str], metric: Metric) -> charts.Figure:
    traces = []
    for label, clients in scored.items():
        marker = {"color": charts.COLOURS[labels.index(label) % len(charts.COLOURS)], "size": 4, "opacity": 0.55}
        x, texts = [charts.rounded(value) for _, value in clients], [charts.plain_text(who) for who, _ in clients]
        traces.append({**BOX, "name": label, "x": x, "y": [label] * len(x), "text": texts, "marker": marker})
    every = [value for clients in scored.values() for _, value in clients]
    layout = {"xaxis": _axis(every, metric), "yaxis": charts.category_axis(down=True), "showlegend": False}
    return {"data": traces, "layout": layout}


def _steps(scored: Mapping[str, Sequence[tuple[str, float]]], labels: Sequence[str], metric: Metric) -> charts.Figure:
    scores = {label: [value for _, value in clients] for label, clients in scored.items()}
    every = [value for values in scores.values() for value in values]
    low, high = min(every), max(every)
    width = (high - low) / BINS or 1.0
    centres = [charts.rounded(low + (i + 0.5) * width) for i in range(BINS)]
    traces = []
    for label, values in scores.items():
        shares = [charts.rounded(share) for share in histogram(values, low, width)]
        line = {**charts.line_style(labels.index(label))["line"], "shape": "hvh"}
        traces.append(charts.scatter("lines", centres, shares, name=label, line=line))
    y = {"title": {"text": "share of clients"}, "tickformat": ".0%", "rangemode": "tozero"}
    return {"data": traces, "layout": {"xaxis": _axis(every, metric), "yaxis": y}}


def histogram(values: Sequence[float], low: float, width: float) -> list[float]:
    """The share of values in each bin from `low` on; the last bin includes its upper end."""
    counts = [0] * BINS
    for value in values:
        counts[max(0, min(int((value - low) / width), BINS - 1))] += 1
    return [count / len(values) for count in counts]


def _axis(values: Sequence[float], metric: Metric) -> dict[str, Any]:
    return charts.value_axis(metric.title, values, share=metric.percent)


def worst_table(study: Study) -> ReportTable | None:
    """The clients with the worst scores; a client that every seed has counts once, with its mean."""
    metric = study.measured
    head = ("method", "client", "seed", metric.title, "test samples", "training samples", "classes in training")
    rows = list[tuple[Cell, ...]]()
    for rank in study.ranks:
        groups: dict[tuple[Hashable, int], list[tuple[Outcome, float]]] = {}
        for run in rank.members:
            for client, score in run.by_client().items():
                groups.setdefault((run.population, client), []).append((run, score))
        means = [(fmean(score for _, score in runs), who, runs) for who, runs in groups.items()]
        worst_first = sorted(means, key=lambda mean: metric.sign * mean[0])
        for mean, (_, client), runs in worst_first[:WORST_CLIENTS]:
            seed = runs[0][0].seed if len(runs) == 1 else f"mean of {len(runs)}"
            who = map(text, (rank.label, client_label(runs[0][0], client), seed))
            rows.append((*who, Cell(score_text(mean, metric), mean, "strong"), *_client_samples(runs[0][0], client)))
    caption = f"The {WORST_CLIENTS} clients of each method with the worst test {metric.title} in the selected round"
    return without_empty_columns(ReportTable("worst", caption, head, tuple(rows), left=2), head[-1:]) if rows else None


def _client_samples(run: Outcome, client: int) -> tuple[Cell, ...]:
    """Of the first seed: test samples, training samples, and their classes."""
    counts = run.split_counts.counts.get("train", ())
    class_counts = counts[client] if client < len(counts) else ()
    names = run.split_counts.classes or list(map(str, range(len(class_counts))))
    classes = [name for name, count in zip(names, class_counts, strict=True) if count] if len(class_counts) > 1 else []
    training = sum(class_counts) if class_counts else NO_VALUE
    shown = (run.test_samples().get(client) or NO_VALUE, training, listed(classes, 8) if classes else NO_VALUE)
    return tuple(map(text, shown))
