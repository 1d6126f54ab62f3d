"""Who gains, as a chart: each client's difference with its interval."""

from collections.abc import Sequence
from typing import Any

from stratafl.report import charts
from stratafl.report.charts import (
    Branches,
    Chart,
    Control,
    Figure,
    category_axis,
    plain_text,
    rounded,
    scatter,
    thinned,
)
from stratafl.report.gains import ClientGain, Gains
from stratafl.report.gains.gain_text import gain_unit, with_ends
from stratafl.report.study import Study

SHOWN = 200  # clients at most
LOOKS = {
    "gains": ("#009E73", "triangle-up"),
    "loses": ("#D55E00", "triangle-down"),
    "cannot be told": ("#808080", "circle"),
}


def gains_chart(study: Study) -> Chart | None:
    """Each client's difference with its interval, method by method, by difference or by training samples."""
    found = [each for each in study.gains if each.clients]
    if not found:
        return None
    tree = Branches()
    for label, each in zip(charts.short_labels([one.label for one in found]), found, strict=True):
        orders = {"difference": sorted(each.clients, key=lambda one: one.difference)}
        if all(one.training_samples is not None for one in each.clients):
            orders["training samples"] = sorted(each.clients, key=lambda one: one.training_samples or 0)
        tree[plain_text(label)] = Branches({name: _figure(each, clients) for name, clients in orders.items()})
    most = max(len(each.clients) for each in found)
    cut = f" {SHOWN} of {most} clients, evenly spaced." if most > SHOWN else ""
    over = " Bars: 95 % intervals." if any(each.sure for each in found) else ""
    unit = gain_unit(found[0].metric)
    caption = f"Each client's model against the one it trains alone: {unit}. Above 0 it gains.{over}{cut}"
    return Chart("gains", "Who gains", caption, tree, (Control("method"), Control("order by", "switch")), 440)


def _figure(each: Gains, ordered: Sequence[ClientGain]) -> Figure:
    kept = [ordered[at] for at in thinned(len(ordered), SHOWN)]
    names = charts.distinct([plain_text(_short(each.client_label(one))) for one in kept])
    factor = 100 if each.metric.percent else 1
    traces = []
    for said, (colour, symbol) in LOOKS.items():
        some = [(name, one) for name, one in zip(names, kept, strict=True) if one.verdict == said]
        if some:
            marker = {"color": colour, "symbol": symbol, "size": 8}
            y = [rounded(factor * one.difference) for _, one in some]
            bars = _bars([one for _, one in some], factor, colour)
            hover = [_hover(one, each) for _, one in some]
            trace = scatter("markers", [name for name, _ in some], y, name=said, marker=marker, text=hover, **bars)
            traces.append(trace | {"hovertemplate": "%{x}: %{text}<extra></extra>"})
    x = category_axis("client") | {"categoryorder": "array", "categoryarray": names}
    y_axis = {"title": {"text": "percentage points" if factor == 100 else "difference"}, "zeroline": True}
    return {"data": traces, "layout": {"xaxis": x, "yaxis": y_axis}}


def _short(name: str) -> str:
    return name if len(name) <= charts.LONGEST else f"{name[: charts.LONGEST - 1]}…"


def _bars(clients: Sequence[ClientGain], factor: int, colour: str) -> dict[str, Any]:
    """Of those clients that have an interval; 0 for the others."""
    if all(one.low is None or one.high is None for one in clients):
        return {}
    up = [rounded(factor * (0.0 if one.high is None else max(0.0, one.high - one.difference))) for one in clients]
    down = [rounded(factor * (0.0 if one.low is None else max(0.0, one.difference - one.low))) for one in clients]
    look = {"color": colour, "thickness": 1, "width": 0}
    return {"error_y": {"type": "data", "symmetric": False, "array": up, "arrayminus": down, **look}}


def _hover(one: ClientGain, each: Gains) -> str:
    size = "" if one.training_samples is None else f", {one.training_samples:,.0f} training samples"
    tested = f", {one.test_samples} test samples" if one.test_samples else ""
    return f"{with_ends(one, each.metric)}{tested}{size}"
