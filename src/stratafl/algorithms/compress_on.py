"""Compression on any method: functions from record to record.

    with_q8(fedper())                        # fedper+q8
    with_topk(heurpfedla(), keep=0.01)       # heurpfedla+topk

What clients upload of the model travels in few bytes, and every merge reads what that comes to. Which base a difference
has follows from the record: what the server sent of the same field, or what it keeps of each client. A method in which
there is none sends values, which top-k refuses.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import Fixed, Tune
from stratafl.core.fields import holds_model
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.core.phased import records_of, with_records
from stratafl.core.records import validated
from stratafl.core.steps import MergeRows, MergeSums, Send
from stratafl.errors import RecordError
from stratafl.policies import Increment
from stratafl.policies.codecs import Codec, Quantise, Rounding, Share, TopK
from stratafl.policies.compress import Base, Compress, Size

_WORDS: dict[Base, str] = {
    "received": "differences from what was received",
    "received or latest": "differences from what was received, or from its last upload",
    "latest": "differences from its last upload",
    "none": "values",
}
Smallest = Annotated[Size, Fixed("compressing a small tensor saves little")]


@validated
def with_q8(
    host: Algorithm, *, rounding: Rounding = "nearest", feedback: bool = False, min_size: Smallest = 64
) -> Algorithm:
    """Uploads in 8 bits a number, with a scale for each tensor.

    `rounding="stochastic"` makes them right on average; with `feedback` a client adds next time what rounding left out.
    Tensors with fewer than `min_size` numbers are sent as they are.
    """
    return compressed(host, Quantise(8, rounding), feedback=feedback, min_size=min_size)


@validated
def with_q4(
    host: Algorithm, *, rounding: Rounding = "nearest", feedback: bool = False, min_size: Smallest = 64
) -> Algorithm:
    """Uploads in 4 bits a number, with a scale for each tensor.

    `rounding="stochastic"` makes them right on average; with `feedback` a client adds next time what rounding left out.
    Tensors with fewer than `min_size` numbers are sent as they are.
    """
    return compressed(host, Quantise(4, rounding), feedback=feedback, min_size=min_size)


@validated
def with_topk(
    host: Algorithm,
    *,
    keep: Annotated[Share, Tune(0.01, 0.5, log=True)] = 0.1,
    feedback: bool = True,
    min_size: Smallest = 64,
) -> Algorithm:
    """Uploads of what changed most, the share `keep` of each tensor; what is left out is added next time (`feedback`).

    Tensors with fewer than `min_size` numbers are sent as they are.
    """
    return compressed(host, TopK(keep), feedback=feedback, min_size=min_size)


def compressed(host: Algorithm, codec: Codec, *, feedback: bool = False, min_size: int = 64) -> Algorithm:
    """The method with every field of the model that clients upload compressed; refused if there is none."""
    if not records_of(host):
        raise RecordError("its steps are unknown: write it as a record (Layerwise)")
    changed = with_records(host, lambda record: _packed(record, codec, feedback, min_size))
    if changed == host:
        raise RecordError(_nothing(records_of(host)))
    return changed


def _nothing(records: Iterable[Layerwise]) -> str:
    sends = [step for each in records for step in each.send]
    if not sends:
        return "nothing is sent: choose a method whose clients upload what they trained"
    masked = [type(step).__name__ for step in sends if step.masked]
    if masked:
        return f"{masked[0]} sends only some columns, which already compresses: choose another method"
    return "no part of the model is sent: choose another method"


def _packed(host: Layerwise, codec: Codec, feedback: bool, min_size: int) -> Layerwise:
    fields = compressible(host)
    if not fields:
        return host
    if host.pack:
        raise RecordError("its uploads are already compressed: leave one compression out")
    steps = [_compress(host, field, send, codec, feedback, min_size) for field, send in fields.items()]
    return replace(host, mix=(*host.mix, *(note for step in steps for note in step.mix)), pack=tuple(steps))


def describe_compression(algorithm: Algorithm) -> str:
    """What is compressed, in words: differences or values of which fields."""
    steps = [step for record in records_of(algorithm) for step in record.pack]
    words = [f"{step.field} as {_WORDS[step.base]}" for step in steps if isinstance(step, Compress)]
    return " and ".join(dict.fromkeys(words))


# What is compressed, and from which base


def compressible(record: Layerwise) -> dict[str, Send]:
    """The upload fields that hold tensors of the model and that a merge reads, with the step that sends each."""
    read = {name for step in record.merge for name in step.reads}
    senders: dict[str, Send] = {}
    for step in record.send:
        names = [name.removeprefix("up.") for name in step.writes if name in read]
        whole = not step.masked and getattr(step, "columns", "all") != "statistics"
        senders |= {name: step for name in names if whole and _is_model(record, name)}
    return senders


def _is_model(record: Layerwise, field: str) -> bool:
    stored = {field, *(step.field for step in _merges(record, field) if isinstance(step, Increment))}
    stored |= {step.stores[field] for step in record.merge if field in step.stores}
    return field == record.row or any(holds_model(record.server_fields.get(name)) for name in stored)


def _merges(record: Layerwise, field: str) -> list[MergeSums | MergeRows]:
    return [step for step in record.merge if f"up.{field}" in step.reads]


def base_of(record: Layerwise, field: str) -> tuple[Base, str | None]:
    """From what a difference is taken, and the server's field with every client's latest if that is needed."""
    serving = [step for step in record.serve if f"down.{field}" in step.writes]
    rows = next((step.stores[field] for step in record.merge if field in step.stores), None)
    if not serving:
        return ("none", None) if rows is None else ("latest", rows)
    if rows is not None and any(step.masked for step in serving):
        return "received or latest", rows
    return "received", None


def _compress(host: Layerwise, field: str, send: Send, codec: Codec, feedback: bool, min_size: int) -> Compress:
    base, rows = base_of(host, field)
    grows = all(isinstance(step, Increment) for step in _merges(host, field))
    if codec.sparse:
        _check_sparse(host, field, send, base, grows)
    layers = getattr(send, "layers", None)
    return Compress(
        codec,
        field,
        layers if isinstance(layers, Select) else select("all"),
        base,
        rows,
        rows is not None and getattr(host.server_fields[rows], "own", False),
        feedback and (base.startswith("received") or grows),  # values have no error that adds up
        min_size,
    )


def _check_sparse(host: Layerwise, field: str, send: Send, base: Base, grows: bool) -> None:
    """Refuse top-k where the server has nothing to add to, or compares what it would leave out."""
    for step in _merges(host, field):
        if step.compares:
            compares = f"{type(step).__name__} compares whole updates"
            raise RecordError(f"{compares}, and top-k leaves out most of them: choose q8 or q4")
    if base == "none" and not grows:
        why = f"the server has no '{field}' of a client to add them to"
        raise RecordError(f"top-k sends differences, but {why}: choose q8 or q4")
    for serve in host.serve if base.startswith("received") else ():
        served, sent = (getattr(each, "layers", None) for each in (serve, send))
        if f"down.{field}" in serve.writes and served not in (None, sent, select("all")) and sent is not None:
            why = f"the server sends back only '{served}'"
            raise RecordError(f"top-k sends differences, but {why}: choose q8 or q4")
