"""Outliers: clients whose features differ from the other clients' as if one site had recorded in another unit.

For every client and feature, the median absolute value of the numbers that are not 0 is compared with the median over
all clients, as a ratio. A client is an outlier if its ratio exceeds what few clients, few samples and the usual spread,
within a client and between clients, could explain. The same is done for the typical value of a column, against its
spread, which finds a shift.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from stratafl.core.reprs import short_number, short_repr
from stratafl.data.federation import Federation
from stratafl.data.preprocessing import PIXELS, samples_at
from stratafl.data.tables.kinds import NUMBER
from stratafl.errors import counted

Array = NDArray[Any]
_ROWS, _FEWEST = 200, 5  # samples of a client that are read at most, and that are needed for a median
_CELLS = 1 << 22  # numbers that are read in all, if that leaves five samples for each client
_CHUNK_SAMPLES, _PIXELS = 4096, 256  # samples read at once; pixels of a channel that are read
_CHANNELS, _COLUMNS = 16, 64  # more channels or unnamed columns than this are taken together
_RATIO, _FEW_CLIENTS_FACTOR = 4.0, 3.0  # a ratio that is usual, and how much more is usual with few clients
_SPREADS, _SHIFT = 3.0, 10.0
_PRESENT, _DENSE = 0.2, 0.9  # shares of numbers that are not 0, of a client and of all
_MAX_WARNINGS = 5  # clients that a warning names
FACTOR = 100.0  # by which sizes of columns may differ before a line says so


class Outlier(NamedTuple):
    """The feature in which a client differs most from the others, and in how many features it differs."""

    client: int
    feature: str
    measure: str  # "size" or "value"
    value: float
    others: float
    features: int


@short_repr
class _Quartiles(NamedTuple):
    """Of each client and feature, [N, F]; NaN if there are too few samples."""

    low: Array
    middle: Array
    high: Array
    counts: NDArray[np.int64]


def outliers(federation: Federation) -> tuple[Outlier, ...]:
    """The clients that differ from the others in some feature or, in a regression, in the target."""
    if federation.outliers is not None:
        return federation.outliers
    flagged = _in_features(federation)
    if federation.classes is None and federation.y.is_floating_point():
        targets = replace(federation, x=federation.y.reshape(len(federation.y), -1), column_names=(), scaling=None)
        named = {each.client for each in flagged}
        by_target = (each for each in _in_features(targets) if each.client not in named)
        flagged += tuple(each._replace(feature="the target") for each in by_target)
    return flagged


def _in_features(federation: Federation) -> tuple[Outlier, ...]:
    x = federation.x
    if federation.clients < 2 or x.numel() == 0 or not (x.is_floating_point() or x.dtype in PIXELS):
        return ()
    if int(federation.counts("train").max()) < _FEWEST:  # as of many clients: nobody has enough to be compared
        return ()
    values = _values(federation)
    nonzero = np.where(values == 0, np.nan, np.abs(values))
    sizes = _quartiles(np.log(nonzero), np.isfinite(values).sum(1) * _PRESENT)
    # Sizes are compared as logarithms, so that ten times as much and a tenth as much are equally far.
    doubt = 1 + 2 / np.sqrt(np.maximum(sizes.counts, 1))  # the median of few samples is not certain
    bounds = np.log(_RATIO * _strictness(sizes)) + _SPREADS * _scatter(sizes) * doubt
    apart = [("size", _beyond(sizes, bounds), np.exp(sizes.middle), np.exp(_usual(sizes.middle)))]
    if _by_columns(federation):
        dense = np.isfinite(nonzero).sum((0, 1)) >= _DENSE * np.isfinite(values).sum((0, 1))
        places = _quartiles(np.where(dense, values, np.nan))  # with many zeros, another median is not a shift
        others, spread = _usual(places.middle), 2 * _scatter(places)
        enough = np.where(spread > 0, _SHIFT * _strictness(places) * spread, np.inf)  # without a spread, no shift
        apart.append(("value", _beyond(places, np.fmax(enough, np.abs(others))), places.middle, others))
    return _farthest(apart, _feature_names(federation))


def outlier_warnings(federation: Federation) -> list[str]:
    """A line for each of the first few outliers, and one for the rest."""
    flagged = outliers(federation)
    lines = []
    for outlier in flagged[:_MAX_WARNINGS]:
        who = f"'{federation.client_names[outlier.client]}'" if federation.client_names else str(outlier.client)
        more = f" (and {counted(outlier.features - 1, 'more feature')})" if outlier.features > 1 else ""
        lines.append(
            f"client {who}: {outlier.feature} has a typical {outlier.measure} of {short_number(outlier.value)}, "
            f"the others {short_number(outlier.others)}{more}: is it in another unit?"
        )
    if (rest := len(flagged) - _MAX_WARNINGS) > 0:
        lines.append(f"{counted(rest, 'more client')} with features that differ from the others'")
    return lines


def _values(federation: Federation) -> Array:
    """Features of some training samples of each client, [N, rows, F]; NaN if it has fewer."""
    train = federation.splits["train"]
    counts, offsets = train.counts.numpy(), train.offsets.numpy()
    taken = np.minimum(counts, min(_ROWS, max(_FEWEST, _CELLS // (len(counts) * federation.x[0].numel()))))
    owner = np.repeat(np.arange(len(counts)), taken)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(taken) - taken, taken)
    rows = train.indices[torch.from_numpy(offsets[owner] + place * counts[owner] // taken[owner])]
    parts = [_features(federation, part) for part in rows.split(_CHUNK_SAMPLES)]
    values = np.full((len(counts), int(taken.max()), parts[0].shape[1]), np.nan, np.float32)
    values[owner, place] = np.concatenate(parts)
    return values


def _features(federation: Federation, rows: torch.Tensor) -> Array:
    """The columns of a table; the mean absolute pixel of each channel of an image."""
    x, rows = federation.x, rows.to(federation.x.device)
    if _by_columns(federation):
        values = samples_at(x, rows).reshape(len(rows), -1).cpu().numpy()
        measured = [column.kind == NUMBER for column in federation.codes if column.is_coded]
        return np.where(measured, values, np.nan) if measured else values
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
        return np.asarray(np.where(few, np.nan, np.take_along_axis(ordered, place[:, None], 1)[:, 0]))

    return _Quartiles(at(0.25), at(0.5), at(0.75), counts)


def _usual(values: Array) -> Array:
    """The usual value among clients: the median over all; of two clients, the other one's value; [N, F]."""
    two = np.isfinite(values).sum(0) == 2
    return np.asarray(np.where(two, np.nansum(values, 0) - values, _median(values)))


