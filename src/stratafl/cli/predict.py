"""`strata predict` and `strata export`: the model that a site ends with, at the site."""

import sys
from pathlib import Path

from stratafl.cli.console import note_console, show_warnings
from stratafl.deploy.site_model import check_table, final_model, member_in, predicted
from stratafl.errors import counted
from stratafl.export import export_model
from stratafl.files import check_new


def predict(folder: Path, data: Path, out: Path | None, trust: bool) -> None:
    """Print predictions as CSV, or write them to a file."""
    if out is not None:
        check_table(out)
    console = note_console()
    with show_warnings(console) as release_warnings:
        found = predicted(member_in(folder, trust=trust), data)
        release_warnings()
    if out is None:
        sys.stdout.write(found.csv())
        return
    found.write(out)
    console.print(f"{counted(len(found.samples), 'sample')} predicted, '{out}'", markup=False)


def export(folder: Path, out: Path, trust: bool) -> None:
    """Write the model with its preprocessing."""
    check_new([out])
    console = note_console()
    with show_warnings(console) as release_warnings:
        model = final_model(member_in(folder, trust=trust))
        release_warnings()
    export_model(model, out)
    console.print(f"exported, '{out}'", markup=False)
