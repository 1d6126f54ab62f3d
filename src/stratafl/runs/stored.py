"""Reading a stored run without touching it: its simulation, its state, and its lines."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from stratafl.config.assemble import simulation_of
from stratafl.config.experiment import Experiment, to_tables
from stratafl.config.migrations import METHOD_DIGEST
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.data import Federation
from stratafl.data.preprocessing import preprocessing_from
from stratafl.errors import DamagedError, RunError, unknown
from stratafl.evaluation.measure import Line
from stratafl.execute import Progress, Simulation
from stratafl.execute.disk import StateFile
from stratafl.execute.memory import device_or_cpu
from stratafl.execute.simulation import SavedForm
from stratafl.runs import checkpoint, directory, environment
from stratafl.runs.checkpoint import Checkpoint, SavedState
from stratafl.runs.journal import read_lines
from stratafl.runs.json_files import read_json
from stratafl.runs.summary import Selection

log = logging.getLogger("stratafl")
ROUNDS_KEPT = ("selected", "newest")  # whose states can be asked for


def read_run(
    folder: Path, round: str = "newest", device: str | None = None, trust: Trust | bool = NO_TRUST
) -> tuple[Simulation, Progress, list[Line]]:
    """What a run directory holds: simulation, state, and lines up to the newest checkpoint.

    The state is that of the newest checkpoint, or the one after the selected round. `device` replaces that of the run;
    `auto` is the run's own, if this machine has it.
    """
    if round not in ROUNDS_KEPT:
        raise unknown("round", round, ROUNDS_KEPT)
    directory.refuse_guard(folder)
    sim = simulation_of_run(folder, directory.environment_of(folder), directory.config_of(folder), trust, device)
    form, file = SavedForm.of(sim), StateFile(folder / directory.CLIENT_STATES, sim.state_format.size, writable=False)
    search = checkpoint.find(folder / directory.CHECKPOINTS, lambda saved: check_saved(sim, form, saved, file))
    saved = search.checkpoint
    if saved is None:
        raise RunError(f"'{folder}' has no checkpoint to read: {'; '.join(search.complaints) or 'none was saved yet'}")
    for complaint in search.complaints:
        log.warning("%s: an older checkpoint is read", complaint)
    lines = read_lines(folder / directory.ROUNDS, until=saved.journals["rounds"])
    directory.check_history(folder / directory.ROUNDS, lines, saved.round)
    state = _state(folder, saved, lines, round)
    return sim, sim.restored(state.tensors, file), lines


def selected_line(folder: Path, lines: list[Line]) -> Line | None:
    """The line of the round that the run's own settings select."""
    return Selection.of(lines, directory.config_of(folder).evaluate, None).line


def _state(folder: Path, saved: Checkpoint, lines: list[Line], round: str) -> SavedState:
    newest = SavedState(saved.round, saved.tensors)
    if round == "newest":
        return newest
    chosen = selected_line(folder, lines)
    if saved.selected is None or chosen is None:
        if chosen is not None and chosen["round"] != saved.round:
            log.warning(
                "'%s' has not kept the state of its selected round %s: you get round %s, its newest checkpoint",
                *(folder, chosen["round"], saved.round),
            )
        return newest
    if saved.selected.round != chosen["round"]:
        raise DamagedError(
            f"the checkpoint of '{folder}' holds round {saved.selected.round} as the selected one, and by its lines "
            f"that is round {chosen['round']}: load the newest one with round='newest'"
        )
    return saved.selected


def simulation_of_run(
    folder: Path, then: dict[str, Any], experiment: Experiment, trust: Trust | bool, device: str | None = None
) -> Simulation:
    """The simulation of a stored run; refused if its configuration, data or model are not what they were."""
    trust = Trust.of(trust).asked_by(folder / directory.CONFIG, then.get("folder"))
    identity = then.get("identity") or {}
    directory.check_config(folder / directory.CONFIG, identity.get("config") or {}, to_tables(experiment))
    asked, tuning = (experiment, then.get("tuning")) if device is None else _elsewhere(experiment, then, device)
    sim = simulation_of(asked, tuning, trust, begun=True)
    for what, today in environment.identity(sim).items():
        if what == "algorithm" and then["format"] < METHOD_DIGEST:  # its settings are compared above
            continue
        if identity.get(what) != today:
            raise RunError(f"the {what} of '{folder}' is not what the run began with: it cannot be continued")
    _check_preprocessing(folder / directory.PREPROCESSING, sim.runtime.federation)
    return sim


def _elsewhere(experiment: Experiment, then: dict[str, Any], device: str) -> tuple[Experiment, dict[str, Any] | None]:
    """The experiment on a device of this machine, without what was decided for another kind of device."""
    target = device_or_cpu(str(then.get("device") or experiment.run.device)) if device == "auto" else device
    run = replace(experiment.run, device=target, memory_limit=None)  # the limit may be another device's
    if target.partition(":")[0] == str(then.get("device")).partition(":")[0]:
        return replace(experiment, run=run), then.get("tuning")
    usual = type(run)()
    run = replace(run, precision=usual.precision, compile=usual.compile, graphs=usual.graphs)
    return replace(experiment, run=replace(run, convolutions=usual.convolutions)), None


def _check_preprocessing(path: Path, federation: Federation) -> None:
    if not path.exists():  # runs of early versions have none
        return
    try:
        stored = preprocessing_from(read_json(path))
    except ValueError as error:
        raise RunError(f"'{path}' is damaged: {error}") from error
    if stored != federation.preprocessing:
        raise RunError(f"'{path}' was changed and does not fit the data of this run: put it back, or remove it")


def check_saved(sim: Simulation, form: SavedForm, saved: Checkpoint, file: StateFile) -> None:
    """Raise unless a checkpoint can be one of this simulation."""
    rounds = sim.rounds
    if not 1 <= saved.round <= rounds:
        raise DamagedError(f"it is of round {saved.round}, and the run has {rounds}")
    for name in directory.JOURNALS:
        if name not in saved.journals:
            raise DamagedError(f"it does not say how long {name}.jsonl was")
    for state in saved.states:
        form.check(state.round, state.tensors)
        sim.restored_clients(state.tensors, file).check()