def _median(values: Array) -> Array:
    """Over all clients with a number, [F]."""
    ordered, present = np.sort(values, axis=0), np.isfinite(values).sum(0)
    lower, upper = np.maximum(present - 1, 0) // 2, present // 2
    rows = [np.take_along_axis(ordered, np.minimum(at, len(values) - 1)[None], 0)[0] for at in (lower, upper)]
    return np.asarray((rows[0] + rows[1]) / 2)


def _scatter(quartiles: _Quartiles) -> Array:
    """The usual spread within a client, on the side on which it differs, or between clients if that is more, [N, F]."""
    enough = np.isfinite(quartiles.middle).sum(0) > 2  # two clients say nothing about the usual spread
    between = np.where(enough, 1.4826 * _median(np.abs(quartiles.middle - _median(quartiles.middle))), 0.0)
    above, below = _median(quartiles.high - quartiles.middle), _median(quartiles.middle - quartiles.low)
    return np.asarray(np.fmax(np.where(quartiles.middle > _usual(quartiles.middle), above, below), between))


def _strictness(quartiles: _Quartiles) -> Array:
    """Larger, the fewer clients there are to compare with."""
    return np.asarray(1 + _FEW_CLIENTS_FACTOR / np.maximum(np.isfinite(quartiles.middle).sum(0) - 1, 1))


def _beyond(quartiles: _Quartiles, bounds: Array) -> Array:
    """The difference of each client from the usual value, as a multiple of its bound, [N, F]; 0 if unknown."""
    return np.asarray(np.nan_to_num(np.abs(quartiles.middle - _usual(quartiles.middle)) / bounds, nan=0.0))


def _farthest(apart: list[tuple[str, Array, Array, Array]], names: list[str]) -> tuple[Outlier, ...]:
    """Of each outlier the feature in which it differs most: in size, or else in value."""
    most = np.max([beyond for _, beyond, _, _ in apart], axis=0)
    flagged = []
    for client in np.flatnonzero(most.max(1) > 1).tolist():
        measure, beyond, values, others = next(each for each in apart if each[1][client].max() > 1)
        feature = int(beyond[client].argmax())
        pair = float(values[client, feature]), float(others[client, feature])
        flagged.append(Outlier(client, names[feature], measure, *pair, int((most[client] > 1).sum())))
    return tuple(flagged)


def columns_differ_in_size(x: torch.Tensor) -> bool:
    """Whether the columns of a table are too different in size to train on as they are."""
    if x.ndim != 2 or not x.is_floating_point() or not len(x):
        return False
    sizes = x.abs().amax(0)
    sizes = sizes[sizes > 0]
    return len(sizes) > 0 and bool(sizes.max() > FACTOR * min(1.0, float(sizes.min())))
