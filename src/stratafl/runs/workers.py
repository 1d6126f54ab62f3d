"""Processes that share the runs of one directory: started, shown while they work, and stopped by one Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from stratafl.child_processes import INTERRUPTED, python_command, safe_environment
from stratafl.config.trust import Trust
from stratafl.errors import StrataError
from stratafl.runs.advancing import Asked, Watch
from stratafl.runs.directory import ROUNDS
from stratafl.runs.environment import TYPED
from stratafl.runs.json_files import read_lines

Worker: TypeAlias = "subprocess.Popen[bytes]"
_POLL = 0.2  # seconds between two looks at the journals


@dataclass(frozen=True)
class Crew:
    """Several processes that share a directory, which is `resume`d with the command `again`."""

    folder: Path
    trust: Trust
    again: str
    jobs: int


def share(crew: Crew, watches: Mapping[Path, Watch], note: Callable[[str], object], interrupted: Asked) -> bool:
    """Finish every run with several processes; False if interrupted. `note` is told what they have to say."""
    with TemporaryDirectory() as folder:
        logs = [Path(folder) / f"worker-{number}" for number in range(crew.jobs)]
        workers = [_worker(crew, log) for log in logs]
        _wait(workers, interrupted, watches)
        lines = list(dict.fromkeys(line for log in logs for line in log.read_text(errors="replace").splitlines()))
    codes = [worker.returncode for worker in workers]
    stopped = (INTERRUPTED, -signal.SIGTERM)
    for code in codes:
        if code not in (0, *stopped):
            raise StrataError(_failure(code, lines, crew.again))
    for line in lines:
        note(line)
    return not set(stopped) & set(codes)


def _worker(crew: Crew, log: Path) -> Worker:
    """A process that takes runs, in a session of its own: Ctrl-C reaches only this process, which passes it on."""
    command = python_command("-m", "stratafl", "resume", crew.folder, "--worker", f"--jobs={crew.jobs}")
    command += [f"--typed={name}" for name in sorted(crew.trust.names)]
    command += ["--trust"] if crew.trust.everything else []
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // crew.jobs))}
    environment = {**threads, **os.environ, TYPED: json.dumps(sys.argv)}
    with log.open("wb") as errors:
        return subprocess.Popen(command, env=safe_environment(environment), stderr=errors, start_new_session=True)


def _wait(workers: Sequence[Worker], interrupted: Asked, watches: Mapping[Path, Watch]) -> None:
    """Show progress until all have ended; pass on the first Ctrl-C (also if a worker failed), then the second."""
    sent, sizes = 0, dict.fromkeys(watches, 0)
    while any(worker.poll() is None for worker in workers):
        try:
            time.sleep(_POLL)
            _read_journals(watches, sizes)
            failed = any(worker.poll() not in (None, 0) for worker in workers)
            if (interrupted() or failed) and sent == 0:
                sent = _terminate(workers, 1)
        except KeyboardInterrupt:  # the second press
            sent += _terminate(workers, max(2 - sent, 0))
    _read_journals(watches, sizes)  # what was written since the last time


def _read_journals(watches: Mapping[Path, Watch], sizes: dict[Path, int]) -> None:
    """Show the journals that have grown since they had these sizes."""
    for folder, watch in watches.items():
        path = folder / ROUNDS
        size = path.stat().st_size if path.exists() else 0
        if size > sizes[folder]:
            sizes[folder] = size
            lines = read_lines(path)
            watch(len(lines), lines)


def _terminate(workers: Sequence[Worker], times: int) -> int:
    for number in range(times):
        time.sleep(_POLL if number else 0)  # two signals at once would arrive as one
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
    return times


def _failure(code: int, lines: Sequence[str], again: str) -> str:
    errors = [line.removeprefix("strata: ") for line in lines if line.startswith("strata: ")]
    if errors:
        return errors[-1]
    last = lines[-1] if lines else "it was killed"
    return f"a process of the comparison ended with code {code}: {last}. To continue, run: {again}"
