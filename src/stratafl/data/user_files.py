"""Samples of a user's own files: one table, a folder for each client, or one npz file."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stratafl.data import formats
from stratafl.data.formats.columns import Column, Columns, Request, joined_splits
from stratafl.data.formats.csv_files import line_of
from stratafl.data.formats.npz_files import npz_arrays
from stratafl.data.images import Content, are_elsewhere, are_images, stack_images
from stratafl.data.labels import name_of, targets
from stratafl.data.reading import Reading, check_group, half, text_content
from stratafl.data.samples import Samples
from stratafl.data.tables.kinds import (
    CATEGORY,
    TEXT,
    TableColumn,
    coded_columns,
    decided,
    doubt_about_dates,
    plain_cells,
)
from stratafl.errors import DataError, LabelError

LABELS = ("label", "y")
_SITES = ("site", "hospital", "clinic", "centre", "center", "institution", "bank", "branch", "shop", "store", "school")


def user_samples(place: Path, reading: Reading) -> Samples:
    """The samples of a table or a folder: features or images, labels, and their owners if there is such a column."""
    return column_samples(*read_columns(place, reading), reading, place)


def column_samples(columns: Columns, tests: NDArray[np.bool_], reading: Reading, place: Path) -> Samples:
    """The samples in columns; `tests` says which are for testing, and `place` is what messages call them."""
    roles = roles_of(columns, reading, place)
    label, owner, group = roles
    # before owners are chosen, so that classes do not depend on the choice
    columns[label], names = targets(columns[label], reading.targets, str(place))
    columns, tests = reading.rows_of_owners(columns, tests, owner, place)
    rest = reading.used_columns({name: cells for name, cells in columns.items() if name not in roles})
    content = features(rest, reading, place, None if owner is None else columns[owner])
    x = content.x
    return Samples(
        x=x,
        y=np.asarray(columns[label]),
        classes=None if names is None else len(names),
        names=names,
        tests=tests if tests.any() else None,
        owner=None if owner is None else np.asarray(columns[owner]),
        scaling=half(x.dtype) if any(are_images(cells) for cells in rest.values()) else None,
        name=place.stem,
        group=None if group is None else np.asarray(columns[group]),
        group_name=group,
        columns=_names(rest, content),
        codes=content.codes,
        mode=content.mode,
        remark=content.remark,
        elsewhere=any(are_elsewhere(cells, place) for cells in rest.values()),
        text=content.text,
    )


def read_columns(place: Path, reading: Reading) -> tuple[Columns, NDArray[np.bool_]]:
    """All columns of a file or folder, and which rows are not for training."""
    request = Request(label=reading.label or LABELS[0], limit=reading.limit, ignore=reading.ignored)
    read = formats.read_client_folders if formats.has_client_folders(place) else formats.read
    return joined_splits(read(place, request), place)


def table_columns(place: Path, reading: Reading) -> list[TableColumn]:
    """What the columns of a table are taken for, with those of labels and clients, which may not be known yet."""
    columns, _ = read_columns(place, reading)
    single = {name: cells for name, cells in columns.items() if not are_images(cells) and np.ndim(cells) == 1}
    return [decided(name, plain_cells(cells)) for name, cells in single.items()]


def _names(columns: Columns, content: Content) -> tuple[str, ...]:
    """The names of the numbers of a sample, if it is a row of a table."""
    if content.codes:
        return tuple(column.name for column in content.codes if column.is_coded)
    is_row = content.text is None and content.x.ndim == 2 and content.x.shape[1] == len(columns)
    return tuple(columns) if is_row else ()


def npz_samples(path: str | Path, reading: Reading | None = None) -> Samples:
    """The samples of one npz file: `x`, `y` and, if samples belong to clients, `client`. Whole pixels are scaled."""
    reading = reading or Reading()
    arrays = npz_arrays(Path(path), reading.limit)
    label, client = reading.label or "y", reading.client or "client"
    check_group(reading.group, label, client)
    if label == client:
        raise DataError(f"'{label}' is the array of the labels and of the clients: set data.client to another one")
    for name in ("x", label, *([client] if reading.client else []), *([reading.group] if reading.group else [])):
        if name not in arrays:
            raise DataError(f"'{path}' has no array '{name}', only: {', '.join(arrays) or 'none'}")
    x, y, owner = arrays["x"], arrays[label], arrays.get(client)
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise DataError(f"'{path}': x has shape {x.shape} and y {y.shape}: their first axes must count the samples")
    if len(x) == 0:
        raise DataError(f"'{path}' holds no samples: x has shape {x.shape}")
    group = arrays[reading.group] if reading.group else None
    for what, array in ((client, owner), (reading.group, group)):
        if array is not None and array.shape != (len(x),):
            raise DataError(f"'{path}': {what} has shape {array.shape}, but there are {len(x)} samples")
    y, names = targets(y, reading.targets, str(path))
    classes, name = None if names is None else len(names), Path(path).stem
    facts: dict[str, Any] = {"owner": owner, "name": name, "group": group, "group_name": reading.group}
    if x.dtype.kind in "US" and x.ndim == 1:
        content = text_content(list(map(name_of, x.tolist())), "x", reading, str(path))
        return Samples(content.x, y, classes, names, **facts, remark=content.remark, text=content.text)
    if x.dtype.kind not in "biufc":
        raise DataError(f"'{path}': x holds {x.dtype} of shape {x.shape}: give numbers, or one text for each sample")
    pixels = half(x.dtype) if x.ndim > 2 else None  # unscaled, the usual learning rates diverge
    return Samples(x, y, classes, names, **facts, scaling=pixels)


class Roles(NamedTuple):
    """The columns of labels, clients and groups."""

    label: str
    client: str | None
    group: str | None


def roles_of(columns: Columns, reading: Reading, place: Path) -> Roles:
    """Which column is what; everything that is wrong with the settings or these columns is said in one error."""
    problems, names = list[str](), ", ".join(columns)
    wanted = (reading.label,) if reading.label else LABELS
    label = next((name for name in wanted if name in columns), None)
    if label is None:
        near = _alike(wanted, columns)
        hint = f"set data.label to '{near}'" if near else "name the column of labels with data.label"
        wrong = f"'{place}' has no column '{wanted[0]}', only: {names}"
        problems.append(f"{wrong}; {hint}")
    client = reading.client or (formats.CLIENT if formats.CLIENT in columns else None)
    if near := None if client else _alike([formats.CLIENT], columns):
        advice = f"set data.client to '{near}' if it names the clients, or rename it"
        problems.append(f"'{place}' has a column '{near}': {advice}")
    elif label is None and client is None and (sites := _alike(_SITES, columns)):
        problems.append(f"if '{sites}' names the clients, set data.client to '{sites}'")
    for setting, name in (("client", client), ("group", reading.group)):
        if name is not None and name not in columns:
            close = get_close_matches(name, columns, n=1)
            hint = f"did you mean '{close[0]}'? " if close else ""
            problems.append(f"data.{setting} = '{name}' is not a column of '{place}'; {hint}choose one of: {names}")
    problems += reading.column_problems(columns, place)
    for name in dict.fromkeys((label, client, reading.group)):
        problems += _empty_cells(name, columns[name], place) if name in columns else []
    if label is not None and label == client:
        problems.append(f"'{label}' is the column of the labels and of the clients: set data.client to another one")
    if label is None:
        raise LabelError("; ".join(problems), wrong, wanted[0])
    if problems:
        raise DataError("; ".join(problems))
    check_group(reading.group, label, client)
    return Roles(label, client, reading.group)


def _empty_cells(name: str, cells: Column, place: Path) -> list[str]:
    """A line if cells of a column that must be complete are missing, or infinite."""
    odd = (np.nan, np.inf, -np.inf, None)
    rows = [row for row, cell in enumerate(cells, start=1) if np.ndim(cell) == 0 and (cell != cell or cell in odd)]
    if not rows:
        return []
    more = f", and so do {len(rows) - 1:,} more" if len(rows) > 1 else ""
    return [f"{_where(place, rows[0])} of '{place}' has no {name}{more}: fill it in, or delete the row"]


def _where(place: Path, row: int) -> str:
    is_csv = place.suffix == ".csv" and place.is_file()
    return f"line {line_of(place, row)}" if is_csv else f"row {row}"


def _alike(wanted: Sequence[str], columns: Columns) -> str | None:
    """The first column with one of these names in other capitals."""
    return next((name for name in columns if name.lower() in {each.lower() for each in wanted}), None)


def perhaps_clients(columns: Sequence[TableColumn]) -> str:
    """A hint if a category may name the clients."""
    categories = [column.name for column in columns if column.kind == CATEGORY]
    sites = [name for name in categories if name.lower() in _SITES] or (categories if len(categories) == 1 else [])
    return f"set data.client to '{sites[0]}' if it names the clients" if sites else ""


def features(columns: Columns, reading: Reading, place: Path, owner: Column | None) -> Content:
    """The samples in columns without labels and clients: images, texts, arrays, numbers, or a coded table."""
    images = [name for name, cells in columns.items() if are_images(cells)]
    others = [name for name in columns if name not in images[:1]]
    if images and others:
        raise DataError(f"'{place}' has images in '{images[0]}', so remove the other columns: {', '.join(others)}")
    if images:
        cells = columns[images[0]]
        return stack_images(cells, channels=None, size=reading.size, where=str(place), limit=reading.limit)
    if not columns:
        raise DataError(f"'{place}' has no column of features besides the labels and clients")
    arrays = [cells for cells in columns.values() if np.ndim(cells) > 1]
    if len(columns) == 1 and arrays:
        return Content(np.asarray(arrays[0]))
    if arrays:
        raise DataError(f"'{place}' has several columns of arrays: keep the one with the samples")
    if any(reading.kinds.values()) or not all(_are_numbers(cells) for cells in columns.values()):
        return _coded(columns, reading, place, owner)
    return Content(np.stack([np.asarray(cells, np.float32) for cells in columns.values()], axis=1))


def _are_numbers(cells: Column) -> bool:
    """Whether all cells are finite numbers."""
    return isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf" and bool(np.isfinite(cells).all())


def _coded(columns: Columns, reading: Reading, place: Path, owner: Column | None) -> Content:
    """A table of more than numbers: its kinds of columns, and the codes of those that are not ignored."""
    plain = {name: plain_cells(cells) for name, cells in columns.items()}
    kinds, codes, problems = coded_columns(plain, owner, reading.kinds)
    if texts := [column.name for column in kinds if column.kind == TEXT]:
        return _texts(texts, plain, reading, place)
    if not codes and not problems:
        ignored = ", ".join(f"'{column.name}' ({column.kind})" for column in kinds)
        problems.append(
            f"no column can be used: {ignored}; name the kind of one, such as data.columns = 'NAME:category'"
        )
    if problems:
        raise DataError(f"'{place}': {'; '.join(problems)}")
    doubts = [doubt for column in kinds if (doubt := doubt_about_dates(column, plain[column.name]))]
    return Content(np.stack(codes, axis=1), remark="; ".join(doubts), codes=tuple(kinds))


def _texts(names: Sequence[str], columns: Mapping[str, Any], reading: Reading, place: Path) -> Content:
    """The tokens of the column of texts; other columns are left out, which is said."""
    if len(names) > 1:
        few = f"several columns of texts ({', '.join(names)})"
        raise DataError(f"'{place}' has {few}: name one with data.columns, or leave them out with data.ignore")
    others = [name for name in columns if name not in names]
    content = text_content(columns[names[0]], names[0], reading, str(place))
    left_out = f"samples are the texts in '{names[0]}', and other columns are left out ({', '.join(others)})"
    way_back = f"data.ignore = '{names[0]}' uses them instead of the texts"
    remarks = [*([f"{left_out}: {way_back}"] if others else []), *filter(None, [content.remark])]
    return content._replace(remark="; ".join(remarks))
