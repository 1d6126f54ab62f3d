"""Extending a run: more rounds than were asked for at its start, as if they had been asked for then.

Two files change, each atomically. `environment.json` is first: it lists the numbers of rounds that are allowed. The
run is extended once `config.toml` has the new number. Killed in between, the run is as it was.
"""

import os
import shlex
from dataclasses import replace
from pathlib import Path

import tomli_w

from stratafl.config.assemble import algorithm_of
from stratafl.config.experiment import to_tables
from stratafl.config.migrations import with_format
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.core.pace import check_goes_on
from stratafl.errors import RunError, counted
from stratafl.files import lock, write_atomically
from stratafl.runs import directory
from stratafl.runs.directory import COMPARISON, CONFIG, ENVIRONMENT, EXTENDED, ROUNDS, TUNING
from stratafl.runs.environment import utc_now
from stratafl.runs.json_files import read_lines, write_json
from stratafl.runs.summary import stop_reason


def extend_run(folder: Path, rounds: int, trust: Trust | bool = NO_TRUST) -> None:
    """Set the number of rounds of a stored run; refused if the rounds so far would have been others."""
    directory.refuse_guard(folder)
    then, experiment = directory.environment_of(folder), directory.config_of(folder)
    before, done = experiment.run.rounds, read_lines(folder / ROUNDS)
    if rounds == before:
        return
    if rounds < before:
        raise RunError(f"'{folder}' has {counted(before, 'round')}: give --rounds {before + 1} or more to extend it")
    for place in folder.absolute().parents[:3]:
        for file, kind in ((COMPARISON, "comparison"), (TUNING, "tuning")):
            if (place / file).exists():
                new = f"start a run of its own with --config {shlex.quote(str(folder / CONFIG))} --rounds {rounds}"
                raise RunError(f"'{folder}' belongs to the {kind} '{place}', whose runs have equal rounds: {new}")
    if reason := stop_reason(done, experiment.stop, experiment.evaluate):
        raise RunError(f"'{folder}' stopped early ({reason}), so more rounds change nothing: start a new run")
    algorithm = algorithm_of(experiment, Trust.of(trust).asked_by(folder / CONFIG, then.get("folder")))
    check_goes_on(algorithm, len(done), before, rounds, bool(experiment.data.new_clients))
    directory.check_stored(folder, then, experiment)
    handle = lock(folder)
    try:
        entry = {"at": utc_now(), "round": len(done), "from": before, "to": rounds}
        extended = [*(then.get(EXTENDED) or []), entry]
        write_json(folder / ENVIRONMENT, {**then, EXTENDED: extended}, folder=handle)
        longer = replace(experiment, run=replace(experiment.run, rounds=rounds))
        write_atomically(folder / CONFIG, tomli_w.dumps(with_format(to_tables(longer))).encode(), folder=handle)
    finally:
        os.close(handle)
