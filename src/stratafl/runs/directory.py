"""A run directory: the names of its files, its records, checks that it can be used, and reading it.

config.toml          the complete configuration
environment.json     format, versions, device, commit, seed, checksums of data and model, and every resumption
class_counts.json    how many samples of each class each client has (`holdings.json` before format 3)
preprocessing.json   what was done to samples and targets
rounds.jsonl         one line per round
clients.jsonl        one line per evaluated client and round, or columns (client_journal.py)
layers.jsonl         one line per layer and round
checkpoint/          the last two states, each with that of the selected round
predictions.safetensors   what the models that count give for every validation and test sample, at the end
guard/               what each client takes at the end, if the run is guarded (guard.py)
memories.bin         the states of clients, if they are kept on disk
added/               clients that joined after the run (`api/added.py`)
"""

import logging
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from stratafl.config.assemble import simulation_of
from stratafl.config.experiment import Experiment, from_stored, load_stored, to_tables
from stratafl.config.migrations import FORMAT, check_format, method_digest_compares
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.data import Federation
from stratafl.data.preprocessing import preprocessing_from
from stratafl.errors import DamagedError, RunError, counted, shown, unknown
from stratafl.evaluation.measure import Line
from stratafl.execute import Progress, Simulation
from stratafl.execute.disk import StateFile
from stratafl.execute.memory import device_or_cpu
from stratafl.execute.simulation import SavedForm
from stratafl.files import atomically, explained, is_plain, sync_folder
from stratafl.runs import checkpoint, environment
from stratafl.runs.checkpoint import Checkpoint, SavedState
from stratafl.runs.json_files import JournalMark, line_bodies, read_json, read_lines
from stratafl.runs.summary import Selection

CONFIG, ENVIRONMENT, PREPROCESSING, ROUNDS = "config.toml", "environment.json", "preprocessing.json", "rounds.jsonl"
JOURNALS = ("rounds", "clients", "layers")
CHECKPOINTS, CLIENT_STATES = "checkpoint", "memories.bin"
GUARD, CHOICES = "guard", "guard.json"  # a folder in a run directory, and the file in it that tells it from a run
COMPARISON = "compare.toml"  # in a folder that holds the runs of a comparison
CROSS_SITE = "cross_site.json"  # every client's model on every client's test samples
EXTENDED = "extended"  # the key of an environment that lists numbers of rounds given later
RUNS = Path("runs")  # where folders are made if none is named
TUNING = "tune.toml"  # in a folder that holds the trials of a tuning
MAX_NAMED_RUNS = 3  # in a message
log = logging.getLogger("stratafl")
ROUNDS_KEPT = ("selected", "newest")  # whose states can be asked for


def is_run(folder: Path) -> bool:
    return is_plain(folder / CONFIG) and is_plain(folder / ENVIRONMENT)


def refuse_runs(folder: Path) -> None:
    """Refuse the folder of a comparison or a tuning: which of its runs is meant?"""
    runs = [] if is_run(folder) else sorted(p.parent for p in folder.glob(f"**/{CONFIG}") if is_run(p.parent))
    if runs:
        few = ", ".join(f"'{shown(str(run))}'" for run in runs[:MAX_NAMED_RUNS])
        rest = ", …" if len(runs) > MAX_NAMED_RUNS else ""
        raise RunError(f"'{folder}' holds {counted(len(runs), 'run')}, and each has models: name one of {few}{rest}")


def config_of(folder: Path) -> Experiment:
    return load_stored(folder / CONFIG)


def environment_of(folder: Path) -> dict[str, Any]:
    """What a run directory says of itself, if this version can read it."""
    if not is_run(folder):
        raise RunError(f"'{folder}' is not a run directory: it has no {CONFIG} and {ENVIRONMENT} of its own")
    stored = read_json(folder / ENVIRONMENT)
    check_format(folder, stored.get("format"))
    wrong = environment.misstated(stored)
    if wrong is not None:
        raise DamagedError(f"'{folder / ENVIRONMENT}' is damaged: {wrong}")
    return stored


def refuse_existing(folder: Path) -> None:
    """Raise if there is something at the place of a new run."""
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise RunError(f"cannot look into '{folder}': {error.strerror}") from error
    if not taken:
        return
    if not folder.is_dir():
        raise RunError(f"'{folder}' exists and is not a folder: choose another --out")
    for file, kind in ((ENVIRONMENT, "run"), (COMPARISON, "comparison"), (TUNING, "tuning")):
        if (folder / file).exists():
            again = f"strata resume {shlex.quote(str(folder))}"
            raise RunError(f"'{folder}' already holds a {kind}: continue it with '{again}', or choose another --out")
    raise RunError(f"'{folder}' exists and is not empty: choose another --out")


def unused_run_folder(name: str) -> Path:
    """A directory of this name in runs/ that does not exist yet."""
    plain = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    first = RUNS / plain
    return first if not first.exists() else next(p for n in count(2) if not (p := RUNS / f"{plain}-{n}").exists())


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill under a temporary name; it gets its own name when it is complete."""
    with explained("create", folder):
        with atomically(folder) as partial:
            partial.mkdir(parents=True)
            yield partial
        sync_folder(folder.absolute().parent)


def refuse_guard(folder: Path) -> None:
    """Raise if a folder is the result of a run's guard, which reads like a run but holds no state of one."""
    if (folder / CHOICES).exists():
        whole = shlex.quote(str(folder.parent))
        raise RunError(f"'{folder}' is the result of a run's guard, not a run: give the run itself, {whole}")


