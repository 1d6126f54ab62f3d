"""Charts of layers: diagnostics over rounds and over methods, mixing weights, communication per layer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from stratafl.report.charts import (
    Branches,
    Chart,
    Control,
    Figure,
    category_axis,
    heat_map,
    line_style,
    plain_text,
    rounded,
    short_labels,
    thinned,
)
from stratafl.report.formats import size
from stratafl.report.study import LayerJournal, Matrix, Study

HEAT_MAP_ROUNDS = 60  # of a heat map at most
UPRIGHT = 8  # with more layers, their names are turned
SLIDER_ROUNDS = 20  # of a slider at most
BARS = 80  # with more of them, a heat map replaces bars
PATTERNS = ("", "/", "x", "-", "\\", "+", ".", "|")
NAMES = {
    "conflicts": "conflicts: share of client pairs with opposed updates",
    "cka": "CKA: similarity of clients' layers on the same samples",
    "sent": "share of the layer that was sent",
    "train.rate": "effective learning rate",
    "cosine": "mean cosine of updates",
    "update_norm": "norm of updates",
    "mix.own": "weight of the client's own layer",
    "personal": "kept personal (FedLAG)",
    "conflicting_pairs": "conflicting pairs (FedLAG's count)",
}
BRIEF = {"cka": "CKA", "sent": "share sent", "train.rate": "learning rate", "update_norm": "norm"}
CELLS = 300_000  # numbers in all mixing matrices together
SIDE = 30  # rows and columns of a matrix, if a single round has more numbers than CELLS
MATRICES = {"alpha": "α: weight of client j for client i", "psi": "Ψ of each group"}
SHARES = ("conflicts", "sent", "cka", "mix.own", "personal")  # from 0 to 1
Means = Mapping[str, float]  # by layer


def rounds_chart(study: Study) -> Chart | None:
    shown = {NAMES.get(key, key): by_method_and_seed(study, partial(_heat, key)) for key in _keys(study)}
    tree = Branches({name: branches for name, branches in shown.items() if branches.of})
    caption = "The diagnostics of each layer, for the rounds that have them."
    controls = (Control("show"), Control("method"), Control("seed", "switch"))
    layers = max((len(record.layers.names) for record in study.records.values()), default=0)
    height = min(1600, 170 + 26 * max(layers, 4))
    return Chart("layers", "Layers over rounds", caption, tree, controls, height) if tree.of else None


def methods_chart(study: Study) -> Chart | None:
    labels = short_labels([rank.label for rank in study.ranks])
    keys: dict[str, Any] = {}
    for key in _keys(study):
        numbers = sorted({t for record in study.records.values() for t in _rounds(record.layers, key)})
        rounds = [numbers[i] for i in thinned(len(numbers), SLIDER_ROUNDS)]
        found = {str(t): _lines(study, labels, key, t) for t in rounds}
        keys[NAMES.get(key, key)] = Branches({t: figure for t, figure in found.items() if figure["data"]})
    keys = {name: branches for name, branches in keys.items() if branches.of}
    caption = "Mean over seeds, layer by layer, from the input of the model to its head. The slider sets the round."
    controls = (Control("show"), Control("round", "slider"))
    names = study.layer_names
    height = 420 if len(names) <= UPRIGHT else 420 + 7 * max(map(len, names))
    return Chart("methods", "Methods over layers", caption, Branches(keys), controls, height) if keys else None


def _keys(study: Study) -> list[str]:
    found = dict.fromkeys(key for record in study.records.values() for key in record.layers.numbers)
    return [*(key for key in NAMES if key in found), *(key for key in found if key not in NAMES)]


def _rounds(layers: LayerJournal, key: str) -> list[int]:
    return sorted({number for found in layers.numbers.get(key, {}).values() for number in found})


def _heat(key: str, layers: LayerJournal) -> Figure | None:
    if key not in layers.numbers:
        return None
    found, numbers = layers.numbers[key], _rounds(layers, key)
    rounds = [numbers[i] for i in thinned(len(numbers), HEAT_MAP_ROUNDS)]
    names = [layer for layer in layers.names if layer in found]
    form = ".1%" if key in SHARES and key != "cka" else ".3g"
    trace = heat_map(
        [str(number) for number in rounds],
        [plain_text(layer) for layer in names],
        [[rounded(found[layer].get(number)) for number in rounds] for layer in names],
        f"%{{y}}, round %{{x}}: %{{z:{form}}}",
        colorbar={"thickness": 12, **({"tickformat": ".0%"} if form == ".1%" else {})},
        xgap=1,
        ygap=1,
        **({"zmin": 0, "zmax": 1} if key in SHARES else {}),
        **({"texttemplate": f"%{{z:{form}}}"} if len(rounds) * len(names) <= 80 else {}),
    )
    return {"data": [trace], "layout": {"xaxis": category_axis("round"), "yaxis": category_axis(down=True)}}


def _lines(study: Study, labels: Sequence[str], key: str, number: int) -> Figure:
    found = [record.layers.numbers.get(key, {}) for record in study.records.values()]
    layers = [layer for layer in study.layer_names if any(layer in each for each in found)]
    traces = []
    for place, rank in enumerate(study.ranks):
        seeds = [record.layers.numbers.get(key, {}) for record in study.of(rank)]
        means = {layer: _mean([each.get(layer, {}).get(number) for each in seeds]) for layer in layers}
        if any(value is not None for value in means.values()):
            x, y = [plain_text(layer) for layer in means], [rounded(value) for value in means.values()]
            line = {"type": "scatter", "mode": "lines+markers", "name": plain_text(labels[place]), "x": x, "y": y}
            traces.append(line | line_style(place))
    order = {"categoryorder": "array", "categoryarray": [plain_text(layer) for layer in layers]}
    shares = {"range": [-0.03, 1.03]} if key in SHARES else {"rangemode": "tozero"}
    y_axis = {"title": {"text": BRIEF.get(key, plain_text(key))}, **shares}
    return {"data": traces, "layout": {"xaxis": category_axis("layer") | order, "yaxis": y_axis}}


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if there and len(there) == len(values) else None


def by_method_and_seed(study: Study, make: Callable[[LayerJournal], Any]) -> Branches:
    """A tree over methods and seeds of what `make` gives for the layers of a run, without runs that give None."""
    labels = short_labels([rank.label for rank in study.ranks])
    methods: dict[str, Any] = {}
    for label, rank in zip(labels, study.ranks, strict=True):
        made = {str(record.outcome.seed): make(record.layers) for record in study.of(rank)}
        seeds = {seed: each for seed, each in made.items() if each is not None}
        if seeds:
            methods[label] = Branches(seeds)
    return Branches(methods)


def mixing_chart(study: Study) -> Chart | None:
    limits = _limits([record.layers for record in study.records.values()])
    tree = by_method_and_seed(study, partial(_weights, limits))
    some = "" if limits.side is None else f" Only {limits.side} clients are shown, evenly spaced."
    caption = f"The weights with which each layer was mixed. The slider sets the round.{some}"
    controls = (Control("method"), Control("seed", "switch"), Control("layer"), Control("round", "slider"))
    return Chart("mixing", "Mixing weights", caption, tree, controls, height=520) if tree.of else None


@dataclass(frozen=True)
class _Limits:
    """The most rounds of a slider, and the most rows and columns of a matrix."""

    rounds: int = SLIDER_ROUNDS
    side: int | None = None


def _limits(every: Sequence[LayerJournal]) -> _Limits:
    """Fewer rounds if all matrices are too large for one file; smaller matrices if a single round is too large."""
    found = [(len(rounds), next(iter(rounds.values()))) for layers in every for _, _, rounds in _matrices(layers)]

    def needed(most: int) -> int:
        return sum(len(matrix) * len(matrix[0]) * min(rounds, most) for rounds, matrix in found)

    fitting = [most for most in range(1, SLIDER_ROUNDS + 1) if needed(most) <= CELLS]
    return _Limits(fitting[-1]) if fitting else _Limits(1, SIDE)


def _matrices(layers: LayerJournal) -> Iterator[tuple[str, str, Mapping[int, Matrix]]]:
    for key, by_layer in layers.matrices.items():
        for layer, rounds in by_layer.items():
            yield key, layer, rounds


def _weights(limits: _Limits, layers: LayerJournal) -> Branches | None:
    """For each layer and round a matrix, with the same colours in all rounds."""
    found: dict[str, Any] = {}
    for key, layer, rounds in _matrices(layers):
        chosen = [sorted(rounds)[i] for i in thinned(len(rounds), limits.rounds)]
        kept = {t: _part(rounds[t], limits.side) for t in chosen}
        values = [x for matrix in kept.values() for row in matrix for x in row if x is not None] or [0.0, 1.0]
        name = layer if len(layers.matrices) == 1 else f"{layer}, {key}"
        found[name] = Branches(
            {str(t): _matrix_figure(matrix, key, min(values), max(values)) for t, matrix in kept.items()}
        )
    return Branches(found) if found else None


def _part(matrix: Matrix, side: int | None) -> Matrix:
    if side is None:
        return matrix
    columns = thinned(len(matrix[0]), side)
    return [[matrix[i][j] for j in columns] for i in thinned(len(matrix), side)]


def _matrix_figure(matrix: Matrix, key: str, low: float, high: float) -> Figure:
    values = [[rounded(value) for value in row] for row in matrix]
    trace = heat_map(None, None, values, "row %{y}, column %{x}: %{z:.3g}", zmin=low, zmax=high)
    down = {"autorange": "reversed", "dtick": max(1, len(matrix) // 10), "constrain": "domain"}
    square = {"scaleanchor": "x"} if len(matrix) == len(matrix[0]) else {}
    titles = ("client j", "client i") if square else ("group", "")
    x = {"title": {"text": titles[0]}, "constrain": "domain", "dtick": max(1, len(matrix[0]) // 10)}
    y = {"title": {"text": titles[1]}, **down, **square}
    title = {"text": MATRICES.get(key, plain_text(key))}
    return {"data": [trace], "layout": {"xaxis": x, "yaxis": y, "title": title}}


def bytes_chart(study: Study) -> Chart | None:
    """The communication of each layer, up and down, in the whole run: bars, or a heat map if there are too many."""
    labels, layers = short_labels([rank.label for rank in study.ranks]), study.layer_names
    found: dict[int, Means] = {}
    for place, rank in enumerate(study.ranks):
        seeds = [record.layers.bytes for record in study.of(rank)]
        common = [layer for layer in layers if all(layer in sent for sent in seeds)]
        means = {layer: fmean(sent[layer] for sent in seeds) for layer in common}
        if any(means.values()):
            found[place] = means
    if not found:
        return None
    bars = len(found) * len(layers) <= BARS
    figure = _bars(found, labels) if bars else _bytes_heat(found, labels, layers)
    caption = "Bytes up and down in the whole run, all clients; mean over seeds. Methods that send nothing are absent."
    height = 170 + len(layers) * (14 + 11 * len(found)) if bars else min(1600, 190 + 24 * len(layers))
    return Chart("bytes", "Communication per layer", caption, figure, height=height)


def _bars(found: Mapping[int, Means], labels: Sequence[str]) -> Figure:
    pattern = {"fillmode": "overlay", "solidity": 0.25, "fgcolor": "#ffffff"}
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": plain_text(labels[place]),
            "x": [rounded(value) for value in means.values()],
            "y": [plain_text(layer) for layer in means],
            "marker": {
                "color": line_style(place)["marker"]["color"],
                "pattern": {"shape": PATTERNS[place % len(PATTERNS)], **pattern},
            },
            "hovertemplate": "%{y}: %{x:.3s}B<extra>%{fullData.name}</extra>",
        }
        for place, means in found.items()
    ]
    x = {"title": {"text": "bytes up and down"}, "tickformat": "~s", "ticksuffix": "B"}
    return {"data": traces, "layout": {"xaxis": x, "yaxis": category_axis(down=True), "barmode": "group"}}


def _bytes_heat(found: Mapping[int, Means], labels: Sequence[str], layers: Sequence[str]) -> Figure:
    trace = heat_map(
        [plain_text(labels[place]) for place in found],
        [plain_text(layer) for layer in layers],
        [[rounded(means.get(layer)) for means in found.values()] for layer in layers],
        "%{y}, %{x}: %{text}",
        text=[[size(means.get(layer)) for means in found.values()] for layer in layers],
        colorbar={"thickness": 12, "tickformat": "~s", "ticksuffix": "B"},
        xgap=1,
        ygap=1,
    )
    return {"data": [trace], "layout": {"xaxis": category_axis(), "yaxis": category_axis(down=True)}}
