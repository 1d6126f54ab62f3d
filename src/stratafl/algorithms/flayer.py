"""The three layer-wise parts of FLAYER, each of which works alone.

Accuracy-guided initialisation of the head (Eq. 2), a learning rate per layer and step (Eq. 4), and an upload of each
layer's most changed parameters (Eq. 5–9), averaged over the clients that sent them. Layers i = 1…L are those of the
run's granularity (`block` for a ResNet: stem, blocks, fc), counted from the input; a normalisation belongs to the layer
it normalises.
"""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.flayer_official import IN_ORDER, official
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
from stratafl.core.steps import Mix, Send, Train, field_names
from stratafl.core.task import Task
from stratafl.errors import RecordError
from stratafl.policies import Accuracy, LocalTraining, Mean, Remember, Take

Split = Literal["train", "validation"]
Share = Annotated[float, Range(least=0, most=1)]
SORTING = 8  # peak memory of a stable argsort, as a multiple of its input (measured)
OFFICIAL_OPTIONS = ("p", "middle")


@method(
    "personal parts",
    paper="Chen et al., 2025",
    title="Optimizing Personalized Federated Learning through Adaptive Layer-Wise Learning",
    sends="the most changed parameters of each layer: a tenth of the first layer, all of the last",
)
def flayer(
    *,
    s: Annotated[int, Range(least=1), Tune(1, 3)] = 1,
    guide: bool = True,
    rates: bool = True,
    mask: bool = True,
    accuracy: Split | Annotated[Share, Fixed("measured; set A only for experiments")] = "train",
    accuracy_of: Literal["trained", "initialised"] = "trained",
    least: Annotated[Share, Tune(0.05, 0.5)] = 0.1,
    unsent: Literal["held", "zero"] = "held",
    preset: Literal["paper", "official"] = "paper",
    p: Annotated[int, Fixed("only with preset 'official', as published")] = 2,
    middle: Annotated[float, Fixed("only with preset 'official', as published")] = 20.0,
    train: LocalTraining | None = None,
) -> Layerwise:
    """FLAYER (Chen et al., 2025): three layer-wise parts on FedAvg, each of which works alone.

    Algorithm 1: the last `s` layers are the head; `guide`, `rates` and `mask` switch its three parts (Fig. 3).
    `accuracy` is the split on which A_k is measured, or a fixed A; `accuracy_of` is the model, as trained or
    initialised; `least` is the smallest share of a layer that is sent; `unsent="zero"` averages unsent parameters as
    zeros, as line 12 literally says, and training collapses. `preset="official"` is what the authors' code does (see
    `flayer_official`); it takes only `p` and `middle`.
    """
    _refuse_ignored(preset, locals())
    if preset == "official":
        # `shuffle` is not a configuration key, so the user cannot have set it.
        return official(p=p, middle=middle, train=replace(train or IN_ORDER, shuffle=False))
    check_measured(accuracy, accuracy_of)
    descent = train or LocalTraining()
    if rates:
        descent = replace(descent, rates=(*descent.rates, LayerRate()))  # Eq. 4
    built = replace(
        fedavg(),
        mix=(Take(), Remember()),
        train=(descent,),
        send=(TopChange(least),) if mask else fedavg().send,  # Eq. 5–9
        merge=(Mean(unsent=unsent),),  # line 12
    )
    if not guide:
        return built
    head = select(f"last:{s}")
    steps, A = training_with_accuracy(built.train, accuracy, accuracy_of)
    # Eq. 2
    return replace(built, mix=(Guide(head), Remember()), train=steps, client={"theta": Start(head), "accuracy": A})


def _refuse_ignored(preset: str, options: Mapping[str, Any]) -> None:
    """Refuse an option that only the other preset takes, unless it is at its default."""
    parameters = inspect.signature(flayer).parameters
    official_only = preset == "paper"  # the paper's preset ignores the official options, and the other way round
    for name in [n for n in parameters if n not in ("preset", "train") and (n in OFFICIAL_OPTIONS) == official_only]:
        if options[name] != parameters[name].default:
            raise RecordError(f"flayer: the preset '{preset}' ignores {name}: leave out {name}={options[name]!r}")


def check_measured(accuracy: str | float, accuracy_of: str) -> None:
    if not isinstance(accuracy, str) and accuracy_of != "trained":
        raise RecordError(f"accuracy={accuracy} is given, not measured: leave out accuracy_of={accuracy_of!r}")


def training_with_accuracy(
    train: tuple[Train, ...], accuracy: str | float, accuracy_of: str, row: str = "theta"
) -> tuple[tuple[Train, ...], Number]:
    """Training that measures A_k on a split, after it or before it, and the A_k of the first round; or a fixed A."""
    if not isinstance(accuracy, str):
        return train, Number(float(accuracy))
    measure = Accuracy(accuracy, row)
    return ((*train, measure) if accuracy_of == "trained" else (measure, *train)), Number(0.0)


