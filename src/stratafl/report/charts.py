"""Charts: plotly figures as plain dictionaries, and the controls with which a reader chooses among them.

A chart's figures are the leaves of a tree; each control chooses a branch, and what the next one offers depends on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, Union

from stratafl.report.ranking import MARK

Figure = dict[str, Any]  # {"data": […], "layout": {…}}
Tree = Union[Figure, "Branches"]
DIGITS = 5  # that a number in a figure has

# Okabe and Ito's colours, without black and yellow, which vanish on one of the two backgrounds.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808080")
ON_DARK = {"#0072B2": "#3D9CE0", "#56B4E9": "#A8DBFF"}  # the two blues, where the background is dark
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "hexagon")
SCALE = "Cividis"
LONGEST = 26  # letters of a label in a chart


@dataclass(frozen=True)
class Branches:
    """What a control offers, in order."""

    of: Mapping[str, "Tree"]


@dataclass(frozen=True)
class Control:
    """How a reader chooses: from a menu, by switches, or with a slider."""

    label: str
    kind: Literal["menu", "switch", "slider"] = "menu"


@dataclass(frozen=True)
class Chart:
    """A tree of figures with a title, what it shows in a sentence, and its controls from the root down."""

    name: str
    title: str
    says: str
    tree: Tree
    controls: tuple[Control, ...] = ()
    height: int = 420

    def plain(self) -> dict[str, Any]:
        """The chart as the page's script takes it."""
        controls = [{"label": control.label, "kind": control.kind} for control in self.controls]
        return {"name": self.name, "controls": controls, "height": self.height, "tree": _plain(self.tree)}


def _plain(tree: Tree) -> dict[str, Any]:
    if isinstance(tree, Branches):
        return {"options": [[key, _plain(child)] for key, child in tree.of.items()]}
    return tree


def figures(tree: Tree) -> list[Figure]:
    """All figures of a tree."""
    if isinstance(tree, Branches):
        return [figure for child in tree.of.values() for figure in figures(child)]
    return [tree]


def look(place: int) -> dict[str, Any]:
    """Line and marker of the method at a place: colours, dashes and markers that no two of them share."""
    colour = COLOURS[place % len(COLOURS)]
    line = {"color": colour, "dash": DASHES[place % len(DASHES)], "width": 2}
    return {"line": line, "marker": {"color": colour, "symbol": MARKERS[place % len(MARKERS)], "size": 7}}


def faint(place: int) -> str:
    """The colour of a band around the line at a place."""
    return _faint(COLOURS[place % len(COLOURS)])


def on_dark() -> dict[str, str]:
    """By which colours those of lines and bands are replaced on a dark background."""
    return ON_DARK | {_faint(light): _faint(dark) for light, dark in ON_DARK.items()}


def _faint(colour: str) -> str:
    code = colour.lstrip("#")
    red, green, blue = (int(code[i : i + 2], 16) for i in (0, 2, 4))
    return f"rgba({red},{green},{blue},0.15)"


def said(text: object) -> str:
    """A text in a chart: plotly reads tags and entities, and no name of a run shall be one."""
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def short_labels(labels: Sequence[str]) -> list[str]:
    """Labels for charts, all different: without the package of a method of one's own, and cut where they are long."""
    made: list[str] = []
    for label in labels:
        marked = f" {MARK}" if label.endswith(MARK) else ""
        words = label.removesuffix(marked).split(" ")
        name = " ".join([words[0].rpartition(":")[2] or words[0], *words[1:]])
        brief = (name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…") + marked
        made.append(brief if brief not in made else f"{brief} #{len(made) + 1}")
    return made


def short(value: float | None) -> float | None:
    """A number with as many digits as a chart can show."""
    return None if value is None or not isfinite(value) else float(f"{value:.{DIGITS}g}")


def thinned(count: int, most: int) -> list[int]:
    """So many places of a sequence, evenly, the first and the last among them; of one, the last."""
    if count <= most:
        return list(range(count))
    if most == 1:
        return [count - 1]
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
