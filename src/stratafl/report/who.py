"""Who holds what: clients × classes."""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, NamedTuple

from stratafl.core.reprs import short_repr
from stratafl.errors import counted
from stratafl.report.charts import COLOURS, LONGEST, SCALE, Branches, Chart, Control, Figure, said, thinned
from stratafl.report.outcomes import Outcome
from stratafl.report.study import Record, Study

BUBBLES = 60  # clients and classes up to which every count is a bubble
ROWS, COLUMNS = 200, 200  # clients and classes that a picture has at most
SMALLEST, LARGEST = 2, 16  # pixels of a bubble; a legend shows none that is larger
DIVISIONS = 6  # that can be chosen from
Counts = Mapping[str, Sequence[Sequence[int]]]


@short_repr
class Division(NamedTuple):
    """Who holds what, and what the data calls its clients and classes."""

    counts: Counts
    clients: Sequence[str] = ()
    classes: Sequence[str] = ()


def who_chart(study: Study) -> Chart | None:
    """Who holds which classes, for each division of the data that the runs were made with; nothing if none is known."""
    found: list[tuple[Division, Outcome]] = []
    for record in study.records.values():
        division = Division(_counts(record) or {}, record.client_names, record.class_names)
        known = any(division == other for other, _ in found)
        if division.counts and not known and len(found) < DIVISIONS:
            found.append((division, record.outcome))
    if not found:
        return None
    labels = division_labels([one for _, one in found])
    tree = Branches(
        {
            label: Branches({split: _figure(rows, each) for split, rows in each.counts.items() if any(map(any, rows))})
            for label, (each, _) in zip(labels, found, strict=True)
        }
    )
    rows = max(len(split) for each, _ in found for split in each.counts.values())
    columns = max(len(row) for each, _ in found for split in each.counts.values() for row in split)
    controls = (Control("division of"), Control("split", "switch"))
    says = _says(rows, columns, study.regression)
    return Chart("holdings", "Who holds what", says, tree, controls, height=_height(rows, columns))


def division_labels(outcomes: Sequence[Outcome]) -> list[str]:
    """What these runs' divisions differ in: settings of the data and the seed; numbered where that is not enough."""
    settings = [{f"data.{key}=": value for key, value in one.config["data"].items()} for one in outcomes]
    each = [{**given, "seed ": one.seed} for given, one in zip(settings, outcomes, strict=True)]
    keys = dict.fromkeys(key for given in each for key in given)
    differing = [key for key in keys if len({repr(given.get(key)) for given in each}) > 1] or ["seed "]
    made: list[str] = []
    for given in each:
        label = ", ".join(f"{key}{given[key]}" for key in differing if key in given)
        made.append(label if label not in made else f"{label} #{len(made) + 1}")
    return made


def _counts(record: Record) -> Counts | None:
    """As the run says, or else how many samples its evaluated clients had."""
    if record.holdings is not None:
        counts: Counts = record.holdings["counts"]
        return counts
    lines = [line for line in record.clients if "test.samples" in line]
    splits = [split for split in ("validation", "test") if any(f"{split}.samples" in line for line in lines)]
    return {split: [[int(line.get(f"{split}.samples", 0))] for line in lines] for split in splits} or None


def _says(clients: int, classes: int, regression: bool) -> str:
    if classes == 1:
        unknown = "" if regression else "; which classes they are of is not known"
        return f"How many samples each client has{unknown}."
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
    return 140 + 20 * clients if _bubbles(clients, classes) else 560


def _figure(rows: Sequence[Sequence[int]], division: Division) -> Figure:
    clients, classes = _names(division.clients, len(rows)), _names(division.classes, max(map(len, rows)))
    if len(classes) == 1:
        return _totals([row[0] for row in rows], clients)
    return (_bubble if _bubbles(len(clients), len(classes)) else _heat)(rows, clients, classes)


def _names(given: Sequence[str], count: int) -> list[str]:
    """Names for an axis, all different, and cut where they are long; or numbers."""
    names = given or list(map(str, range(count)))
    return [said(name if len(name) <= LONGEST else f"{name[: LONGEST - 8]}… #{at}") for at, name in enumerate(names)]


def _bubble(rows: Sequence[Sequence[int]], clients: Sequence[str], classes: Sequence[str]) -> Figure:
    cells = [(client, label, count) for client, row in enumerate(rows) for label, count in enumerate(row) if count]
    largest = max(count for *_, count in cells)

    look = {"color": COLOURS[0], "opacity": 0.8, "line": {"width": 0}, "sizemin": SMALLEST}
    trace = {
        "type": "scatter",
        "mode": "markers",
        "name": "samples",
        "x": [classes[label] for _, label, _ in cells],
        "y": [clients[client] for client, _, _ in cells],
        "customdata": [count for *_, count in cells],
        "marker": look
        | {"size": [count for *_, count in cells], "sizemode": "area", "sizeref": 2 * largest / LARGEST**2},
        "hovertemplate": "client %{y}, class %{x}: %{customdata} samples<extra></extra>",
        "showlegend": False,
    }
    layout = {"xaxis": _axis("class", classes), "yaxis": _axis("client", clients, down=True)}
    return {"data": [trace, *_scale(largest, look)], "layout": layout}


def _scale(largest: int, look: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Bubbles of the legend: the largest, and those of a quarter and a sixteenth of its samples."""
    nowhere = {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "hoverinfo": "skip", "showlegend": True}
    return [
        {**nowhere, "name": counted(count, "sample")} | {"marker": {**look, "size": _pixels(count, largest)}}
        for count in sorted({max(1, largest // part) for part in (16, 4, 1)})
    ]


def _pixels(count: int, largest: int) -> float:
    """How wide a bubble is: its area is the count."""
    return max(SMALLEST, LARGEST * sqrt(count / largest))


def _axis(title: str, names: Sequence[str], down: bool = False) -> dict[str, Any]:
    order = {"type": "category", "categoryorder": "array", "categoryarray": list(names)}
    ends = [-0.7, len(names) - 0.3]
    return {"title": {"text": title}, **order, "range": ends[::-1] if down else ends, "automargin": True}


def _heat(rows: Sequence[Sequence[int]], clients: Sequence[str], classes: Sequence[str]) -> Figure:
    totals = [sum(column) for column in zip(*rows, strict=True)]
    kept = sorted(sorted(range(len(totals)), key=lambda label: -totals[label])[:COLUMNS])
    shown = thinned(len(rows), ROWS)
    trace = {
        "type": "heatmap",
        "z": [[rows[client][label] for label in kept] for client in shown],
        "x": [classes[label] for label in kept],
        "y": [clients[client] for client in shown],
        "colorscale": SCALE,
        "colorbar": {"title": {"text": "samples"}, "thickness": 12},
        "hovertemplate": "client %{y}, class %{x}: %{z} samples<extra></extra>",
    }
    axes = {
        "xaxis": {"title": {"text": "class"}, "type": "category", "automargin": True},
        "yaxis": {"title": {"text": "client"}, "type": "category", "autorange": "reversed", "automargin": True},
    }
    return {"data": [trace], "layout": axes}


def _totals(counts: Sequence[int], clients: Sequence[str]) -> Figure:
    kept = thinned(len(counts), ROWS)
    trace = {
        "type": "bar",
        "name": "samples",
        "x": [clients[client] for client in kept],
        "y": [counts[client] for client in kept],
        "marker": {"color": COLOURS[0]},
    }
    return {
        "data": [trace],
        "layout": {
            "xaxis": {"title": {"text": "client"}, "type": "category", "automargin": True},
            "yaxis": {"title": {"text": "samples"}},
        },
    }
