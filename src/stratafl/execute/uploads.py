"""Checks of uploads: which ones a round leaves out, and which updates are far from the others.

An upload is left out if it has another form than the method's uploads, if a value is outside the form's bounds (every
value is finite, counts are above 0), if a value that the client would keep is not finite, or if its `samples` are not
the client's number of training samples: it would spoil the next model of all clients, or its own for good. So is an
update whose norm is not finite. One whose norm is at least ten times the cohort's median is reported and takes part,
because a client may well have more to learn than the others. With a limit (`Rounds.norm_limit`), an upload is left out
if any part of it is above the limit: updates count from what the server sent, other fields from 0, and statistics are
a part of their own. An update that is less too long is shortened (`Rounds.norm_clip`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from statistics import median
from typing import Annotated, Any

import torch
from torch import Tensor

from stratafl.core.algorithm import COUNT, Opened
from stratafl.core.annotations import Range
from stratafl.core.form import Form
from stratafl.core.layout import Layout
from stratafl.core.parcel import Field, Parcel
from stratafl.core.reduce import in_pieces
from stratafl.core.reprs import holder
from stratafl.core.schema import extremes, misfit, out_of_bounds
from stratafl.core.state import Computed, State, tensors

STATE_NOT_FINITE = "its model is not finite"
ENDLESS = "the norm of its update is not finite"
FAR = 10.0  # times the median norm of the cohort's updates
USUAL_NORM_LIMIT = 20.0  # the same, above which an update is left out by default
USUAL_NORM_CLIP = 5.0  # the same, to which a longer update is shortened by default
UPDATE, STATISTICS = "update", "statistics of"  # parts of an upload that count from what the server sent
Multiple = Annotated[float, Range(least=0)]  # of the median norm of a cohort's updates
COLUMNS = 2**13  # measured at a time
MIN_UPDATES = 3  # updates below which a median says nothing


@dataclass(frozen=True)
class LeftOut:
    """A client whose upload was left out of a round, and why."""

    client: int
    reason: str


@dataclass(frozen=True)
class OutlyingUpdate:
    """A client whose update is `ratio` times as long as the cohort's median; None if that overflows."""

    client: int
    ratio: float | None


@holder
class Inspection:
    """The inspection of a group's uploads: for each client a reason to leave it out ("": none), and its update's norm.

    `lengths` are the norms of each part of an upload, if there is a limit for them.
    """

    reasons: list[str]
    norms: list[float]
    lengths: Mapping[str, list[float]] = field(default_factory=dict)

    @staticmethod
    def refused(reason: str, clients: int) -> "Inspection":
        return Inspection([reason] * clients, [0.0] * clients)

    @property
    def parts(self) -> list[dict[str, float]]:
        """The lengths of each client."""
        return [{part: each[place] for part, each in self.lengths.items()} for place in range(len(self.reasons))]

    @property
    def sound(self) -> Tensor:
        return torch.tensor([place for place, reason in enumerate(self.reasons) if not reason], dtype=torch.int64)


