"""A run directory: the names of its files, what it says of itself, and whether it can be used.

config.toml          the complete configuration
environment.json     format, versions, device, commit, seed, checksums of data and model, and every resumption
class_counts.json    how many samples of each class each client has (`holdings.json` before format 3)
preprocessing.json   what was done to samples and targets
rounds.jsonl         one line per round
clients.jsonl        one line per evaluated client and round
layers.jsonl         one line per layer and round
checkpoint/          the last two states, each with that of the selected round
predictions.safetensors   what the models that count give for every validation and test sample, at the end
guard/               what each client takes at the end, if the run is guarded (guard.py)
memories.bin         the states of clients, if they are kept on disk
"""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stratafl.config.experiment import Experiment, from_stored, load_stored, to_tables
from stratafl.config.migrations import check_format
from stratafl.errors import DamagedError, RunError
from stratafl.evaluation.measure import Line
from stratafl.files import atomically, explained, is_plain, sync_folder
from stratafl.runs import checkpoint, environment
from stratafl.runs.journal import JournalMark, line_bodies
from stratafl.runs.json_files import read_json

CONFIG, ENVIRONMENT, PREPROCESSING, ROUNDS = "config.toml", "environment.json", "preprocessing.json", "rounds.jsonl"
JOURNALS = ("rounds", "clients", "layers")
CHECKPOINTS, CLIENT_STATES = "checkpoint", "memories.bin"
GUARD, CHOICES = "guard", "guard.json"  # a folder in a run directory, and the file in it that tells it from a run
COMPARISON = "compare.toml"  # in a folder that holds the runs of a comparison
TUNING = "tune.toml"  # in a folder that holds the trials of a tuning


def is_run(folder: Path) -> bool:
    return is_plain(folder / CONFIG) and is_plain(folder / ENVIRONMENT)


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


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill under a temporary name; it gets its own name when it is complete."""
    with explained("create", folder):
        with atomically(folder) as partial:
            partial.mkdir(parents=True)
            yield partial
        sync_folder(folder.absolute().parent)


def refuse_guard(folder: Path) -> None:
    """Raise if a folder is what the guard of a run came to, which reads like a run but holds no state of one."""
    if (folder / CHOICES).exists():
        whole = shlex.quote(str(folder.parent))
        raise RunError(f"'{folder}' is what the guard of a run came to, not a run: give the run itself, {whole}")


def check_config(path: Path, then: Mapping[str, Any], today: Mapping[str, Any]) -> None:
    """Raise if a configuration is not what it was, naming the first key; a key that is new since had its default."""
    then = to_tables(from_stored(then)) if then else today
    for table in sorted({*then, *today}):
        before, after = then.get(table, {}), today.get(table, {})
        for key in sorted({*before, *after}):
            was, now = before.get(key), after.get(key)
            if was != now:
                raise RunError(
                    f"'{path}' was changed: {table}.{key} was {was!r} and is {now!r}; "
                    "put it back, or start a new run with --config"
                )


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
