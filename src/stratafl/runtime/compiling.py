"""Compiled steps: another process compiles them during the rounds, and the disk keeps them for later runs.

A step is described as text (`step_graph.py`). The text, together with everything else that compiled code depends on, is
the key of an entry in the cache; if there is no entry, `compiler_process.py` makes it. Whatever goes wrong is one line
in the log, and the run goes on without the compiled step. Code from the cache is executed, as from torch's own caches,
so the folder must belong to the user alone.
"""

import hashlib
import json
import logging
import os
import platform
import stat
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from stratafl.child_processes import python_command, safe_environment
from stratafl.core.reprs import short_repr
from stratafl.errors import DamagedError, ModelError, StrataError, first_line
from stratafl.files import cache_folder, write_atomically
from stratafl.runtime.choice import processor
from stratafl.runtime.compiled_step import DONE, MAX_LOG_BYTES, MODULE, REQUEST, Run, is_done, load_step, torch_caches
from stratafl.runtime.step_graph import Description, describe_step

FORMAT = 2  # of the cache; another one is not found
ALIGNED = 16  # bytes, which compiled code relies on
MAX_PROCESSES = max(2, (os.cpu_count() or 1) // 4)  # processes, each of which has threads of its own
CLOSING_SECONDS = 5.0  # seconds that a process gets to end
MAX_WAIT_SECONDS = 600.0  # seconds that a run waits for a step
QUIET_SECONDS = 10.0  # … before it says so
GENERATED_IMPORTS = ("torch._inductor.async_compile", "torch._inductor.select_algorithm")  # of compiled steps
SWITCH_SECONDS = 1e-4
log = logging.getLogger("stratafl")


@short_repr
@dataclass
class _Job:
    """A step that was asked for: its entry in the cache, and the process that makes it."""

    folder: Path
    request: bytes
    step: Description
    constants: list[Tensor]
    device: torch.device
    process: subprocess.Popen[bytes] | None = None
    log_file: IO[bytes] | None = None  # what the process writes
    run: Run | None = None
    queued: bool = False  # until its process is started
    waiting: bool = False  # until a run decides to compile
    overdue: bool = False  # a run has waited for it in vain
    failed: bool = False


class Compiler:
    """Compiles steps in other processes; nothing here raises because of a step that cannot be compiled.

    The caller names the steps. `start` returns at once, `ready` never waits.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._jobs: dict[Hashable, _Job] = {}
        self._failed: set[Hashable] = set()
        weakref.finalize(self, _end_processes, self._jobs)  # if it is never closed

    def start(
        self, name: Hashable, step: Callable[..., None], tensors: Sequence[Tensor], *, launch: bool = True
    ) -> None:
        """Describe the step by running it once on these tensors, which it reads and writes, and have it compiled.

        Without `launch` it is only looked up in the cache, until `launch` is called. Compiled code takes tensors of the
        same shapes, strides and types. Call this with the precision set that the step runs with, and inside
        `fusing()`, so that it is described as the compiler likes it.
        """
        if name in self._jobs or name in self._failed:
            return
        try:
            self._jobs[name] = job = self._job(step, tensors)
            job.queued = not is_done(job.folder, job.request)
            job.waiting = not launch
        except Exception as error:  # a step that cannot be described, or no room on the disk
            self.refuse(name, error)
        self._advance()

    @property
    def cached(self) -> bool:
        """Whether all steps that were asked for only have to be loaded."""
        return not any(job.queued for job in self._jobs.values())

    def launch(self) -> None:
        """Compile and load the steps that were only looked up so far."""
        for job in self._jobs.values():
            job.waiting = False
        self._advance()

    def ready(self, name: Hashable) -> Run | None:
        """The compiled step as a function of its tensors, or None if it is not there yet or never will be."""
        self._advance()
        job = self._jobs.get(name)
        if job is None or job.failed or job.waiting or job.queued or _is_alive(job):
            return None
        if job.run is None and is_compiler_imported():
            self._load(name, job)
        return job.run

    def wait(self, name: Hashable, seconds: float | None = None) -> Run | None:
        """The same after its process has ended; None if that takes longer than `seconds`, which are waited once."""
        job = self._jobs.get(name)
        if job is not None:
            job.waiting = False
            self._launch(name, job)
            if job.process is not None and not job.overdue:
                self._wait_for(job.process, job, MAX_WAIT_SECONDS if seconds is None else seconds)
            _await_import()
        return self.ready(name)

    def _wait_for(self, process: subprocess.Popen[bytes], job: _Job, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(QUIET_SECONDS, seconds))
            return
        if seconds > QUIET_SECONDS:  # nothing moves on the screen meanwhile
            log.warning("waiting for a step to be compiled, which may take minutes; run.compile=auto does not wait")
        try:
            process.wait(max(0.0, seconds - QUIET_SECONDS))
        except subprocess.TimeoutExpired:
            job.overdue = True
            log.warning("a step is still not compiled after %.0f s: it runs more slowly until it is", seconds)

    def key(self, name: Hashable) -> str | None:
        """The entry of a step in the cache, to be recorded with a run."""
        job = self._jobs.get(name)
        return None if job is None else job.folder.name

    def forget(self, name: Hashable) -> None:
        """Free what is kept of a step, and end its process."""
        self._failed.discard(name)
        job = self._jobs.pop(name, None)
        if job is not None:
            _end_process(job)

    def close(self) -> None:
        for name in list(self._jobs):
            self.forget(name)

    def _job(self, step: Callable[..., None], tensors: Sequence[Tensor]) -> _Job:
        described, constants = describe_step(step, tensors)
        asked = {"environment": environment(tensors[0].device), "step": described}
        request = json.dumps(asked, sort_keys=True).encode()
        cache = own_folder(self._folder or cache_folder() / "compiled")
        folder = own_folder(cache / hashlib.sha256(request).hexdigest()[:32])
        return _Job(folder, request, described, constants, tensors[0].device)

    def _advance(self) -> None:
        """Start the next processes, a few at a time."""
        for name, job in list(self._jobs.items()):
            if sum(map(_is_alive, self._jobs.values())) < MAX_PROCESSES:
                self._launch(name, job)

    def _launch(self, name: Hashable, job: _Job) -> None:
        if not job.queued or job.waiting:
            return
        job.queued = False
        try:
            write_atomically(job.folder / REQUEST, job.request)
            job.log_file = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process has ended)
            job.process = subprocess.Popen(
                compiler_command(job.folder),
                stdin=subprocess.PIPE, stdout=job.log_file, stderr=job.log_file, cwd=job.folder, start_new_session=True,
                env=safe_environment(**torch_caches(job.folder), PYTHONPATH=_python_path()),
            )  # fmt: skip
        except Exception as error:  # no room on the disk, no processes left
            self.refuse(name, error)

    def _load(self, name: Hashable, job: _Job) -> None:
        try:
            if not is_done(job.folder, job.request):
                raise ModelError(_last_words(job) or "its entry in the cache was changed")
            job.run = _checked(load_step(job.folder / MODULE), job)
            job.request, job.step = b"", {}
            _end_process(job)
            with suppress(OSError):  # a cache that cannot be written to serves as well
                os.utime(job.folder / DONE)  # entries that are not used for long are removed first
        except Exception as error:  # whatever a damaged module does
            self.refuse(name, error)
            with suppress(OSError):
                (job.folder / DONE).unlink()  # so that the next run compiles again

    def refuse(self, name: Hashable, error: Exception) -> None:
        """Give up a step that cannot be compiled, or does not run here."""
        self._failed.add(name)
        if name in self._jobs:
            self._jobs[name].failed = True
            _end_process(self._jobs[name])
        reason = first_line(error, typed=not isinstance(error, StrataError))
        log.warning("a step cannot be compiled and runs more slowly: %s", reason)


def compiler_command(folder: Path) -> list[str]:
    """What compiles the entry in this folder."""
    return python_command("-m", "stratafl.runtime.compiler_process", folder)


def _is_alive(job: _Job) -> bool:
    return job.process is not None and job.process.poll() is None


def _end_process(job: _Job) -> None:
    if job.process is not None:
        assert job.process.stdin is not None
        job.process.stdin.close()  # which ends it
        try:
            job.process.wait(CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            job.process.kill()
            with suppress(subprocess.TimeoutExpired):  # one that waits for a driver or a drive ends when it can
                job.process.wait(CLOSING_SECONDS)
    if job.log_file is not None:
        job.log_file.close()
    job.process = job.log_file = None


def _end_processes(jobs: dict[Hashable, _Job]) -> None:
    for job in jobs.values():
        _end_process(job)


def _last_words(job: _Job) -> str:
    """The last line that the process has written."""
    if job.log_file is None or job.process is None:
        return ""
    job.log_file.seek(max(0, job.log_file.seek(0, os.SEEK_END) - MAX_LOG_BYTES))
    text = job.log_file.read().decode(errors="replace").strip()
    log.debug("the compiler's output:\n%s", text)
    lines = text.splitlines()
    return lines[-1] if lines else f"the compiler ended with code {job.process.returncode}"


def _python_path() -> str:
    """Where the other process finds this package."""
    root = str(Path(__file__).parents[2])
    return os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))


def own_folder(path: Path) -> Path:
    """The folder, made if it is missing. Refused if other users may write to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise DamagedError(f"'{path}' is not a folder: remove it, because compiled code is kept there")
    if os.name != "nt" and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise DamagedError(f"other users can write to '{path}', whose code is executed: chmod 700, or remove it")
    return path


# What a compiled step depends on


def environment(device: torch.device) -> Description:
    """Everything that compiled code depends on, apart from the step itself."""
    return {
        "format": FORMAT,
        "torch": [torch.__version__, torch.version.git_version, torch.version.cuda],
        "triton": _triton(),
        "python": platform.python_version(),
        "processor": processor(),
        "device": str(device),
        "gpu": _gpu(device),
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "settings": {name: value for name, value in sorted(os.environ.items()) if _is_setting(name)},
    }


def _triton() -> str | None:
    for name in ("triton", "pytorch-triton"):
        with suppress(PackageNotFoundError):
            return version(name)
    return None


def _gpu(device: torch.device) -> list[Any] | None:
    if device.type != "cuda":
        return None
    return [torch.cuda.get_device_name(device), *torch.cuda.get_device_capability(device)]


def _is_setting(name: str) -> bool:
    """Whether a variable may change what torch's compiler makes."""
    return name.startswith(("TORCHINDUCTOR_", "TRITON_", "AOT_INDUCTOR_")) and not name.endswith("_CACHE_DIR")


def _checked(run: Run, job: _Job) -> Run:
    """Compiled code reads memory as it was told to, so tensors that differ are refused."""
    wanted = [(each["shape"], each["stride"], each["dtype"], each["device"]) for each in job.step["tensors"]]
    constants = job.constants

    def checked(*tensors: Tensor) -> object:
        kinds = [([*x.shape], [*x.stride()], str(x.dtype).removeprefix("torch."), str(x.device)) for x in tensors]
        if kinds != wanted or any(x.data_ptr() % ALIGNED for x in tensors):
            raise ModelError("a compiled step received tensors of other shapes, strides or types than expected")
        return run(*tensors, *constants)

    return checked


# The import of torch's compiler


def is_compiler_imported() -> bool:
    """Whether torch's compiler is imported. The first call begins to import it in a thread."""
    global _import_thread
    if all(name in sys.modules for name in GENERATED_IMPORTS) and _import_thread is None:
        return True
    with _import_lock:
        if _import_thread is None:
            _import_thread = threading.Thread(target=_import_compiler, name="import of torch's compiler")
            _import_thread.start()  # Python waits for it at its end: it cannot end in the middle of an import
    return not _import_thread.is_alive()


def _await_import() -> None:
    if not is_compiler_imported() and _import_thread is not None:
        _import_thread.join()


def _import_compiler() -> None:
    """It takes seconds of Python.

    With the usual switch interval the rounds would wait for it all the same: every launch on a GPU lets go of Python's
    lock, and gets it back 5 ms later.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        with suppress(Exception):  # the step that needs it says what is wrong
            for name in GENERATED_IMPORTS:
                import_module(name)
    finally:
        sys.setswitchinterval(before)


_import_lock = threading.Lock()
_import_thread: threading.Thread | None = None
