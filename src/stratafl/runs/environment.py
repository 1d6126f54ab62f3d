"""The environment of a run: machine, versions and command, and digests of what it was made from."""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stratafl.child_processes import safe_environment
from stratafl.config.experiment import Experiment
from stratafl.config.migrations import FORMAT
from stratafl.core.describe import frozen_tensors
from stratafl.core.layout import Rows
from stratafl.core.records import stored_repr
from stratafl.data.federation import Federation
from stratafl.errors import RunError, shown
from stratafl.execute import Simulation
from stratafl.execute.ranks import world_size
from stratafl.runs.json_files import is_list_of
from stratafl.version import VERSION

TYPED = "STRATAFL_COMMAND"  # tells a process that another one started what the user typed


def describe_environment(sim: Simulation) -> dict[str, Any]:
    setup, runtime, device = sim.setup, sim.runtime, sim.runtime.device
    named = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    machine = f"{platform.system()} {platform.machine()}"
    return {
        **{"format": FORMAT, "stratafl": VERSION, "commit": _commit(), "python": platform.python_version()},
        **{"torch": torch.__version__, "numpy": np.__version__, "machine": machine, "cores": os.cpu_count()},
        **{"threads": torch.get_num_threads(), "ranks": world_size(), "device": str(device), "device_name": named},
        **{"engine": type(runtime.engine).__name__, "tuning": runtime.tuning, "store": sim.store, "seed": setup.seed},
        **{"clients": setup.clients, "columns": setup.layout.columns, "leaks": sim.algorithm.leaks},
        **{"folder": os.getcwd(), "command": _command(), "started": utc_now()},
    }


def _command() -> list[str]:
    """What the user typed; a process that another one started reads it from TYPED."""
    typed = os.environ.get(TYPED, "[]")
    try:
        words = json.loads(typed)
    except (ValueError, RecursionError):
        words = None
    if not is_list_of(str, words):
        allowed = "a list of texts in JSON, which strata sets for its own processes"
        raise RunError(f"the environment variable {TYPED} is {allowed}, not '{shown(typed)}': unset it")
    return words or sys.argv


_KINDS = {
    str: "stratafl commit python torch numpy machine device device_name engine store leaks folder started",
    int: "cores threads ranks seed clients columns",
    list: "resumed command extended",
    dict: "tuning identity code",
}


def misstated(then: Mapping[str, Any]) -> str | None:
    """What is invalid in a run's environment, if anything; older runs do not say everything."""
    for kind, key in ((kind, key) for kind, keys in _KINDS.items() for key in keys.split()):
        value = then.get(key)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            return f"{key} is {type(value).__name__}, not {kind.__name__}"
    if not is_list_of(str, then.get("command") or []):
        return "command is a list of words"
    for entry in then.get("resumed") or []:
        if not isinstance(entry, dict) or not is_list_of(str, entry.get("changed", [])):
            return "resumed is a list of resumptions and of what had changed"
    for entry in then.get("extended") or []:
        if not isinstance(entry, dict) or type(entry.get("to")) is not int:
            return "extended is a list of numbers of rounds"
    config = (then.get("identity") or {}).get("config") or {}
    if not isinstance(config, dict) or not all(isinstance(table, dict) for table in config.values()):
        return "identity.config is not tables of settings"
    products = (then.get("tuning") or {}).get("products") or {}
    if not isinstance(products, dict) or not all(map(_is_way, products.values())):
        return "tuning.products is not a table of convolutions"
    switched = (then.get("tuning") or {}).get("switched") or {}
    if not isinstance(switched, dict) or not all(type(t) is int and t >= 0 for t in switched.values()):
        return "tuning.switched is not a table of rounds"
    if (then.get("tuning") or {}).get("engine", "stacked") not in ("stacked", "loop"):
        return "tuning.engine is neither 'stacked' nor 'loop'"
    return None


def _is_way(value: object) -> bool:
    return isinstance(value, bool) or value in ("product", "stock", "kernel")


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def differences(then: Mapping[str, Any], today: Mapping[str, Any]) -> list[str]:
    """What has changed in the environment that can change bits."""
    decisive = ("stratafl", "commit", "code", "torch", "numpy", "machine", "ranks", "device", "device_name", "engine")
    then = {"ranks": 1, **then}  # older runs do not say
    return [f"{k} {then.get(k)} → {today.get(k)}" for k in decisive if then.get(k) != today.get(k)]


def identity(sim: Simulation) -> dict[str, str]:
    """Digests of what must not change before a run is resumed."""
    method = hashlib.sha256(stored_repr(sim.algorithm).encode()).hexdigest()
    return {"algorithm": method, "data": data_digest(sim), "model": model_digest(sim)}


def code(experiment: Experiment) -> dict[str, str]:
    """Checksums of the user's own files, which the experiment names by `package.module:name`."""
    paths = [path for path in (experiment.algorithm.name, experiment.model.name) if ":" in path]
    files = {path: getattr(sys.modules.get(path.partition(":")[0]), "__file__", None) for path in paths}
    return {path: hashlib.sha256(Path(file).read_bytes()).hexdigest() for path, file in files.items() if file}


def data_digest(sim: Simulation) -> str:
    """A checksum of samples, targets and their partition."""
    federation = sim.runtime.federation
    return federation.once("digest", lambda: _federation_digest(federation))


def _federation_digest(federation: Federation) -> str:
    tensors = {"x": federation.x, "y": federation.y}
    for name, split in federation.splits.items():
        tensors |= {f"{name}/indices": split.indices, f"{name}/offsets": split.offsets}
    return _digest(tensors, [] if federation.scaling is None else [str(federation.scaling)])


def model_digest(sim: Simulation) -> str:
    """A checksum of the model's layers, initial weights and frozen tensors, of which a run keeps no copy."""
    frozen = {} if sim.template is None else frozen_tensors(sim.template)
    words = [f"{s.name} {s.layer} {s.trainable or s.own}" for s in sim.setup.layout.specs.values()]
    return _digest({**sim.setup.start, **frozen}, words)


def _digest(tensors: Rows, words: list[str]) -> str:
    total = hashlib.sha256("\n".join(words).encode())
    for name, tensor in tensors.items():
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        total.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).data)
    return total.hexdigest()


@cache  # starting git takes as long as several rounds of a small run
def _commit() -> str | None:
    """The commit of the package's own checkout, if it is one; not of a project that it is installed in."""
    folder = Path(__file__).resolve().parents[1]
    command = ["git", "-C", str(folder), "rev-parse", "--show-toplevel", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False, env=safe_environment())
    except (OSError, subprocess.TimeoutExpired):
        return None
    top, _, commit = done.stdout.strip().partition("\n")
    return commit if commit and Path(top) / "src" / "stratafl" == folder else None
