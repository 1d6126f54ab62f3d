"""The files of a compiled step, and how they are loaded: `compiler_process.py` writes them, `compiling.py` uses them.

An entry of the cache is a folder: `request.json` says what was compiled, `step.py` is the compiled step, and
`done.json`, written last, has its checksum and those of the libraries that it loads: half of one would end the process.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from stratafl.errors import DamagedError
from stratafl.files import read_plain

REQUEST, DONE, MODULE = "request.json", "done.json", "step.py"
LIBRARIES = ("*.so", "*.cubin")
MAX_LOG_BYTES, MAX_FILE_BYTES = 2**16, 2**28  # bytes that the files may have
Run = Callable[..., object]


def is_done(folder: Path, request: bytes) -> bool:
    """Whether the entry is whole and was made for this request, not only under its name."""
    try:
        done = json.loads(read_plain(folder / DONE, MAX_FILE_BYTES))
        return (
            done["key"] == hashlib.sha256(request).hexdigest()
            and read_plain(folder / REQUEST, MAX_FILE_BYTES) == request
            and hashlib.sha256(read_plain(folder / MODULE, MAX_FILE_BYTES)).hexdigest() == done["sha256"]
            and all(_digest(folder / name) == digest for name, digest in done["libraries"].items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, DamagedError):
        return False


def libraries(folder: Path) -> dict[str, str]:
    """Checksums of the libraries that the step loads."""
    files = sorted(file for kind in LIBRARIES for file in folder.rglob(kind) if file.is_file())
    return {str(file.relative_to(folder)): _digest(file) for file in files}


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def load_step(file: Path) -> Run:
    """A compiled step from its file: a function of its tensors and constants."""
    module = ModuleType(f"stratafl_step_{file.parent.name}")
    module.__file__ = str(file)
    from torch._inductor import config  # takes seconds

    with _environ(torch_caches(file.parent)), config.patch(compile_threads=1):  # kernels are there: no processes
        exec(compile(file.read_text(encoding="utf-8"), file, "exec"), vars(module))
    return lambda *arguments: module.call(list(arguments))


def torch_caches(folder: Path) -> dict[str, str]:
    """Where torch's own caches are: in the entry, so that it stays whole or is removed as a whole."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"), "TRITON_CACHE_DIR": str(folder / "triton")}


@contextmanager
def _environ(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
