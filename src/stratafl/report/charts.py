"""Charts: plotly figures as plain dictionaries, and the controls to choose one of them.

The figures of a chart are the leaves of a tree; each control chooses a branch, and the next one offers what is in it.
"""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, NamedTuple

from stratafl.report.formats import MARK

Figure = dict[str, Any]  # {"data": […], "layout": {…}}
DIGITS = 5  # significant digits of a number in a figure

# Okabe and Ito's colours without black and yellow, which are invisible on one of the two backgrounds.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808080")
ON_DARK = {"#0072B2": "#3D9CE0", "#56B4E9": "#A8DBFF"}  # the two blues on a dark background
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "hexagon")
SCALE = "Cividis"
MAX_LABEL_LETTERS = 26  # characters of a label in a chart
NARROWEST = 0.02  # of an axis of shares
MARGIN, EDGE = 0.06, 0.025  # beside the values, and beyond 0 and 100 %, as shares of an axis
# Decimals of a tick by the distance of ticks, so that no two ticks have the same text.
PERCENT: tuple[dict[str, Any], ...] = (
    {"dtickrange": [None, 0.00009], "value": ".3%"},
    {"dtickrange": [0.00009, 0.0009], "value": ".2%"},
    {"dtickrange": [0.0009, 0.009], "value": ".1%"},
    {"dtickrange": [0.009, None], "value": ".0%"},
)


class Branches(dict[str, Any]):
    """The options of a control, in order, each with `Branches` or a figure."""


class Control(NamedTuple):
    """A menu, a row of switches, or a slider."""

    label: str
    kind: Literal["menu", "switch", "slider"] = "menu"


@dataclass(frozen=True)
class Chart:
    """A tree of figures with a title, a caption, and its controls from the root down."""

    name: str
    title: str
    caption: str
    tree: Figure | Branches
    controls: tuple[Control, ...] = ()
    height: int = 420

    def plain(self) -> dict[str, Any]:
        """The chart as `page.js` reads it."""
        controls = [control._asdict() for control in self.controls]
        return {"name": self.name, "controls": controls, "height": self.height, "tree": _plain(self.tree)}


def _plain(tree: Figure | Branches) -> dict[str, Any]:
    branches = isinstance(tree, Branches)
    return {"options": [[key, _plain(child)] for key, child in tree.items()]} if branches else tree


def line_style(place: int) -> dict[str, Any]:
    """Line and marker of the method at a place of the ranking; no two methods look the same."""
    colour = COLOURS[place % len(COLOURS)]
    line = {"color": colour, "dash": DASHES[place % len(DASHES)], "width": 2}
    return {"line": line, "marker": {"color": colour, "symbol": MARKERS[place % len(MARKERS)], "size": 7}}


def category_axis(title: str = "", down: bool = False) -> dict[str, Any]:
    titled = {"title": {"text": title}} if title else {}
    return {"type": "category", "automargin": True, **titled, **({"autorange": "reversed"} if down else {})}


def value_axis(title: str, values: Iterable[float | None], *, share: bool) -> dict[str, Any]:
    """An axis that shows these values and little else; a share is written in per cent."""
    axis: dict[str, Any] = {"title": {"text": title}}
    axis |= {"tickformatstops": [dict(stop) for stop in PERCENT]} if share else {}
    ends = value_range(values, share=share)
    return axis | ({"range": ends} if ends else {})


def value_range(values: Iterable[float | None], *, share: bool) -> list[float] | None:
    """From below the smallest value to above the largest; None if there is no value.

    For shares it hardly goes beyond 0 and 1, and it spans at least 2 points, so that nothing looks large because all
    values are alike.
    """
    finite = [value for value in values if value is not None and isfinite(value)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    width = max(high - low, NARROWEST if share else 0.0) or abs(high) or 1.0
    middle, half = (low + high) / 2, width * (0.5 + MARGIN)
    ends = [middle - half, middle + half]
    if share:
        edge = width * EDGE  # a marker at 0 or 1 is not cut
        ends = [max(ends[0], -edge), min(ends[1], 1.0 + edge)]
    return [float(f"{end:.{DIGITS}g}") for end in ends]


def percent_bar(low: float, high: float) -> dict[str, Any]:
    """A colour bar in per cent, whose ticks have as many decimals as they need; it knows no format by distance."""
    width = high - low
    decimals = 0 if width >= 0.04 else 1 if width >= 0.004 else 2
    return {"thickness": 12, "tickformat": f".{decimals}%"}


def scatter(mode: str, x: Sequence[Any], y: Sequence[Any], **more: Any) -> dict[str, Any]:
    return {"type": "scatter", "mode": mode, "x": x, "y": y, **more}


def heat_map(z: Sequence[Any], hover: str, **more: Any) -> dict[str, Any]:
    look = {"colorscale": SCALE, "colorbar": {"thickness": 12}, "hovertemplate": f"{hover}<extra></extra>"}
    return {"type": "heatmap", "z": z, **look, **more}


def band_colour(place: int) -> str:
    return _faint(COLOURS[place % len(COLOURS)])


def on_dark() -> dict[str, str]:
    """The colours that replace those of lines and bands on a dark background."""
    return ON_DARK | {_faint(light): _faint(dark) for light, dark in ON_DARK.items()}


def _faint(colour: str) -> str:
    code = colour.lstrip("#")
    red, green, blue = (int(code[i : i + 2], 16) for i in (0, 2, 4))
    return f"rgba({red},{green},{blue},0.15)"


def plain_text(text: object) -> str:
    """A text for plotly, which would read tags and entities in it."""
    return html.escape(str(text), quote=False)


def short_labels(labels: Sequence[str]) -> list[str]:
    """Labels for charts, all different and of limited length, without the package of an imported method."""
    brief: list[str] = []
    for label in labels:
        marked = f" {MARK}" if label.endswith(MARK) else ""
        words = label.removesuffix(marked).split(" ")
        name = " ".join([words[0].rpartition(":")[2] or words[0], *words[1:]])
        brief.append(shortened(name) + marked)
    return distinct(brief)


def shortened(name: str, most: int = MAX_LABEL_LETTERS) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def distinct(labels: Sequence[str]) -> list[str]:
    labelled: list[str] = []
    for label in labels:
        labelled.append(label if label not in labelled else f"{label} #{len(labelled) + 1}")
    return labelled


def rounded(value: float | None) -> float | None:
    """A number with as many digits as a chart can show; None if it is not finite."""
    return None if value is None or not isfinite(value) else float(f"{value:.{DIGITS}g}")


def thinned(count: int, most: int) -> list[int]:
    """The indices of at most so many items, evenly spaced, with the first and the last; of one, the last."""
    if count <= most:
        return list(range(count))
    if most == 1:
        return [count - 1]
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
