"""The process that compiles one step: `python -m stratafl.runtime.compiler_process FOLDER`.

It reads `request.json` from the folder, compiles, and writes `done.json` last; `compiling.py` starts it and reads what
it leaves. A step is compiled into a library, which loads in milliseconds, or, where none can be built (no C++ compiler,
no headers of CUDA), into a Python module, which imports torch's compiler when it is loaded.
"""

import hashlib
import json
import logging
import os
import shutil
import sys
import sysconfig
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from stratafl.errors import first_line
from stratafl.files import atomically, read_plain, write_atomically
from stratafl.runtime.compiled_step import DONE, LARGE, LIBRARY, MODULE, REQUEST, load_step, read_done
from stratafl.runtime.step_graph import blank_tensors, build_step, fake_tensors

LOCK = "lock"
NICE = 5  # less urgent than the rounds, which go on
KEPT = 64  # entries of the cache
FREE = 4  # times the step's tensors that must be free on a GPU for a trial
Timer = dict[str, float]


def main(folder: Path) -> None:
    """Compile what the folder asks for."""
    _end_with_parent()
    with suppress(OSError):
        os.nice(NICE)
    with _locked(folder / LOCK):
        data = read_plain(folder / REQUEST, LARGE)
        if read_done(folder, data) is None:  # else another process was done while this one waited
            _compile(folder, json.loads(data), hashlib.sha256(data).hexdigest())
    _remove_oldest(folder)


def _remove_oldest(folder: Path) -> None:
    """Keep the entries that were used last."""
    with suppress(OSError):
        entries = sorted(folder.parent.glob(f"*/{DONE}"), key=lambda done: done.stat().st_mtime, reverse=True)
        for done in entries[KEPT:]:
            done.unlink()
            shutil.rmtree(done.parent, ignore_errors=True)


def _end_with_parent() -> None:
    """The parent holds the other end of the standard input, which ends with it."""

    def watch() -> None:
        with suppress(OSError, ValueError):
            while os.read(0, 1):
                pass
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
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(folder: Path, request: dict[str, Any], key: str) -> None:
    _set_up(request["environment"])
    seconds: Timer = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice to lower the precision, which the user decides
        file = _first_that_works(folder, request, seconds)
    digest = hashlib.sha256((folder / file).read_bytes()).hexdigest()
    done = {"key": key, "file": file, "sha256": digest, "seconds": {n: round(s, 3) for n, s in seconds.items()}}
    write_atomically(folder / DONE, json.dumps(done).encode())


def _set_up(environment: dict[str, Any]) -> None:
    if environment["threads"] is not None:
        torch.set_num_threads(environment["threads"])
    torch.set_float32_matmul_precision(environment["matmul_precision"])
    torch.backends.cudnn.allow_tf32 = environment["cudnn_tf32"]
    torch.use_deterministic_algorithms(environment["deterministic"])
    if torch.cuda.is_available():
        _find_toolkit()


def _find_toolkit() -> None:
    """Where a C++ compiler finds CUDA's headers and the driver if only packages from PyPI are installed."""
    if os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        return
    packages = Path(sysconfig.get_paths()["purelib"])
    headers = sorted(found.parent for found in packages.glob("nvidia/*/include/cuda.h"))
    headers = headers or sorted(found.parent for found in packages.glob("triton/backends/nvidia/include/cuda.h"))
    drivers = [*Path("/usr/lib").glob("*/libcuda.so.1"), *Path("/usr/lib64").glob("libcuda.so.1")]
    if headers:
        _prepend("CPLUS_INCLUDE_PATH", headers[0])
    if drivers and not drivers[0].with_name("libcuda.so").exists():
        links = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "driver"
        links.mkdir(exist_ok=True)
        with suppress(FileExistsError):
            (links / "libcuda.so").symlink_to(drivers[0])
        _prepend("LIBRARY_PATH", links)


def _prepend(name: str, folder: Path) -> None:
    os.environ[name] = os.pathsep.join(filter(None, (str(folder), os.environ.get(name))))


@contextmanager
def _timed(seconds: Timer, name: str) -> Iterator[None]:
    begin = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = time.perf_counter() - begin


def _first_that_works(folder: Path, request: dict[str, Any], seconds: Timer) -> str:
    forms: dict[str, tuple[str, Callable[[GraphModule, list[Tensor], Path], None]]] = {
        "library": (LIBRARY, build_library),
        "module": (MODULE, build_module),
    }
    errors = []
    for form in request["forms"]:
        name, build = forms[form]
        with _timed(seconds, "graph"):
            graph, tensors = build_step(request["step"]), fake_tensors(request["step"])
        try:
            with _timed(seconds, form), atomically(folder / name) as partial:
                build(graph, tensors, partial)
            seconds |= _stages(form)
            with _timed(seconds, "trial"):
                _try_out(folder / name, request)
            return name
        except Exception as error:  # no compiler, no headers, or operations it does not know
            traceback.print_exc()
            errors.append(error)
    raise errors[0]  # that of the form that is wanted


def build_library(graph: GraphModule, tensors: list[Tensor], file: Path) -> None:
    """Machine code for the processor and the GPU, with all kernels inside."""
    from torch._inductor import aot_compile
    from torch._inductor.package.package import package_aoti

    files = aot_compile(graph, tuple(tensors), options={"aot_inductor.package": True})
    made = file.with_suffix(".pt2")
    package_aoti(str(made), files)  # type: ignore[arg-type]
    made.rename(file)


def build_module(graph: GraphModule, tensors: list[Tensor], file: Path) -> None:
    """The Python module that torch's compiler generates; its kernels are in the folder's caches."""
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    made: list[Any] = []

    def keep(*given: Any, **options: Any) -> Any:
        made.append(compile_fx_inner(*given, **options))
        return made[-1]

    compile_fx(graph, tensors, inner_compile=keep)
    (result,) = made
    if result.constants:
        raise ValueError(f"the compiled step holds constants: {', '.join(result.constants)}")
    file.write_text(result.source_code, encoding="utf-8")


def _stages(form: str) -> Timer:
    """Where the time went, by torch's own timers."""
    from torch._dynamo.utils import compilation_time_metrics

    known = ("create_aot_dispatcher_function", "compile_fx_inner", "GraphLowering.run", "GraphLowering.codegen",
             "Scheduler.__init__", "Scheduler.codegen", "async_compile.wait", "compile_file")  # fmt: skip
    return {f"{form}/{name}": sum(compilation_time_metrics.get(name, ())) for name in known}


def _try_out(file: Path, request: dict[str, Any]) -> None:
    """Run the step once: it decides what is decided when kernels first run, so that nobody waits for that later."""
    device = torch.device(request["environment"]["device"])
    needed = sum(x.nbytes for x in fake_tensors(request["step"]))
    if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < FREE * needed:
        return
    with suppress(torch.OutOfMemoryError):
        load_step(file, device)(*blank_tensors(request["step"]))
        if device.type == "cuda":
            torch.cuda.synchronize(device)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    try:
        main(Path(sys.argv[1]))
    except Exception as error:
        sys.exit(first_line(error, typed=True))  # the last line, which the parent shows
