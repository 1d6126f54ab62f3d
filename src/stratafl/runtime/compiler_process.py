"""The process that compiles one step: `python -m stratafl.runtime.compiler_process FOLDER`.

It reads `request.json` from the folder, compiles, and writes `done.json` last; `compiling.py` starts it and reads what
it leaves: a Python module, which imports torch's compiler when it is loaded. (A library by AOTInductor would load in
milliseconds. On an H200 with torch 2.11 building one took 60 to 75 s even for a small step, and loading it crashed.)
"""

import hashlib
import json
import logging
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from stratafl.errors import first_line
from stratafl.files import atomically, read_plain, write_atomically
from stratafl.runtime.compiled_step import (
    DONE,
    MAX_FILE_BYTES,
    MODULE,
    REQUEST,
    is_done,
    libraries,
    load_step,
    torch_caches,
)
from stratafl.runtime.grouped import teach_compiler
from stratafl.runtime.step_graph import blank_tensors, build_step, fake_tensors

LOCK = "lock"
NICE = 5  # less urgent than the rounds, which go on
MAX_ENTRIES = 64  # entries of the cache
FREE = 4  # times the step's tensors that must be free on a GPU for a trial


def main(folder: Path) -> None:
    """Compile what the folder asks for."""
    _end_with_parent()
    with suppress(OSError):
        os.nice(NICE)
    with _locked(folder / LOCK):
        data = read_plain(folder / REQUEST, MAX_FILE_BYTES)
        if not is_done(folder, data):  # else another process was done while this one waited
            _compile(folder, json.loads(data), hashlib.sha256(data).hexdigest())
    _remove_oldest(folder)


def _remove_oldest(folder: Path) -> None:
    """Keep the entries that were used last; one that was never finished counts from its last change."""

    def used(entry: Path) -> float:
        done = entry / DONE
        return (done if done.exists() else entry).stat().st_mtime

    with suppress(OSError):
        entries = sorted(filter(Path.is_dir, folder.parent.iterdir()), key=used, reverse=True)
        for entry in entries[MAX_ENTRIES:]:
            (entry / DONE).unlink(missing_ok=True)  # first, so that it is not found while it goes
            shutil.rmtree(entry, ignore_errors=True)


def _end_with_parent() -> None:
    """The parent holds the other end of the standard input, which ends with it."""

    def watch() -> None:
        with suppress(OSError, ValueError):
            while os.read(0, 1):
                pass
        if os.name == "posix" and os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # with the compilers that it has started
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two processes that compile the same step take turns, where the system has locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as file:
        with suppress(OSError):  # network drives may have none: the work is done twice, and files are renamed whole
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(folder: Path, request: dict[str, Any], key: str) -> None:
    _set_up(request["environment"])
    for cache in torch_caches(folder).values():
        shutil.rmtree(cache, ignore_errors=True)  # torch would take up a damaged library again
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice to lower the precision, which the user decides
        _build(folder, request)
    digest = hashlib.sha256((folder / MODULE).read_bytes()).hexdigest()
    done = {"key": key, "sha256": digest, "libraries": libraries(folder)}
    write_atomically(folder / DONE, json.dumps(done).encode())


def _set_up(environment: dict[str, Any]) -> None:
    if environment["threads"] is not None:
        torch.set_num_threads(environment["threads"])
    torch.set_float32_matmul_precision(environment["matmul_precision"])
    torch.backends.cudnn.allow_tf32 = environment["cudnn_tf32"]
    torch.use_deterministic_algorithms(environment["deterministic"])


def _build(folder: Path, request: dict[str, Any]) -> None:
    teach_compiler()
    with atomically(folder / MODULE) as partial:
        build_module(build_step(request["step"]), fake_tensors(request["step"]), partial)
    _try_out(folder / MODULE, request)


def build_module(graph: GraphModule, tensors: list[Tensor], file: Path) -> None:
    """The Python module that torch's compiler generates; its kernels are in the folder's caches."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    compiled: list[Any] = []

    def keep(*arguments: Any, **options: Any) -> Any:
        compiled.append(compile_fx_inner(*arguments, **options))
        return compiled[-1]

    with config.patch(shape_padding=False):  # padding factors takes longer than it saves: 84 ms a round, 81 without
        compile_fx(graph, tensors, inner_compile=keep)
    (result,) = compiled
    if result.constants:
        raise ValueError(f"the compiled step holds constants: {', '.join(result.constants)}")
    file.write_text(result.source_code, encoding="utf-8")


def _try_out(file: Path, request: dict[str, Any]) -> None:
    """Run the step once. Kernels are tuned when they first run, so no run has to wait for that later."""
    device = torch.device(request["environment"]["device"])
    needed = sum(x.nbytes for x in fake_tensors(request["step"]))
    if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < FREE * needed:
        return
    with suppress(torch.OutOfMemoryError):
        load_step(file)(*blank_tensors(request["step"]))
        if device.type == "cuda":
            torch.cuda.synchronize(device)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    try:
        main(Path(sys.argv[1]))
    except Exception as error:
        sys.exit(first_line(error, typed=True))  # the last line, which the parent shows
