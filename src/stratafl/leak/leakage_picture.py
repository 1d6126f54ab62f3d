"""A picture of leaks: a block for each attack, with a row for each layer and a column for each method.

The colour says how far an attack is from guessing to always right; the number is what it reaches.
"""

from collections.abc import Mapping, Sequence

from stratafl.data.plot import escape
from stratafl.leak.leakage import ATTACKS, Leak

_CELL, _ROW, _LEFT, _TOP, _GAP, _LETTER, _SLANTED = 58, 24, 150, 46, 42, 7, 5  # pixels
_FONT = "font: 12px system-ui, sans-serif"
_STYLE = f"""<style>
.paper {{ fill: #ffffff }} .ink {{ fill: #1f2328; {_FONT} }} .title {{ fill: #1f2328; {_FONT}; font-weight: 600 }}
.quiet {{ fill: #6e7781; {_FONT} }} .cell {{ stroke: #d0d7de; fill: none }} .leak {{ fill: #d55e00 }}
@media (prefers-color-scheme: dark) {{
.paper {{ fill: #0d1117 }} .ink, .title {{ fill: #e6edf3 }} .quiet {{ fill: #9198a1 }} .cell {{ stroke: #30363d }}
}}
</style>"""


def leakage_picture(leaks: Mapping[str, Sequence[Leak]]) -> str:
    """The SVG of the leaks of some methods, or of one, after all rounds that were replayed."""
    best = {method: _after_all_rounds(of_method) for method, of_method in leaks.items()}
    blocks = dict[str, list[str]]()
    for attack in ATTACKS:
        layers = dict.fromkeys(layer for of_method in best.values() for layer, name in of_method if name == attack)
        if layers:
            blocks[attack] = list(layers)
    slanted = _SLANTED * max(map(len, best)) + 12  # names of methods, in height and in width
    width = _LEFT + _CELL * len(best) + slanted
    width = max(width, 12 + _LETTER * max(len(attack) + len(ATTACKS[attack]) + 2 for attack in blocks))
    height = _TOP + slanted + sum(_GAP + _ROW * len(layers) for layers in blocks.values())
    title = "What a host learns from uploads, by layer"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{title}">',
        _STYLE,
        f'<rect class="paper" width="{width}" height="{height}"/>',
        _text(12, 24, title + "; colour: from guessing to always right", "title"),
    ]
    for place, method in enumerate(best):
        x, y = _LEFT + _CELL * (place + 0.5), _TOP + slanted - 8
        parts.append(f'<text class="ink" transform="translate({x:g} {y}) rotate(-45)">{escape(method)}</text>')
    y = _TOP + slanted
    for attack, names in blocks.items():
        parts.append(_text(12, y + 18, f"{attack}: {ATTACKS[attack]}", "quiet"))
        y += _GAP - 14
        for layer in names:
            parts.append(_text(_LEFT - 8, y + 16, layer, "ink", "end"))
            parts += [_cell(place, y, best[method].get((layer, attack))) for place, method in enumerate(best)]
            y += _ROW
        y += 14
    return "\n".join([*parts, "</svg>"]) + "\n"


def strength(leak: Leak) -> float:
    """How far from guessing to always right: 0 if no better than guessing."""
    return max(0.0, min(1.0, (leak.value - leak.guess) / (1 - leak.guess))) if leak.guess < 1 else 0.0


def _after_all_rounds(leaks: Sequence[Leak]) -> dict[tuple[str, str], Leak]:
    last = max((leak.rounds for leak in leaks), default=0)
    return {(leak.layer, leak.attack): leak for leak in leaks if leak.rounds == last}


def _cell(place: int, y: float, leak: Leak | None) -> str:
    x = _LEFT + _CELL * place
    box = f'x="{x}" y="{y:g}" width="{_CELL}" height="{_ROW}"'
    middle = x + _CELL / 2
    if leak is None:
        return f'<rect class="cell" {box}/>' + _text(middle, y + 16, "–", "quiet", "middle")
    fill = f'<rect class="leak" {box} fill-opacity="{0.75 * strength(leak):.2f}"/><rect class="cell" {box}/>'
    tip = f"<title>{leak.value:.2f}, guessing {leak.guess:.2f}</title>"
    return f"<g>{tip}{fill}" + _text(middle, y + 16, f"{leak.value:.2f}", "ink", "middle") + "</g>"


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'
