"""What looks wrong with a table once clients are known: other codings, sentinels, duplicates, names of sites.

Other units of a site are found by `outliers.py`; identifiers and columns that give the label away by `suspects.py`.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray

from stratafl.core.reprs import short_number
from stratafl.data.federation import SPLITS, Federation
from stratafl.data.formats.cells import yes_or_no
from stratafl.data.tables.kinds import BOOLEAN, CATEGORY, DATE, NUMBER, Codes, TableColumn
from stratafl.errors import counted, shown

_MIN_CELLS = 5  # of a client, to say how it codes a column
_OTHERWISE = 0.9  # share of its cells that have no usual text
_MIN_DISTINCT = 5  # numbers besides a sentinel
_SENTINEL = re.compile(r"-?99+|-9|-?88+")
_MIN_COLUMNS, _MIN_SHARED = 3, 3  # columns and samples from which equal samples of two clients are no accident
_MAX_NAMED = 4  # clients or values that a line names


def table_warnings(federation: Federation) -> list[str]:
    """A line for each thing that looks wrong with a table of raw samples, with the clients that it is about."""
    lines = _similar_names(federation.client_names)
    x = federation.x
    if not federation.column_names or x.ndim != 2 or not x.is_floating_point():
        return lines
    columns = [column for column in federation.codes if column.is_coded]
    columns = columns or [TableColumn(name, NUMBER) for name in federation.column_names]
    rows = torch.cat([federation.splits[split].indices for split in SPLITS]).numpy()
    client = torch.cat([federation.splits[split].clients() for split in SPLITS]).numpy()
    codes = x.double().cpu().numpy()[rows]
    for at, column in enumerate(columns):
        if column.kind in (CATEGORY, BOOLEAN):
            lines += _codings(federation, column, codes[:, at], client)
        elif column.kind == NUMBER:
            lines += _sentinels(federation, column.name, codes[:, at], client)
    if len(np.unique(rows)) == len(rows):  # clients do not share samples on purpose
        lines += _duplicates(federation, codes, federation.y.cpu().numpy()[rows], client)
    return lines


def _similar_names(names: Sequence[str]) -> list[str]:
    """Names of clients that differ in capitals, spaces or signs alone."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(re.sub(r"[\W_]+", "", name.casefold()), []).append(name)
    groups = [_quoted(group) for group in alike.values() if len(group) > 1]
    return [f"clients {group} differ only in capitals, spaces or signs: is it one site?" for group in groups]


def _codings(federation: Federation, column: TableColumn, codes: Codes, client: NDArray[np.int64]) -> list[str]:
    """Clients that have other texts than most: a site with a coding of its own."""
    counts, present = np.zeros((federation.clients, len(column.values))), ~np.isnan(codes)
    np.add.at(counts, (client[present], codes[present].astype(np.int64)), 1)
    cells = counts.sum(1)
    holders = cells >= _MIN_CELLS
    usual = (counts[holders] > 0).mean(0) > 1 / 2
    odd = np.flatnonzero(holders & (counts[:, ~usual].sum(1) >= _OTHERWISE * np.maximum(cells, 1)))
    if not usual.any() or not len(odd) or 2 * len(odd) > holders.sum():
        return []
    here = _quoted([value for value, count in zip(column.values, counts[odd].sum(0), strict=True) if count])
    elsewhere = _quoted([value for value, is_usual in zip(column.values, usual, strict=True) if is_usual])
    read = column.kind == BOOLEAN and all(yes_or_no(value) is not None for value in column.values)
    advice = "both are read as yes and no" if read else "give all sites one coding"
    where = f"at {_clients(federation, odd.tolist())}"
    return [f"column '{shown(column.name)}' is coded differently {where} ({here}; others: {elsewhere}): {advice}"]


