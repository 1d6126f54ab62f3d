"""Pictures that no method's page draws by its form: two of the README, FedStrata's experiment, a federation's matrix.

    strata compare --algorithms local,fedavg,flayer --out demo && strata report demo --clients clients.csv
    python docs/tools/pictures.py clients.csv     writes clients.svg in docs/pictures
    python docs/tools/pictures.py                 writes the others

`speed.svg` shows the ratios of docs/results/speed.md, where each has its command and its machine, `many_clients.svg`
the figures in benchmarks/results/many-clients.json, and `sending_less.svg` those in docs/results/fedstrata/summary.csv.
"""

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import log10
from pathlib import Path
from statistics import mean

PICTURES = Path(__file__).parents[1] / "pictures"
MANY_CLIENTS = Path(__file__).parents[2] / "benchmarks/results/many-clients.json"
SENDING = Path(__file__).parents[1] / "results/fedstrata/summary.csv"
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


def many_clients_svg(details: Mapping[str, Mapping[str, float]]) -> str:
    """CPU time and memory of whole runs over the number of clients, both on logarithmic scales."""
    panels = {"cpu": ("CPU seconds of a run", (2, 4, 8, 16)), "mb": ("Memory in MB", (250, 500, 1000, 2000))}
    programs, width, height, top = {"pfl": "shared", "fedavg": "own"}, 260, 200, 60
    parts = [caption(60, 20, "FedAvg, 100 clients per round"), caption(330, 20, "pfl 0.6", "shared")]
    parts.append(caption(420, 20, "stratafl", "own"))
    for panel, (key, (title, ticks)) in enumerate(panels.items()):
        left, low, high = 60 + 360 * panel, log10(ticks[0]), log10(ticks[-1])
        parts.append(caption(left, 46, title))
        for tick in ticks:
            y = top + height * (high - log10(tick)) / (high - low)
            parts += [f'<line class="axis" x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}"/>']
            parts.append(caption(left - 8, y + 5, f"{tick:,}", "quiet", "end"))
        for program, kind in programs.items():
            values = {int(name.split()[0]): facts[key] for name, facts in details.items() if name.endswith(program)}
            points = [
                (left + width * (log10(count) - 2.8) / 3.4, top + height * (high - log10(value)) / (high - low))
                for count, value in values.items()
            ]
            parts.append(f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')
            parts += [f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in points]
        for count in (10**3, 10**4, 10**5, 10**6):
            x = left + width * (log10(count) - 2.8) / 3.4
            parts.append(caption(x, top + height + 22, f"{count:,}", "quiet", "middle"))
        parts.append(caption(left + width / 2, top + height + 44, "clients", "quiet", "middle"))
    return picture(720, top + height + 56, "CPU time and memory of FedAvg on 1,000 to 1,000,000 clients", parts)


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


UPLOADS = {  # variants of docs/results/fedstrata/summary.csv in groups
    "parts on the class prior": {"most": "sparse uploads", "rates": "rates", "both": "both: FedStrata"},
    "which entries are sent": {"random": "random ones, as many", "smallest": "the smallest changes"},
    "what is not sent": {"unchanged": "counts as unchanged"},
    "every entry is sent": {
        **{"half": "server rate 0.5", "damped": "server rate by layer", "double": "server rate 2"},
        "momentum": "server momentum 0.5",
    },
    "of which layers more is sent": {
        **{"equal": "of all the same", "shallower": "of the first more", "first": "the last whole"},
        "last": "the first whole",
    },
}


def sending_svg(rows: Sequence[Mapping[str, str]], shown: Sequence[str], low: float = -6, high: float = 4) -> str:
    """Two dots for each kind of upload: the difference from whole uploads in two federations."""
    left, width, step = 250, 480, 22
    gains = {(row["federation"], row["variant"]): float(row["difference"]) for row in rows}
    parts = [caption(0, 18, "Validation accuracy of other uploads minus that of whole ones (fedprior), in points")]
    colours = dict(zip(shown, KINDS, strict=True))
    for i, (name, kind) in enumerate(colours.items()):
        parts.append(caption(left + 190 * i, 42, name.replace("-", ", α = "), kind))

    def x(gain: float) -> float:
        return left + width * (max(low, min(high, gain)) - low) / (high - low)

    y = 62
    for title, variants in UPLOADS.items():
        parts.append(caption(0, y, title, "quiet"))
        for variant, label in variants.items():
            y += step
            parts += [caption(left - 14, y, label, anchor="end")]
            parts += [f'<line class="axis" x1="{left}" x2="{left + width}" y1="{y - 5}" y2="{y - 5}"/>']
            for i, (name, kind) in enumerate(colours.items()):
                gain = gains[name, variant]
                parts += [f'<circle class="{kind}" cx="{x(gain):.1f}" cy="{y - 5}" r="5"/>']
                if gain < low:
                    parts += [caption(left + 10 + 50 * i, y, f"◂ {gain:.0f}".replace("-", "−"), kind)]
        y += step + 8
    parts += [f'<line class="axis" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="52" y2="{y - 14}"/>']
    parts += [
        caption(x(gain), y + 4, f"{gain:+g}".replace("-", "−") if gain else "0", "quiet", "middle")
        for gain in (-6, -4, -2, 0, 2, 4)
    ]
    return picture(760, y + 14, "What FedStrata's uploads gain, and what controls of them do", parts)


KINDS = ("own", "alone")


def caption(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """A line of text in a picture."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def picture(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """An SVG in the colours of this site, light and dark."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    return "\n".join([head, f"<title>{title}</title>", STYLE, *parts, "</svg>", ""])


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Write the picture of clients if there is a file of their scores, or else all others."""
    if sys.argv[1:]:
        scores = client_scores(_rows(Path(sys.argv[1])))
        (PICTURES / "clients.svg").write_text(clients_svg(scores), encoding="utf-8")
        return
    uploads = sending_svg(_rows(SENDING), ("digits-0.5", "digits-0.1"))
    (PICTURES / "sending_less.svg").write_text(uploads, encoding="utf-8")
    (PICTURES / "matrix.svg").write_text(matrix_svg(), encoding="utf-8")
    (PICTURES / "speed.svg").write_text(speed_svg(), encoding="utf-8")
    details = json.loads(MANY_CLIENTS.read_text(encoding="utf-8"))["details"]
    (PICTURES / "many_clients.svg").write_text(many_clients_svg(details), encoding="utf-8")


if __name__ == "__main__":
    main()
