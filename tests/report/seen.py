"""What a reader sees of a chart; no other test looks into plotly's dictionaries.

`choices` are the options of the chart's controls, from the first to the last.
"""

from stratafl.report.charts import Branches


def options(chart, *choices):
    """What the next control offers."""
    return list(_node(chart, choices))


def series(chart, *choices):
    """The points of each line, row of bars, box or set of bubbles, by its name."""
    traces = [trace for trace in _figure(chart, choices)["data"] if trace.get("hoverinfo") != "skip"]
    return {trace["name"]: list(zip(trace["x"], trace["y"], strict=True)) for trace in traces}


def details(chart, *choices):
    """What the pointer shows in addition at each point of the first series: a name, a deviation or a count."""
    trace = _figure(chart, choices)["data"][0]
    return trace.get("text") or trace.get("customdata")


def bands(chart, *choices):
    """The upper and lower limits of each band, from left to right."""
    traces = [trace for trace in _figure(chart, choices)["data"] if trace.get("fill")]
    return [(y[: len(y) // 2], y[: len(y) // 2 - 1 : -1]) for y in (trace["y"] for trace in traces)]


def heat_map(chart, *choices):
    """The names of the columns, those of the rows, and the values row by row."""
    (trace,) = _figure(chart, choices)["data"]
    assert trace["type"] == "heatmap"
    return trace.get("x"), trace.get("y"), trace["z"]


def colour_ranges(chart):
    """From which value to which the colours of all heat maps go."""
    return {(figure["data"][0]["zmin"], figure["data"][0]["zmax"]) for figure in figures(chart.tree)}


def axis_titles(chart, *choices):
    layout = _figure(chart, choices)["layout"]
    return tuple(layout[axis].get("title", {}).get("text") for axis in ("xaxis", "yaxis"))


def axis_range(chart, axis, *choices):
    return _figure(chart, choices)["layout"][axis]["range"]


def texts(chart):
    """Every name and value in every figure of a chart."""
    found = []
    for figure in figures(chart.tree):
        for trace in figure["data"]:
            found += [str(value) for key, value in trace.items() if key != "hovertemplate"]
    return found


def figures(tree):
    if isinstance(tree, Branches):
        return [figure for child in tree.values() for figure in figures(child)]
    return [tree]


def _figure(chart, choices):
    node = _node(chart, choices)
    assert not isinstance(node, Branches), f"choose one of {list(node)}"
    return node


def _node(chart, choices):
    node = chart.tree
    for choice in choices:
        node = node[choice]
    return node
