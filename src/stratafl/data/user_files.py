"""Samples of a user's own files: one table, a folder for each client, or one npz file."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from stratafl.data import formats
from stratafl.data.formats.columns import Column, Columns, Request, joined_splits
from stratafl.data.formats.csv_files import line_of
from stratafl.data.formats.npz_files import npz_arrays
from stratafl.data.images import Content, are_elsewhere, are_images, stack_images
from stratafl.data.labels import name_of, targets
from stratafl.data.reading import Reading, check_group, half, text_content
from stratafl.data.samples import Samples
from stratafl.data.texts import are_texts
from stratafl.errors import DataError

LABELS = ("label", "y")


def user_samples(place: Path, reading: Reading) -> Samples:
    """The samples of a table or a folder: features or images, labels, and their owners if there is such a column."""
    request = Request(label=reading.label or LABELS[0], limit=reading.limit)
    read = formats.read_client_folders if formats.has_client_folders(place) else formats.read
    columns, tests = joined_splits(read(place, request), place)
    label, owner = _label(columns, reading, place), _client(columns, reading, place)
    group = reading.group
    check_group(group, label, owner)
    _check_column("group", group, columns, place)
    # before owners are chosen, so that classes do not depend on the choice
    columns[label], names = targets(columns[label], reading.targets, str(place))
    columns, tests = reading.rows_of_owners(columns, tests, owner, place)
    rest = {name: cells for name, cells in columns.items() if name not in (label, owner, group)}
    x, mode, remark, text = features(rest, reading, place, owner is not None)
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
        columns=tuple(rest) if text is None and x.ndim == 2 and x.shape[1] == len(rest) else (),
        mode=mode,
        remark=remark,
        elsewhere=any(are_elsewhere(cells, place) for cells in rest.values()),
        text=text,
    )


def npz_samples(path: str | Path, reading: Reading | None = None) -> Samples:
    """The samples of one npz file: `x`, `y` and, if samples belong to clients, `client`. Whole pixels are scaled."""
    reading = reading or Reading()
    arrays = npz_arrays(Path(path), reading.limit)
    label, client = reading.label or "y", reading.client or "client"
    check_group(reading.group, label, client)
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
    pixels = half(x.dtype) if x.ndim > 2 else None  # unscaled, the usual learning rates diverge
    return Samples(x, y, classes, names, **facts, scaling=pixels)


def _label(columns: Columns, reading: Reading, place: Path) -> str:
    wanted = (reading.label,) if reading.label else LABELS
    if present := [name for name in wanted if name in columns]:
        return present[0]
    near = _alike(wanted, columns)
    hint = f"set data.label to '{near}'" if near else "name the column of labels with data.label"
    raise DataError(f"'{place}' has no column '{wanted[0]}', only: {', '.join(columns)}; {hint}")


def _client(columns: Columns, reading: Reading, place: Path) -> str | None:
    name = reading.client or (formats.CLIENT if formats.CLIENT in columns else None)
    near = None if name else _alike([formats.CLIENT], columns)
    if near:
        advice = f"set data.client to '{near}' if it names the clients, or rename it"
        raise DataError(f"'{place}' has a column '{near}': {advice}")
    _check_column("client", name, columns, place)
    return name


def _check_column(setting: str, name: str | None, columns: Columns, place: Path) -> None:
    """Refuse a column that does not exist, or that has an empty cell."""
    if name is not None and name not in columns:
        near = get_close_matches(name, columns, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        names = ", ".join(columns)
        raise DataError(f"data.{setting} = '{name}' is not a column of '{place}'; {hint}choose one of: {names}")
    for row, cell in enumerate(columns[name] if name else (), start=1):
        if cell is None or cell != cell:  # NaN
            raise DataError(f"row {row} of '{place}' has no {name}: fill it in, or delete the row")


def _alike(wanted: Sequence[str], columns: Columns) -> str | None:
    """The first column with one of these names in other capitals."""
    return next((name for name in columns if name.lower() in {each.lower() for each in wanted}), None)


def _such_as(name: str, cells: Column, place: Path) -> str:
    """The first cell that is not a number, and where it is."""
    for row, cell in enumerate(cells, start=1):
        if not _is_number(cell):
            is_csv = place.suffix == ".csv" and place.is_file()
            where = f"line {line_of(place, name, cell)}" if is_csv else f"row {row}"
            return f": '{cell!s:.40}' in {where}"
    return ""


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


def _perhaps_clients(name: str, cells: Column) -> str:
    """A hint if a column of texts has few different values."""
    texts = all(isinstance(cell, str) and not _is_number(cell) for cell in cells)
    repeated = texts and 1 < len(set(cells)) <= len(cells) / 2
    return f"; set data.client to '{name}' if it names the clients" if repeated else ""


def features(columns: Columns, reading: Reading, place: Path, owned: bool) -> Content:
    """The samples in columns without labels and clients: images, texts, arrays or numbers."""
    images = [name for name, cells in columns.items() if are_images(cells)]
    others = [name for name in columns if name not in images[:1]]
    if images and others:
        raise DataError(f"'{place}' has images in '{images[0]}', so remove the other columns: {', '.join(others)}")
    if images:
        cells = columns[images[0]]
        return stack_images(cells, channels=None, size=reading.size, where=str(place), limit=reading.limit)
    if any(are_texts(cells) for cells in columns.values()):
        return _texts(columns, reading, place)
    for name, cells in columns.items():
        if not isinstance(cells, np.ndarray) or cells.dtype.kind not in "biuf":
            hint = "" if owned else _perhaps_clients(name, cells)
            cell = _such_as(name, cells, place)
            raise DataError(f"'{place}' has neither numbers nor images in the column '{name}'{cell}{hint}")
    if not columns:
        raise DataError(f"'{place}' has no column of features besides the labels and clients")
    if len(columns) == 1:
        alone = np.asarray(next(iter(columns.values())))
        return Content(alone if alone.ndim > 1 else alone[:, None].astype(np.float32))
    if any(np.ndim(cells) > 1 for cells in columns.values()):
        raise DataError(f"'{place}' has several columns of arrays: keep the one with the samples")
    return Content(np.stack([np.asarray(cells, np.float32) for cells in columns.values()], axis=1))


def _texts(columns: Columns, reading: Reading, place: Path) -> Content:
    """The tokens of the column of texts; other columns are left out, which is said."""
    names = [name for name, cells in columns.items() if are_texts(cells)]
    others = [name for name in columns if name not in names]
    if len(names) > 1:
        raise DataError(f"'{place}' has several columns of texts ({', '.join(names)}): keep one, or join them in one")
    content = text_content(columns[names[0]], names[0], reading, str(place))
    left_out = f"samples are the texts in '{names[0]}', other columns are left out: {', '.join(others)}"
    remarks = [*([left_out] if others else []), *filter(None, [content.remark])]
    return content._replace(remark="; ".join(remarks))