def inspect(
    up: Parcel,
    form: Form,
    state: State,
    received: Mapping[str, Field],
    samples: Tensor,
    layout: Layout,
    opened: Opened | None = None,
    *,
    sent: Mapping[str, Field] | None = None,
) -> Inspection:
    """Check uploads as they arrive and as merges read them, and the state that clients would keep.

    `received` are the fields from which updates count, such as those of the download; `samples` `[C]` what clients
    hold. Clients that work together share tensors, so that another form is theirs together. `sent` is what the server
    sent, from which the norms of all parts count, if they are wanted.
    """
    opened = opened or Opened(up)
    clients = len(samples)
    wrong = misfit(up, form, layout, clients)
    if wrong:
        return Inspection.refused(wrong, clients)
    device = next((x.device for field in received.values() for x in tensors({"": field.value})), samples.device)
    sample_counts = samples.to(device, torch.float64)
    # Of a packed field, look at the parts that travelled, then at the unpacked value: finite numbers may overflow.
    parts = {name: field for name, field in up.items() if name not in opened.uploads}
    looked_at = {**parts, **opened.uploads}
    measured = _Squares()
    squares, covered = _squares(opened.uploads, received, sample_counts, layout, measured)
    if device.type != "cpu" or not squares.isfinite().all():  # on a GPU the question costs more than another look
        covered = {}
    ranges = {
        name: extremes(field, form.fields[name].bound, clients, layout, covered.get(name, frozenset()))
        for name, field in looked_at.items()
    }
    extreme_values = {name: low_and_high for name, low_and_high in ranges.items() if low_and_high is not None}
    state_is_finite = _finite(
        [extremes(Field(value), "finite", clients, layout) for value in state.values()], sample_counts
    )
    parts_squared = {} if sent is None else _part_squares(opened.uploads, sent, sample_counts, layout, measured)
    rows = torch.stack([state_is_finite, _reported(up, sample_counts), squares, *parts_squared.values()])
    seen = torch.cat([*extreme_values.values(), rows]).cpu().tolist()  # the one transfer: each waits
    bounds, (keeps, reported, moved, *part_rows) = seen[: -len(rows)], seen[-len(rows) :]
    reasons = [
        _reason(form, dict(zip(extreme_values, zip(of_client[::2], of_client[1::2], strict=True), strict=True)), *rest)
        for of_client, *rest in zip(_columns(bounds, clients), keeps, reported, samples.tolist(), strict=True)
    ]
    unread = {reason: rows.tolist() for reason, rows in opened.wrong.items()}
    reasons = [next((why for why in unread if unread[why][c]), reason) for c, reason in enumerate(reasons)]
    reasons = [reason or ("" if isfinite(square) else ENDLESS) for reason, square in zip(reasons, moved, strict=True)]
    norms = [square**0.5 for square in moved]
    lengths = {part: [x**0.5 for x in of_part] for part, of_part in zip(parts_squared, part_rows, strict=True)}
    return Inspection(reasons, norms, lengths)


def _columns(rows: Sequence[Sequence[float]], count: int) -> list[list[float]]:
    return [[row[place] for row in rows] for place in range(count)]


def _finite(ranges: Sequence[Tensor | None], like: Tensor) -> Tensor:
    """`[C]`: 1 where all of these are finite."""
    known_ranges = [each for each in ranges if each is not None]
    return torch.cat(known_ranges).isfinite().all(0).double() if known_ranges else torch.ones_like(like)


@dataclass(frozen=True)
class Flagged:
    """What inspections lead to, in the order of the cohort."""

    left_out: tuple[LeftOut, ...]  # whose upload does not count, those above the limit too
    too_long: tuple[LeftOut, ...]  # those above the limit, which only all uploads together show
    shortened: tuple[OutlyingUpdate, ...]  # who takes part with a shorter update
    scales: Mapping[int, Mapping[str, float]]  # by which parts of theirs are multiplied
    outliers: tuple[OutlyingUpdate, ...]  # who takes part with an update far from the others'


def flagged(
    inspections: Iterable[tuple[Sequence[int], Inspection]],
    cohort: Sequence[int],
    limit: float | None,
    clip: float | None = None,
) -> Flagged:
    """Who is left out, who is shortened and who stands out, from the inspections of groups of clients."""
    reasons, norms, parts = dict[int, str](), dict[int, float](), dict[int, Mapping[str, float]]()
    for ids, inspection in inspections:
        reasons |= zip(ids, inspection.reasons, strict=True)
        norms |= zip(ids, inspection.norms, strict=True)
        parts |= zip(ids, inspection.parts, strict=True)
    sound = [client for client in cohort if not reasons[client]]
    far = too_long(sound, [parts[client] for client in sound], limit)
    reasons |= {each.client: each.reason for each in far}
    left_out = tuple(LeftOut(client, reasons[client]) for client in cohort if reasons[client])
    outliers = outlying_updates(sound, [norms[client] for client in sound])
    # Medians without those that are left out: the round is the one in which they were not asked.
    present = [client for client in sound if not reasons[client]]
    scales = shortening(present, [parts[client] for client in present], clip)
    shorter = tuple(
        OutlyingUpdate(client, _rounded((clip or 0) / min(scales[client].values())))
        for client in cohort
        if client in scales
    )
    return Flagged(left_out, far, shorter, scales, tuple(each for each in outliers if not reasons[each.client]))


def outlying_updates(ids: Sequence[int], norms: Sequence[float]) -> tuple[OutlyingUpdate, ...]:
    """The clients whose update is far from the cohort's median, in their order."""
    ratios = zip(ids, _ratios(norms), strict=True)
    return tuple(OutlyingUpdate(client, _rounded(ratio)) for client, ratio in ratios if ratio >= FAR)


