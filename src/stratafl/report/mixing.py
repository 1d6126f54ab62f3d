"""Mixing weights: the matrices of the layer diagnostics, layer by layer, with a slider over rounds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from stratafl.report.charts import (
    SCALE,
    Branches,
    Chart,
    Control,
    Figure,
    by_method_and_seed,
    plain_text,
    rounded,
    thinned,
)
from stratafl.report.study import LayerJournal, Matrix, Study

ROUNDS = 20  # of a slider at most
CELLS = 300_000  # numbers in all matrices together
SIDE = 30  # rows and columns of a matrix, if a single round has more numbers than CELLS
MATRICES = {"alpha": "α: weight of client j for client i", "psi": "Ψ of each group"}


def mixing_chart(study: Study) -> Chart | None:
    """The mixing weights of each layer as a matrix, for each round with diagnostics."""
    limits = _limits([record.layers for record in study.records.values()])
    tree = by_method_and_seed(study, partial(_weights, limits))
    some = "" if limits.side is None else f" Only {limits.side} clients are shown, evenly spaced."
    caption = f"The weights with which each layer was mixed. The slider sets the round.{some}"
    controls = (Control("method"), Control("seed", "switch"), Control("layer"), Control("round", "slider"))
    return Chart("mixing", "Mixing weights", caption, tree, controls, height=520) if tree.of else None


@dataclass(frozen=True)
class _Limits:
    """The most rounds of a slider, and the most rows and columns of a matrix."""

    rounds: int = ROUNDS
    side: int | None = None


def _limits(every: Sequence[LayerJournal]) -> _Limits:
    """Fewer rounds if all matrices are too large for one file; smaller matrices if a single round is too large."""
    found = [(len(rounds), next(iter(rounds.values()))) for layers in every for _, _, rounds in _matrices(layers)]

    def needed(most: int) -> int:
        return sum(len(matrix) * len(matrix[0]) * min(rounds, most) for rounds, matrix in found)

    fitting = [most for most in range(1, ROUNDS + 1) if needed(most) <= CELLS]
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
        found[name] = Branches({str(t): _figure(matrix, key, min(values), max(values)) for t, matrix in kept.items()})
    return Branches(found) if found else None


def _part(matrix: Matrix, side: int | None) -> Matrix:
    if side is None:
        return matrix
    columns = thinned(len(matrix[0]), side)
    return [[matrix[i][j] for j in columns] for i in thinned(len(matrix), side)]


def _figure(matrix: Matrix, key: str, low: float, high: float) -> Figure:
    trace = {
        "type": "heatmap",
        "z": [[rounded(value) for value in row] for row in matrix],
        "colorscale": SCALE,
        "zmin": low,
        "zmax": high,
        "colorbar": {"thickness": 12},
        "hovertemplate": "row %{y}, column %{x}: %{z:.3g}<extra></extra>",
    }
    down = {"autorange": "reversed", "dtick": max(1, len(matrix) // 10), "constrain": "domain"}
    square = {"scaleanchor": "x"} if len(matrix) == len(matrix[0]) else {}
    titles = ("client j", "client i") if square else ("group", "")
    x = {"title": {"text": titles[0]}, "constrain": "domain", "dtick": max(1, len(matrix[0]) // 10)}
    y = {"title": {"text": titles[1]}, **down, **square}
    return {"data": [trace], "layout": {"xaxis": x, "yaxis": y, "title": {"text": MATRICES.get(key, plain_text(key))}}}
