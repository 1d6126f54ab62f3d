"""Mixing weights: what the laboratory saw as matrices, layer by layer, with a slider over rounds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from stratafl.report.charts import SCALE, Branches, Chart, Control, Figure, said, short, thinned
from stratafl.report.choices import of_runs
from stratafl.report.journals import Looks, Matrix
from stratafl.report.study import Study

CHOSEN = 20  # rounds that a slider has, at most
CELLS = 300_000  # numbers of all matrices together
SIDE = 30  # rows and columns of a matrix, where there are too many for that
MATRICES = {"alpha": "α: how client i weighs client j", "psi": "Ψ of each group"}


def mixing_chart(study: Study) -> Chart | None:
    """Mixing weights as matrices, for each round that was looked at."""
    budget = _budget([record.looks for record in study.records.values()])
    tree = of_runs(study, partial(_weights, budget))
    some = "" if budget.side is None else f" Of all clients, {budget.side} are shown, evenly spaced."
    says = f"With which weights each layer was mixed; the slider chooses the round.{some}"
    controls = (Control("method"), Control("seed", "switch"), Control("layer"), Control("round", "slider"))
    return Chart("mixing", "Mixing weights", says, tree, controls, height=520) if tree.of else None


def _matrices(looks: Looks) -> Iterator[tuple[str, str, Mapping[int, Matrix]]]:
    for key, layers in looks.matrices.items():
        for layer, seen in layers.items():
            yield key, layer, seen


@dataclass(frozen=True)
class _Budget:
    """How many rounds a slider has, and how many rows and columns a matrix has at most."""

    rounds: int = CHOSEN
    side: int | None = None


def _budget(every: Sequence[Looks]) -> _Budget:
    """Fewer rounds where all matrices together are too much for one file; if one round is, smaller matrices, too."""
    found = [(len(seen), next(iter(seen.values()))) for looks in every for _, _, seen in _matrices(looks)]

    def needed(rounds: int) -> int:
        return sum(len(matrix) * len(matrix[0]) * min(looked, rounds) for looked, matrix in found)

    fitting = [rounds for rounds in range(1, CHOSEN + 1) if needed(rounds) <= CELLS]
    return _Budget(fitting[-1]) if fitting else _Budget(1, SIDE)


def _weights(budget: _Budget, looks: Looks) -> Branches | None:
    """For each layer and round a matrix, in the same colours for all rounds."""
    found: dict[str, Any] = {}
    for key, layer, seen in _matrices(looks):
        rounds = [sorted(seen)[i] for i in thinned(len(seen), budget.rounds)]
        kept = {t: _part(seen[t], budget.side) for t in rounds}
        ends = _ends([x for matrix in kept.values() for row in matrix for x in row if x is not None])
        name = layer if len(looks.matrices) == 1 else f"{layer}, {key}"
        found[name] = Branches({str(t): _matrix(matrix, key, ends) for t, matrix in kept.items()})
    return Branches(found) if found else None


def _part(matrix: Matrix, side: int | None) -> Matrix:
    if side is None:
        return matrix
    columns = thinned(len(matrix[0]), side)
    return [[matrix[i][j] for j in columns] for i in thinned(len(matrix), side)]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return (min(values), max(values)) if values else (0.0, 1.0)


def _matrix(matrix: Matrix, key: str, ends: tuple[float, float]) -> Figure:
    trace = {
        "type": "heatmap",
        "z": [[short(value) for value in row] for row in matrix],
        "colorscale": SCALE,
        "zmin": ends[0],
        "zmax": ends[1],
        "colorbar": {"thickness": 12},
        "hovertemplate": "row %{y}, column %{x}: %{z:.3g}<extra></extra>",
    }
    down = {"autorange": "reversed", "dtick": max(1, len(matrix) // 10), "constrain": "domain"}
    square = {"scaleanchor": "x"} if len(matrix) == len(matrix[0]) else {}
    titles = ("client j", "client i") if square else ("group", "")
    x = {"title": {"text": titles[0]}, "constrain": "domain", "dtick": max(1, len(matrix[0]) // 10)}
    y = {"title": {"text": titles[1]}, **down, **square}
    return {"data": [trace], "layout": {"xaxis": x, "yaxis": y, "title": {"text": MATRICES.get(key, said(key))}}}
