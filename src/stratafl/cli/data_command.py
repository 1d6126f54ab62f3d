"""`strata data`: data sets, copies for machines without a network, which client has what, and how it was read."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor

from stratafl.cli.command_options import experiment_of
from stratafl.cli.console import note_console, result_console, show_warnings, titled_table
from stratafl.config.assemble import federation_of, samples_of
from stratafl.config.experiment import Experiment, from_tables, with_values
from stratafl.config.setting_tables import DataTable, Settings, reading_of
from stratafl.core.reprs import short_number
from stratafl.data import Federation, write_shards
from stratafl.data.encoded_tables import encoded
from stratafl.data.federation import SPLITS
from stratafl.data.formats.columns import numbers_or_texts
from stratafl.data.outliers import FACTOR, columns_differ_in_size, outlier_warnings
from stratafl.data.plot import plot_class_counts, total_class_counts
from stratafl.data.suspects import suspect_warnings
from stratafl.data.table_warnings import column_lines, table_warnings
from stratafl.data.user_files import table_columns
from stratafl.errors import DataError, RunError, StrataError, counted
from stratafl.files import check_new, write_atomically

TABLES = (".csv", ".parquet")
ROWS = 40  # of clients; more are summed up in one
_CLASSES_OF_CLIENT, _CLASSES = 6, 20  # limits of what is listed by name
_KINDS = {torch.uint8: "byte", torch.uint16: "16-bit number"}


def export_data(name: str, out: Path, path: str | None, settings: Settings) -> None:
    """Write a data set as shards, and print how to use them."""
    experiment = with_values(from_tables({}), {"data.name": name, "data.path": path, **settings})
    samples = samples_of(experiment.data, experiment.run.seed)
    files = write_shards(samples, out)
    size = sum(file.stat().st_size for file in files)
    result_console().print(
        f"{counted(len(samples.x), 'sample')} of {samples.name} in {counted(len(files), 'file')}, "
        f"{size / 1e6:,.1f} MB: copy the folder and pass it as --data FOLDER/, with a slash at the end",
        markup=False,
        soft_wrap=True,
    )


def show_data(config: Path | None, settings: Settings, out: Path | None) -> None:
    """Print a row per client and a description of the data; write the picture if a file is given."""
    check_new([out])
    if out is not None and out.suffix.lower() != ".svg":
        raise RunError(f"'{out}' must end in .svg, the format of the picture: use '{out.with_suffix('.svg')}'")
    experiment = with_values(experiment_of(config, settings), settings)
    console = result_console()
    try:
        with show_warnings(note_console()):
            federation = federation_of(experiment, raw=True)
    except DataError:
        _show_unread(experiment)
        raise
    console.print(client_table(federation))
    if federation.codes:
        console.print(column_table(federation, experiment.data))
    for line in describe_data(federation, experiment.data):
        console.print(line, markup=False, soft_wrap=True)
    if out is not None:
        write_atomically(out, plot_class_counts(federation).encode())
        console.print(f"picture: {out}", markup=False, soft_wrap=True)


def client_table(federation: Federation) -> Table:
    """A row per client: samples, how they are split, and classes."""
    counts, sizes = total_class_counts(federation), {split: federation.counts(split) for split in SPLITS}
    clients, names = federation.clients, ["name"] if federation.client_names else []
    shifts = ["shift"] if federation.shifts else []
    columns = ("client", *names, "samples", *SPLITS, *shifts, "classes (samples)")
    table = titled_table(_title(federation), columns, text=("name", "shift", "classes (samples)"))
    listed = clients if clients <= ROWS else ROWS - 1
    for i in range(listed):
        name = [Text(federation.client_name(i))] if names else []
        numbers = (int(counts[i].sum()), *(int(sizes[split][i]) for split in SPLITS))
        words = [*([federation.shifts[i]] if shifts else []), _classes(federation, counts[i].tolist())]
        table.add_row(str(i), *name, *(f"{number:,}" for number in numbers), *map(Text, words))
    if listed < clients:
        numbers = (int(counts[listed:].sum()), *(int(sizes[split][listed:].sum()) for split in SPLITS))
        head = (f"{listed}–{clients - 1}", *("…" for _ in names))
        last = (*("…" for _ in shifts), counted(clients - listed, "more client"))
        table.add_row(*head, *(f"{number:,}" for number in numbers), *last)
    return table


def _show_unread(experiment: Experiment) -> None:
    """Print the columns of a table of which no samples can be made; not if only their division among clients fails."""
    try:
        samples_of(experiment.data, experiment.run.seed)
    except DataError:
        with suppress(StrataError):
            _show_columns(experiment.data)


def _show_columns(data: DataTable) -> None:
    """Print what columns of a table are taken for, if that is all that can be said of it."""
    if data.name.endswith(TABLES) and Path(data.name).is_file():
        table = titled_table("columns", columns := ("column", "taken for", "texts"), text=columns)
        for column in table_columns(Path(data.name), reading_of(data, 0)):
            table.add_row(
                *map(
                    Text,
                    (column.name, column.kind, column.why or _listed(column.values[:_CLASSES], len(column.values))),
                )
            )
        result_console().print(table)


def column_table(federation: Federation, data: DataTable) -> Table:
    """A row per column of a table that is encoded: what it was taken for, and what is done with it."""
    ways = [way] if (way := reading_of(data, 0).standardisation(federation.x, True)) else []
    columns = ("column", "taken for", "missing", "what is done with it")
    table = titled_table("columns", columns, text=columns)
    for line in column_lines(federation, encoded(federation, ways, data.new_clients)):
        table.add_row(*map(Text, line))
    return table


def _title(federation: Federation) -> str:
    sizes = total_class_counts(federation).sum(1)
    clients, samples = counted(federation.clients, "client"), counted(int(sizes.sum()), "sample")
    low, high = int(sizes.min()), int(sizes.max())
    span = f"{low:,} each" if low == high else f"from {low:,} to {high:,} each"
    return f"{federation.name}: {clients}, {samples}, {span}"


def _classes(federation: Federation, counts: list[int]) -> str:
    """The most frequent classes of a client, and how many others."""
    if federation.classes is None:
        return "–"
    present = sorted((label for label, count in enumerate(counts) if count), key=lambda label: -counts[label])
    named = [f"{federation.class_name(label)} ({counts[label]:,})" for label in present[:_CLASSES_OF_CLIENT]]
    rest = len(present) - len(named)
    return ", ".join(named) + (f" and {rest} more" if rest else "")


def describe_data(federation: Federation, data: DataTable) -> list[str]:
    """How the data was read, a line each: what a sample is, what is predicted, and what looks wrong."""
    way = reading_of(data, 0).standardisation(federation.x, bool(federation.codes))
    ways = [] if way is None else [way]
    standardise = partial(encoded, federation) if federation.codes else federation.standardised
    done = standardise(ways, data.new_clients).standardisation_note()
    warnings = [*table_warnings(federation), *suspect_warnings(federation), *_warnings(federation, data, way)]
    lines = [
        *([] if federation.codes else [_sample(federation)]),
        *([done] if done else []),
        *warnings,
        _target(federation),
    ]
    if federation.classes == 1:
        lines.append("all labels are the same, so every prediction is right")
    if federation.group is not None:
        groups = counted(federation.groups, "group")
        lines.append(f"{groups} by the column '{federation.group}': samples of a group stay on one side of the split")
    return lines


def _sample(federation: Federation) -> str:
    x, names = federation.x, federation.column_names
    if federation.text is not None:
        return federation.text.note()
    kind = _KINDS.get(x.dtype) or ("number" if x.is_floating_point() else "whole number")
    if x.ndim != 2:
        mode = f" (images of mode {federation.mode})" if federation.mode else ""
        return f"a sample is {'×'.join(map(str, x.shape[1:])) or 'one'}, {kind}s from {_range(x)}{mode}"
    width = counted(x.shape[1], kind)
    if not names:
        return f"a sample is {width} from {_range(x)}"
    return f"a sample is {width}: {', '.join(f'{name} {_range(x[:, at])}' for at, name in enumerate(names))}"


def _warnings(federation: Federation, data: DataTable, way: str | None) -> list[str]:
    """Clients in other units, and numbers that are too large, or too different, to train on as they are."""
    x, y, lines = federation.x, federation.y, outlier_warnings(federation)
    if lines and way == "client":
        lines = [*lines, "correct these units if you can: standardising each client evens out scales, not mistakes"]
    elif lines:
        lines = [*lines, "correct these units first, or leave data.normalise at 'auto': each client has its own scale"]
    elif way is None and columns_differ_in_size(x):
        lines = ["columns have very different scales, so training may fail: set data.normalise = 'columns'"]
    if federation.classes is None and y.abs().max() > FACTOR and data.targets != "scaled":
        lines = [*lines, "labels are large numbers, so training may fail: set data.targets = 'scaled'"]
    return lines


def _target(federation: Federation) -> str:
    """The target, and the setting that changes it."""
    if federation.classes is None:
        regression = f"a regression: labels are numbers from {_range(federation.y)}"
        return f"{regression} (data.targets = 'classes' makes them classes)"
    names = federation.class_names
    listed = f": {_listed(names[:_CLASSES], len(names))}" if names else ""
    numbers = names and not isinstance(numbers_or_texts(names), list)
    hint = " (data.targets = 'numbers' makes it a regression)" if numbers else ""
    return f"{counted(federation.classes, 'class', 'classes')}{listed}{hint}"


def _listed(first: Sequence[str], total: int) -> str:
    return ", ".join(first) + (", …" if len(first) < total else "")


def _range(values: Tensor) -> str:
    array = values.cpu().numpy()  # torch has no minimum of 16-bit numbers
    return f"{short_number(float(array.min()))} to {short_number(float(array.max()))}"
