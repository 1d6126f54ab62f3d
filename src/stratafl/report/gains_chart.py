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
from stratafl.report.gains.gain_records import Outlook
from stratafl.report.gains.gain_text import VERDICT_TEXTS, gain_unit, with_ends
from stratafl.report.study import Study

MAX_CLIENTS_DRAWN = 200  # clients at most
LOOKS: dict[Outlook, tuple[str, str]] = {
    "gains": ("#009E73", "triangle-up"),
    "loses": ("#D55E00", "triangle-down"),
    "cannot be told": ("#808080", "circle"),
}


def gains_chart(study: Study) -> Chart | None:
    """Each client's difference with its interval, method by method, by difference or by training samples."""
    all_gains = [gains for gains in study.gains if gains.clients]
    if not all_gains:
        return None
    tree = Branches()
    for label, gains in zip(charts.short_labels([gains.label for gains in all_gains]), all_gains, strict=True):
        orders = {"difference": sorted(gains.clients, key=lambda client: client.difference)}
        if all(client.training_samples is not None for client in gains.clients):
            orders["training samples"] = sorted(gains.clients, key=lambda client: client.training_samples or 0)
        tree[plain_text(label)] = Branches({name: _figure(gains, clients) for name, clients in orders.items()})
    most = max(len(gains.clients) for gains in all_gains)
    cut = f" {MAX_CLIENTS_DRAWN} of {most} clients, evenly spaced." if most > MAX_CLIENTS_DRAWN else ""
    over = " Bars: 95 % intervals." if any(gains.sure for gains in all_gains) else ""
    unit = gain_unit(all_gains[0].metric)
    caption = f"Each client's model against the one it trains alone: {unit}. Above 0 it gains.{over}{cut}"
    return Chart("gains", "Who gains", caption, tree, (Control("method"), Control("order by", "switch")), 440)


def _figure(gains: Gains, ordered: Sequence[ClientGain]) -> Figure:
    clients = [ordered[at] for at in thinned(len(ordered), MAX_CLIENTS_DRAWN)]
    names = charts.distinct([plain_text(_short(gains.client_label(client))) for client in clients])
    factor = 100 if gains.metric.percent else 1
    traces = []
    for verdict, (colour, symbol) in LOOKS.items():
        some = [(name, client) for name, client in zip(names, clients, strict=True) if client.verdict == verdict]
        if some:
            marker = {"color": colour, "symbol": symbol, "size": 8}
            y = [rounded(factor * client.difference) for _, client in some]
            bars = _bars([client for _, client in some], factor, colour)
            hover = [_hover(client, gains) for _, client in some]
            trace = scatter(
                "markers", [name for name, _ in some], y, name=VERDICT_TEXTS[verdict], marker=marker, text=hover, **bars
            )
            traces.append(trace | {"hovertemplate": "%{x}: %{text}<extra></extra>"})
    x = category_axis("client") | {"categoryorder": "array", "categoryarray": names}
    y_axis = {"title": {"text": "percentage points" if factor == 100 else "difference"}, "zeroline": True}
    return {"data": traces, "layout": {"xaxis": x, "yaxis": y_axis}}


def _short(name: str) -> str:
    return name if len(name) <= charts.MAX_LABEL_LETTERS else f"{name[: charts.MAX_LABEL_LETTERS - 1]}…"


def _bars(clients: Sequence[ClientGain], factor: int, colour: str) -> dict[str, Any]:
    """Of those clients that have an interval; 0 for the others."""
    if all(client.low is None or client.high is None for client in clients):
        return {}
    up = [_length(each.difference, each.high, factor) for each in clients]
    down = [_length(each.low, each.difference, factor) for each in clients]
    look = {"color": colour, "thickness": 1, "width": 0}
    return {"error_y": {"type": "data", "symmetric": False, "array": up, "arrayminus": down, **look}}


def _length(low: float | None, high: float | None, factor: int) -> float | None:
    return 0.0 if low is None or high is None else rounded(factor * max(0.0, high - low))


def _hover(client: ClientGain, gains: Gains) -> str:
    size = "" if client.training_samples is None else f", {client.training_samples:,.0f} training samples"
    tested = f", {client.test_samples} test samples" if client.test_samples else ""
    return f"{with_ends(client, gains.metric)}{tested}{size}"
