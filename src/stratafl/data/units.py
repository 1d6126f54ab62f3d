"""Clients whose features are far from the others', as they are when one site records in another unit.

For every client and feature the median size of what is not 0 is compared with the median of the other clients' sizes,
as a ratio. A ratio is far if it exceeds what few clients, few samples and the usual spread, within a client and between
clients, could explain. The same is done for the typical value of a column, against its spread, which finds a shift.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from stratafl.core.reprs import short_repr
from stratafl.data.federation import Federation
from stratafl.data.scaling import PIXELS, samples_at
from stratafl.errors import counted

Array = NDArray[Any]
_ROWS, _FEWEST = 200, 5  # samples of a client that are looked at, and how few of them say something
_CELLS = 1 << 22  # numbers that are looked at in all, where that leaves five samples to each client
_AT_ONCE, _PIXELS = 4096, 256  # samples that are read at once; pixels of a channel that are looked at
_CHANNELS, _COLUMNS = 16, 64  # more of them, if they have no names, are taken together
_RATIO, _FEW = 4.0, 3.0  # a ratio that nobody finds strange, the more so with few clients
_SPREADS, _SHIFT = 3.0, 10.0
_PRESENT, _DENSE = 0.2, 0.9  # shares of numbers that are not 0, of a client and of all
_NAMED = 5  # clients


class Far(NamedTuple):
    """A feature of a client that is far from the others', and of how many features that is true."""

    client: int
    feature: str
    measure: str  # "size" or "value"
    own: float
    others: float
    features: int


@short_repr
class _Quartiles(NamedTuple):
    """Of each client and feature, [N, F]; NaN where too few samples say something."""

    low: Array
    middle: Array
    high: Array
    counts: NDArray[np.int64]


def far_clients(federation: Federation) -> tuple[Far, ...]:
    """The clients that are far from the others in some feature, or in what is predicted if that is a number."""
    if federation.far is not None:
        return federation.far
    found = _far(federation)
    if federation.classes is None and federation.y.is_floating_point():
        targets = replace(federation, x=federation.y.reshape(len(federation.y), -1), column_names=(), scaling=None)
        named = {far.client for far in found}
        found += tuple(far._replace(feature="the target") for far in _far(targets) if far.client not in named)
    return found


def _far(federation: Federation) -> tuple[Far, ...]:
    x = federation.x
    if federation.clients < 2 or x.numel() == 0 or not (x.is_floating_point() or x.dtype in PIXELS):
        return ()
    values = _values(federation)
    nonzero = np.where(values == 0, np.nan, np.abs(values))
    sizes = _quartiles(np.log(nonzero), np.isfinite(values).sum(1) * _PRESENT)
    apart = [("size", _beyond(sizes, _size_bounds(sizes)), np.exp(sizes.middle), np.exp(_usual(sizes.middle)))]
    if _by_columns(federation):
        dense = np.isfinite(nonzero).sum((0, 1)) >= _DENSE * np.isfinite(values).sum((0, 1))
        places = _quartiles(np.where(dense, values, np.nan))  # where zeros are many, something else is not a shift
        others = _usual(places.middle)
        apart.append(("value", _beyond(places, _shift_bounds(places, others)), places.middle, others))
    return _farthest(apart, _feature_names(federation))


def told(federation: Federation) -> list[str]:
    """A line for each client that is far from the others, of the first few."""
    far = far_clients(federation)
    lines = []
    for each in far[:_NAMED]:
        who = f"'{federation.client_names[each.client]}'" if federation.client_names else str(each.client)
        more = f" (and {counted(each.features - 1, 'more feature')})" if each.features > 1 else ""
        lines.append(
            f"client {who}: {each.feature} has a typical {each.measure} of {_short(each.own)}, the others "
            f"{_short(each.others)}{more}: is it in another unit?"
        )
    rest = len(far) - _NAMED
    return [*lines, *([f"{counted(rest, 'more client')} with features far from the others'"] if rest > 0 else [])]


