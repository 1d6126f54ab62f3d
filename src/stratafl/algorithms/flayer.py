"""FLAYER (Chen et al., 2025): three layer-wise pieces on FedAvg, each of use alone.

Accuracy-guided initialisation of the head (Eq. 2), a learning rate per layer and step (Eq. 4), and an upload of each
layer's most changed parameters (Eq. 5–9), averaged over those who sent them. Layers are those of the run's granularity,
i = 1…L from the input on (`block` for a ResNet: stem, blocks, fc); a normalisation is part of the layer it normalises.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from stratafl.algorithm import Round, Setup
from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.flayer_official import official
from stratafl.errors import RecordError, unknown
from stratafl.fields import Number, Start
from stratafl.layers import Select, select
from stratafl.layerwise import Layerwise
from stratafl.layout import Layout, Rows
from stratafl.parcel import ColumnMask, Field, Parcel
from stratafl.policies import SGD, Accuracy, Mean, Remember, Take
from stratafl.records import record
from stratafl.state import State, Value, rows_of, tensor_of

if TYPE_CHECKING:
    from stratafl.task import Task

Split = Literal["train", "validation"]


def flayer(
    *,
    s: int = 1,
    guide: bool = True,
    rates: bool = True,
    mask: bool = True,
    accuracy: Split | float = "train",
    accuracy_of: Literal["trained", "initialised"] = "trained",
    least: float = 0.1,
    unsent: Literal["held", "zero"] = "held",
    preset: Literal["paper", "official"] = "paper",
    train: SGD = SGD(),
) -> Layerwise:
    """Algorithm 1: the last `s` layers are the head; `guide`, `rates` and `mask` switch its three parts (Fig. 3).

    `accuracy` is the split on which A_k is measured, of the model as `trained` or as `initialised`, or a fixed A;
    `least` is the smallest share of a layer that is sent; `unsent="zero"` averages what was not sent as zeros, as line
    12 says to the letter, and collapses. `preset="official"` is what the authors' code does (see `flayer_official`).
    """
    _check("preset", preset, ("paper", "official"))
    if preset == "official":
        if (s, guide, rates, mask, accuracy, accuracy_of, least, unsent) != _PAPER:
            raise RecordError("flayer: the preset 'official' takes no option but train: its parts cannot be switched")
        return official(train=train)
    _check_accuracy(accuracy)
    if not 0 <= least <= 1:
        raise RecordError(f"flayer: least is a share from 0 to 1, not {least}")
    _check("accuracy_of", accuracy_of, ("trained", "initialised"))
    _check("unsent", unsent, ("held", "zero"))
    if s < 1:
        raise RecordError(f"flayer: s counts the layers of the head, at least 1, not {s}")
    descent = replace(train, rates=(*train.rates, LayerRate())) if rates else train
    method = replace(
        fedavg(train=descent),
        mix=(Take(), Remember()),
        send=(TopChange(least),) if mask else fedavg().send,
        merge=(Mean(unsent=unsent),),
    )
    if not guide:
        return method
    head = select(f"last:{s}")
    guided = replace(method, mix=(Guide(head), Remember()), client={"theta": Start(head), "accuracy": Number(0.0)})
    if not isinstance(accuracy, str):
        return replace(guided, client={"theta": Start(head), "accuracy": Number(float(accuracy))})
    measured = Accuracy(accuracy)
    return replace(guided, train=(descent, measured) if accuracy_of == "trained" else (measured, descent))


_PAPER = (1, True, True, True, "train", "trained", 0.1, "held")  # the defaults of s … unsent


def _check(key: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise unknown(f"{key} of flayer", str(given), allowed)


def _check_accuracy(accuracy: Split | float) -> None:
    if isinstance(accuracy, str | bool):
        _check("accuracy", str(accuracy), ("train", "validation"))
    elif not 0 <= accuracy <= 1:
        raise RecordError(f"flayer: a fixed accuracy is from 0 to 1, not {accuracy}")


def positions(layout: Layout) -> list[int]:
    """i of each layer, from 1, as `last:s` counts them: a normalisation is where that is which it normalises."""
    alone = [layer.name for layer in layout.layers if layer.normalises is None]
    return [alone.index(layer.normalises or layer.name) + 1 for layer in layout.layers]


@record
class Guide:
    """θ̃_k = [θ_g of the base, A_k·θ_k + (1 − A_k)·θ_g of the head] (Eq. 2)."""

    head: Select
    reads = ("theta", "accuracy", "down.theta")
    writes = ("theta",)

    def check(self, setup: Setup) -> None:
        """Refuse a head that leaves no base."""
        if len(setup.layout.resolve(self.head)) == len(setup.layout.layers):
            most = max(positions(setup.layout)) - 1
            allowed = f"s is from 1 to {most}" if most else "a model of one layer has no head to mix (guide=False)"
            raise RecordError(f"flayer: {allowed}, '{self.head}' of this model leaves no base")

    def __call__(self, rnd: Round, desk: State, down: Parcel, task: "Task") -> State:
        """Statistics of the head are mixed with the same convex weights, where they travel."""
        own, received = rows_of(desk, "theta"), rows_of(Take()(rnd, desk, down, task), "theta")
        A = tensor_of(desk, "accuracy")
        head = [name for name in rnd.layout.travelling(self.head) if name in own]
        task.note("mix/own", A[:, None] * rnd.layout.layer_mask(self.head, A.device))
        mixed = {n: _each(A, own[n]) * own[n] + (1 - _each(A, own[n])) * received[n] for n in head}
        return {"theta": {**received, **mixed}}


def _each(values: Tensor, block: Tensor) -> Tensor:
    return values.to(block.dtype).reshape(-1, *(1,) * (block.ndim - 1))


@record
class LayerRate:
    """η^(i) = η·(1 + ln(1 + 1/‖g^(i)‖₂)·i/L), for each client, layer and step (Eq. 4); the norm has a floor."""

    floor: float = 1e-8
    reads = ()

    def __call__(self, gradients: Rows, row: Rows, desk: Mapping[str, Value], layout: Layout) -> Rows:
        """One factor per client and layer."""
        place = positions(layout)
        L = max(place)
        norms = _joined(layout.dot(gradients, gradients), place).sqrt().clamp(min=self.floor)
        i = torch.arange(1, L + 1, dtype=norms.dtype, device=norms.device)
        factors = 1 + torch.log1p(1 / norms) * i / L
        return layout.spread(torch.stack([factors[:, j - 1] for j in place], 1), gradients)


def _joined(squares: Tensor, place: list[int]) -> Tensor:
    """`[C, positions]`: the sums of what is at each position."""
    sums: dict[int, Tensor] = {}
    for i, column in zip(place, squares.unbind(1), strict=True):
        sums[i] = sums[i] + column if i in sums else column
    return torch.stack([sums[i] for i in sorted(sums)], 1)


@record
class TopChange:
    """The UP^i = min(max(i/L, 0.1), 1) of each layer that changed most since initialisation, and n_k (Eq. 5–9)."""

    least: float = 0.1
    reads = ("theta", "anchor")
    writes = ("up.theta", "up.samples")

    def __call__(self, rnd: Round, desk: State, task: "Task") -> Mapping[str, Field]:
        """Trainable columns with their mask; statistics go whole, where they travel."""
        layout, theta, start = rnd.layout, rows_of(desk, "theta"), rows_of(desk, "anchor")
        sent = {name: torch.ones_like(theta[name], dtype=torch.bool) for name in layout.travelling()}
        place = positions(layout)
        L = max(place)
        for i in range(1, L + 1):
            names = [name for name in layout.trainable() if place[layout.specs[name].layer] == i]
            if names:
                change = {name: (theta[name] - start[name]).abs() for name in names}  # Eq. 6
                sent |= top(change, min(max(i / L, self.least), 1.0))
        return {
            "theta": Field({name: theta[name] for name in sent}, mask=ColumnMask(sent)),
            "samples": Field(task.sizes("train")),
        }


def top(values: Rows, share: float) -> Rows:
    """The largest ⌈share·P⌉ of all columns of these blocks, client by client; ties go to the first (Eq. 7–8)."""
    flat = torch.cat([block.flatten(1) for block in values.values()], 1)
    count = ceil(round(share * flat.shape[1], 6))
    if count == flat.shape[1]:
        return {name: torch.ones_like(block, dtype=torch.bool) for name, block in values.items()}
    order = flat.argsort(dim=1, descending=True, stable=True)
    chosen = torch.zeros_like(flat, dtype=torch.bool).scatter_(1, order[:, :count], True)
    parts = chosen.split([block[0].numel() for block in values.values()], 1)
    return {name: part.reshape(block.shape) for (name, block), part in zip(values.items(), parts, strict=True)}