def too_long(ids: Sequence[int], lengths: Sequence[Mapping[str, float]], limit: float | None) -> tuple[LeftOut, ...]:
    """The clients of whose upload a part is more than `limit` times as long as the cohort's median, in their order."""
    if limit is None:
        return ()
    above = dict[int, str]()
    for part in dict.fromkeys(part for each in lengths for part in each):
        ratios = _ratios([each.get(part, 0.0) for each in lengths])
        far = {client: ratio for client, ratio in zip(ids, ratios, strict=True) if ratio > limit}
        says = "its {} is {:.3g} times as long as the cohort's median, above the limit of {:g}"
        above = {client: says.format(part, ratio, limit) for client, ratio in far.items()} | above
    return tuple(LeftOut(client, above[client]) for client in ids if client in above)


def shortening(
    ids: Sequence[int], lengths: Sequence[Mapping[str, float]], clip: float | None
) -> dict[int, dict[str, float]]:
    """By what updates and statistics are multiplied that are more than `clip` times as long as the cohort's median.

    Fields that count from 0 are not shortened: shorter class counts or prototypes would say something else.
    """
    scales = dict[int, dict[str, float]]()
    parts = dict.fromkeys(part for each in lengths for part in each if part.startswith((UPDATE, STATISTICS)))
    if clip is None:
        return scales
    for part in parts:
        for client, ratio in zip(ids, _ratios([each.get(part, 0.0) for each in lengths]), strict=True):
            if ratio > clip:
                scales.setdefault(client, {})[part] = clip / ratio
    return scales


def with_shorter_updates(up: Parcel, received: Parcel, scales: Sequence[Mapping[str, float]], layout: Layout) -> Parcel:
    """Uploads `[C]` whose parts in `scales` are shortened, counted from what the server sent; the rest as it is."""
    changes = {name for name in up if name in received and not up[name].common} if any(scales) else set()
    return Parcel({n: _shorter(n, up[n], received[n], scales, layout) if n in changes else up[n] for n in up})


def _shorter(name: str, sent: Field, before: Field, scales: Sequence[Mapping[str, float]], layout: Layout) -> Field:
    if isinstance(sent.value, Tensor) or isinstance(before.value, Tensor):
        return sent
    rows, masks = sent.rows, [mask for mask in (sent.sent(layout), before.sent(layout)) if mask is not None]

    def block(tensor: str) -> Tensor:
        x, part = rows[tensor], _part(name, tensor, layout, is_update=True)
        places = [place for place, of_client in enumerate(scales) if part in of_client]
        if not places or not x.is_floating_point() or not _fit(sent, before, tensor):
            return x
        start, shorter = before.rows[tensor].expand_as(x), x.clone()
        for place in places:
            upload, base = x[place].double(), start[place].double()
            update = base + scales[place][part] * (upload - base)
            for mask in masks:
                update = torch.where(mask[tensor].expand_as(x)[place], update, upload)
            shorter[place] = update.to(x.dtype)
        return shorter

    shorter: Any = Computed(rows, block)  # one tensor of the cohort at a time
    return replace(sent, value=shorter)


def _ratios(norms: Sequence[float]) -> list[float]:
    """Each norm by the median of those above 0; 0 where there are too few to compare with."""
    moved = [norm for norm in norms if norm > 0]
    middle = median(moved) if len(moved) >= MIN_UPDATES else 0.0
    return [norm / middle for norm in norms] if 0 < middle < float("inf") else [0.0] * len(norms)


def _rounded(ratio: float) -> float | None:
    return float(f"{ratio:.3g}") if isfinite(ratio) else None


def _reason(
    form: Form, sent: Mapping[str, tuple[float, float]], state_is_finite: float, reported: float, samples: int
) -> str:
    for name, (low, high) in sent.items():
        wrong = out_of_bounds(name, form.fields[name].bound, low, high)
        if wrong:
            return wrong
    if not state_is_finite:
        return STATE_NOT_FINITE
    if reported != samples:
        return f"it reports {reported:.0f} training samples, but holds {samples}"
    return ""


def _reported(up: Parcel, sample_counts: Tensor) -> Tensor:
    """The number of samples that each client reports; what it holds, where it reports nothing."""
    value = up[COUNT].value if COUNT in up and not up[COUNT].common else None
    return value.double() if isinstance(value, Tensor) and value.shape == sample_counts.shape else sample_counts


