"""Charts of layers: diagnostics over rounds and over methods, mixing weights, communication per layer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from stratafl.report import charts
from stratafl.report.charts import (
    Branches,
    Chart,
    Control,
    Figure,
    category_axis,
    heat_map,
    plain_text,
    rounded,
    shortened,
)
from stratafl.report.formats import size_text
from stratafl.report.outcome import Outcome, seed_labels
from stratafl.report.run_journals import LayerJournal, Matrix
from stratafl.report.study import Study

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
    keys = _keys(study)
    shown = {NAMES.get(key, key): by_method_and_seed(study, partial(_heat, key, _ends(study, key))) for key in keys}
    tree = Branches({name: branches for name, branches in shown.items() if branches})
    caption = "The diagnostics of each layer, for the rounds that have them. All methods share one colour scale."
    controls = (Control("show"), Control("method"), Control("seed", "switch"))
    layers = max((len(run.layers.names) for run in study.outcomes), default=0)
    height = min(1600, 170 + 26 * max(layers, 4))
    return Chart("layers", "Layers over rounds", caption, tree, controls, height) if tree else None


def methods_chart(study: Study) -> Chart | None:
    keys = Branches()
    for key in _keys(study):
        rounds = _rounds([run.layers for run in study.outcomes], key, SLIDER_ROUNDS)
        by_round = {str(t): _lines(study, key, t) for t in rounds}
        branches = Branches({t: figure for t, figure in by_round.items() if figure["data"]})
        keys |= {NAMES.get(key, key): branches} if branches else {}
    caption = "Mean over seeds, layer by layer, from the input of the model to its head. The slider sets the round."
    controls = (Control("show"), Control("round", "slider"))
    names = study.layer_names
    height = 420 if len(names) <= UPRIGHT else 420 + 7 * max(map(len, names))
    return Chart("methods", "Methods over layers", caption, keys, controls, height) if keys else None


def _keys(study: Study) -> list[str]:
    recorded = dict.fromkeys(key for run in study.outcomes for key in run.layers.numbers)
    return [*(key for key in NAMES if key in recorded), *(key for key in recorded if key not in NAMES)]


def _rounds(journals: Sequence[LayerJournal], key: str, most: int) -> list[int]:
    """The rounds with this number in some layer, at most so many."""
    rounds = sorted({t for layers in journals for by_round in layers.numbers.get(key, {}).values() for t in by_round})
    return [rounds[i] for i in charts.thinned(len(rounds), most)]


def _values(study: Study, key: str) -> list[float]:
    """All values of a number, over methods, seeds, layers and rounds."""
    by_run = (run.layers.numbers.get(key, {}) for run in study.outcomes)
    return [
        value for by_layer in by_run for rounds in by_layer.values() for value in rounds.values() if value is not None
    ]


def _ends(study: Study, key: str) -> tuple[float, float]:
    """The values between which colours go."""
    values = _values(study, key) or [0.0]
    low, high = min(values), max(values)
    if high > low:
        return low, high
    return (0.0, 1.0) if key in SHARES else (min(low, 0.0), max(high, 0.0) or 1.0)


def _heat(key: str, ends: tuple[float, float], run: Outcome) -> Figure | None:
    layers = run.layers
    if key not in layers.numbers:
        return None
    by_layer, rounds = layers.numbers[key], _rounds([layers], key, HEAT_MAP_ROUNDS)
    names = [layer for layer in layers.names if layer in by_layer]
    form = ".1%" if key in SHARES and key != "cka" else ".3g"
    look = {"x": list(map(str, rounds)), "y": list(map(plain_text, names)), "xgap": 1, "ygap": 1}
    bar = charts.percent_bar(*ends) if form == ".1%" else {"thickness": 12}
    look |= {"colorbar": bar, "zmin": rounded(ends[0]), "zmax": rounded(ends[1])}
    look |= {"texttemplate": f"%{{z:{form}}}"} if len(rounds) * len(names) <= 80 else {}
    z = [[rounded(by_layer[layer].get(number)) for number in rounds] for layer in names]
    trace = heat_map(z, f"%{{y}}, round %{{x}}: %{{z:{form}}}", **look)
    return {"data": [trace], "layout": {"xaxis": category_axis("round"), "yaxis": category_axis(down=True)}}


def _lines(study: Study, key: str, number: int) -> Figure:
    by_run = [run.layers.numbers.get(key, {}) for run in study.outcomes]
    layers = [layer for layer in study.layer_names if any(layer in each for each in by_run)]
    traces = []
    for place, (label, rank) in enumerate(zip(study.labels, study.ranks, strict=True)):
        seeds = [run.layers.numbers.get(key, {}) for run in rank.members]
        means = {layer: _mean([each.get(layer, {}).get(number) for each in seeds]) for layer in layers}
        if any(value is not None for value in means.values()):
            x, y = list(map(plain_text, means)), list(map(rounded, means.values()))
            traces.append(charts.scatter("lines+markers", x, y, name=plain_text(label), **charts.line_style(place)))
    order = {"categoryorder": "array", "categoryarray": list(map(plain_text, layers))}
    title, share = BRIEF.get(key, plain_text(key)), key in SHARES and key != "cka"
    y_axis = charts.value_axis(title, _values(study, key), share=share)  # the same for all rounds
    return {"data": traces, "layout": {"xaxis": category_axis("layer") | order, "yaxis": y_axis}}


def _mean(values: Sequence[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return fmean(known_values) if known_values and len(known_values) == len(values) else None


def by_method_and_seed(study: Study, make: Callable[[Outcome], Any]) -> Branches:
    """A tree over methods and seeds of what `make` gives for a run, without runs that give None."""
    methods = Branches()
    for label, rank in zip(study.labels, study.ranks, strict=True):
        by_seed = dict(zip(seed_labels(rank.members), map(make, rank.members), strict=True))
        seeds = Branches({seed: each for seed, each in by_seed.items() if each is not None})
        methods |= {label: seeds} if seeds else {}
    return methods


def mixing_chart(study: Study) -> Chart | None:
    rounds, side = _limits([run.layers for run in study.outcomes])
    tree = by_method_and_seed(study, lambda run: _weights(run, rounds, side))
    some = "" if side is None else f" Only {side} clients are shown, evenly spaced."
    caption = f"The weights with which each layer was mixed. The slider sets the round.{some}"
    controls = (Control("method"), Control("seed", "switch"), Control("layer"), Control("round", "slider"))
    return Chart("mixing", "Mixing weights", caption, tree, controls, height=520) if tree else None


def _limits(every: Sequence[LayerJournal]) -> tuple[int, int | None]:
    """The most rounds of a slider, and the most rows and columns of a matrix.

    Fewer rounds if all matrices are too large for one file; smaller matrices if a single round is too large.
    """
    matrices = [(len(rounds), next(iter(rounds.values()))) for layers in every for _, _, rounds in _matrices(layers)]

    def needed(most: int) -> int:
        return sum(len(matrix) * len(matrix[0]) * min(rounds, most) for rounds, matrix in matrices)

    fitting = [most for most in range(1, SLIDER_ROUNDS + 1) if needed(most) <= CELLS]
    return (fitting[-1], None) if fitting else (1, SIDE)


def _matrices(layers: LayerJournal) -> Iterator[tuple[str, str, Mapping[int, Matrix]]]:
    for key, by_layer in layers.matrices.items():
        for layer, rounds in by_layer.items():
            yield key, layer, rounds


def _weights(run: Outcome, most: int, side: int | None) -> Branches | None:
    """For each layer and round a matrix, with the same colours in all rounds."""
    by_name, layers = Branches(), run.layers
    for key, layer, rounds in _matrices(layers):
        matrices = {t: _part(rounds[t], side) for t in (sorted(rounds)[i] for i in charts.thinned(len(rounds), most))}
        values = [x for matrix in matrices.values() for row in matrix for x in row if x is not None] or [0.0, 1.0]
        ends = min(values), max(values)
        names = _clients(run, len(next(iter(rounds.values()))), side)
        name = layer if len(layers.matrices) == 1 else f"{layer}, {key}"
        by_name[name] = Branches({str(t): _matrix_figure(matrix, key, ends, names) for t, matrix in matrices.items()})
    return by_name or None


def _part(matrix: Matrix, side: int | None) -> Matrix:
    if side is None:
        return matrix
    columns = charts.thinned(len(matrix[0]), side)
    return [[matrix[i][j] for j in columns] for i in charts.thinned(len(matrix), side)]


def _clients(run: Outcome, rows: int, side: int | None) -> list[str]:
    """The names of the clients that the rows of a matrix stand for; none if it has rows of some clients only."""
    names = list(run.client_names)[: run.clients]
    if len(names) != rows:
        return []
    brief = charts.distinct([plain_text(shortened(name)) for name in names])
    return brief if side is None else [brief[i] for i in charts.thinned(rows, side)]


def _matrix_figure(matrix: Matrix, key: str, ends: tuple[float, float], names: Sequence[str]) -> Figure:
    values = [[rounded(value) for value in row] for row in matrix]
    square = {"scaleanchor": "x"} if len(matrix) == len(matrix[0]) else {}
    named = {"x": list(names), "y": list(names)} if names and square else {}
    trace = heat_map(values, "%{z:.3g}: %{x} for %{y}", zmin=ends[0], zmax=ends[1], **named)
    down = {"autorange": "reversed", "constrain": "domain"}
    steps = [{} if named else {"dtick": max(1, count // 10)} for count in (len(matrix[0]), len(matrix))]
    titles = ("client j", "client i") if square else ("group", "")
    x = {"title": {"text": titles[0]}, "constrain": "domain", **steps[0]}
    y = {"title": {"text": titles[1]}, **down, **steps[1], **square}
    title = {"text": MATRICES.get(key, plain_text(key))}
    return {"data": [trace], "layout": {"xaxis": x, "yaxis": y, "title": title}}


def bytes_chart(study: Study) -> Chart | None:
    """The communication of each layer, up and down, in the whole run: bars, or a heat map if there are too many."""
    layers = study.layer_names
    by_place: dict[int, Means] = {}
    for place, rank in enumerate(study.ranks):
        seeds = [run.layers.bytes for run in rank.members]
        common = [layer for layer in layers if all(layer in sent for sent in seeds)]
        means = {layer: fmean(sent[layer] for sent in seeds) for layer in common}
        if any(means.values()):
            by_place[place] = means
    if not by_place:
        return None
    bars = len(by_place) * len(layers) <= BARS
    labels = [plain_text(study.labels[place]) for place in by_place]
    figure = _bars(by_place, labels) if bars else _bytes_heat(by_place, labels, layers)
    caption = "Bytes up and down in the whole run, all clients; mean over seeds. Methods that send nothing are absent."
    height = 170 + len(layers) * (14 + 11 * len(by_place)) if bars else min(1600, 190 + 24 * len(layers))
    return Chart("bytes", "Communication per layer", caption, figure, height=height)


def _bars(by_place: Mapping[int, Means], labels: Sequence[str]) -> Figure:
    bar = {"type": "bar", "orientation": "h", "hovertemplate": "%{y}: %{x:.3s}B<extra>%{fullData.name}</extra>"}
    hatched = {"fillmode": "overlay", "solidity": 0.25, "fgcolor": "#ffffff"}
    traces = []
    for label, (place, means) in zip(labels, by_place.items(), strict=True):
        pattern = {"shape": PATTERNS[place % len(PATTERNS)], **hatched}
        marker = {"color": charts.line_style(place)["marker"]["color"], "pattern": pattern}
        x, y = list(map(rounded, means.values())), list(map(plain_text, means))
        traces.append({**bar, "name": label, "x": x, "y": y, "marker": marker})
    x_axis = {"title": {"text": "bytes up and down"}, "tickformat": "~s", "ticksuffix": "B"}
    return {"data": traces, "layout": {"xaxis": x_axis, "yaxis": category_axis(down=True), "barmode": "group"}}


def _bytes_heat(by_place: Mapping[int, Means], labels: Sequence[str], layers: Sequence[str]) -> Figure:
    sent = [[means.get(layer) for means in by_place.values()] for layer in layers]
    z, texts = [list(map(rounded, row)) for row in sent], [list(map(size_text, row)) for row in sent]
    bar = {"thickness": 12, "tickformat": "~s", "ticksuffix": "B"}
    look = {"x": labels, "y": list(map(plain_text, layers)), "xgap": 1, "ygap": 1, "colorbar": bar}
    trace = heat_map(z, "%{y}, %{x}: %{text}", text=texts, **look)
    return {"data": [trace], "layout": {"xaxis": category_axis(), "yaxis": category_axis(down=True)}}
