"""Processes that benchmarks start: a worker with the package of some checkout."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from recording import ROOT, Table
from worker import STARTED

CACHES = ("STRATAFL_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")


def with_package(checkout: Path) -> dict[str, str]:
    """This environment with the package of a checkout first on the path."""
    before = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout.absolute() / "src"), *filter(None, [before])])}


def with_cache(folder: Path) -> dict[str, str]:
    """Where this package and torch's compiler keep what they have made, as settings of the environment."""
    return {name: str(folder / name.lower()) for name in CACHES}


def work(words: Sequence[str], checkout: Path = ROOT, extra: Mapping[str, str] | None = None) -> Table:
    """What a worker with these options found out, and `process`, its seconds from start to end."""
    environment = {**with_package(checkout), **(extra or {})}
    with tempfile.TemporaryDirectory(prefix="worker-") as folder:
        to = Path(folder) / "times.json"
        command = [sys.executable, str(Path(__file__).with_name("worker.py")), "--to", str(to), *words]
        begin = time.time()
        done = subprocess.run(
            command, env={**environment, STARTED: str(begin)}, capture_output=True, text=True, check=False
        )
        seconds = time.time() - begin
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
        found: Table = json.loads(to.read_text(encoding="utf-8"))
    if Path(found["package"]).resolve() != (checkout / "src" / "stratafl").resolve():
        raise RuntimeError(f"the worker took the package in '{found['package']}' instead of '{checkout}'")
    return {**found, "process": seconds}
