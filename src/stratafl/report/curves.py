"""Learning curves over rounds, bytes and seconds, with a band over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import Any

from stratafl.evaluation.measure import Line
from stratafl.report import charts
from stratafl.report.charts import Branches, Chart, Control, Figure, plain_text, rounded, scatter, thinned
from stratafl.report.intervals import Spread
from stratafl.report.outcome import SQUARED
from stratafl.report.ranking import Rank
from stratafl.report.study import Study

POINTS = 500  # of a curve at most
MARKED = 40  # a curve with more points has no markers
CLOSER = 0.75  # the second half of the rounds can be shown alone if it needs less than this part of the axis
ACCURACY = "accuracy"
AXES = {"rounds": "round", "bytes": "bytes up and down, all clients", "seconds": "seconds of training and server"}
MEASURES = {
    "test accuracy, deployed": "test.deployed.accuracy",
    "test loss, deployed": "test.deployed.loss",
    "test accuracy, as received": "test.received.accuracy",
    "test accuracy, after training": "test.trained.accuracy",
    "test, worst 10 % of clients": "test.deployed.worst10",
    "validation accuracy, deployed": "validation.deployed.accuracy",
    "training loss": "train.loss",
}


@dataclass(frozen=True)
class Point:
    """A round: mean and deviation over seeds (None for one seed), and its place on each axis."""

    mean: float
    std: float | None
    at: dict[str, float]


def curve(rank: Rank, key: str) -> list[Point]:
    """The rounds for which every seed has this number."""
    runs = [_measured(one.lines, key) for one in rank.members]
    points = []
    for number in (number for number in runs[0] if all(number in run for run in runs)):
        values, places = zip(*(run[number] for run in runs), strict=True)
        spread = Spread.of(values)
        points.append(Point(spread.mean, spread.std, {axis: fmean(at[axis] for at in places) for axis in AXES}))
    return points


def _measured(lines: Sequence[Line], key: str) -> dict[int, tuple[float, dict[str, float]]]:
    found, spent, seconds = {}, 0.0, 0.0
    for line in lines:
        spent += line["bytes.down"] + line["bytes.up"]
        seconds += line["seconds.train"] + line["seconds.server"]
        if line.get(key) is not None:
            number = int(line["round"])
            found[number] = (float(line[key]), {"rounds": number, "bytes": spent, "seconds": seconds})
    return found


def curves_chart(study: Study) -> Chart | None:
    measures = Branches()
    for title, key in MEASURES.items():
        found = [(place, curve(rank, key)) for place, rank in enumerate(study.ranks)]
        kept = [(place, [points[i] for i in thinned(len(points), POINTS)]) for place, points in found if points]
        unit = _unit(key, study.regression)
        if kept and (not study.regression or unit != ACCURACY):
            measures[title] = Branches({axis: _figure(kept, study.labels, unit, axis) for axis in AXES})
    if not measures:
        return None
    several = any(len(rank.members) > 1 for rank in study.ranks)
    band = "Mean over seeds; the band is one standard deviation to each side. " if several else "One seed. "
    caption = f"{band}The axis starts where the values start, not at 0."
    controls = (Control("show"), Control("over", "switch"))
    return Chart("curves", "Learning curves", caption, measures, controls, height=460)


def _unit(key: str, regression: bool) -> str:
    """The quantity of a curve; a method may train with another loss than the squared error."""
    if not key.endswith("loss"):
        return ACCURACY
    return SQUARED if regression and not key.startswith("train.") else "loss"


def _figure(found: Sequence[tuple[int, list[Point]]], labels: Sequence[str], unit: str, axis: str) -> Figure:
    share = unit == ACCURACY
    most = 1 if share else inf  # an accuracy is at most 1, and no value is below 0
    traces = [_band(place, points, axis, most) for place, points in found if any(point.std for point in points)]
    traces += [_line(place, labels[place], points, axis, share) for place, points in found]
    x: dict[str, Any] = {"title": {"text": AXES[axis]}, "rangemode": "tozero"}
    x |= {"tickformat": "~s", "ticksuffix": "B"} if axis == "bytes" else {}
    every = [value for trace in traces for value in trace["y"]]
    layout = {"xaxis": x, "yaxis": charts.value_axis(unit, every, share=share)}
    closer = _end_range([points for _, points in found], share)
    return {"data": traces, "layout": layout | ({"meta": {"end": closer}} if closer else {})}


def _end_range(found: Sequence[Sequence[Point]], share: bool) -> list[float] | None:
    """The range of the second half of the rounds, if it shows the differences at the end much larger."""
    last = max(point.at["rounds"] for points in found for point in points)
    late = [point.mean for points in found for point in points if point.at["rounds"] >= last / 2]
    limits = (0.0, 1.0) if share else None
    least = charts.NARROWEST if share else 0.0
    whole = charts.value_range([point.mean for points in found for point in points], bounds=limits, least=least)
    closer = charts.value_range(late, bounds=limits, least=least)
    much = whole and closer and closer[1] - closer[0] < CLOSER * (whole[1] - whole[0])
    return closer if much else None


def _line(place: int, label: str, points: Sequence[Point], axis: str, share: bool) -> dict[str, Any]:
    mean, deviation = ("%{y:.1%}", " ± %{customdata:.1%}") if share else ("%{y:.4g}", " ± %{customdata:.2g}")
    form = mean if points[0].std is None else mean + deviation
    hover = f"{form}<extra>%{{fullData.name}}, %{{x}}</extra>"
    deviations = [rounded(point.std) for point in points]
    look = {"name": plain_text(label), "legendgroup": str(place), **charts.line_style(place)}
    x, y = [rounded(point.at[axis]) for point in points], [rounded(point.mean) for point in points]
    mode = "lines+markers" if len(points) <= MARKED else "lines"
    return scatter(mode, x, y, customdata=deviations, hovertemplate=hover, **look)


def _band(place: int, points: Sequence[Point], axis: str, most: float) -> dict[str, Any]:
    x = [rounded(point.at[axis]) for point in points]
    upper = [rounded(min(point.mean + (point.std or 0), most)) for point in points]
    lower = [rounded(max(point.mean - (point.std or 0), 0)) for point in points]
    look = {"fill": "toself", "fillcolor": charts.band_colour(place), "line": {"width": 0}}
    quiet = {"hoverinfo": "skip", "showlegend": False, "legendgroup": str(place)}
    return scatter("lines", [*x, *reversed(x)], [*upper, *reversed(lower)], **look, **quiet)
