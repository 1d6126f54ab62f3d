"""A plot of the data distribution as SVG: a bubble for the samples of each class that each client holds."""

import html
from collections.abc import Sequence
from math import ceil, sqrt

import torch
from torch import Tensor

from stratafl.data.federation import SPLITS, Federation
from stratafl.errors import counted, printable

MAX_CLIENTS_DRAWN = 300  # clients that are drawn; more would be too small to see
_NARROW, _WIDE, _MAX_CELL, _MIN_CELL = 420, 960, 26, 5  # pixels: the plot, and the cell of a bubble
_LEFT, _TOP, _BARS, _BELOW = 64, 56, 56, 44
_LETTER, _SHORT, _MAX_NAME_LETTERS = (
    7,
    3,
    18,
)  # pixels, and letters of names beside the plot; a tooltip has the whole name
_FONT = "font: 12px system-ui, sans-serif"
_STYLE = f"""<style>
.paper {{ fill: #ffffff }} .ink {{ fill: #1f2328; {_FONT} }} .title {{ fill: #1f2328; {_FONT}; font-weight: 600 }}
.line {{ stroke: #d0d7de }} .held {{ fill: #0072b2 }} .all {{ fill: #8c959f }}
@media (prefers-color-scheme: dark) {{
.paper {{ fill: #0d1117 }} .ink, .title {{ fill: #e6edf3 }} .line {{ stroke: #30363d }}
.held {{ fill: #56b4e9 }} .all {{ fill: #6e7681 }}
}}
</style>"""


def plot_class_counts(federation: Federation) -> str:
    """The SVG: clients from left to right, their samples as bars, and below a bubble for each class."""
    counts = total_class_counts(federation)
    clients, classes = counts[:MAX_CLIENTS_DRAWN].shape
    cell = min(_MAX_CELL, max(_MIN_CELL, _WIDE // max(clients, 1)))
    left = max(_LEFT, 16 + _longest(federation.class_names))
    width = max(_NARROW, left + cell * clients + 24)
    height = _TOP + _BARS + cell * classes + _BELOW + _longest(federation.client_names)
    title = f"{federation.name}: {counted(len(counts), 'client')}, {counted(int(counts.sum()), 'sample')}"
    shown = "" if len(counts) <= MAX_CLIENTS_DRAWN else f", only the first {MAX_CLIENTS_DRAWN} shown"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(title)}">',
        _STYLE,
        f'<rect class="paper" width="{width}" height="{height}"/>',
        _text(12, 24, title + shown, "title", "start"),
        f'<g transform="translate({left})">',
        *_bars(federation, counts[:MAX_CLIENTS_DRAWN], cell),
        *_bubbles(federation, counts[:MAX_CLIENTS_DRAWN], cell),
        *_axes(federation, counts[:MAX_CLIENTS_DRAWN], cell),
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def total_class_counts(federation: Federation) -> Tensor:
    """How many samples of each class each client holds in all splits, [N, classes]; one column without classes."""
    if federation.classes is None:
        return torch.stack([federation.counts(split) for split in SPLITS]).sum(0)[:, None]
    return torch.stack([federation.class_counts(split) for split in SPLITS]).sum(0)


def _longest(names: Sequence[str]) -> int:
    """The pixels that names take beside the plot; names of a few letters fit anyway."""
    longest = max(map(len, names), default=0)
    return 0 if longest <= _SHORT else _LETTER * min(_MAX_NAME_LETTERS, longest)


def _shortened(name: str) -> str:
    return name if len(name) <= _MAX_NAME_LETTERS else f"{name[: _MAX_NAME_LETTERS - 1]}…"


def _bars(federation: Federation, counts: Tensor, cell: int) -> list[str]:
    sizes = counts.sum(1).tolist()
    floor, unit = _TOP + _BARS - 8, (_BARS - 12) / max(*sizes, 1)
    largest = _text(-8, floor - _BARS + 20, f"{max(sizes):,}", "ink", "end")
    return [largest] + [
        f'<rect class="all" x="{cell * i + 1}" y="{floor - size * unit:.1f}" width="{cell - 2}" '
        f'height="{size * unit:.1f}"><title>client {escape(federation.client_name(i))}: '
        f"{counted(size, 'sample')}{_shift(federation, i)}</title></rect>"
        for i, size in enumerate(sizes)
    ]


def _shift(federation: Federation, client: int) -> str:
    return f" ({escape(federation.shifts[client])})" if federation.shifts else ""


def _bubbles(federation: Federation, counts: Tensor, cell: int) -> list[str]:
    """A circle for each class of each client, its area proportional to the samples; the largest fills its cell."""
    most = max(int(counts.max()), 1)
    circles = []
    for client, label in counts.nonzero().tolist():
        count = int(counts[client, label])
        x, y = cell * (client + 0.5), _TOP + _BARS + cell * (label + 0.5)
        radius = max(0.5, (cell / 2 - 0.5) * sqrt(count / most))
        who, what = escape(federation.client_name(client)), escape(federation.class_name(label))
        tooltip = f"client {who}, class {what}: {counted(count, 'sample')}"
        circles.append(f'<circle class="held" cx="{x:g}" cy="{y:g}" r="{radius:.2f}"><title>{tooltip}</title></circle>')
    return circles


def _axes(federation: Federation, counts: Tensor, cell: int) -> list[str]:
    """A name or a number for as many clients and classes as there is room for."""
    wide, high = counts.shape
    bottom, top = _TOP + _BARS + cell * high, _TOP + _BARS
    upright = _longest(federation.client_names) > 0
    across, down = ceil((14 if upright else 24) / cell), ceil(14 / cell)
    classes = range(0, high, down) if federation.classes is not None else ()
    below = bottom + 36 + _longest(federation.client_names)
    return [
        *(f'<line class="line" x1="0" y1="{y}" x2="{cell * wide}" y2="{y}"/>' for y in (top, bottom)),
        *(_client(federation.client_name(i), cell * (i + 0.5), bottom, upright) for i in range(0, wide, across)),
        *(_text(-8, top + cell * (i + 0.5) + 4, _shortened(federation.class_name(i)), "ink", "end") for i in classes),
        _text(0, below, "client", "ink", "start"),
        _text(-8, top - 4, "class" if classes else "", "ink", "end"),
    ]


def _client(name: str, x: float, bottom: int, upright: bool) -> str:
    if not upright:
        return _text(x, bottom + 16, name, "ink", "middle")
    return f'<g transform="translate({x:g} {bottom + 8}) rotate(-90)">{_text(0, 4, _shortened(name), "ink", "end")}</g>'


def _text(x: float, y: float, words: str, kind: str, anchor: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def escape(text: str) -> str:
    """Text for XML, which allows no control characters: these are shown as escapes."""
    return html.escape(printable(text))