@record
class Guide(Mix):
    """θ̃_k = [θ_g of the base, A_k·θ_k + (1 − A_k)·θ_g of the head] (Eq. 2), of the layers that are received.

    A model that is never sent, such as Ditto's personal one, keeps its own base (`base="own"`).
    """

    head: Select
    own: str = "theta"  # the client's model
    field: str = "theta"  # what it receives
    base: Literal["received", "own"] = "received"
    reads = field_names("{own}", "accuracy", "down.{field}")
    writes = field_names("{own}")

    def check(self, setup: Setup) -> None:
        """Refuse a head that leaves no base."""
        if len(setup.layout.resolve(self.head)) == len(setup.layout.layers):
            most = max(setup.layout.units)
            allowed = f"choose s from 1 to {most}" if most else "set guide=False for a model of one layer"
            raise RecordError(f"flayer: the head '{self.head}' leaves this model no base: {allowed}")

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        """Running statistics of the head are mixed with the same weights, if they travel."""
        theta, sent = rows_of(client, self.own), down[self.field].rows
        received = rows_of(Take(self.field, self.own)(rnd, client, down, task), self.own)
        A = tensor_of(client, "accuracy")
        task.note("mix/own", A[:, None] * rnd.layout.layer_mask(self.head, A.device))

        def mixed(name: str) -> Tensor:
            A_k = per_row(A.to(theta[name].dtype), theta[name])
            return A_k * theta[name] + (1 - A_k) * received[name]

        head = [name for name in rnd.layout.travelling(self.head) if name in theta and name in sent]
        base = received if self.base == "received" else theta
        return {self.own: {**base, **{name: mixed(name) for name in head}}}


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

    Only `layers` are sent; i and L still count all layers of the model.
    """

    least: float = 0.1
    layers: Select = select("all")
    field: str = "theta"
    anchor: str = "anchor"
    masked = True
    reads = field_names("{field}", "{anchor}")
    writes = field_names("up.{field}", "up.samples")

    def footprint(self, setup: Setup) -> Footprint:
        """Masks and changes of each client, a layer that is sorted, and a weight per column on the server."""
        layer_bytes = max(setup.row_bytes(layer.tensors) for layer in setup.layout.layers)
        mask_bytes, sum_bytes = (setup.row_bytes(dtype=dtype) for dtype in (torch.bool, torch.float64))
        return Footprint(client=2 * mask_bytes + 2 * layer_bytes, served=SORTING * layer_bytes, sums=sum_bytes)

    def __call__(self, rnd: Round, client: State, task: Task) -> Mapping[str, Field]:
        """Trainable columns with their mask; running statistics go whole, if they travel."""
        layout, theta, start = rnd.layout, rows_of(client, self.field), rows_of(client, self.anchor)
        sent = {name: torch.ones_like(theta[name], dtype=torch.bool) for name in layout.travelling(self.layers)}
        L = max(layout.units) + 1
        for i in range(1, L + 1):
            names = [name for name in layout.trainable(self.layers) if layout.units[layout.specs[name].layer] == i - 1]
            change = {name: (theta[name] - start[name]).abs() for name in names}  # Eq. 6
            if change:
                sent |= top(change, share=min(max(i / L, self.least), 1.0))  # Eq. 5
        return {
            self.field: Field({name: theta[name] for name in sent}, mask=ColumnMask(sent)),
            "samples": Field(task.sizes("train")),
        }


def top(values: Rows, share: float) -> Rows:
    """The largest ⌈share·P⌉ of all columns of these blocks, client by client; ties go to the first (Eq. 7–8)."""
    flat = torch.cat([block.reshape(len(block), -1) for block in values.values()], 1)
    count = ceil(round(share * flat.shape[1], 6))
    if count == flat.shape[1]:
        return {name: torch.ones_like(block, dtype=torch.bool) for name, block in values.items()}
    chosen = torch.zeros_like(flat, dtype=torch.bool)
    # On the CPU one client at a time: the indices take twice the memory of the values that are sorted.
    clients_at_once = 1 if flat.device.type == "cpu" else len(flat)
    for mask, changes in zip(chosen.split(clients_at_once), flat.split(clients_at_once), strict=True):
        mask.scatter_(1, changes.argsort(dim=1, descending=True, stable=True)[:, :count], True)
    parts = chosen.split([block[0].numel() for block in values.values()], 1)
    return {name: part.reshape(block.shape) for (name, block), part in zip(values.items(), parts, strict=True)}