def _values(federation: Federation) -> Array:
    """Features of some samples that each client trains on, [N, rows, F], NaN where it has fewer."""
    held = federation.splits["train"]
    counts, offsets = held.counts.numpy(), held.offsets.numpy()
    each = _CELLS // (len(counts) * federation.x[0].numel())
    taken = np.minimum(counts, min(_ROWS, max(_FEWEST, each)))
    owner = np.repeat(np.arange(len(counts)), taken)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(taken) - taken, taken)
    rows = held.indices[torch.from_numpy(offsets[owner] + place * counts[owner] // taken[owner])]
    parts = [_features(federation, part) for part in rows.split(_AT_ONCE)]
    values = np.full((len(counts), int(taken.max()), parts[0].shape[1]), np.nan, np.float32)
    values[owner, place] = np.concatenate(parts)
    return values


def _features(federation: Federation, rows: torch.Tensor) -> Array:
    """Columns as they are; of images, the mean size of each channel's pixels."""
    x, rows = federation.x, rows.to(federation.x.device)
    if _by_columns(federation):
        return samples_at(x, rows).reshape(len(rows), -1).cpu().numpy()
    channels = x.shape[1] if x.ndim > 2 and x.shape[1] <= _CHANNELS else 1
    pixels = x.reshape(len(x), channels, -1)
    some = samples_at(pixels[..., :: max(1, pixels.shape[2] // _PIXELS)], rows)
    return some.float().abs().mean(2).cpu().numpy()


def _by_columns(federation: Federation) -> bool:
    x = federation.x
    return x.ndim < 3 and (bool(federation.column_names) or x[0].numel() <= _COLUMNS)


def _feature_names(federation: Federation) -> list[str]:
    x = federation.x
    if _by_columns(federation):
        return [f"column '{name}'" for name in federation.column_names] or [f"column {i}" for i in range(x[0].numel())]
    several = x.ndim > 2 and 1 < x.shape[1] <= _CHANNELS
    return [f"channel {i}" for i in range(x.shape[1])] if several else ["a sample"]


def _quartiles(values: Array, fewest: Array | float = 0) -> _Quartiles:
    counts = np.isfinite(values).sum(1)
    ordered = np.sort(values, axis=1)  # NaN comes last
    few = counts < np.maximum(fewest, _FEWEST)

    def at(share: float) -> Array:
        place = np.rint(share * np.maximum(counts - 1, 0)).astype(np.int64)
        found: Array = np.where(few, np.nan, np.take_along_axis(ordered, place[:, None], 1)[:, 0])
        return found

    return _Quartiles(at(0.25), at(0.5), at(0.75), counts)


def _usual(values: Array) -> Array:
    """What is usual among the clients: the median of all, or where there are two of them the other's, [N, F]."""
    two = np.isfinite(values).sum(0) == 2
    usual: Array = np.where(two, np.nansum(values, 0) - values, _median(values))
    return usual


def _median(values: Array) -> Array:
    """Over all clients that have a number, [F]."""
    ordered, there = np.sort(values, axis=0), np.isfinite(values).sum(0)
    lower, upper = np.maximum(there - 1, 0) // 2, there // 2
    rows = [np.take_along_axis(ordered, np.minimum(at, len(values) - 1)[None], 0)[0] for at in (lower, upper)]
    middle: Array = (rows[0] + rows[1]) / 2
    return middle


def _scatter(found: _Quartiles) -> Array:
    """How far numbers usually lie apart, within a client or between clients, whichever is more, [N, F].

    Within a client, that is on the side on which a client differs from what is usual.
    """
    between = 1.4826 * _median(np.abs(found.middle - _median(found.middle)))
    between = np.where(np.isfinite(found.middle).sum(0) > 2, between, 0.0)  # two clients only tell that they differ
    above, below = _median(found.high - found.middle), _median(found.middle - found.low)
    scatter: Array = np.fmax(np.where(found.middle > _usual(found.middle), above, below), between)
    return scatter


def _strictness(found: _Quartiles) -> Array:
    """More, the fewer clients there are to compare with."""
    strictness: Array = 1 + _FEW / np.maximum(np.isfinite(found.middle).sum(0) - 1, 1)
    return strictness


def _size_bounds(found: _Quartiles) -> Array:
    doubt = 1 + 2 / np.sqrt(np.maximum(found.counts, 1))  # the median of few samples is not certain
    bounds: Array = np.log(_RATIO * _strictness(found)) + _SPREADS * _scatter(found) * doubt
    return bounds


def _shift_bounds(found: _Quartiles, others: Array) -> Array:
    spread = 2 * _scatter(found)
    enough = np.where(spread > 0, _SHIFT * _strictness(found) * spread, np.inf)  # without a spread nothing is far
    bounds: Array = np.fmax(enough, np.abs(others))
    return bounds


def _beyond(found: _Quartiles, bounds: Array) -> Array:
    """By how many times a client exceeds its bound, [N, F]; 0 where nothing is known."""
    times: Array = np.nan_to_num(np.abs(found.middle - _usual(found.middle)) / bounds, nan=0.0)
    return times


def _farthest(apart: list[tuple[str, Array, Array, Array]], names: list[str]) -> tuple[Far, ...]:
    """Of each client that is far, the feature where it is farthest: in size, or else in value."""
    most = np.max([beyond for _, beyond, _, _ in apart], axis=0)
    found = []
    for client in np.flatnonzero(most.max(1) > 1).tolist():
        measure, beyond, own, others = next(each for each in apart if each[1][client].max() > 1)
        feature = int(beyond[client].argmax())
        pair = float(own[client, feature]), float(others[client, feature])
        found.append(Far(client, names[feature], measure, *pair, int((most[client] > 1).sum())))
    return tuple(found)


def _short(value: Any) -> str:
    if abs(value) >= 1e9:  # no number of thirty digits
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:.3g}"
