"""Cuts: up to which layer clients share their model, by what their first epoch of training shows.

A cut of c shares the first c layers, in forward order, and leaves the others with each client: 0 is training alone, all
of them FedAvg. Two rules choose one; how often they are right is in docs/results/cuts.md.

- PLayer-FL (MLSys 2026): a layer's sensitivity is the mean of (θ·∇θ)² over its weights, after one epoch. Layers are
  shared up to the largest jump. The paper shows curves and its code has fixed lists, so "largest jump" is our reading.
- Conflicts, our own: the share of pairs of clients whose updates of the first epoch point apart, as FedLAG counts them.
  Layers are shared up to the largest rise, and all of them if few pairs conflict in any.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from stratafl.core.layout import Layout, Rows
from stratafl.core.state import State, rows_of
from stratafl.core.task import Stack, Task

FEW_CONFLICTS = 0.1  # the share of conflicting pairs below which all layers are shared
_BATCH = 256  # samples of a client from which its gradient is taken


def sensitivities(layout: Layout, rows: Rows, gradients: Rows) -> Tensor:
    """The mean of (θ·∇θ)² over clients and the weights of each layer between which the model can be cut."""
    of_layers: dict[str, list[Tensor]] = {name: [] for name in cut_layers(layout)}
    for name in weight_names(layout):
        product = (rows[name].double() * gradients[name].double()).square()
        of_layers[layout.layers[layout.specs[name].layer].name].append(product.flatten(1))
    return torch.stack([torch.cat(products, 1).mean().cpu() for products in of_layers.values()])


def weight_names(layout: Layout) -> list[str]:
    """The tensors whose sensitivity counts: without biases, statistics and layers that normalise others."""
    trained = [name for name in layout.trainable() if not name.endswith("bias")]
    return [name for name in trained if layout.leaders[(at := layout.specs[name].layer)] == at]


def cut_layers(layout: Layout) -> list[str]:
    """The layers between which a model can be cut, in forward order."""
    places = {layout.specs[name].layer for name in weight_names(layout)}
    return [layout.layers[at].name for at in sorted(places, key=lambda at: layout.units[at])]


@dataclass(frozen=True)
class Cut:
    """What a rule advises: the first `shared` of these layers are shared."""

    rule: str
    layers: tuple[str, ...]
    shared: int

    @property
    def personal(self) -> str:
        """The layers that stay with each client, as a selection."""
        count = len(self.layers) - self.shared
        return "none" if count == 0 else "all" if self.shared == 0 else f"last:{count}"


def cuts_of(layout: Layout, sensitivity: Sequence[float], conflicts: Mapping[str, float]) -> tuple[Cut, ...]:
    """What each rule advises; nothing for a model of one layer."""
    layers = tuple(cut_layers(layout))
    if len(layers) < 2:
        return ()
    by_conflicts = conflict_cut([conflicts.get(name, 0.0) for name in layers])
    return Cut("PLayer-FL", layers, sensitivity_cut(sensitivity)), Cut("conflicts", layers, by_conflicts)


def first_gradients(task: Task, rows: Rows) -> Rows:
    """Each client's gradient at its row, on one batch of its training samples."""

    def step(carry: State, constants: State, stack: Stack) -> State:
        out = task.gradients(rows_of(carry, "row"), stack)
        return {"row": carry["row"], "gradient": {name: out.rows[name] for name in rows_of(carry, "gradient")}}

    carry: State = {
        "row": dict(rows),
        "gradient": {name: torch.zeros_like(rows[name]) for name in weight_names(task.layout)},
    }
    return rows_of(task.scan(step, carry, batch=_BATCH, steps=1, purpose="cut"), "gradient")


def sensitivity_cut(sensitivity: Sequence[float]) -> int:
    """How many layers PLayer-FL's rule shares: those before the largest ratio of neighbours, if it is a rise."""
    ratios = [after / max(before, 1e-300) for before, after in pairwise(sensitivity)]
    largest = max(range(len(ratios)), key=ratios.__getitem__, default=None)
    return len(sensitivity) if largest is None or ratios[largest] <= 1 else largest + 1


def conflict_cut(conflicts: Sequence[float]) -> int:
    """How many layers are shared by the rule of conflicts."""
    if max(conflicts, default=0.0) < FEW_CONFLICTS:
        return len(conflicts)
    rises = [after - before for before, after in zip([0.0, *conflicts], conflicts, strict=False)]
    return max(range(len(rises)), key=rises.__getitem__)
