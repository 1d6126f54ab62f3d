"""Pictures that no method has for itself: two of the README, from measured numbers, and the matrix of a federation.

    strata compare --algorithms local,fedavg,flayer --out demo && strata report demo --clients clients.csv
    python docs/tools/pictures.py clients.csv     writes clients.svg, speed.svg and matrix.svg in docs/pictures

`speed.svg` shows the ratios of docs/results/speed.md, where each has its command and its machine.
"""

import csv
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

PICTURES = Path(__file__).parents[1] / "pictures"
STYLE = """<style>
text { font: 14px system-ui, sans-serif; fill: #24292f }
.quiet { fill: #6e7781 } .axis { stroke: #d0d7de } .bar { fill: #0f766e }
.alone { fill: #9a6700; stroke: #9a6700 } .shared { fill: #8c959f; stroke: #8c959f }
.own { fill: #0f766e; stroke: #0f766e } text.alone, text.shared, text.own { stroke: none; font-weight: 600 }
rect.together { fill: #8c959f } rect.client0 { fill: #0f766e }
rect.client1 { fill: #bc4c00 } rect.client2 { fill: #6639ba }
polyline { fill: none !important; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .quiet { fill: #9198a1 } .axis { stroke: #3d444d } .bar { fill: #2dd4bf }
.alone { fill: #e3b341; stroke: #e3b341 } .shared { fill: #9198a1; stroke: #9198a1 }
.own { fill: #2dd4bf; stroke: #2dd4bf } }
</style>"""
LINES = {"alone": "alone (local)", "shared": "one model for all (fedavg)", "own": "personalised (flayer)"}
METHODS = {"local": "alone", "fedavg": "shared", "flayer": "own"}
SPEEDS = {  # docs/results/speed.md
    "CNN, one H200": (103, "PFLlib"),
    "ResNet-18, one H200": (57, "PFLlib"),
    "MLP, two CPU cores": (8.8, "a plain loop"),
    "ResNet-18, two CPU cores": (3.4, "a plain loop"),
    "CNN, two CPU cores": (1.4, "a plain loop"),
}


def client_scores(rows: Sequence[Mapping[str, str]]) -> dict[str, list[float]]:
    """Accuracy in % by a client's place among the clients of its seed, the poorest alone first; means over seeds."""
    seeds: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        scores = seeds[row["seed"]][row["client"]]
        scores[METHODS[row["method"]]] = 100 * float(row["score"])
    ranked = [sorted(clients.values(), key=lambda scores: scores["alone"]) for clients in seeds.values()]
    return {name: [mean(scores[name] for scores in place) for place in zip(*ranked, strict=True)] for name in LINES}


def clients_svg(scores: Mapping[str, Sequence[float]], low: float = 50) -> str:
    """A line for each kind of model over the clients."""
    left, top, width, height = 60, 60, 640, 260
    count = len(scores["alone"])

    def point(place: int, score: float) -> tuple[float, float]:
        return left + width * (place + 0.5) / count, top + height * (100 - score) / (100 - low)

    parts = [caption(left, 24, "Accuracy of every client's model on its own test samples, in %")]
    for score in range(int(low), 101, 10):
        _, y = point(0, score)
        parts += [f'<line class="axis" x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}"/>']
        parts += [caption(left - 8, y + 5, str(score), "quiet", "end")]
    for name, values in scores.items():
        points = [point(place, value) for place, value in enumerate(values)]
        parts.append(f'<polyline class="{name}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')
        parts += [f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in points]
    for place, (name, label) in enumerate(LINES.items()):
        x = left + (0, 150, 400)[place]
        parts += [f'<circle class="{name}" cx="{x + 6}" cy="44" r="5"/>']
        parts += [caption(x + 18, 49, label, name)]
    below = f"{count} clients, from the worst alone to the best; means over five divisions of the data"
    parts.append(caption(left + width / 2, top + height + 28, below, "quiet", "middle"))
    return picture(720, 360, "Accuracy of every client alone, with one model for all, and personalised", parts)


def speed_svg() -> str:
    """A bar for each ratio, on a linear scale."""
    left, top, width, step = 210, 40, 400, 34
    most = max(ratio for ratio, _ in SPEEDS.values())
    parts = [caption(0, 20, "Rounds of FedAvg in the time of one round of the other program")]
    for place, (label, (ratio, rival)) in enumerate(SPEEDS.items()):
        y = top + place * step
        length = max(2.0, width * ratio / most)
        parts += [caption(left - 10, y + 18, label, anchor="end")]
        parts += [f'<rect class="bar" x="{left}" y="{y}" width="{length:.1f}" height="24" rx="3"/>']
        parts += [caption(left + length + 8, y + 18, f"{ratio:g}× {rival}")]
    return picture(760, top + step * len(SPEEDS) + 8, "Speed against PFLlib and plain PyTorch loops", parts)


def matrix_svg() -> str:
    """Clients as rows and layers as columns: a layer that clients share has one colour from top to bottom."""
    layers, clients, side = ("conv1", "conv2", "fc", "head"), ("Basel", "Bern", "Chur"), 50
    panels = {"training alone": 4, "one model for all": 0, "personal head": 1}  # personal layers from the right
    parts = []
    for panel, (title, personal) in enumerate(panels.items()):
        left = 70 + panel * 225
        parts.append(caption(left, 20, title))
        for column, layer in enumerate(layers):
            x = left + column * side
            parts.append(caption(x + side / 2 - 2, 46, layer, "quiet", "middle"))
            for row in range(len(clients)):
                kind = "together" if column < len(layers) - personal else f"client{row}"
                parts.append(
                    f'<rect class="{kind}" x="{x}" y="{56 + row * 34}" width="{side - 4}" height="30" rx="4"/>'
                )
    parts += [caption(60, 76 + row * 34, name, "quiet", "end") for row, name in enumerate(clients)]
    return picture(740, 170, "Clients as rows, layers as columns: alone, one model, a personal head", parts)


def caption(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """A line of text in a picture."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def picture(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """An SVG in the colours of this site, light and dark."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    return "\n".join([head, f"<title>{title}</title>", STYLE, *parts, "</svg>", ""])


def main() -> None:
    """Write all pictures."""
    with Path(sys.argv[1]).open(encoding="utf-8") as file:
        scores = client_scores(list(csv.DictReader(file)))
    (PICTURES / "clients.svg").write_text(clients_svg(scores), encoding="utf-8")
    (PICTURES / "matrix.svg").write_text(matrix_svg(), encoding="utf-8")
    (PICTURES / "speed.svg").write_text(speed_svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