def check_config(path: Path, then: Mapping[str, Any], today: Mapping[str, Any], number: int = FORMAT) -> None:
    """Raise if a configuration is not what it was, naming the first key; a key that is new since had its default.

    `number` is the format of what it was.
    """
    then = to_tables(from_stored({"format": number, **then})) if then else today
    for table in sorted({*then, *today}):
        before, after = then.get(table, {}), today.get(table, {})
        for key in sorted({*before, *after}):
            was, now = before.get(key), after.get(key)
            if was != now:
                raise RunError(
                    f"'{path}' was changed: {table}.{key} was {was!r} and is {now!r}; "
                    "put it back, or start a new run with --config"
                )


def check_stored(folder: Path, then: Mapping[str, Any], experiment: Experiment) -> None:
    """Raise if the configuration is not the one that the run began with, or was extended to."""
    today, begun = to_tables(experiment), (then.get("identity") or {}).get("config") or {}
    longer = [entry["to"] for entry in then.get(EXTENDED) or []]
    if begun and today["run"]["rounds"] in longer:
        begun = {**begun, "run": {**begun.get("run", {}), "rounds": today["run"]["rounds"]}}
    check_config(folder / CONFIG, begun, today, then["format"])


def check_journal(path: Path, mark: JournalMark) -> None:
    """Raise unless a journal up to this mark is what was committed."""
    for _ in line_bodies(path, until=mark):
        pass


def check_committed(folder: Path, *names: str) -> None:
    """Raise unless journals are what they were when the newest checkpoint was saved; they may have grown since."""
    marks = checkpoint.committed(folder / CHECKPOINTS)
    for name in names:
        if name in marks:
            check_journal(folder / f"{name}.jsonl", marks[name])


def check_history(path: Path, lines: list[Line], rounds: int) -> None:
    """Raise unless there is one line for each of so many rounds."""
    if [line.get("round") for line in lines] != list(range(1, rounds + 1)):
        raise DamagedError(f"'{path}' was changed: it does not hold the {rounds} rounds that were committed")


def read_run(
    folder: Path, round: str = "newest", device: str | None = None, trust: Trust | bool = NO_TRUST
) -> tuple[Simulation, Progress, list[Line]]:
    """What a run directory holds: simulation, state, and lines up to the newest checkpoint.

    The state is that of the newest checkpoint, or the one after the selected round. `device` replaces that of the run;
    `auto` is the run's own, if this machine has it.
    """
    if round not in ROUNDS_KEPT:
        raise unknown("round", round, ROUNDS_KEPT)
    refuse_guard(folder)
    sim = simulation_of_run(folder, environment_of(folder), config_of(folder), trust, device)
    return sim, *stored_progress(folder, sim, round)


def stored_progress(folder: Path, sim: Simulation, round: str) -> tuple[Progress, list[Line]]:
    """The state of a run whose simulation this is, as `read_run` says, and its lines."""
    form, file = SavedForm.of(sim), StateFile(folder / CLIENT_STATES, sim.state_format.size, writable=False)
    search = checkpoint.find(folder / CHECKPOINTS, lambda saved: check_saved(sim, form, saved, file))
    saved = search.checkpoint
    if saved is None:
        raise RunError(f"'{folder}' has no checkpoint to read: {'; '.join(search.complaints) or 'none was saved yet'}")
    for complaint in search.complaints:
        log.warning("%s: reading an older checkpoint", complaint)
    lines = read_lines(folder / ROUNDS, until=saved.journals["rounds"])
    check_history(folder / ROUNDS, lines, saved.round)
    return sim.restored(_state(folder, saved, lines, round).tensors, file), lines


def selected_line(folder: Path, lines: list[Line]) -> Line | None:
    """The line of the round that the run's own settings select."""
    return Selection.of(lines, config_of(folder).evaluate, None).line


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
            f"the checkpoint of '{folder}' has round {saved.selected.round} as the selected one, but its lines "
            f"select round {chosen['round']}: load the newest one with round='newest'"
        )
    return saved.selected


def simulation_of_run(
    folder: Path, then: dict[str, Any], experiment: Experiment, trust: Trust | bool, device: str | None = None
) -> Simulation:
    """The simulation of a stored run; refused if its configuration, data or model are not what they were."""
    trust = Trust.of(trust).asked_by(folder / CONFIG, then.get("folder"))
    identity = then.get("identity") or {}
    check_stored(folder, then, experiment)
    asked, tuning = (experiment, then.get("tuning")) if device is None else _elsewhere(experiment, then, device)
    sim = simulation_of(asked, tuning, trust, begun=True)
    for what, today in environment.identity(sim).items():
        if what == "algorithm" and not method_digest_compares(experiment.algorithm.name, then["format"]):
            continue  # its settings are compared above
        if identity.get(what) != today:
            raise RunError(f"the {what} of '{folder}' has changed since the run began: it cannot be continued")
    _check_preprocessing(folder / PREPROCESSING, sim.runtime.federation)
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
        raise DamagedError(f"it is from round {saved.round}, but the run has {rounds}")
    for name in JOURNALS:
        if name not in saved.journals:
            raise DamagedError(f"it does not say how long {name}.jsonl was")
    for state in saved.states:
        form.check(state.round, state.tensors)
        sim.restored_clients(state.tensors, file).check()
