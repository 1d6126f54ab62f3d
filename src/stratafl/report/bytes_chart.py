"""Bytes per layer: bars, or a heat map where there are too many of them."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from stratafl.report.charts import SCALE, Chart, Figure, look, said, short, short_labels
from stratafl.report.choices import layers_of
from stratafl.report.formats import size
from stratafl.report.study import Study

BARS = 80  # up to which there are bars
PATTERNS = ("", "/", "x", "-", "\\", "+", ".", "|")
Spent = Mapping[str, float]  # by layer


def bytes_chart(study: Study) -> Chart | None:
    """What each layer cost, up and down, in the whole run."""
    labels, layers = short_labels([rank.label for rank in study.ranks]), layers_of(study)
    found: dict[int, Spent] = {}
    for place, rank in enumerate(study.ranks):
        seeds = [record.looks.bytes for record in study.of(rank)]
        common = [layer for layer in layers if all(layer in spent for spent in seeds)]
        means = {layer: fmean(spent[layer] for spent in seeds) for layer in common}
        if any(means.values()):
            found[place] = means
    if not found:
        return None
    bars = len(found) * len(layers) <= BARS
    figure = _bars(found, labels) if bars else _heat(found, labels, layers)
    says = "Bytes up and down in the whole run, all clients; mean over seeds. What is missing sent nothing."
    height = 170 + len(layers) * (14 + 11 * len(found)) if bars else min(1600, 190 + 24 * len(layers))
    return Chart("bytes", "Bytes per layer", says, figure, height=height)


def _bars(found: Mapping[int, Spent], labels: Sequence[str]) -> Figure:
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": said(labels[place]),
            "x": [short(value) for value in means.values()],
            "y": [said(layer) for layer in means],
            "marker": {"color": look(place)["marker"]["color"], "pattern": _pattern(place)},
            "hovertemplate": "%{y}: %{x:.3s}B<extra>%{fullData.name}</extra>",
        }
        for place, means in found.items()
    ]
    x = {"title": {"text": "bytes up and down"}, "tickformat": "~s", "ticksuffix": "B"}
    return {"data": traces, "layout": {"xaxis": x, "yaxis": _down(), "barmode": "group"}}


def _heat(found: Mapping[int, Spent], labels: Sequence[str], layers: Sequence[str]) -> Figure:
    trace = {
        "type": "heatmap",
        "x": [said(labels[place]) for place in found],
        "y": [said(layer) for layer in layers],
        "z": [[short(means.get(layer)) for means in found.values()] for layer in layers],
        "text": [[size(means.get(layer)) for means in found.values()] for layer in layers],
        "hovertemplate": "%{y}, %{x}: %{text}<extra></extra>",
        "colorscale": SCALE,
        "colorbar": {"thickness": 12, "tickformat": "~s", "ticksuffix": "B"},
        "xgap": 1,
        "ygap": 1,
    }
    return {"data": [trace], "layout": {"xaxis": {"type": "category"}, "yaxis": _down()}}


def _pattern(place: int) -> dict[str, Any]:
    return {"shape": PATTERNS[place % len(PATTERNS)], "fillmode": "overlay", "solidity": 0.25, "fgcolor": "#ffffff"}


def _down() -> dict[str, Any]:
    return {"type": "category", "autorange": "reversed", "automargin": True}