def _squares(
    up: Parcel, received: Mapping[str, Field], like: Tensor, layout: Layout, measured: "_Squares"
) -> tuple[Tensor, dict[str, frozenset[str]]]:
    """The squared norm of each client's update, over the trainable columns that it received and sent: `[C]`.

    And of each field the tensors of which every value that was sent is in it: if the square is finite, so are they.
    """
    total, covered = torch.zeros_like(like), dict[str, frozenset[str]]()
    for name in (name for name in received if name in up and not up[name].common):
        field, before = up[name], received[name]
        if isinstance(field.value, Tensor) or isinstance(before.value, Tensor):
            continue
        sent, received_mask = field.sent(layout), before.sent(layout)
        masks = [mask for mask in (sent, received_mask) if mask is not None]
        compared = [tensor for tensor in field.rows if layout.specs[tensor].trainable and _fit(field, before, tensor)]
        for tensor in compared:
            block = field.rows[tensor]
            total += measured.of(block, before.rows[tensor].expand_as(block), [mask[tensor] for mask in masks])
        covered[name] = frozenset(compared) if received_mask is None else frozenset()
    return total, covered


def _fit(field: Field, before: Field, tensor: str) -> bool:
    """Whether a tensor was received in the form in which it was sent."""
    received = before.rows.get(tensor)
    return received is not None and field.rows[tensor].shape[1:] == received.shape[0 if before.common else 1 :]


def _part_squares(
    up: Parcel, received: Mapping[str, Field], like: Tensor, layout: Layout, measured: "_Squares"
) -> dict[str, Tensor]:
    """The squared norm of every part of an upload in fractions: updates, statistics and each further field."""
    squares = dict[str, Tensor]()
    for name, sent in up.items():
        if sent.common:
            continue
        if isinstance(sent.value, Tensor):
            if sent.value.is_floating_point() and len(sent.value) == len(like):
                squares[f"field '{name}'"] = _square(sent.value, torch.zeros_like(sent.value), [])
            continue
        is_comparable = name in received and not isinstance(received[name].value, Tensor)
        before = received[name] if is_comparable else None
        sent_and_received = (sent.sent(layout), None if before is None else before.sent(layout))
        for tensor, block in sent.rows.items():
            if not block.is_floating_point():
                continue
            begun = before is not None and _fit(sent, before, tensor)  # else it counts from 0
            start = before.rows[tensor] if before is not None and begun else block.new_zeros(())
            part = _part(name, tensor, layout, is_update=before is not None)
            counted = sent_and_received if begun else sent_and_received[:1]
            masks = [mask[tensor] for mask in counted if mask is not None]
            more = measured.of(block, start.expand_as(block), masks)
            squares[part] = squares.get(part, torch.zeros_like(like)) + more
    return squares


def _part(name: str, tensor: str, layout: Layout, *, is_update: bool) -> str:
    if not layout.specs[tensor].trainable:
        return f"{STATISTICS} '{name}'"
    return UPDATE if is_update else f"field '{name}'"


class _Squares:
    """Squared lengths of updates, each computed once: most clients begin with the very tensors that the server sent."""

    def __init__(self) -> None:
        self._known = dict[tuple[Any, ...], tuple[Tensor, Sequence[Tensor]]]()  # with the masks, so that none is freed

    def of(self, block: Tensor, before: Tensor, masks: Sequence[Tensor]) -> Tensor:
        """`before` in the shape of the block."""
        place = (block.data_ptr(), block.shape, before.data_ptr(), before.stride(), *map(id, masks))
        if place not in self._known:
            self._known[place] = _square(block, before, masks), masks
        return self._known[place][0]


def _square(block: Tensor, before: Tensor, masks: Sequence[Tensor]) -> Tensor:
    """Some columns at a time, so that differences stay in the cache; squares of float32 overflow at 1e19."""
    clients = len(block)
    flat, start = (x.reshape(clients, -1) for x in (block, before))
    flat_masks = [mask.expand_as(block).reshape(clients, -1) for mask in masks]

    def square(some: slice) -> Tensor:
        update = flat[:, some] - start[:, some]
        for mask in flat_masks:
            update.masked_fill_(~mask[:, some], 0)
        norm: Tensor = torch.linalg.vector_norm(update, dim=1, dtype=torch.float64)
        return norm.square()

    size = COLUMNS if block.device.type == "cpu" else max(1, flat.shape[1])
    total = torch.zeros(clients, dtype=torch.float64, device=block.device)
    for part in in_pieces(square, flat.shape[1], size, block.device):
        total += part
    return total
