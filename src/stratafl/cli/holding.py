"""`data show`: who holds what, as a table and as a picture."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from stratafl.cli.consoles import remarks, results, warnings_on
from stratafl.cli.understood import understood
from stratafl.config.assemble import federation_of
from stratafl.config.experiment import Experiment, load, with_values
from stratafl.config.settings import Settings
from stratafl.data import Federation
from stratafl.data.federation import SPLITS
from stratafl.data.plot import plot_class_counts, total_class_counts
from stratafl.errors import RunError, counted
from stratafl.files import check_new, write_atomically

ROWS = 40  # of clients; more are summed up in one
_FEW = 6  # classes of a client that are named one by one


def show(config: Path | None, settings: Settings, out: Path | None) -> None:
    """Print what each client holds; draw it where asked."""
    check_new([out])
    if out is not None and out.suffix.lower() != ".svg":
        raise RunError(f"'{out}' would be a picture in SVG: call it '{out.with_suffix('.svg')}'")
    experiment = with_values(Experiment() if config is None else load(config), settings)
    with warnings_on(remarks()) as settled:
        federation = federation_of(experiment)
        settled()
    results().print(table(federation))
    for line in understood(federation):
        results().print(line, markup=False, soft_wrap=True)
    if out is not None:
        write_atomically(out, plot_class_counts(federation).encode())
        results().print(f"picture: {out}", markup=False, soft_wrap=True)


def table(federation: Federation) -> Table:
    """A row per client: samples, classes, and how many are for what."""
    counts, sizes = total_class_counts(federation), {split: federation.counts(split) for split in SPLITS}
    clients = federation.clients
    made = Table(title=_title(federation), title_justify="left", header_style="bold", expand=False)
    named = bool(federation.client_names)
    made.add_column("client", justify="right")
    if named:
        made.add_column("name")
    for name in ("samples", *SPLITS):
        made.add_column(name, justify="right")
    made.add_column("classes (samples)")
    shown = clients if clients <= ROWS else ROWS - 1
    for i in range(shown):
        parts = (f"{int(sizes[split][i]):,}" for split in SPLITS)
        called = [Text(federation.client_name(i))] if named else []
        classes = Text(_classes(federation, counts[i].tolist()))
        made.add_row(str(i), *called, f"{int(counts[i].sum()):,}", *parts, classes)
    if shown < clients:
        rest = (f"{int(sizes[split][shown:].sum()):,}" for split in SPLITS)
        numbers = (f"{shown}–{clients - 1}", *(["…"] if named else []), f"{int(counts[shown:].sum()):,}")
        made.add_row(*numbers, *rest, counted(clients - shown, "more client"))
    return made


def _title(federation: Federation) -> str:
    sizes = total_class_counts(federation).sum(1)
    spread = f"from {int(sizes.min()):,} to {int(sizes.max()):,} each"
    return (
        f"{federation.name}: {counted(federation.clients, 'client')}, {counted(int(sizes.sum()), 'sample')}, {spread}"
    )


def _classes(federation: Federation, counts: list[int]) -> str:
    """The classes that somebody holds most of, and how many others."""
    if federation.classes is None:
        return "–"
    there = sorted((label for label, count in enumerate(counts) if count), key=lambda label: -counts[label])
    named = ", ".join(f"{federation.class_name(label)} ({counts[label]:,})" for label in there[:_FEW])
    return named + (f" and {len(there) - _FEW} more" if len(there) > _FEW else "")
