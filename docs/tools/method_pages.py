"""What the pages of methods show that comes from the source: what is shared, options, scores.

`python docs/tools/pages.py` writes it into docs/methods/*.md, between `<!-- made: KIND METHODS -->` and
`<!-- /made -->`, and draws docs/pictures/methods/METHOD.svg. A picture shows one round of the method's last phase, read
from the forms of its messages, the fields of its states and a rehearsal of what a client starts training from.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stratafl.algorithms.declaration import METHODS, Hyperparameter
from stratafl.algorithms.sent_fields import Sent, SentField, SentStage, blended, sent_fields
from stratafl.config.assemble import algorithm_of, federation_to_run
from stratafl.config.deployment import ALL_PHASES_ROUNDS, blueprint_of
from stratafl.config.experiment import Experiment, with_values
from stratafl.core.algorithm import Algorithm
from stratafl.core.layers import Layer
from stratafl.core.layerwise import Layerwise
from stratafl.core.parcel import Parcel
from stratafl.core.phased import Phased
from stratafl.core.rehearsal import Rehearsal
from stratafl.core.round import Round
from stratafl.core.state import State
from stratafl.data.sample_format import SampleFormat
from stratafl.policies import LocalTraining

DOCS = Path(__file__).parents[1]
FOLDER, PICTURES, RESULTS = DOCS / "methods", DOCS / "pictures/methods", DOCS / "results"
MARKED = re.compile(r"<!-- made: (\w+) ([\w, ]+) -->\n.*?<!-- /made -->", re.DOTALL)
OTHER_MODELS = {"fedbn": "convnorm"}  # methods that are pictured with another model than `cnn`
MODEL_FIELDS = {"theta": "", "u": "", "core": "", "heads": "", "cores": "N models", "models": "M models"}
MODEL_FIELDS |= {"groups": "M models"}
SYMBOLS = {"received": "●", "made": "◐", "mixture": "◐", "own": "○", "either": "◒"}

# Pictures


@dataclass(frozen=True)
class Cell:
    """What happens to a layer: a word, and the colour it is drawn in."""

    word: str
    kind: str = "none"


NOTHING = Cell("")


@dataclass(frozen=True)
class Picture:
    """One round of a method: rows of cells, one for each layer, and a last one for everything else."""

    method: str
    layers: tuple[tuple[str, int], ...]  # names and numbers of values
    rows: tuple[tuple[str, tuple[Cell, ...], str], ...]
    later: bool  # whether it shows a later phase

    @property
    def symbols(self) -> str:
        """What training starts from, a symbol for each layer."""
        arrives, cells = self.rows[0][1], self.rows[1][1]
        return "".join(SYMBOLS[_start(*pair)] for pair in zip(arrives, cells, strict=True))


def _start(arrived: Cell, cell: Cell) -> str:
    return "made" if cell.kind == "received" and arrived.kind == "made" else cell.kind


def model_of(name: str) -> str:
    """The model with which a method is pictured."""
    return OTHER_MODELS.get(name, "cnn")


@cache
def prepared(name: str) -> tuple[Algorithm, Round, Sent]:
    """The method with its defaults, the last round before any finishing pass, and what travels."""
    experiment = with_values(Experiment(), {"algorithm.name": name, "model.name": model_of(name)})
    algorithm, rounds = algorithm_of(experiment), experiment.run.rounds
    if isinstance(algorithm, Phased) and algorithm.before(rounds) >= rounds:
        rounds = ALL_PHASES_ROUNDS
    experiment = replace(experiment, run=replace(experiment.run, rounds=rounds, device="cpu"))
    federation = federation_to_run(experiment)
    blueprint = blueprint_of(experiment, SampleFormat.of(federation), federation.clients)
    algorithm, setup = blueprint.algorithm, blueprint.setup()
    return algorithm, Round(setup, rounds - 1, algorithm.plan(rounds - 1, rounds)), sent_fields(algorithm, setup)


def picture_of(name: str) -> Picture:
    """The rows of the picture, from the method itself."""
    algorithm, rnd, sent = prepared(name)
    record = algorithm.records[-1] if isinstance(algorithm, Phased) else algorithm
    assert isinstance(record, Layerwise)
    layers = rnd.layout.layers
    down, up = _last(sent.downloads), _last(sent.uploads)
    arrives = tuple(_arrival(layer, down.fields) for layer in layers)
    state = algorithm.enrol(rnd.setup, torch.tensor([0]))
    rows = [
        ("arrives", arrives, _others(down.fields)),
        ("training starts from", _starts(algorithm, rnd, arrives), ""),
        ("trained", _trained(record.train, rnd), ""),
        ("sent", _sendings(algorithm, rnd, up.fields), _others(up.fields)),
        ("stays at the client", tuple(_kept(layer, state) for layer in layers), _other_values(state)),
    ]
    if record.tune:
        rows.append(("tuned before use", _trained(record.tune, rnd), "on a copy"))
    sizes = [(layer.name, sum(rnd.layout.specs[tensor].size for tensor in layer.tensors)) for layer in layers]
    later = len([stage for stage in sent.downloads if not stage.finish]) > 1
    return _narrowed(Picture(name, tuple(sizes), tuple(rows), later))


def _narrowed(picture: Picture) -> Picture:
    """Neighbouring layers of one part, such as those of `fc.valve`, are one column if they are alike."""
    columns = list(zip(*(cells for _, cells, _ in picture.rows), strict=True))
    groups: list[list[int]] = []
    for i, (name, _) in enumerate(picture.layers):
        before = groups[-1][0] if groups else None
        alike = before is not None and _part(picture.layers[before][0]) == _part(name) and columns[before] == columns[i]
        if alike and name.count(".") > 1:
            groups[-1].append(i)
        else:
            groups.append([i])
    sizes = [sum(picture.layers[i][1] for i in group) for group in groups]
    names = [picture.layers[group[0]][0] for group in groups]
    names = [_part(name) if len(group) > 1 else name for name, group in zip(names, groups, strict=True)]
    layers = zip(names, sizes, strict=True)
    rows = [(title, tuple(cells[g[0]] for g in groups), other) for title, cells, other in picture.rows]
    return replace(picture, layers=tuple(layers), rows=tuple(rows))


def _part(name: str) -> str:
    return ".".join(name.split(".")[:2])


def _last(stages: Sequence[SentStage]) -> SentStage:
    return [stage for stage in stages if not stage.finish][-1]


def _models_of(layer: Layer, fields: Iterable[SentField]) -> list[SentField]:
    """The fields that carry the model of this layer."""
    return [field for field in fields if field.name in MODEL_FIELDS and set(layer.tensors) & set(field.tensors)]


def _arrival(layer: Layer, fields: Iterable[SentField]) -> Cell:
    for field in _models_of(layer, fields):
        if field.mask == "layers":
            return Cell("if shared" if field.common else "if not retained", "either")
        if MODEL_FIELDS[field.name]:
            return Cell(MODEL_FIELDS[field.name], "made")
        return Cell("same for all", "received") if field.common else Cell("for this client", "made")
    return NOTHING


def _starts(algorithm: Algorithm, rnd: Round, arrives: Sequence[Cell]) -> tuple[Cell, ...]:
    """Whether a layer depends on what arrives, on what the client kept, or on both: each is changed in turn."""
    ids, task = torch.tensor([0]), Rehearsal(rnd)
    client: State = _noisy(algorithm.enrol(rnd.setup, ids), 1)
    down = algorithm.download(rnd, algorithm.init(rnd.setup), ids)
    other_down = Parcel({name: replace(field, value=_noisy(field.value, 2)) for name, field in down.items()})

    def model(state: State, parcel: Parcel) -> Mapping[str, Tensor]:
        return algorithm.receive(rnd, state, parcel, task)[algorithm.row]  # type: ignore[return-value]

    usual, by_client, by_server = model(client, down), model(_noisy(client, 3), down), model(client, other_down)

    def cell(layer: Layer, arrived: Cell) -> Cell:
        names = [name for name in layer.tensors if rnd.layout.specs[name].trainable] or list(layer.tensors)
        own, received = ((any(not torch.equal(usual[n], x[n]) for n in names)) for x in (by_client, by_server))
        if arrived.kind == "either":
            return Cell("received or own", "either")
        if own and received:
            return Cell("mixture", "mixture")
        return Cell("received", "received") if received else Cell("its own", "own")

    return tuple(cell(*pair) for pair in zip(rnd.layout.layers, arrives, strict=True))


def _noisy(value: Any, seed: int) -> Any:
    """The same tensors with positive noise, so that counts of rounds are above 0."""
    if isinstance(value, Tensor):
        noise = torch.rand(value.shape, generator=torch.Generator().manual_seed(seed)) + 0.1
        return value + noise.to(value) if value.is_floating_point() else value
    return {name: _noisy(each, seed) for name, each in value.items()}


def _trained(steps: Iterable[Any], rnd: Round) -> tuple[Cell, ...]:
    """Which descents move a layer, by their order if there are several."""
    descents = [step for step in steps if isinstance(step, LocalTraining) and step.lr]
    movable = {name for name, spec in rnd.layout.specs.items() if spec.trainable}

    def cell(layer: Layer) -> Cell:
        moved = [str(i) for i, step in enumerate(descents, 1) if layer.name in rnd.layout.resolve(step.layers)]
        if not moved or not movable & set(layer.tensors):
            return Cell("fixed")
        return Cell("trained" if len(descents) == 1 else f"pass {', '.join(moved)}", "trained")

    return tuple(cell(layer) for layer in rnd.layout.layers)


def _sendings(algorithm: Algorithm, rnd: Round, fields: Sequence[SentField]) -> tuple[Cell, ...]:
    mixed = set(blended(algorithm, rnd, algorithm.init(rnd.setup), _unsent(rnd, fields))) if fields else set()

    def cell(layer: Layer) -> Cell:
        for field in _models_of(layer, fields):
            return Cell("a part", "part") if field.mask == "columns" else Cell("whole", "received")
        return Cell("blended", "part") if mixed & set(layer.tensors) else NOTHING

    return tuple(cell(layer) for layer in rnd.layout.layers)


def _unsent(rnd: Round, fields: Iterable[SentField]) -> list[str]:
    return [name for name in rnd.layout.specs if not any(name in field.tensors for field in fields)]


def _kept(layer: Layer, state: State) -> Cell:
    names = [n for n, value in state.items() if not isinstance(value, Tensor) and set(value) & set(layer.tensors)]
    words = ["its model" if name in ("theta", "personal", "own", "core") else name for name in names]
    return Cell(", ".join(dict.fromkeys(words)), "own") if words else NOTHING


def _others(fields: Iterable[SentField]) -> str:
    return ", ".join({"samples": "n_k"}.get(f.name, f.name) for f in fields if f.name not in MODEL_FIELDS)


def _other_values(state: State) -> str:
    return ", ".join(n for n, value in state.items() if isinstance(value, Tensor) and n not in ("met", "rounds"))


# Drawing

LEFT, CELL, RIGHT, TOP, ROW, PAD = 168, 122, 178, 66, 44, 14
STYLE = """
    .paper { fill: #ffffff; stroke: #d5dae3 } text { font: 15px system-ui, sans-serif; fill: #1f2733 }
    .small { font-size: 12px; fill: #5a6475 } .none { fill: none; stroke: #b9c1cf; stroke-dasharray: 4 4 }
    .received { fill: #cfe3ff; stroke: #2f6fc4 } .made, .mixture { fill: #e4d7fb; stroke: #7a4fc9 }
    .own { fill: #ffdfbd; stroke: #c26a12 } .either { fill: #e3efc8; stroke: #6f8f24 }
    .part { fill: #e9f2ff; stroke: #2f6fc4; stroke-dasharray: 7 3 } .trained { fill: #eceff4; stroke: #6b7688 }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #1d222c; stroke: #3b4454 } text { fill: #eef1f6 } .small { fill: #aab4c4 }
      .none { stroke: #566074 } .received { fill: #1f4476; stroke: #7fb2f5 } .own { fill: #6d420f; stroke: #f0a756 }
      .made, .mixture { fill: #4a3280; stroke: #b79bf0 } .either { fill: #445a14; stroke: #b4d35c }
      .part { fill: #22364f; stroke: #7fb2f5 } .trained { fill: #39414f; stroke: #97a3b6 }
    }"""
COLOURS = {
    "received": "the same for all",
    "made": "made for this client",
    "own": "the client's own",
    "either": "chosen layer by layer",
    "part": "a part",
}


def drawn(picture: Picture) -> str:
    """The picture as SVG, on a background of its own, for light and dark pages."""
    width = LEFT + CELL * len(picture.layers) + RIGHT
    height = TOP + ROW * len(picture.rows) + 46
    label = METHODS[picture.method].label
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-labelledby="title desc" data-symbols="{picture.symbols}">',
        f'  <title id="title">{escape(label)}: one round, layer by layer</title>',
        f'  <desc id="desc">{escape(described(picture))}</desc>',
        f"  <style>{STYLE}\n  </style>",
        f'  <rect class="paper" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>',
        f'  <text x="{PAD}" y="30">{"main rounds" if picture.later else "every round"}</text>',
        f'  <text class="small" x="{PAD}" y="48">{model_of(picture.method)}, values of each layer</text>',
    ]
    for i, (name, size) in enumerate(picture.layers):
        middle = LEFT + CELL * i + CELL // 2
        lines.append(f'  <text x="{middle}" y="30" text-anchor="middle">{escape(name)}</text>')
        lines.append(f'  <text class="small" x="{middle}" y="48" text-anchor="middle">{size:,}</text>')
    lines.append(f'  <text class="small" x="{width - RIGHT + PAD}" y="30">also</text>')
    for number, (title, cells, other) in enumerate(picture.rows):
        top = TOP + ROW * number
        lines.append(f'  <text x="{PAD}" y="{top + 25}">{escape(title)}</text>')
        for i, cell in enumerate(cells):
            left = LEFT + CELL * i
            size = f'width="{CELL - 8}" height="{ROW - 8}" rx="6"'
            lines.append(f'  <rect class="{cell.kind}" x="{left + 4}" y="{top + 2}" {size}/>')
            small = ' class="small"' if len(cell.word) > 13 or cell.kind == "none" else ""
            middle = left + CELL // 2
            words = f'<text{small} x="{middle}" y="{top + 25}" text-anchor="middle">{escape(cell.word)}</text>'
            lines += [f"  {words}"] if cell.word else []
        lines += [_also(other, width - RIGHT + PAD, top)] if other else []
    return "\n".join([*lines, *_legend(picture, height - 18), "</svg>", ""])


def _also(text: str, x: int, top: int) -> str:
    first, *rest = re.findall(r".{1,24}(?:, |$)|.+", text)
    lines = [first, "".join(rest)] if rest else [first]
    y = top + (18 if rest else 25)
    return "\n".join(
        f'  <text class="small" x="{x}" y="{y + 15 * i}">{escape(line.strip())}</text>' for i, line in enumerate(lines)
    )


def _legend(picture: Picture, y: int) -> list[str]:
    kinds = {("made" if cell.kind == "mixture" else cell.kind) for _, cells, _ in picture.rows for cell in cells}
    lines, x = [], PAD
    for kind, words in COLOURS.items():
        if kind in kinds:
            lines.append(f'  <rect class="{kind}" x="{x}" y="{y - 11}" width="16" height="14" rx="3"/>')
            lines.append(f'  <text class="small" x="{x + 22}" y="{y}">{words}</text>')
            x += 48 + 7 * len(words)
    return lines


def described(picture: Picture) -> str:
    """The picture in words."""
    names = [name for name, _ in picture.layers]
    return " ".join(f"{title.capitalize()}: {_listed(names, cells, other)}." for title, cells, other in picture.rows)


def _listed(names: Sequence[str], cells: Sequence[Cell], other: str) -> str:
    by_word: dict[str, list[str]] = {}
    for name, cell in zip(names, cells, strict=True):
        by_word.setdefault(cell.word or "nothing", []).append(name)
    parts = [f"{'all layers' if len(each) == len(names) else ', '.join(each)} {w}" for w, each in by_word.items()]
    return "; ".join([*parts, *([f"also {other}"] if other else [])])


# Options

_SIZE = "size of the hypernetwork"
MEANINGS = {
    "weights_lr": "learning rate of the mixing weights",
    "strength": "how strongly the extra term of the loss pulls",
    "apple.strength": "μ, how strongly the weights are pulled to their start p_0",
    "until": "share of the rounds in which the weights are pulled",
    "own": "weight of the client's own model; `none`: that of any other",
    "scaled": "divide the learning rate of a core by the weight it starts with",
    "personal_epochs": "epochs of the personal model; `none`: those of `train`",
    "layers": "the layers that are mixed element by element",
    "fedala.share": "share of the training batches from which W is learned",
    "fedcac.share": "τ, the share of each tensor that counts as critical",
    "first_passes": "passes over the data when W is learned for the first time",
    "fedalp.beta": "β, the weight of the group's model in the layer that moved most",
    "fedcac.beta": "β, the round after which a client collaborates with no other",
    "pfedme.beta": "β, how far the server moves to the mean of the local models",
    "fedalp.groups": "number of groups; `none`: three for every four clients, from 2 to 20",
    "ifca.groups": "number of models",
    "warmup": "rounds of FedAvg at the start; `none`: by `warmup_share`",
    "warmup_share": "the same as a share of all rounds",
    "base": "which model a group's step starts from: the mixed one that was sent, or the group's own",
    "gamma": "sum of the weights to 1 in each group, or over all clients",
    "features": "what groups are formed by: cosines between updates, or angles",
    "fedamp.alpha": "step towards the models of others; `none`: σ",
    "radius": "α, the radius of the ball in which the client that gains least is helped, as a share of ‖g‖",
    "perfedavg.alpha": "learning rate of the adaptation step; `none`: that of `train`",
    "sigma": "σ, the squared distance at which others count for little; `none`: the median distance",
    "align_lr": "learning rate of the alignment",
    "align_epochs": "epochs of the alignment",
    "tune_epochs": "epochs of fine-tuning before use",
    "head_epochs": "epochs for the head alone, before the rest",
    "fixed": "layers that are neither trained nor sent",
    "feddbe.momentum": "μ, the weight of the newest batch in the running mean",
    "momentum": "momentum of the server's optimiser",
    "epsilon": "ε in the denominator of the step; a large one gives FedAvg",
    "models": "M, the number of models that a client is sent",
    "fedlag.k": "number of layers that may become personal; `none`: 5, or half of the layers of a small model",
    "heurpfedla.k": "number of layers that a client retains; `none`: 1",
    "xi": "ξ, the cosine below which two updates conflict",
    "weights": "weights of the mean: by numbers of samples, or equal",
    "bn": "normalisation layers follow the layer that they normalise, or are always averaged",
    "optimizer": "FedAdam, FedYogi or FedAvgM",
    "server_lr": "η, the learning rate of the server",
    "fedopt.server_lr": "η, the learning rate of the server; `none`: 0.01, and 1 with `momentum`",
    "beta1": "β₁, the weight of the past in the mean of updates",
    "beta2": "β₂, the weight of the past in the mean of their squares",
    "tau": "τ, added to the root of the mean square",
    "fedlc.tau": "τ, the size of the margins; 0 gives FedAvg",
    "personal": "the layers that stay with the client",
    "initial": "start of the hypernetworks: equal weights, or drawn ones",
    "fedper.initial": "start of the personal layers: common to all clients, or drawn for each",
    "pfedhn.initial": "start of the generated model: the common initial one, or drawn",
    "pfedhnpc.initial": "start of the generated base: the common initial one, or drawn",
    "finetune": "epochs in which the personal layers train alone, before the joint ones",
    "linear_base": "replace everything that is not personal by one linear layer",
    "smoothing": "s, added to the count of every class",
    "pfedfda.epsilon": "added to the share of every class before they are made to sum to 1",
    "ridge": "added to the diagonal of each client's own covariance",
    "pfedfda.beta": "β of both means and covariance; `none`: by cross-validation, one for each",
    "balanced": "train the generic head with balanced softmax, or with plain cross-entropy",
    "s": "number of layers of the head",
    "guide": "mix the received head with the client's own (Eq. 2)",
    "rates": "a learning rate for each layer and step (Eq. 4)",
    "mask": "send only what changed most (Eq. 5–9)",
    "accuracy": "the split on which A_k is measured, or a fixed A",
    "accuracy_of": "the model whose accuracy A_k is: after training, or as initialised",
    "least": "the smallest share of a layer that is sent",
    "unsent": "parameters that no client sent: held, or averaged as zeros",
    "preset": "the paper's equations, or what its code does",
    "p": "preset `official`: tensors that train alone for one more epoch",
    "middle": "preset `official`: factor on the learning rates between the first layer and the head",
    "decay": "weight decay of the server's optimiser",
    "gpfl.decay": "μ, weight decay of class embeddings and valve",
    "sharpness": "how much more similar models weigh; 0: all alike",
    "retained": "always these layers, in place of the `k` with the largest weight on the client itself",
    "hyper_step": "step of the hypernetworks, without a scale",
    "hyper_lr": "learning rate of the hypernetworks, as in Eq. 10–11, in place of `hyper_step`",
    "pfedhn.hyper_lr": "learning rate of the hypernetwork and the embeddings",
    "pfedhnpc.hyper_lr": "learning rate of the hypernetwork and the embeddings",
    "embedding": f"{_SIZE}: numbers in an embedding",
    "width": f"{_SIZE}: units of a hidden layer",
    "hidden": f"{_SIZE}: units of a hidden layer",
    "depth": f"{_SIZE}: hidden layers",
    "normalise": "what makes the weights sum to 1",
    "unit": "one weight for each layer, or for the whole model",
    "sign": "direction of the hypernetworks' step: towards the trained model, or as in public code",
    "shared": "the layers that are averaged; all others stay",
    "temperature": "τ of the contrastive loss",
    "version": "first order (`fo`), or Hessian-free second order (`hf`)",
    "delta": "δ, the step of the finite difference of `hf`",
    "clip": "largest norm of the server's gradient",
    "inner": "K, steps on each batch",
    "personal_lr": "learning rate of the personal model",
}


def options_table(names: Sequence[str]) -> str:
    """Every option with its default, what it may be, where a tuner looks, and what it means."""
    options: dict[tuple[str, Any], tuple[Hyperparameter, list[str]]] = {}
    for name in names:
        for option in METHODS[name].hyperparameters:
            options.setdefault((option.name, option.default), (option, []))[1].append(name)
    if not options:
        return "None of its own; those of [`[train]`](../reference/settings.md#train) apply."
    several = len(names) > 1
    rows = [
        (
            f"`{option.name} = {_toml(option.default)}`"
            + (f" (`{'`, `'.join(users)}`)" if several and len(users) < len(names) else ""),
            _allowed(option) + _tuned(option),
            MEANINGS.get(f"{users[0]}.{option.name}") or MEANINGS[option.name],
        )
        for option, users in options.values()
    ]
    return _table(("option", "allowed; tuned in", "meaning"), rows)


def _toml(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _allowed(option: Hyperparameter) -> str:
    if option.type == "layers":
        return "layers, such as `last:2`"
    words = [", ".join(f"`{choice}`" for choice in option.choices)] if option.choices else []
    words += [str(option.limits)] if option.limits else []
    return " or ".join(words) or {"bool": "`true`, `false`", "int": "integer", "float": "number"}[option.type]


def _tuned(option: Hyperparameter) -> str:
    tune = option.tune
    if tune is None:
        return ""
    if tune.choices:
        return "; " + ", ".join(f"{choice:g}" for choice in tune.choices)
    return f"; {tune.low:g} to {tune.high:g}" + (", log" if tune.log else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    first, *rest = ("| " + " | ".join(line) + " |" for line in (head, *rows))
    return "\n".join([first, "|---" * len(head) + "|", *rest])


# Scores

SCORES = (("α = 0.1", 1), ("new clients", 3), ("α = 0.5", 4), ("new clients", 5))  # columns of docs/results/methods.md
TIME = 8
MADE = "MNIST, % correct (difference from FedAvg); time relative to FedAvg's ([setting](../results/methods.md))."
NOT_RUN = "It is not in the [table of methods on MNIST](../results/methods.md)."
UNSCORED = "It is not in the [MNIST table](../results/methods.md), and its own paper's experiments were not run."
PUBLISHED = (  # page of docs/results, start of the table, the paper's column, ours, where it is printed, command
    (
        "flayer",
        "| CIFAR-100, CNN | paper |",
        1,
        2,
        "FLAYER, Table 2: CIFAR-100, CNN",
        "flayer/table2 --scale headline",
    ),
    (
        "pfedla",
        "| CIFAR-100 | non-IID_1",
        1,
        2,
        "pFedLA, Table 1: CIFAR-100, 10 clients",
        "pfedla/table1 --scale short",
    ),
    (
        "pfedla",
        "| CIFAR-100 | non-IID_1",
        3,
        4,
        "pFedLA, Table 2: CIFAR-100, 10 clients",
        "pfedla/table2 --scale short",
    ),
    (
        "fedlag",
        "| CIFAR-100, α = 0.1, 20 % take part |",
        1,
        3,
        "FedLAG, Table 1: CIFAR-100, 20 % of clients",
        "fedlag/table1 --scale short --seeds 1",
    ),
)
OTHER_NAMES = {"Local Training": "Local", "FedAvg, then alone": "FedAvg30+Local"}
OWN_TABLES = ("fedalp",)  # its page shows the numbers of its paper itself


def scores_table(names: Sequence[str]) -> str:
    """The scores on MNIST with their differences from FedAvg's, then published numbers beside ours."""
    rows = _score_rows()
    if not set(names) <= set(rows):
        return UNSCORED if METHODS[names[0]].paper else NOT_RUN
    lines = [(METHODS[name].label, *_scores(rows[name], rows["fedavg"]), rows[name][TIME]) for name in names]
    table = _without_names(names, [("method", *(title for title, _ in SCORES), "time"), *lines])
    published = [line for name in names for line in _published(METHODS[name].label)]
    if published:
        head = ("method", "published in", "printed", "ours", "command")
        return f"{table}\n\n{MADE}\n\n{_without_names(names, [head, *published])}"
    if set(names) & set(OWN_TABLES) or not METHODS[names[0]].paper:
        return f"{table}\n\n{MADE}"
    return f"{table}\n\n{MADE} Its own paper's experiments were not run."


def _without_names(names: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The table, without the column of methods if there is only one."""
    head, *rows = [line[int(len(names) == 1) :] for line in lines]
    return _table(head, rows)


def _scores(row: Sequence[str], fedavg: Sequence[str]) -> Iterable[str]:
    for _, i in SCORES:
        score, other = (float(cells[i].partition(" ")[0]) for cells in (row, fedavg))
        yield row[i] if row is fedavg else f"{row[i]} ({score - other:+.1f})".replace("-", "−").replace("+0.0", "0.0")


def _score_rows() -> dict[str, list[str]]:
    lines = (RESULTS / "methods.md").read_text(encoding="utf-8").splitlines()
    rows = [_cells(line) for line in lines if line.startswith("| ")]
    return {cells[0].strip("*`"): cells for cells in rows}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def _published(label: str) -> Iterable[tuple[str, ...]]:
    for page, start, paper, ours, where, command in PUBLISHED:
        text = (RESULTS / f"{page}.md").read_text(encoding="utf-8")
        rows = [_cells(line) for line in text[text.index(start) :].partition("\n\n")[0].splitlines()]
        for cells in rows:
            if OTHER_NAMES.get(cells[0], cells[0]) == label:
                printed, measured = (cells[i].strip("*") for i in (paper, ours))
                yield label, f"[{where}](../results/{page}.md)", printed, measured, f"`strata reproduce {command}`"


# What is shared


def shared_text(names: Sequence[str]) -> str:
    """The pictures, what a client sends and is sent, and what a new client gets."""
    images = [f"![{METHODS[name].label}: one round, layer by layer](../pictures/methods/{name}.svg)" for name in names]
    sent = [prepared(name)[2] for name in names]
    facts = {
        "Up": [_stages(each.uploads) for each in sent],
        "Down": [_stages(each.downloads) for each in sent],
        "New client": [METHODS[name].new_client for name in names],
    }
    lines = [f"- **{title}:** {_by_method(names, texts)}." for title, texts in facts.items()]
    return "\n\n".join([*images, "\n".join(lines)])


def _by_method(names: Sequence[str], texts: Sequence[str]) -> str:
    """One text if it is the same for all methods, or else one for each."""
    if len(set(texts)) == 1:
        return texts[0]
    return "; ".join(f"{METHODS[name].label}: {text}" for name, text in zip(names, texts, strict=True))


def _stages(stages: Sequence[SentStage]) -> str:
    return "; ".join(_stage(stage) for stage in stages)


def _stage(stage: SentStage) -> str:
    size = f"{'' if stage.exact else 'at most '}{stage.bytes:,} bytes"
    text = f"{_fields(stage)}, {size}" if stage.fields else "nothing"
    return text if stage.rounds == "every round" else f"{stage.rounds}: {text}"


def _fields(stage: SentStage) -> str:
    words = (f"`{field.name}`" + (f" ({field.layers})" if field.is_model else "") for field in stage.fields)
    return ", ".join(words)


# FedStrata's experiment

UPLOADS = {  # variants of docs/results/fedstrata/summary.csv
    "prior": "whole uploads, no rates (`fedprior`)",
    "most": "sparse uploads, no rates",
    "rates": "rates, whole uploads",
    "both": "**FedStrata**",
    "random": "random entries, as many",
    "smallest": "the smallest changes, as many",
    "unchanged": "the largest changes; entries that are not sent count as unchanged",
    "half": "whole uploads, server rate 0.5",
    "damped": "whole uploads, server rate i/L by layer",
    "double": "whole uploads, server rate 2",
    "momentum": "whole uploads, server momentum 0.5",
    "equal": "the largest changes, the same share of every layer",
    "shallower": "the largest changes, more of the first layers",
    "first": "the largest changes, the last layers whole",
    "last": "the largest changes, the first layers whole",
}


DESIGNS = {
    "prior": "class prior alone (`fedprior`)",
    "both": "**with rates and sparse uploads (FedStrata)**",
    "guided": "and FLAYER's guide (`fedprior+flayer`)",
    "fedala-both": "on FedALA (`fedala+prior+flayer`)",
}
FEDERATIONS = {"digits-0.5": "digits, α = 0.5", "digits-0.1": "digits, α = 0.1"}
ALL_FEDERATIONS = {**FEDERATIONS, "mnist-0.5": "MNIST, α = 0.5", "hospitals": "hospitals"}


def experiment_table(names: Sequence[str]) -> str:
    return _summary(names[0], "uploads", UPLOADS, FEDERATIONS)


def design_table(names: Sequence[str]) -> str:
    return _summary(names[0], "parts", DESIGNS, ALL_FEDERATIONS)


def _summary(method: str, title: str, variants: Mapping[str, str], federations: Mapping[str, str]) -> str:
    """Scores and differences from docs/results/<method>/summary.csv: a row for each variant."""
    with (RESULTS / method / "summary.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["federation"], row["variant"]): row for row in csv.DictReader(file)}

    def cell(federation: str, variant: str) -> str:
        row = rows[federation, variant]
        spread = f" ± {float(row['deviation']):.1f}" if row["deviation"] else ""
        gain = "" if variant == "prior" else f" ({float(row['difference']):+.1f}{spread})".replace("-", "−")
        return f"{float(row['accuracy']):.1f}{gain}"

    lines = [(label, *(cell(each, variant) for each in federations)) for variant, label in variants.items()]
    return _table((title, *federations.values()), lines)


# Pages

KINDS = {"picture": shared_text, "options": options_table, "scores": scores_table, "experiment": experiment_table}
KINDS["design"] = design_table


def filled(text: str) -> str:
    """A page with everything between its markers made again."""
    return MARKED.sub(lambda match: _made(match[1], match[2]), text)


def _made(kind: str, methods: str) -> str:
    body = KINDS[kind](methods.replace(",", " ").split())
    return f"<!-- made: {kind} {methods} -->\n{body}\n<!-- /made -->"


def pages() -> list[Path]:
    """The pages that hold markers."""
    paths = [*sorted(FOLDER.glob("*.md")), RESULTS / "fedstrata.md"]
    return [path for path in paths if MARKED.search(path.read_text(encoding="utf-8"))]


def write() -> None:
    """Draw all pictures and fill all pages."""
    PICTURES.mkdir(exist_ok=True)
    for name in METHODS:
        (PICTURES / f"{name}.svg").write_text(drawn(picture_of(name)), encoding="utf-8")
    for path in pages():
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
