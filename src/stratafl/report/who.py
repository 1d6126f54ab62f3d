"""Who holds what: clients × classes."""

from collections.abc import Mapping, Sequence
from typing import Any

from stratafl.report.charts import COLOURS, SCALE, Branches, Chart, Control, Figure, thinned
from stratafl.report.study import Record, Study

BUBBLES = 60  # clients and classes up to which every count is a bubble
ROWS, COLUMNS = 200, 200  # clients and classes that a picture has at most
DIVISIONS = 6  # that can be chosen from
Counts = Mapping[str, Sequence[Sequence[int]]]


def who_chart(study: Study) -> Chart | None:
    """Who holds which classes, for each division of the data that the runs were made with; nothing if none is known."""
    found: dict[str, Counts] = {}
    for rank in study.ranks:
        for record in study.of(rank):
            counts = _counts(record)
            label = f"seed {record.outcome.seed}"
            label = f"{rank.label}, {label}" if label in found and found[label] != counts else label
            if counts and counts not in found.values() and len(found) < DIVISIONS:
                found[label] = counts
    if not found:
        return None
    tree = Branches(
        {
            label: Branches({split: _figure(rows) for split, rows in counts.items() if any(map(any, rows))})
            for label, counts in found.items()
        }
    )
    rows = max(len(split) for counts in found.values() for split in counts.values())
    columns = max(len(row) for counts in found.values() for split in counts.values() for row in split)
    controls = (Control("division of"), Control("split", "switch"))
    return Chart("holdings", "Who holds what", _says(rows, columns), tree, controls, height=_height(rows, columns))


def _counts(record: Record) -> Counts | None:
    """As the run says, or else how many samples its evaluated clients had."""
    if record.holdings is not None:
        counts: Counts = record.holdings["counts"]
        return counts
    lines = [line for line in record.clients if "test.samples" in line]
    splits = [split for split in ("validation", "test") if any(f"{split}.samples" in line for line in lines)]
    return {split: [[int(line.get(f"{split}.samples", 0))] for line in lines] for split in splits} or None


def _says(clients: int, classes: int) -> str:
    if classes == 1:
        return "How many samples each client has; which classes they are of is not known."
    cut = [f"{ROWS} of the {clients} clients, evenly spaced" if clients > ROWS else ""]
    cut += [f"the {COLUMNS} largest of {classes} classes" if classes > COLUMNS else ""]
    shown = " and ".join(filter(None, cut))
    return ("How many samples of each class each client has" + (f": {shown}." if shown else ".")) + (
        " The larger a bubble, the more samples." if _bubbles(clients, classes) else ""
    )


def _bubbles(clients: int, classes: int) -> bool:
    return clients <= BUBBLES and classes <= BUBBLES


def _height(clients: int, classes: int) -> int:
    if classes == 1:
        return 320
    return 110 + 20 * clients if _bubbles(clients, classes) else 560


def _figure(rows: Sequence[Sequence[int]]) -> Figure:
    clients, classes = len(rows), max(map(len, rows))
    if classes == 1:
        return _totals([row[0] for row in rows])
    return _bubble(rows) if _bubbles(clients, classes) else _heat(rows)


def _bubble(rows: Sequence[Sequence[int]]) -> Figure:
    cells = [(client, label, count) for client, row in enumerate(rows) for label, count in enumerate(row) if count]
    largest = max(count for *_, count in cells)
    width = 22 if len(rows[0]) <= 20 else 14
    trace = {
        "type": "scatter",
        "mode": "markers",
        "name": "samples",
        "x": [str(label) for _, label, _ in cells],
        "y": [str(client) for client, _, _ in cells],
        "customdata": [count for *_, count in cells],
        "marker": {
            "size": [count for *_, count in cells],
            "sizemode": "area",
            "sizeref": 2 * largest / width**2,
            "sizemin": 2,
        }
        | {"color": COLOURS[0], "opacity": 0.8, "line": {"width": 0}},
        "hovertemplate": "client %{y}, class %{x}: %{customdata} samples<extra></extra>",
    }
    classes, clients = [str(i) for i in range(len(rows[0]))], [str(i) for i in range(len(rows))]
    layout = {"xaxis": _axis("class", classes), "yaxis": _axis("client", clients, down=True)}
    return {"data": [trace], "layout": layout}


def _axis(title: str, names: Sequence[str], down: bool = False) -> dict[str, Any]:
    order = {"type": "category", "categoryorder": "array", "categoryarray": list(names)}
    ends = [-0.7, len(names) - 0.3]
    return {"title": {"text": title}, **order, "range": ends[::-1] if down else ends}


def _heat(rows: Sequence[Sequence[int]]) -> Figure:
    totals = [sum(column) for column in zip(*rows, strict=True)]
    kept = sorted(sorted(range(len(totals)), key=lambda label: -totals[label])[:COLUMNS])
    clients = thinned(len(rows), ROWS)
    trace = {
        "type": "heatmap",
        "z": [[rows[client][label] for label in kept] for client in clients],
        "x": [str(label) for label in kept],
        "y": [str(client) for client in clients],
        "colorscale": SCALE,
        "colorbar": {"title": {"text": "samples"}, "thickness": 12},
        "hovertemplate": "client %{y}, class %{x}: %{z} samples<extra></extra>",
    }
    axes = {
        "xaxis": {"title": {"text": "class"}, "type": "category"},
        "yaxis": {"title": {"text": "client"}, "type": "category", "autorange": "reversed"},
    }
    return {"data": [trace], "layout": axes}


def _totals(counts: Sequence[int]) -> Figure:
    kept = thinned(len(counts), ROWS)
    trace = {
        "type": "bar",
        "name": "samples",
        "x": [str(client) for client in kept],
        "y": [counts[client] for client in kept],
        "marker": {"color": COLOURS[0]},
    }
    return {
        "data": [trace],
        "layout": {"xaxis": {"title": {"text": "client"}, "type": "category"}, "yaxis": {"title": {"text": "samples"}}},
    }
