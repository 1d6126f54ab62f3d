"""`strata predict` and `strata export`: with the model of a client of a run, or of a site that joined a federation."""

import sys
from dataclasses import replace
from pathlib import Path

from stratafl.api import FittedClient, load
from stratafl.api.added import write_added
from stratafl.api.fitted import admit_client, new_client_number
from stratafl.api.fitted_client import named_client
from stratafl.api.saved import experiment_of_saved, is_saved
from stratafl.cli.console import note_console, show_warnings
from stratafl.config.deployment import new_samples_of, site_federation_of
from stratafl.config.experiment import Experiment
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import RunError, counted, shown
from stratafl.export.predicted import Predicted, check_prediction_file, predict_samples
from stratafl.files import check_new
from stratafl.runs.directory import config_of, is_run, refuse_runs

MAX_NAMED_CLIENTS = 8  # in a message


def print_predictions(folder: Path, client: str | None, data: Path, out: Path | None, alone: bool, trust: bool) -> None:
    """Print predictions as CSV, or write them to a file."""
    if out is not None:
        check_prediction_file(out)
    console = note_console()
    with show_warnings(console):
        predictions = _predicted(folder, client, data, alone, trust)
    if out is None:
        sys.stdout.write(predictions.csv())
        return
    predictions.write(out)
    console.print(f"{counted(len(predictions.samples), 'sample')} predicted, '{out}'", markup=False)


def export_client_model(folder: Path, client: str | None, out: Path, alone: bool, trust: bool) -> None:
    """Write the model with its preprocessing."""
    check_new([out])
    console = note_console()
    with show_warnings(console):
        if _has_clients(folder):
            _refuse_alone(folder, alone)
            _client_of(folder, client, trust).export(out)
        else:
            _refuse_client(folder, client)
            from stratafl.deploy.site_model import export_final, member_in

            export_final(member_in(folder, trust=trust), out, alone)
    console.print(f"exported, '{out}'", markup=False)


def _predicted(folder: Path, client: str | None, data: Path, alone: bool, trust: bool) -> Predicted:
    if not _has_clients(folder):
        _refuse_client(folder, client)
        from stratafl.deploy.site_model import member_in, predicted

        return predicted(member_in(folder, trust=trust), data, alone)
    _refuse_alone(folder, alone)
    chosen = _client_of(folder, client, trust)
    form = SampleFormat.of(chosen.fitted.sim.runtime.federation)
    samples = new_samples_of(_experiment_of(folder), form, data)
    return predict_samples(chosen.predictor, samples, form, named_client(chosen.fitted, chosen.number))


def add_client_to(folder: Path, name: str, data: str, trust: bool) -> None:
    """Add a client to a run or a saved federation, and write its model there."""
    console = note_console()
    with show_warnings(console):
        if not _has_clients(folder):
            refuse_runs(folder)
            raise RunError(f"'{folder}' is neither a run directory nor a saved federation: give one of these")
        fitted, experiment = load(folder, device="cpu", trust=trust), _experiment_of(folder)
        form, number = SampleFormat.of(fitted.sim.runtime.federation), new_client_number(fitted, name)
        samples = site_federation_of(experiment, form, data, number)
        added = admit_client(fitted, replace(samples, client_names=(name,)))
        path = write_added(folder, fitted.added[added.number])
    console.print(f"client '{shown(name)}' added after round {fitted.round}, '{path}'", markup=False)


def _has_clients(folder: Path) -> bool:
    return is_run(folder) or is_saved(folder)


def _experiment_of(folder: Path) -> Experiment:
    return config_of(folder) if is_run(folder) else experiment_of_saved(folder)


def _refuse_alone(folder: Path, alone: bool) -> None:
    if alone:
        raise RunError(f"--alone is for the folder of a site, and '{folder}' is not one: compare with the method local")


def _refuse_client(folder: Path, client: str | None) -> None:
    refuse_runs(folder)
    if not folder.is_dir():
        raise RunError(f"there is no folder '{folder}': give a run directory, or the folder of a site")
    if client is not None:
        raise RunError(f"--client is for run directories, and '{folder}' is not one: leave it out")


def _client_of(folder: Path, client: str | None, trust: bool) -> FittedClient:
    """The client of a run by its name, or else by its number."""
    fitted = load(folder, device="cpu", trust=trust)
    names = fitted.client_names
    if client is None:
        few = ", ".join(map(shown, names[:MAX_NAMED_CLIENTS])) + (", …" if len(names) > MAX_NAMED_CLIENTS else "")
        raise RunError(f"each client has its own model: choose one with --client, one of: {few}")
    return fitted.client(client if client in names or not client.isdecimal() else int(client))
