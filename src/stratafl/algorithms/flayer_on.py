"""FLAYER's three parts on other methods: functions from record to record.

    with_flayer(fedper())                    # fedper+flayer
    with_mask(with_rates(fedrep()))

The paper applies FLAYER to six methods (Table 5) and says no more than that it does not replace their foundations. Each
part acts where the method has a place for it: the guide where a head is received and no other step mixes it, rates in
every descent, the mask on what is uploaded to be averaged. A part without a place is refused with the reason, or left
out by `with_flayer` unless it was asked for.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Literal

from stratafl.algorithms.fedprior import OwnPrior
from stratafl.algorithms.flayer import Guide, LayerRate, Share, Split, TopChange, check_measured, training_with_accuracy
from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import Fixed, Range, Tune
from stratafl.core.fields import FieldSpec, Start, Together, holds_model
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.core.phased import records_of
from stratafl.core.records import validated
from stratafl.core.steps import Mix, Serve, Train
from stratafl.errors import RecordError
from stratafl.policies import Adopt, Copy, LocalTraining, Mean, Remember, Take, Upload


@validated
def with_flayer(
    host: Algorithm,
    *,
    s: Annotated[int, Range(least=1), Tune(1, 3)] = 1,
    guide: bool | None = None,
    rates: bool | None = None,
    mask: bool | None = None,
    accuracy: Split | Annotated[Share, Fixed("measured; set A only for experiments")] = "train",
    accuracy_of: Literal["trained", "initialised"] = "trained",
    least: Annotated[Share, Tune(0.05, 0.5)] = 0.1,
    unsent: Literal["held", "zero"] = "held",
) -> Layerwise:
    """Local rates for each layer, a head mixed by accuracy, and an upload of what changed most.

    `guide`, `rates` and `mask` switch the parts; left open, a part acts where the method has a place for it. The other
    options are those of `flayer`.
    """
    wanted = {"guide": guide, "rates": rates, "mask": mask}
    check_measured(accuracy, accuracy_of)
    parts: dict[str, Callable[[Layerwise], Layerwise]] = {
        "guide": lambda each: with_guide(each, s=s, accuracy=accuracy, accuracy_of=accuracy_of),
        "rates": with_rates,
        "mask": lambda each: with_mask(each, least=least, unsent=unsent),
    }
    if any(isinstance(step, Guide | TopChange) for step in sending(host).steps):
        raise RecordError("it already has FLAYER's parts: leave out +flayer")
    asked = {name: part for name, part in parts.items() if wanted[name] is not False}
    record, reasons = _with_parts(sending(host), asked)
    for name, reason in reasons.items():
        if wanted[name]:
            raise RecordError(f"{reason}: leave out {name}=True")
    if len(reasons) == len(parts):
        raise RecordError(", and ".join(reasons.values()) + ": choose another method")
    return record


def _with_parts(
    record: Layerwise, parts: Mapping[str, Callable[[Layerwise], Layerwise]]
) -> tuple[Layerwise, dict[str, str]]:
    """The record with the parts that it has a place for, and why it has none for the others."""
    reasons = dict[str, str]()
    for name, part in parts.items():
        try:
            record = part(record)
        except RecordError as error:
            reasons[name] = str(error)
    return record, reasons


def acting(host: Algorithm) -> dict[str, str | None]:
    """FLAYER's parts: None for one that acts on this method, or else why it does not."""
    parts = {"guide": with_guide, "rates": with_rates, "mask": with_mask}
    _, reasons = _with_parts(sending(host), parts)
    return {name: reasons.get(name) for name in parts}


def sending(host: Algorithm) -> Layerwise:
    """The record of a method without phases in which clients send something."""
    if not any(record.send for record in records_of(host)):
        raise RecordError("nothing is sent: choose a method whose clients upload what they trained")
    if not isinstance(host, Layerwise):
        raise RecordError("it has several phases: choose a method with one phase")
    if host.pack:
        raise RecordError("its uploads are already compressed: name the compression last")
    return host


# Eq. 2


def with_guide(
    host: Layerwise,
    *,
    s: int = 1,
    accuracy: str | float = "train",
    accuracy_of: Literal["trained", "initialised"] = "trained",
) -> Layerwise:
    """A·own + (1 − A)·received in the last `s` layers, where the method takes the received head.

    A model that is never sent, as Ditto's personal one, keeps its own base.
    """
    head, row = select(f"last:{s}"), host.row
    at, field = _received(host)
    sent = next((_served(step) for step in host.serve if f"down.{field}" in step.writes), None)
    if sent is not None and _without_head(sent):
        raise RecordError("guide: its head is never sent")
    uploaded = any(f"up.{row}" in step.writes for step in host.send)
    guide = Guide(head, row, field, "received" if uploaded else "own")
    mix = (*host.mix[:at], guide, *host.mix[at + 1 :])
    if isinstance(host.mix[at], Adopt):
        # A client that is met for the first time starts from what it receives, whatever A is.
        mix = (*host.mix[: at + 1], guide, *host.mix[at + 1 :])
    train, A = training_with_accuracy(host.train, accuracy, accuracy_of, row)
    client = {**host.client, row: keeping(host.client.get(row), head), "accuracy": A}
    return replace(host, mix=mix, train=train, client=client)


