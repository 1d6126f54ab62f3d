"""The picture of a decision: the score of each method and of each of its seeds."""

from collections.abc import Sequence
from typing import Any

from stratafl.errors import counted
from stratafl.report.charts import COLOURS, Chart, category_axis, plain_text, rounded, scatter, value_axis
from stratafl.report.ranking import Rank
from stratafl.report.study import Study

MOST = 12  # methods in the picture


def decision_chart(study: Study, use: Rank | None = None) -> Chart | None:
    """The first methods of the ranking, the best on top, with the one to `use` in colour; None if there is only one."""
    scored = [(label, rank) for label, rank in zip(study.labels, study.ranks, strict=True) if "score" in rank.numbers]
    shown = scored[:MOST]
    if len(shown) < 2:
        return None
    several = any(len(rank.seeds) > 1 for _, rank in shown)
    names = [plain_text(label) for label, _ in shown]
    traces = [_seeds(shown)] if several else []
    means = [rounded(rank.numbers["score"].mean) for _, rank in shown]
    colours = [COLOURS[0] if rank is use else COLOURS[6] for _, rank in shown]
    symbols = ["diamond" if rank is use else "circle" for _, rank in shown]
    marker = {"color": colours, "symbol": symbols, "size": 13}
    metric = study.measured
    hover = f"%{{y}}: %{{x:{'.1%' if metric.percent else '.4g'}}}<extra></extra>"
    traces.append(scatter("markers", means, names, name="mean", marker=marker, hovertemplate=hover))
    base = study.chance.base if study.no_choice and study.chance else None
    traces += [_line(rounded(base), names)] if base is not None else []
    values = [x for trace in traces for x in trace["x"]]
    x_axis = value_axis(f"test {metric.title}", values, share=metric.percent)
    layout = {"xaxis": x_axis, "yaxis": category_axis(down=True), "showlegend": False}
    rest = f" The first {MOST} of {len(scored)} methods." if len(scored) > MOST else ""
    dotted = " Dotted: always giving a client its most frequent class." if base is not None else ""
    caption = f"{_better(study)}. {_points(shown)}{dotted} The axis does not start at 0.{rest}"
    height = 110 + 38 * len(shown)
    return Chart("decision", "The methods compared", caption, {"data": traces, "layout": layout}, height=height)


def _better(study: Study) -> str:
    metric = study.measured
    what = f" ({metric.says})" if metric.says and metric.name != "accuracy" else ""
    return f"Test {metric.title}{what}: {'higher' if metric.larger_is_better else 'lower'} is better"


def _points(shown: Sequence[tuple[str, Rank]]) -> str:
    counts = {len(rank.seeds) for _, rank in shown}
    if counts == {1}:
        return "One run of each method."
    runs = f"the mean of {counted(max(counts), 'run')}" if len(counts) == 1 else "the mean of its runs"
    return f"Large: {runs} with different random seeds. Small: each of them."


def _seeds(shown: Sequence[tuple[str, Rank]]) -> dict[str, Any]:
    points = [(rounded(value), plain_text(label)) for label, rank in shown for value in rank.by_seed("score").values()]
    x, y = [value for value, _ in points], [label for _, label in points]
    # Longer than the mark of the mean, so that none is hidden behind it.
    marker = {"color": COLOURS[6], "size": 10, "symbol": "line-ns-open", "line": {"width": 2}, "opacity": 0.8}
    return scatter("markers", x, y, name="seeds", marker=marker, hoverinfo="x+y")


def _line(at: float | None, names: Sequence[str]) -> dict[str, Any]:
    """Down through all methods."""
    look = {"color": COLOURS[6], "width": 2, "dash": "dot"}
    return scatter("lines", [at, at], [names[0], names[-1]], name="most frequent class", line=look, hoverinfo="x")
