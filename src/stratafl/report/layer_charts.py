"""The layer laboratory in pictures: what was seen in each layer, over rounds and over methods; bytes per layer."""

from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import Any

from stratafl.report.bytes_chart import bytes_chart
from stratafl.report.charts import SCALE, Branches, Chart, Control, Figure, look, said, short, short_labels, thinned
from stratafl.report.choices import layers_of, of_runs
from stratafl.report.journals import Looks
from stratafl.report.mixing import mixing_chart
from stratafl.report.study import Study

LOOKED = 60  # rounds of a picture over rounds, at most
UPRIGHT = 8  # layers up to which their names fit beside each other
CHOSEN = 20  # rounds that a slider has, at most
NAMES = {
    "conflicts": "conflicts: share of client pairs whose updates point apart",
    "cka": "CKA: how alike clients' layers see the same samples",
    "sent": "share of the layer that was sent",
    "train.rate": "effective learning rate",
    "cosine": "mean cosine of updates",
    "update_norm": "norm of updates",
    "mix.own": "weight of the client's own layer",
    "personal": "kept personal (FedLAG)",
    "conflicting_pairs": "conflicting pairs (FedLAG's count)",
}
SHARES = ("conflicts", "sent", "cka", "mix.own", "personal")  # from 0 to 1


def layer_charts(study: Study) -> list[Chart]:
    """All pictures that the runs have something for."""
    made = (_rounds_chart(study), _methods_chart(study), mixing_chart(study), bytes_chart(study))
    return [chart for chart in made if chart is not None]


def _rounds_chart(study: Study) -> Chart | None:
    """Layers × rounds of one run, as a heat map."""
    shown = {NAMES.get(key, key): of_runs(study, partial(_heat, key)) for key in _keys(study)}
    tree = Branches({name: branches for name, branches in shown.items() if branches.of})
    says = "What the laboratory saw in each layer, in the rounds in which it looked."
    controls = (Control("show"), Control("method"), Control("seed", "switch"))
    layers = max((len(record.looks.layers) for record in study.records.values()), default=0)
    return Chart("layers", "Layers over rounds", says, tree, controls, height=_tall(layers)) if tree.of else None


def _methods_chart(study: Study) -> Chart | None:
    """One line per method over the layers, for each round that was looked at."""
    labels = short_labels([rank.label for rank in study.ranks])
    keys: dict[str, Any] = {}
    for key in _keys(study):
        numbers = sorted({t for record in study.records.values() for t in _rounds(record.looks, key)})
        rounds = [numbers[i] for i in thinned(len(numbers), CHOSEN)]
        found = {str(t): _lines(study, labels, key, t) for t in rounds}
        keys[NAMES.get(key, key)] = Branches({t: figure for t, figure in found.items() if figure["data"]})
    keys = {name: branches for name, branches in keys.items() if branches.of}
    says = "Mean over seeds, layer by layer, from the model's input to its head; the slider chooses the round."
    controls = (Control("show"), Control("round", "slider"))
    longest = max(map(len, layers_of(study)), default=0)
    height = 420 if len(layers_of(study)) <= UPRIGHT else 420 + 7 * longest  # names stand on their side then
    return Chart("methods", "Methods over layers", says, Branches(keys), controls, height) if keys else None


def _keys(study: Study) -> list[str]:
    """What was seen anywhere, the best known first."""
    seen = dict.fromkeys(key for record in study.records.values() for key in record.looks.numbers)
    return [*(key for key in NAMES if key in seen), *(key for key in seen if key not in NAMES)]


def _rounds(looks: Looks, key: str) -> list[int]:
    return sorted({number for seen in looks.numbers.get(key, {}).values() for number in seen})


def _heat(key: str, looks: Looks) -> Figure | None:
    if key not in looks.numbers:
        return None
    seen, numbers = looks.numbers[key], _rounds(looks, key)
    rounds = [numbers[i] for i in thinned(len(numbers), LOOKED)]
    layers = [layer for layer in looks.layers if layer in seen]
    form = ".1%" if key in SHARES and key != "cka" else ".3g"
    trace = {
        "type": "heatmap",
        "x": [str(number) for number in rounds],
        "y": [said(layer) for layer in layers],
        "z": [[short(seen[layer].get(number)) for number in rounds] for layer in layers],
        "colorscale": SCALE,
        "colorbar": {"thickness": 12, **({"tickformat": ".0%"} if form == ".1%" else {})},
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": f"%{{y}}, round %{{x}}: %{{z:{form}}}<extra></extra>",
        **({"zmin": 0, "zmax": 1} if key in SHARES else {}),
        **({"texttemplate": f"%{{z:{form}}}"} if len(rounds) * len(layers) <= 80 else {}),
    }
    axes = {"xaxis": {"title": {"text": "round"}, "type": "category"}}
    return {
        "data": [trace],
        "layout": axes | {"yaxis": {"type": "category", "autorange": "reversed", "automargin": True}},
    }


def _lines(study: Study, labels: Sequence[str], key: str, number: int) -> Figure:
    layers = [
        layer
        for layer in layers_of(study)
        if any(layer in r.looks.numbers.get(key, {}) for r in study.records.values())
    ]
    traces = []
    for place, rank in enumerate(study.ranks):
        means = {
            layer: _mean([r.looks.numbers.get(key, {}).get(layer, {}).get(number) for r in study.of(rank)])
            for layer in layers
        }
        if any(value is not None for value in means.values()):
            x, y = [said(layer) for layer in means], [short(value) for value in means.values()]
            traces.append(
                {"type": "scatter", "mode": "lines+markers", "name": said(labels[place]), "x": x, "y": y} | look(place)
            )
    shares = {"range": [-0.03, 1.03]} if key in SHARES else {"rangemode": "tozero"}
    order = {"type": "category", "categoryorder": "array", "categoryarray": [said(layer) for layer in layers]}
    axes = {"xaxis": {"title": {"text": "layer"}, **order, "automargin": True}}
    return {"data": traces, "layout": axes | {"yaxis": {"title": {"text": _brief(key)}, **shares}}}


def _brief(key: str) -> str:
    return {"cka": "CKA", "sent": "share sent", "train.rate": "rate", "update_norm": "norm"}.get(key, said(key))


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if there and len(there) == len(values) else None


def _tall(layers: int) -> int:
    return min(1600, 170 + 26 * max(layers, 4))
