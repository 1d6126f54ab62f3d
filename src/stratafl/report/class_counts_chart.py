"""Class counts: how many samples of each class each client has, for each partition of the data."""

from collections.abc import Sequence
from math import sqrt
from typing import Any

from stratafl.errors import counted
from stratafl.report import charts
from stratafl.report.charts import COLOURS, Branches, Chart, Control, Figure, category_axis, plain_text, thinned
from stratafl.report.formats import differing
from stratafl.report.outcome import ClassCounts, Outcome
from stratafl.report.study import Study

BUBBLES = 60  # with more clients or classes, a heat map replaces bubbles
ROWS, COLUMNS = 200, 200  # clients and classes of a figure at most
MIN_BUBBLE_PIXELS, MAX_BUBBLE_PIXELS = 2, 16  # pixels of a bubble; a legend cannot show larger ones
PARTITIONS = 6  # to choose from at most


def class_counts_chart(study: Study) -> Chart | None:
    """The class counts of every partition that the runs use; None if the runs do not record them."""
    partitions: list[tuple[ClassCounts, Outcome]] = []
    for run in study.outcomes:
        is_repeated = any(run.split_counts == other for other, _ in partitions)
        if run.split_counts.counts and not is_repeated and len(partitions) < PARTITIONS:
            partitions.append((run.split_counts, run))
    if not partitions:
        return None
    labels = partition_labels([run for _, run in partitions])
    tree = Branches()
    for label, (class_counts, run) in zip(labels, partitions, strict=True):
        splits = {split: rows for split, rows in class_counts.counts.items() if any(map(any, rows))}
        tree[label] = Branches({split: _figure(rows, class_counts, run.clients) for split, rows in splits.items()})
    rows = max(len(split) for each, _ in partitions for split in each.counts.values())
    columns = max(len(row) for each, _ in partitions for split in each.counts.values() for row in split)
    controls = (Control("partition"), Control("split", "switch"))
    new = any(0 < run.clients < len(next(iter(class_counts.counts.values()))) for class_counts, run in partitions)
    caption = _caption(rows, columns, study.regression) + (" New clients take no part in training." if new else "")
    height = 320 if columns == 1 else 140 + 20 * rows if _bubbles(rows, columns) else 560
    return Chart("class_counts", "Class counts", caption, tree, controls, height)


def partition_labels(outcomes: Sequence[Outcome]) -> list[str]:
    """The data settings and seeds in which these runs differ; numbered where that is not enough."""
    settings = [{f"data.{key}=": value for key, value in run.config["data"].items()} for run in outcomes]
    run_settings = [{**values, "seed ": run.seed} for values, run in zip(settings, outcomes, strict=True)]
    keys = differing(run_settings) or ["seed "]
    return charts.distinct(
        [", ".join(f"{key}{values[key]}" for key in keys if key in values) for values in run_settings]
    )


def _caption(clients: int, classes: int, regression: bool) -> str:
    if classes == 1:
        unknown = "" if regression else " The runs do not record their classes."
        return f"The number of samples of each client.{unknown}"
    cut = [f"{ROWS} of the {clients} clients, evenly spaced" if clients > ROWS else ""]
    cut += [f"the {COLUMNS} largest of {classes} classes" if classes > COLUMNS else ""]
    shown = " and ".join(filter(None, cut))
    larger = " The larger a bubble, the more samples." if _bubbles(clients, classes) else ""
    return f"The number of samples of each class for each client{f': {shown}' if shown else ''}.{larger}"


def _bubbles(clients: int, classes: int) -> bool:
    return clients <= BUBBLES and classes <= BUBBLES


def _figure(rows: Sequence[Sequence[int]], class_counts: ClassCounts, taking_part: int) -> Figure:
    clients, classes = _names(class_counts.clients, len(rows)), _names(class_counts.classes, max(map(len, rows)))
    if 0 < taking_part < len(clients):
        clients = [*clients[:taking_part], *(f"{name} (new)" for name in clients[taking_part:])]
    if len(classes) == 1:
        return _totals([row[0] for row in rows], clients)
    return (_bubble if _bubbles(len(clients), len(classes)) else _heat)(rows, clients, classes)


def _names(known_names: Sequence[str], count: int) -> list[str]:
    """Names for an axis, all different and of limited length; numbers if there are no names."""
    names, most = known_names or list(map(str, range(count))), charts.MAX_LABEL_LETTERS
    return [plain_text(name if len(name) <= most else f"{name[: most - 8]}… #{at}") for at, name in enumerate(names)]


def _bubble(rows: Sequence[Sequence[int]], clients: Sequence[str], classes: Sequence[str]) -> Figure:
    cells = [(client, label, count) for client, row in enumerate(rows) for label, count in enumerate(row) if count]
    x, y = [classes[label] for _, label, _ in cells], [clients[client] for client, _, _ in cells]
    counts = [count for *_, count in cells]
    largest = max(counts)
    look = {"color": COLOURS[0], "opacity": 0.8, "line": {"width": 0}, "sizemin": MIN_BUBBLE_PIXELS}
    marker = look | {"size": counts, "sizemode": "area", "sizeref": 2 * largest / MAX_BUBBLE_PIXELS**2}
    hover = "client %{y}, class %{x}: %{customdata} samples<extra></extra>"
    traces = [charts.scatter("markers", x, y, name="samples", customdata=counts, marker=marker, hovertemplate=hover)]
    traces[0]["showlegend"] = False
    for count in sorted({max(1, largest // part) for part in (16, 4, 1)}):  # the legend
        pixels = MAX_BUBBLE_PIXELS * sqrt(count / largest)  # its area is the count
        marker = {**look, "size": max(MIN_BUBBLE_PIXELS, pixels)}
        shown = {"name": counted(count, "sample"), "hoverinfo": "skip", "showlegend": True}
        traces.append(charts.scatter("markers", [None], [None], marker=marker, **shown))
    return {"data": traces, "layout": {"xaxis": _axis("class", classes), "yaxis": _axis("client", clients, down=True)}}


def _axis(title: str, names: Sequence[str], down: bool = False) -> dict[str, Any]:
    ends = [-0.7, len(names) - 0.3]
    order = {"categoryorder": "array", "categoryarray": list(names), "range": ends[::-1] if down else ends}
    return category_axis(title) | order


def _heat(rows: Sequence[Sequence[int]], clients: Sequence[str], classes: Sequence[str]) -> Figure:
    totals = [sum(column) for column in zip(*rows, strict=True)]
    labels = sorted(sorted(range(len(totals)), key=lambda label: -totals[label])[:COLUMNS])
    shown = thinned(len(rows), ROWS)
    z = [[rows[client][label] for label in labels] for client in shown]
    names = {"x": [classes[label] for label in labels], "y": [clients[client] for client in shown]}
    bar = {"title": {"text": "samples"}, "thickness": 12}
    trace = charts.heat_map(z, "client %{y}, class %{x}: %{z} samples", colorbar=bar, **names)
    layout = {"xaxis": category_axis("class"), "yaxis": category_axis("client", down=True)}
    return {"data": [trace], "layout": layout}


def _totals(counts: Sequence[int], clients: Sequence[str]) -> Figure:
    drawn = thinned(len(counts), ROWS)
    trace: dict[str, Any] = {"type": "bar", "name": "samples", "marker": {"color": COLOURS[0]}}
    trace |= {"x": [clients[client] for client in drawn], "y": [counts[client] for client in drawn]}
    return {"data": [trace], "layout": {"xaxis": category_axis("client"), "yaxis": {"title": {"text": "samples"}}}}
