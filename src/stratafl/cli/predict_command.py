"""`strata predict` and `strata export`: with the model of a client of a run, or of a site that joined a federation."""

import sys
from pathlib import Path

from stratafl.api import FittedClient, load
from stratafl.cli.console import note_console, show_warnings
from stratafl.config.deployment import new_samples_of
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import RunError, counted, shown
from stratafl.export import export_model
from stratafl.export.predicted import Predicted, check_prediction_file, predict_samples
from stratafl.files import check_new
from stratafl.runs.directory import CONFIG, config_of, is_run

MAX_NAMED_CLIENTS, MAX_NAMED_RUNS = 8, 3  # in a message


def print_predictions(folder: Path, client: str | None, data: Path, out: Path | None, trust: bool) -> None:
    """Print predictions as CSV, or write them to a file."""
    if out is not None:
        check_prediction_file(out)
    console = note_console()
    with show_warnings(console):
        predictions = _predicted(folder, client, data, trust)
    if out is None:
        sys.stdout.write(predictions.csv())
        return
    predictions.write(out)
    console.print(f"{counted(len(predictions.samples), 'sample')} predicted, '{out}'", markup=False)


def export_client_model(folder: Path, client: str | None, out: Path, trust: bool) -> None:
    """Write the model with its preprocessing."""
    check_new([out])
    console = note_console()
    with show_warnings(console):
        if is_run(folder):
            _client_of(folder, client, trust).export(out)
        else:
            _refuse_client(folder, client)
            from stratafl.deploy.site_model import final_model, member_in

            export_model(final_model(member_in(folder, trust=trust)), out)
    console.print(f"exported, '{out}'", markup=False)


def _predicted(folder: Path, client: str | None, data: Path, trust: bool) -> Predicted:
    if not is_run(folder):
        _refuse_client(folder, client)
        from stratafl.deploy.site_model import member_in, predicted

        return predicted(member_in(folder, trust=trust), data)
    chosen = _client_of(folder, client, trust)
    form = SampleFormat.of(chosen.fitted.sim.runtime.federation)
    samples = new_samples_of(config_of(folder), form, data)
    return predict_samples(chosen.predictor, samples, form, chosen.fitted.title_of(chosen.number))


def _refuse_runs(folder: Path) -> None:
    """Refuse the folder of a comparison or a tuning: which of its runs is meant?"""
    runs = sorted(path.parent for path in folder.glob(f"**/{CONFIG}") if is_run(path.parent))
    if runs:
        few = ", ".join(f"'{shown(str(run))}'" for run in runs[:MAX_NAMED_RUNS])
        rest = ", …" if len(runs) > MAX_NAMED_RUNS else ""
        raise RunError(f"'{folder}' holds {counted(len(runs), 'run')}, and each has models: name one of {few}{rest}")


def _refuse_client(folder: Path, client: str | None) -> None:
    _refuse_runs(folder)
    if client is not None:
        raise RunError(f"--client is for run directories, and '{folder}' is none: a site has one model, leave it out")


def _client_of(folder: Path, client: str | None, trust: bool) -> FittedClient:
    """The client of a run by its name, or else by its number."""
    fitted = load(folder, device="cpu", trust=trust)
    names = fitted.client_names
    if client is None:
        few = ", ".join(map(shown, names[:MAX_NAMED_CLIENTS])) + (", …" if len(names) > MAX_NAMED_CLIENTS else "")
        raise RunError(f"each client has its own model: say whose with --client, one of: {few}")
    return fitted.client(client if client in names or not client.isdecimal() else int(client))
