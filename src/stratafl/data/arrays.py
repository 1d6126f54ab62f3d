"""Arrays from users, checked and turned into the few kinds of CPU tensors that a federation holds."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stratafl.core.reprs import short_repr
from stratafl.data.preprocessing import dtype_name
from stratafl.errors import DataError, counted, shown

Array = NDArray[Any] | Tensor
_MAX_NAMED_COLUMNS = 5  # columns that a message names
_CHECKED_AT_ONCE = 4096  # samples; a search for NaN in all of x at once would need a second copy of it


@short_repr
class Part(NamedTuple):
    """Some samples with their targets, and words for error messages that say which (' of client 3')."""

    where: str
    x: Array
    y: Array


def client_pair(samples: Any, who: str) -> tuple[Any, Any]:
    """The `(x, y)` of a pair, or of a torch `Dataset` of pairs, which a `DataLoader` may hold."""
    data = samples.dataset if isinstance(samples, DataLoader) else samples
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return _read_dataset(data, who)
    if isinstance(data, tuple | list) and len(data) == 2:
        return data[0], data[1]
    raise DataError(f"{who} is a {type(data).__name__}: give a pair (x, y), a torch Dataset of pairs, or its splits")


def _read_dataset(data: Any, who: str) -> tuple[Any, Any]:
    items = [data[place] for place in range(len(data))]
    for place, item in enumerate(items):
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise DataError(f"sample {place} of {who} is a {type(item).__name__}: its Dataset must give pairs (x, y)")
    samples = [x for x, _ in items]
    names = list(samples[0]) if samples and isinstance(samples[0], Mapping) else []
    try:
        x: Any = {name: np.stack([np.asarray(sample[name]) for sample in samples]) for name in names}
        x = x or (np.stack([np.asarray(sample) for sample in samples]) if items else np.empty((0, 0)))
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"the samples of {who} differ in shape or inputs: give them one shape in the Dataset"
        ) from error
    return x, np.asarray([y.item() if isinstance(y, Tensor) and y.ndim == 0 else y for _, y in items])


def column_names(values: Any) -> tuple[str, ...]:
    """The names of the columns of a table, such as a DataFrame; () of an array, or if they are only numbered."""
    labels = _labels(values)
    return () if labels == list(range(len(labels))) else tuple(map(str, labels))


def in_columns(values: Any, names: Sequence[str], what: str) -> Any:
    """The columns of a table by these names, in their order; an array has no names and stays as it is."""
    present = column_names(values)
    if not names or not present or present == tuple(names):
        return values
    if len({*present}) < len(present):
        twice = next(name for name in present if present.count(name) > 1)
        raise DataError(f"{what} has two columns named '{shown(twice)}': give every column a name of its own")
    missing = [name for name in names if name not in present]
    if missing:
        few = ", ".join(f"'{shown(name)}'" for name in missing[:_MAX_NAMED_COLUMNS])
        rest = ", …" if len(missing) > _MAX_NAMED_COLUMNS else ""
        raise DataError(f"{what} lacks {counted(len(missing), 'column')} ({few}{rest}): columns are taken by name")
    labels = dict(zip(present, _labels(values), strict=True))
    ordered = [labels[name] for name in names]
    return values.select(ordered) if hasattr(type(values), "column_names") else values[ordered]


def cells_of(values: Any, names: Sequence[str], what: str) -> dict[str, Any]:
    """The cells of a table by column: of a DataFrame, a dict of columns, or an array with columns in this order."""
    if isinstance(values, Mapping):
        return {str(name): np.asarray(cells) for name, cells in values.items()}
    if column_names(values):
        rows = in_columns(values, [name for name in names if name in column_names(values)], what)
        return {str(name): np.asarray(rows[name]) for name in _labels(rows)}
    array = np.asarray(values)
    if array.ndim != 2 or array.shape[1] != len(names):
        wrong = f"{what} has shape {array.shape}, but a sample has {counted(len(names), 'column')}"
        raise DataError(f"{wrong}: give a DataFrame, a dict of columns, or [n, {len(names)}]")
    return {name: array[:, place] for place, name in enumerate(names)}


def align_columns(parts: Sequence[Part]) -> tuple[list[Part], tuple[str, ...]]:
    """The parts with the columns of all tables in the order of the first one, and the names of the samples' columns.

    A single column of targets may have any name.
    """
    names = next(filter(None, (column_names(part.x) for part in parts)), ())
    targets = next(filter(None, (column_names(part.y) for part in parts)), ())
    targets = targets if len(targets) > 1 else ()
    for part in parts:
        for what, table, first in (("x", part.x, names), ("y", part.y, targets)):
            more = [name for name in column_names(table) if first and name not in first]
            if more:
                few = ", ".join(f"'{shown(name)}'" for name in more[:_MAX_NAMED_COLUMNS])
                raise DataError(f"{what}{part.where} has columns that others lack ({few}): give all the same columns")
    aligned = [
        Part(where, in_columns(x, names, f"x{where}"), in_columns(y, targets, f"y{where}")) for where, x, y in parts
    ]
    return aligned, names


def _labels(values: Any) -> list[Any]:
    """What a table calls its columns: pandas and polars have `columns`, pyarrow has `column_names`."""
    kind = type(values)  # whose attributes no column hides
    if hasattr(kind, "column_names"):
        return list(values.column_names)
    return list(values.columns) if hasattr(kind, "columns") else []


# Named inputs


def sample_count(x: Any) -> int:
    """The number of samples of an array, or of a dict of arrays."""
    return len(next(iter(x.values()), ())) if isinstance(x, Mapping) else len(x)


def stack_inputs(parts: Sequence[Part]) -> tuple[list[Part], tuple[str, ...]]:
    """The parts with named inputs of a model, such as `input_ids`, stacked in each sample, and their names in order."""
    names = next((tuple(map(str, part.x)) for part in parts if isinstance(part.x, Mapping)), ())
    return [part._replace(x=stack_named(part.x, names, f"x{part.where}")) for part in parts], names


def stack_named(x: Any, names: Sequence[str], what: str) -> Any:
    """`[n, k, …]` of a dict of k arrays `[n, …]`; where inputs have names, an array is taken as stacked already."""
    if not isinstance(x, Mapping):
        return x
    if not names or not x:
        raise DataError(f"{what} is a dict of {counted(len(x), 'input')}, but samples are arrays: give one array")
    if "labels" in names:
        raise DataError(f"{what} has an input 'labels': leave it out of x and give the labels as y")
    if {*map(str, x)} != {*names}:
        raise DataError(f"{what} has the inputs {_named_few(map(str, x))}: give {_named_few(names)}")
    arrays = [plain_tensor(x[name], f"'{shown(name)}' of {what}") for name in names]
    first, whole = arrays[0], not arrays[0].is_floating_point()
    for name, array in zip(names, arrays, strict=True):
        if array.shape != first.shape:
            shapes = f"{tuple(array.shape)}, and '{shown(names[0])}' has {tuple(first.shape)}"
            raise DataError(f"'{shown(name)}' of {what} has shape {shapes}: pad all inputs to one shape")
        if whole and array.is_floating_point() and bool((array % 1 != 0).any()):
            raise DataError(
                f"'{shown(name)}' of {what} holds fractions, and '{shown(names[0])}' does not: give one kind"
            )
    return torch.stack([array.to(torch.int64 if whole else first.dtype) for array in arrays], 1)


def _named_few(names: Iterable[str]) -> str:
    listed = [f"'{shown(name)}'" for name in names]
    return ", ".join(listed[:_MAX_NAMED_COLUMNS]) + (", …" if len(listed) > _MAX_NAMED_COLUMNS else "") or "none"


def join_parts(
    parts: Sequence[Part], classes: int | None, dtype: torch.dtype, pixels: bool = False
) -> tuple[Tensor, Tensor, int | None]:
    """All samples and targets concatenated and checked, and the number of classes (`None`: regression).

    Whole numbers of 16 bits stay as they are if they are `pixels`, and are tokens otherwise. A single part shares
    memory with the arrays given if no conversion is needed.
    """
    if not dtype.is_floating_point:
        raise DataError(f"dtype {dtype_name(dtype)} is not floating-point: choose a dtype such as float32")
    xs = [_samples(part, dtype, pixels) for part in parts]
    ys = [_targets(part, dtype) for part in parts]
    for part, x, y in zip(parts, xs, ys, strict=True):
        if len(x) != len(y):
            raise DataError(f"x{part.where} holds {len(x)} samples, but y{part.where} holds {len(y)} targets")
        _check_alike(f"x{part.where}", x, f"x{parts[0].where}", xs[0])
        _check_alike(f"y{part.where}", y, f"y{parts[0].where}", ys[0])
    classes = _class_count(ys, classes)
    if classes is not None:
        for part, y in zip(parts, ys, strict=True):
            _check_labels(part.where, y, classes)
    return (xs[0], ys[0], classes) if len(parts) == 1 else (torch.cat(xs), torch.cat(ys), classes)


def _samples(part: Part, dtype: torch.dtype, pixels: bool) -> Tensor:
    x = plain_tensor(part.x, f"x{part.where}")
    if x.is_floating_point():
        x = x.to(dtype)
    elif x.dtype != torch.uint8 and not (pixels and x.dtype == torch.uint16):
        x = x.to(torch.uint8 if x.dtype == torch.bool else torch.int64)
    if x.numel() == 0:
        raise DataError(f"x{part.where} holds no values: its shape is {tuple(x.shape)}")
    _check_finite(x, f"x{part.where}")
    return x


def _targets(part: Part, dtype: torch.dtype) -> Tensor:
    y = plain_tensor(part.y, f"y{part.where}")
    y = y.to(dtype if y.is_floating_point() else torch.int64)
    if y.ndim > (2 if y.is_floating_point() else 1) or 0 in y.shape[1:]:
        raise DataError(f"y{part.where} has shape {tuple(y.shape)}: give labels [n], or numbers [n] or [n, d]")
    _check_finite(y, f"y{part.where}")
    return y


def plain_tensor(values: Array, what: str) -> Tensor:
    """A CPU tensor of real numbers; anything else is refused."""
    tensor = values.detach().cpu() if isinstance(values, Tensor) else torch.from_numpy(_numbers(values, what))
    if tensor.is_complex():
        raise DataError(f"{what} has dtype {dtype_name(tensor)}: samples and targets must be real numbers")
    if tensor.ndim == 0:
        raise DataError(f"{what} is a single number: its first axis must count the samples")
    return tensor


def _numbers(values: Any, what: str) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{what} is not an array: its rows differ in length") from error
    if array.dtype.kind not in "biufc":
        raise DataError(f"{what} has dtype {array.dtype}: samples and targets must be numbers")
    native = np.dtype(np.float64) if array.dtype == np.longdouble else array.dtype.newbyteorder("=")
    # torch takes neither foreign byte orders nor negative strides, and warns about read-only memory
    return np.require(array, native, ["C", "W"])


def _check_finite(values: Tensor, what: str) -> None:
    if not values.is_floating_point() or values.numel() == 0:
        return
    bad = torch.cat([(~torch.isfinite(some)).flatten(1).sum(1) for some in values[:, None].split(_CHECKED_AT_ONCE)])
    if bad.any():
        count, first, dtype = int(bad.sum()), int(bad.nonzero()[0]), dtype_name(values)
        raise DataError(f"{what} holds {count} NaN or infinite values as {dtype}, first in sample {first}")


def _check_alike(what: str, values: Tensor, other: str, expected: Tensor) -> None:
    if values.shape[1:] != expected.shape[1:]:
        shape, wanted = tuple(values.shape[1:]), tuple(expected.shape[1:])
        raise DataError(f"the samples of {what} have shape {shape}, but those of {other} have shape {wanted}")
    if values.dtype != expected.dtype:
        raise DataError(f"{what} is {dtype_name(values)}, but {other} is {dtype_name(expected)}")


def _class_count(ys: Sequence[Tensor], classes: int | None) -> int | None:
    if ys[0].is_floating_point():
        if classes is not None:
            raise DataError(f"classes={classes} was given, but y is {dtype_name(ys[0])}: labels must be integers")
        return None
    if classes is not None and classes < 1:
        raise DataError(f"classes={classes} was given: it must be at least 1")
    return classes if classes is not None else max(1, *(int(y.max()) + 1 for y in ys))


def _check_labels(where: str, y: Tensor, classes: int) -> None:
    outside = (y < 0) | (y >= classes)
    if outside.any():
        first = int(outside.nonzero()[0])
        raise DataError(f"label {int(y[first])} of sample {first} in y{where} is outside 0..{classes - 1}")
