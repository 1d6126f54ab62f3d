"""Learning curves over rounds, bytes and seconds, with a band over seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import Any, NamedTuple

from stratafl.evaluation.measure import SIMULATED, Line
from stratafl.report import charts
from stratafl.report.charts import Branches, Chart, Control, Figure, plain_text, rounded, scatter, thinned
from stratafl.report.intervals import Spread
from stratafl.report.ranking import Rank
from stratafl.report.study import Study
from stratafl.runs.summary import prefix_of

POINTS = 500  # of a curve at most
MARKED = 40  # a curve with more points has no markers
UNBOUNDED = ("R²",)  # below 0, too
CLOSER = 0.75  # the second half of the rounds can be shown alone if it needs less than this part of the axis
AXES = {"rounds": "round", "bytes": "bytes up and down, all clients", "seconds": "seconds of training and server"}
AXES |= {"simulated": "simulated seconds, as the slowest client of each round takes"}


class Quantity(NamedTuple):
    """A number of every round: how it is called, its key in the lines, its unit, and whether it is a share."""

    title: str
    key: str
    unit: str
    share: bool = False


def quantities(study: Study) -> list[Quantity]:
    """What a reader can choose to see, first what rounds are selected by."""
    metric, evaluate = study.outcomes[0].recorded, study.outcomes[0].selection
    name = "loss" if metric.key == "loss" else metric.title
    key_of_metric = f"{prefix_of(evaluate)}{metric.key}"

    def of(title: str, place: str, key: str = key_of_metric) -> Quantity:
        return Quantity(title, f"{place}.{key}", metric.title, metric.percent)

    stages = {"received": "as received", "trained": "after training", "global": "global model"}
    offered = [of(f"test {name}, deployed", "test.deployed")]
    if not study.regression:
        offered += [Quantity("test accuracy, deployed", "test.deployed.accuracy", "accuracy", True)]
        offered += [Quantity("test loss, deployed", "test.deployed.loss", "loss")]
    offered += [of(f"test {name}, {words}", f"test.{stage}") for stage, words in stages.items()]
    offered += [of("test, worst 10 % of clients", "test.deployed", "worst10")]
    offered += [of(f"validation {name}, deployed", "validation.deployed")]
    return [*offered, Quantity("training loss", "train.loss", "loss")]


@dataclass(frozen=True)
class Point:
    """A round: mean and deviation over seeds (None for one seed), and its place on each axis."""

    mean: float
    std: float | None
    at: dict[str, float]


def curve(rank: Rank, key: str) -> list[Point]:
    """The rounds for which every seed has this number."""
    runs = [_measured(member.lines, key) for member in rank.members]
    points = []
    for number in (number for number in runs[0] if all(number in run for run in runs)):
        values, places = zip(*(run[number] for run in runs), strict=True)
        spread = Spread.of(values)
        points.append(Point(spread.mean, spread.std, {axis: fmean(at[axis] for at in places) for axis in AXES}))
    return points


def _measured(lines: Sequence[Line], key: str) -> dict[int, tuple[float, dict[str, float]]]:
    by_round, spent, seconds, simulated = {}, 0.0, 0.0, 0.0
    for line in lines:
        spent += line["bytes.down"] + line["bytes.up"]
        seconds += line["seconds.train"] + line["seconds.server"]
        simulated += line.get(SIMULATED, 0.0)
        if line.get(key) is not None:
            at = {"rounds": int(line["round"]), "bytes": spent, "seconds": seconds, "simulated": simulated}
            by_round[int(line["round"])] = (float(line[key]), at)
    return by_round


def curves_chart(study: Study) -> Chart | None:
    measures = Branches()
    for quantity in quantities(study):
        curves = [(place, curve(rank, quantity.key)) for place, rank in enumerate(study.ranks)]
        drawn = [(place, [points[i] for i in thinned(len(points), POINTS)]) for place, points in curves if points]
        if drawn and quantity.title not in measures:
            axes = [axis for axis in AXES if axis != "simulated" or _is_simulated(points for _, points in drawn)]
            measures[quantity.title] = Branches({axis: _figure(drawn, study.labels, quantity, axis) for axis in axes})
    if not measures:
        return None
    several = any(len(rank.members) > 1 for rank in study.ranks)
    band = "Mean over seeds; the band is ± one standard deviation. " if several else "One seed. "
    caption = f"{band}The axis starts where the values start, not at 0."
    controls = (Control("show"), Control("over", "switch"))
    return Chart("curves", "Learning curves", caption, measures, controls, height=460)


def _is_simulated(curves: Iterable[list[Point]]) -> bool:
    return any(point.at["simulated"] > 0 for points in curves for point in points)


def _figure(curves: Sequence[tuple[int, list[Point]]], labels: Sequence[str], quantity: Quantity, axis: str) -> Figure:
    share = quantity.share
    least, most = (-inf, inf) if quantity.unit in UNBOUNDED else (0, 1 if share else inf)
    traces = [_band(place, points, axis, least, most) for place, points in curves if any(point.std for point in points)]
    traces += [_line(place, labels[place], points, axis, share) for place, points in curves]
    x: dict[str, Any] = {"title": {"text": AXES[axis]}, "rangemode": "tozero"}
    x |= {"tickformat": "~s", "ticksuffix": "B"} if axis == "bytes" else {}
    every = [value for trace in traces for value in trace["y"]]
    layout = {"xaxis": x, "yaxis": charts.value_axis(quantity.unit, every, share=share)}
    closer = _end_range([points for _, points in curves], share)
    return {"data": traces, "layout": layout | ({"meta": {"end": closer}} if closer else {})}


def _end_range(curves: Sequence[Sequence[Point]], share: bool) -> list[float] | None:
    """The range of the second half of the rounds, if it shows the differences at the end much larger."""
    last = max(point.at["rounds"] for points in curves for point in points)
    late = [point.mean for points in curves for point in points if point.at["rounds"] >= last / 2]
    every = [point.mean for points in curves for point in points]
    whole, closer = (charts.value_axis("", values, share=share).get("range") for values in (every, late))
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


def _band(place: int, points: Sequence[Point], axis: str, least: float, most: float) -> dict[str, Any]:
    x = [rounded(point.at[axis]) for point in points]
    upper = [rounded(min(point.mean + (point.std or 0), most)) for point in points]
    lower = [rounded(max(point.mean - (point.std or 0), least)) for point in points]
    look = {"fill": "toself", "fillcolor": charts.band_colour(place), "line": {"width": 0}}
    quiet = {"hoverinfo": "skip", "showlegend": False, "legendgroup": str(place)}
    return scatter("lines", [*x, *reversed(x)], [*upper, *reversed(lower)], **look, **quiet)
