"""The three layer-wise pieces of FLAYER, each of use alone.

Accuracy-guided initialisation of the head (Eq. 2), a learning rate per layer and step (Eq. 4), and an upload of each
layer's most changed parameters (Eq. 5–9), averaged over those who sent them. Layers are those of the run's granularity,
i = 1…L from the input on (`block` for a ResNet: stem, blocks, fc); a normalisation is part of the layer it normalises.
"""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.flayer_official import IN_ORDER, official
from stratafl.algorithms.methods import method
from stratafl.core.annotations import Fixed, Range, Tune
from stratafl.core.fields import Number, Start
from stratafl.core.footprint import Footprint
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout, Rows, per_row
from stratafl.core.parcel import ColumnMask, Field, Parcel
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, Value, rows_of, tensor_of
from stratafl.core.steps import Mix, Names, Send
from stratafl.core.task import Task
from stratafl.errors import RecordError
from stratafl.policies import Accuracy, LocalTraining, Mean, Remember, Take

Split = Literal["train", "validation"]
Share = Annotated[float, Range(least=0, most=1)]
SORTING = 8  # times what is sorted: values and places, and as much again while it is at it; measured


@method(
    "personal parts",
    paper="Chen et al., 2025",
    title="Optimizing Personalized Federated Learning through Adaptive Layer-Wise Learning",
    sends="of each layer the parameters that changed most: a tenth of the first layer, all of the last",
    new_client="the global model",
)
def flayer(
    *,
    s: Annotated[int, Range(least=1), Tune(1, 3)] = 1,
    guide: bool = True,
    rates: bool = True,
    mask: bool = True,
    accuracy: Split | Annotated[Share, Fixed("measured; a given A is for experiments")] = "train",
    accuracy_of: Literal["trained", "initialised"] = "trained",
    least: Annotated[Share, Tune(0.05, 0.5)] = 0.1,
    unsent: Literal["held", "zero"] = "held",
    preset: Literal["paper", "official"] = "paper",
    p: Annotated[int, Fixed("of the preset 'official', as published")] = 2,
    middle: Annotated[float, Fixed("of the preset 'official', as published")] = 20.0,
    train: LocalTraining | None = None,
) -> Layerwise:
    """FLAYER (Chen et al., 2025): three layer-wise pieces on FedAvg, each of use alone.

    Algorithm 1: the last `s` layers are the head; `guide`, `rates` and `mask` switch its three parts (Fig. 3).
    `accuracy` is the split on which A_k is measured, or a fixed A; `accuracy_of` is the model, as trained or
    initialised; `least` is the smallest share of a layer that is sent; `unsent="zero"` averages what was not sent as
    zeros, as line 12 says to the letter, and collapses. `preset="official"` is what the authors' code does (see
    `flayer_official`), with `p` and `middle`, which are its alone, instead of all these.
    """
    ours: dict[str, Any] = {"s": s, "guide": guide, "rates": rates, "mask": mask, "least": least, "unsent": unsent}
    ours |= {"accuracy": accuracy, "accuracy_of": accuracy_of}
    if preset == "official":
        _refuse_given("the preset 'official' takes p, middle and train, and its parts cannot be switched", ours)
        # Tables have no word for the order of batches, so that it is nobody's wish.
        return official(p=p, middle=middle, train=replace(train or IN_ORDER, shuffle=False))
    _refuse_given("p and middle are options of the preset 'official'", {"p": p, "middle": middle})
    if not isinstance(accuracy, str) and accuracy_of != "trained":
        raise RecordError(f"flayer: accuracy={accuracy} is never measured: leave out accuracy_of={accuracy_of!r}")
    descent = train or LocalTraining()
    descent = replace(descent, rates=(*descent.rates, LayerRate())) if rates else descent
    method = replace(
        fedavg(),
        mix=(Take(), Remember()),
        train=(descent,),
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


def _refuse_given(why: str, options: Mapping[str, Any]) -> None:
    """Refuse options that are not at their default, because they would be ignored."""
    defaults = inspect.signature(flayer).parameters
    for name, value in options.items():
        if value != defaults[name].default:
            raise RecordError(f"flayer: {why}: leave out {name}={value!r}")


@record
class Guide(Mix):
    """θ̃_k = [θ_g of the base, A_k·θ_k + (1 − A_k)·θ_g of the head] (Eq. 2), of the layers that are received.

    Of a model beside the one that is received, such as Ditto's, only the head is mixed (`base="own"`).
    """

    head: Select
    own: str = "theta"  # the client's model
    field: str = "theta"  # what it receives
    base: Literal["received", "own"] = "received"

    @property
    def reads(self) -> Names:
        return (self.own, "accuracy", f"down.{self.field}")

    @property
    def writes(self) -> Names:
        return (self.own,)

    def check(self, setup: Setup) -> None:
        """Refuse a head that leaves no base."""
        if len(setup.layout.resolve(self.head)) == len(setup.layout.layers):
            most = max(setup.layout.units)
            allowed = f"s is from 1 to {most}" if most else "a model of one layer has no head to mix (guide=False)"
            raise RecordError(f"flayer: {allowed}, '{self.head}' of this model leaves no base")

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        """Statistics of the head are mixed with the same convex weights, where they travel."""
        own, sent = rows_of(client, self.own), down[self.field].rows
        received = rows_of(Take(self.field, self.own)(rnd, client, down, task), self.own)
        A = tensor_of(client, "accuracy")
        head = [name for name in rnd.layout.travelling(self.head) if name in own and name in sent]
        task.note("mix/own", A[:, None] * rnd.layout.layer_mask(self.head, A.device))
        mixed = {n: _each(A, own[n]) * own[n] + (1 - _each(A, own[n])) * received[n] for n in head}
        return {self.own: {**(received if self.base == "received" else own), **mixed}}


def _each(values: Tensor, block: Tensor) -> Tensor:
    return per_row(values.to(block.dtype), block)


@record
class LayerRate:
    """η^(i) = η·(1 + ln(1 + 1/‖g^(i)‖₂)·i/L), for each client, layer and step (Eq. 4); the norm has a floor."""

    floor: Annotated[float, Range(above=0)] = 1e-8
    reads = ()

    def __call__(self, gradients: Rows, row: Rows, client: Mapping[str, Value], layout: Layout) -> Rows:
        """One factor per client and layer."""
        norms = layout.per_unit(layout.dot(gradients, gradients)).sqrt()
        norms = norms.clamp(min=max(self.floor, torch.finfo(norms.dtype).tiny))  # in float16, 1e-8 is 0
        L = norms.shape[1]
        i = torch.arange(1, L + 1, dtype=norms.dtype, device=norms.device)
        factors = 1 + torch.log1p(1 / norms) * i / L  # Eq. 4
        return layout.spread(torch.stack([factors[:, unit] for unit in layout.units], 1), gradients)


@record
class TopChange(Send):
    """The UP^i = min(max(i/L, 0.1), 1) of each layer that changed most since initialisation, and n_k (Eq. 5–9).

    Of a method that sends some `layers` only, only those; i and L count all layers of the model.
    """

    least: float = 0.1
    layers: Select = select("all")
    field: str = "theta"
    anchor: str = "anchor"
    masked = True

    @property
    def reads(self) -> Names:
        return (self.field, self.anchor)

    @property
    def writes(self) -> Names:
        return (f"up.{self.field}", "up.samples")

    def footprint(self, setup: Setup) -> Footprint:
        """Its mask and what changed most; one client's layer, sorted; and a weight per column on the server."""
        layer = max(setup.row_bytes(each.tensors) for each in setup.layout.layers)
        return mask_footprint(setup, layer)

    def __call__(self, rnd: Round, client: State, task: Task) -> Mapping[str, Field]:
        """Trainable columns with their mask; statistics go whole, where they travel."""
        layout, theta, start = rnd.layout, rows_of(client, self.field), rows_of(client, self.anchor)
        sent = {name: torch.ones_like(theta[name], dtype=torch.bool) for name in layout.travelling(self.layers)}
        L = max(layout.units) + 1
        for i in range(1, L + 1):
            names = [name for name in layout.trainable(self.layers) if layout.units[layout.specs[name].layer] == i - 1]
            if names:
                change = {name: (theta[name] - start[name]).abs() for name in names}  # Eq. 6
                sent |= top(change, min(max(i / L, self.least), 1.0))
        return {
            self.field: Field({name: theta[name] for name in sent}, mask=ColumnMask(sent)),
            "samples": Field(task.sizes("train")),
        }


def mask_footprint(setup: Setup, sorted_bytes: int) -> Footprint:
    """Columns with a mask: booleans and changes of each client, what is sorted, and sums of weights as of values."""
    columns = setup.row_bytes(dtype=torch.bool)
    sums = setup.row_bytes(dtype=torch.float64)
    return Footprint(client=2 * columns + 2 * sorted_bytes, served=SORTING * sorted_bytes, sums=sums)


def top(values: Rows, share: float) -> Rows:
    """The largest ⌈share·P⌉ of all columns of these blocks, client by client; ties go to the first (Eq. 7–8)."""
    flat = torch.cat([block.reshape(len(block), -1) for block in values.values()], 1)
    count = ceil(round(share * flat.shape[1], 6))
    if count == flat.shape[1]:
        return {name: torch.ones_like(block, dtype=torch.bool) for name, block in values.items()}
    chosen = torch.zeros_like(flat, dtype=torch.bool)
    some = 1 if flat.device.type == "cpu" else len(flat)  # places take twice as much as what is sorted
    for mine, rows in zip(chosen.split(some), flat.split(some), strict=True):
        mine.scatter_(1, rows.argsort(dim=1, descending=True, stable=True)[:, :count], True)
    parts = chosen.split([block[0].numel() for block in values.values()], 1)
    return {name: part.reshape(block.shape) for (name, block), part in zip(values.items(), parts, strict=True)}