def _sentinels(federation: Federation, name: str, values: Codes, client: NDArray[np.int64]) -> list[str]:
    """A number such as −999 far outside of all others, which stands for a missing one."""
    distinct, counts = np.unique(values[np.isfinite(values)], return_counts=True)
    lines = []
    for place, others in ((0, distinct[1:]), (-1, distinct[:-1])):
        if len(others) < _MIN_DISTINCT or counts[place] < 2 or not _SENTINEL.fullmatch(f"{distinct[place]:g}"):
            continue
        if np.abs(others - distinct[place]).min() > others[-1] - others[0]:
            sites = _clients(federation, np.unique(client[values == distinct[place]]).tolist())
            times, number = counted(int(counts[place]), "time"), f"{distinct[place]:g}"
            where = f"column '{shown(name)}' has {number} {times} (at {sites}), far from all other numbers"
            lines.append(f"{where}: leave these cells empty if it stands for a missing one")
    return lines


def _duplicates(federation: Federation, codes: Codes, y: NDArray[np.generic], client: NDArray[np.int64]) -> list[str]:
    """Samples that several clients have, beyond what a table of few different rows would have."""
    if codes.shape[1] < _MIN_COLUMNS:
        return []
    rows = np.column_stack([np.nan_to_num(codes, nan=-1e300), y.reshape(len(y), -1).astype(np.float64)])
    _, sample = np.unique(rows, axis=0, return_inverse=True)
    pairs = np.unique(np.stack([sample.reshape(-1), client]), axis=1)
    within, across = len(rows) - pairs.shape[1], pairs.shape[1] - int(sample.max()) - 1
    if across < _MIN_SHARED or across <= 2 * within:
        return []
    holders: dict[int, list[int]] = {}
    for number, holder in pairs.T.tolist():
        holders.setdefault(number, []).append(holder)
    ((most, shared),) = Counter(pair for who in holders.values() for pair in combinations(who, 2)).most_common(1)
    pair = _clients(federation, list(most))
    line = f"{counted(across, 'sample')} are at several clients, of which {shared:,} at {pair}"
    return [f"{line}: a client may test on what another trains on"]


def _clients(federation: Federation, clients: Sequence[int]) -> str:
    return _quoted([federation.client_name(client) for client in clients])


def _quoted(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(f"'{shown(name)}'" for name in names[:_MAX_NAMED]) + rest


def column_lines(federation: Federation, encoded: Federation) -> list[tuple[str, str, str, str]]:
    """Of each column of a coded table: its name, what it was taken for, the share that is missing, what is done."""
    assert encoded.table is not None
    columns, lines = {column.name: column for column in encoded.table.columns}, []
    places = {name: at for at, name in enumerate(federation.column_names)}
    standardised = "standardised" if encoded.preprocessing.standardises else "as they are"
    for column in federation.codes:
        if not column.is_coded:
            lines.append((column.name, column.kind, "", f"ignored: {column.why}"))
            continue
        codes, how = federation.x[:, places[column.name]].numpy(), columns[column.name]
        missing, done = np.isnan(codes), list[str]()
        if column.kind == CATEGORY:
            done.append(f"{counted(len(how.values), 'place')} ({_quoted(how.values)}) and one for other texts")
        elif column.kind == BOOLEAN:
            done.append(f"0 or 1 ({_quoted(column.values)})")
        else:
            show = short_number if column.kind == NUMBER else _day
            done.append(f"{standardised} ({_span(codes[~missing], show)})")
            done += [f"{_quoted(column.values)} read as missing"] if column.kind == NUMBER and column.values else []
        if missing.any():
            fill = (
                "no place"
                if column.kind == CATEGORY
                else _day(how.fill)
                if column.kind == DATE
                else short_number(how.fill)
            )
            done.append(f"missing: {fill}{' and a flag' if how.flag else ''}")
        lines.append((column.name, column.kind, f"{missing.mean():.0%}" if missing.any() else "", "; ".join(done)))
    return lines


def _span(values: Codes, show: Callable[[float], str]) -> str:
    return f"{show(float(values.min()))} to {show(float(values.max()))}" if len(values) else "none"


def _day(days: float) -> str:
    return str(np.datetime64(int(days // 1), "D"))