def _served(step: Serve) -> Select | None:
    """The layers that a step sends, if it names them."""
    named = getattr(step, "layers", None) or getattr(getattr(step, "net", None), "layers", None)
    return named if isinstance(named, Select) else None


def _without_head(sent: Select) -> bool:
    unsent = ~sent
    return not unsent.inverted and any(
        term.partition(":")[0] in ("all", "head", "last", "blocks") for term in unsent.terms
    )


def _received(host: Layerwise) -> tuple[int, str]:
    """The step of mix that gives the client's model what was received, and the field of the download."""
    takes = [i for i, step in enumerate(host.mix) if isinstance(step, Take) and step.writes == (host.row,)]
    adopts = [i for i, step in enumerate(host.mix) if isinstance(step, Adopt) and host.row in step.fields]
    if any(isinstance(step, Copy) and step.into == host.row for step in host.train):
        raise RecordError("guide: training starts from the received model, not from the model that clients use")
    if len(takes) + len(adopts) != 1:
        raise RecordError(f"guide: {'several steps give a client its model' if takes else 'no head is received'}")
    (at,) = takes or adopts
    for step in host.mix[at + 1 :]:
        if host.row in step.writes and not isinstance(step, OwnPrior):  # a prior is no part of the head that is mixed
            raise RecordError(f"guide: {type(step).__name__} changes the model after it was received")
    met = host.mix[at]
    source = met.source if isinstance(met, Adopt) else host.row
    fields = [step.field for step in host.mix if isinstance(step, Take) and step.writes == (source,)]
    if not fields:
        raise RecordError("guide: no head is received")
    return at, fields[0]


def keeping(spec: FieldSpec | None, layers: Select) -> FieldSpec:
    """What a client keeps of its model, and these layers too."""
    more = Start(layers)
    if spec is None or spec == Start(select("none")):
        return more
    if spec in (Start(), Start(~layers)):
        return Start()
    return Together((spec, more))


# Eq. 4


def with_rates(host: Layerwise) -> Layerwise:
    """Every descent of a client's training with a rate for each layer and step, whatever it trains."""
    descents = [step for step in host.train if isinstance(step, LocalTraining)]
    if not descents:
        raise RecordError("rates: it has no descent whose learning rates could change")
    for step in host.train:
        counted = {each.counts[-1] for each in descents} & set(step.reads)
        if counted:
            raise RecordError(f"rates: {type(step).__name__} assumes one learning rate for all layers")
    return replace(host, train=tuple(_with_rate(step) for step in host.train))


def _with_rate(step: Train) -> Train:
    return replace(step, rates=(*step.rates, LayerRate())) if isinstance(step, LocalTraining) else step


# Eq. 5–9


def with_mask(host: Layerwise, *, least: float = 0.1, unsent: Literal["held", "zero"] = "held") -> Layerwise:
    """Of every row that is uploaded for a mean, what changed most since training began."""
    fields = [step.field for step in host.merge if isinstance(step, Mean)]
    means = {field for field in fields if holds_model(host.server_fields[field])}
    means &= {step.field for step in host.send if isinstance(step, Upload) and step.columns == "all"}
    if not means:
        raise RecordError("mask: no plain upload of whole layers is averaged")
    for step in host.merge:
        whole = {name for name in means if f"up.{name}" in step.reads}
        if whole and not isinstance(step, Mean):
            raise RecordError(f"mask: {type(step).__name__} needs the whole models of clients")
    mix, anchors = _anchored(host.mix, means)
    return replace(
        host,
        mix=mix,
        send=tuple(
            TopChange(least, step.layers, step.field, anchors[step.field])
            if isinstance(step, Upload) and step.field in means
            else step
            for step in host.send
        ),
        merge=tuple(replace(m, unsent=unsent) if isinstance(m, Mean) and m.field in means else m for m in host.merge),
    )


def _anchored(mix: tuple[Mix, ...], fields: set[str]) -> tuple[tuple[Mix, ...], dict[str, str]]:
    """Mix with a memory of where training starts for each field, and its name; one that is there is used."""
    anchors: dict[str, str] = {}
    for field in sorted(fields):
        later = [step for step in mix if isinstance(step, Remember) and step.field == field]
        last = max((i for i, step in enumerate(mix) if field in step.writes), default=-1)
        anchored = [step for step in later if mix.index(step) > last]
        if not anchored:
            taken = {name for step in mix for name in step.writes}
            anchored = [Remember(field, "anchor" if "anchor" not in taken else f"{field}.start")]
            mix = (*mix, anchored[0])
        anchors[field] = anchored[0].name
    return mix, anchors
