"""Which engine is faster on this processor: all clients stacked, or client by client with stock modules.

Stock convolutions are slow on some processors (ARM) and fast on others (x86), so a training step of both engines is
timed, in one thread and in CPU time, which other programs hardly change. The result holds for this machine: it is
kept in `$STRATAFL_CACHE/engines`, keyed by everything it depends on, so that runs with the same settings compute the
same bits. A run also keeps it (`tuning`), and so do processes that work together.
"""

import hashlib
import json
import os
import platform
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from stratafl.core.describe import columns
from stratafl.core.lanes import in_lanes
from stratafl.core.layout import Layout, Rows
from stratafl.core.objectives import default_objective
from stratafl.core.state import expand
from stratafl.core.task import Inputs, Stack
from stratafl.data.federation import Federation
from stratafl.errors import StrataError
from stratafl.files import cache_folder, read_plain
from stratafl.runtime.engine import Engine, LoopEngine, StackedEngine
from stratafl.runtime.tables import table_of
from stratafl.runtime.threads import PIECE

T = TypeVar("T")
EngineChoice = Literal["stacked", "loop"]
VERSION = 3  # raised when an engine becomes faster or slower
SWITCH = "STRATAFL_MEASURE"  # "off": clients are stacked without measuring; tests need the same engine everywhere
MAX_STACKED_COLUMNS = 2**19  # columns of a model of linear layers that is always stacked: its operations are short
CLEARLY = 0.95  # of the stacked engine's time, which the loop must stay below
OBVIOUS, FAR = 1.5, 2.5  # times as long: no further repeats; no second one
REPEATS = 5
ENOUGH_SECONDS = 0.3  # seconds of CPU time for each engine
SHORT = 0.25  # seconds of a stacked step which gains much when it is traced
MAX_ENTRY_BYTES = 1 << 16
_PLAIN_LAYERS = (nn.Linear, nn.BatchNorm1d, nn.LayerNorm, nn.GroupNorm)


@dataclass(frozen=True)
class Measured:
    """The faster engine, and seconds of CPU time that a training step of one client takes with each."""

    engine: EngineChoice
    stacked: float
    loop: float


def is_measured(module: nn.Module) -> bool:
    """Whether the model may gain from the loop: small models of linear layers never do."""
    if os.environ.get(SWITCH) == "off":
        return False
    layers = [sub for sub in module.modules() if next(sub.parameters(recurse=False), None) is not None]
    plain = all(isinstance(sub, _PLAIN_LAYERS) for sub in layers)
    return not plain or sum(p.numel() for p in module.parameters()) > MAX_STACKED_COLUMNS


def measured(
    stacked: StackedEngine, loop: LoopEngine, module: nn.Module, federation: Federation, sample: Tensor, batch: int
) -> Measured:
    """The same for the same model and batch in this process, and as long as the cache is kept."""
    clients = min(federation.clients, PIECE)
    key = {
        **{"version": VERSION, "processor": processor(), "torch": torch.__version__, "model": _digest(module)},
        **{"sample": list(sample.shape[1:]), "batch": batch, "clients": clients, "classes": federation.classes},
    }
    text = json.dumps(key, sort_keys=True)
    if text not in _known:
        entry = cache_folder() / "engines" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
        result = _read(entry, key)
        if result is None:
            steps = _steps(stacked, loop, module, federation, sample, batch, clients)
            result = _keep(entry, key, compare_engines(*steps, stacked, clients))
        _known[text] = result
    return _known[text]


_known: dict[str, Measured] = {}


def compare_engines(
    stacked: Callable[[], object], loop: Callable[[], object], engine: StackedEngine, clients: int
) -> Measured:
    """Whether a client's step takes clearly less time by the loop than as one of `clients` stacked clients.

    A stacked step that is short gains much when it is traced, so the loop has to win against the trace as well.
    """
    result = _timed(stacked, loop, clients)
    if result.engine == "loop" and clients * result.stacked < SHORT:
        _trace(engine, stacked)
        result = _timed(stacked, loop, clients)
    return result


def _timed(stacked: Callable[[], object], loop: Callable[[], object], clients: int) -> Measured:
    """Both in turns, until it is clear; the fastest of each counts, the first only if long steps are far apart."""
    first = seconds(stacked) / clients, seconds(loop)
    if min(first) > ENOUGH_SECONDS / 4 and max(first) > FAR * min(first):
        return Measured("loop" if first[1] < first[0] else "stacked", *first)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(REPEATS):
        for seconds_of_engine, step in zip(times, (stacked, loop), strict=True):
            seconds_of_engine.append(seconds(step))
        stacked_seconds, loop_seconds = min(times[0]) / clients, min(times[1])
        spent = min(sum(times[0]), sum(times[1]))
        faster, slower = sorted((stacked_seconds, loop_seconds))
        if spent > ENOUGH_SECONDS or (spent > ENOUGH_SECONDS / 10 and slower > OBVIOUS * faster):
            break
    return Measured("loop" if loop_seconds < CLEARLY * stacked_seconds else "stacked", stacked_seconds, loop_seconds)


def _trace(engine: StackedEngine, step: Callable[[], object]) -> None:
    """Trace the step at once; a run would only after many of them."""
    engine.close()  # forgets that it has come before
    engine.impatient = True
    try:
        _in_one_thread(step)
        engine.prepare()
    finally:
        engine.impatient = False


def seconds(step: Callable[[], object]) -> float:
    def timed() -> float:
        begin = _clock()
        step()
        return _clock() - begin

    return _in_one_thread(timed)


def _in_one_thread(run: Callable[[], T]) -> T:
    (result,) = in_lanes(lambda _: run(), [None], threads=1)
    return result


# Where the system counts a thread's time in ticks (Windows), a step may take none of them.
_clock = time.thread_time if time.get_clock_info("thread_time").resolution < 1e-4 else time.perf_counter


def _steps(
    stacked: StackedEngine,
    loop: LoopEngine,
    module: nn.Module,
    federation: Federation,
    sample: Tensor,
    batch: int,
    clients: int,
) -> tuple[Callable[[], object], Callable[[], object]]:
    """A training step of `clients` stacked clients, and one of a single client by the loop."""
    x = sample[torch.arange(batch) % len(sample)]
    y = federation.y[torch.arange(batch) % len(federation.y)]
    objective = default_objective(federation.classes)

    def step(engine: Engine, count: int) -> Callable[[], object]:
        rows = {n: block.clone() for n, block in expand(columns(module), count).items()}
        weight, keys = x.new_ones(count, batch, dtype=module_dtype), torch.zeros(count, dtype=torch.int64)
        stack = Stack(x.expand(count, *x.shape), y.expand(count, *y.shape), weight, keys, (batch,) * count)
        rows, stack = _in_use(module, rows, stack)
        return lambda: engine.gradients(objective, rows, stack, trained, Inputs(), engine.model.modes(trained))

    layout: Layout = stacked.model.layout
    trained, module_dtype = layout.trainable(), next(module.parameters()).dtype
    return step(stacked, clients), step(loop, 1)


def _in_use(module: nn.Module, rows: Rows, stack: Stack) -> tuple[Rows, Stack]:
    """Of an embedding table the part that a step of plain SGD takes."""
    table = table_of(module)
    used = None if table is None else table.in_use(stack.x, rows[table.name])
    if table is None or used is None:
        return rows, stack
    return {**rows, table.name: used.taken(rows[table.name])}, replace(stack, x=used.tokens)


def _digest(module: nn.Module) -> str:
    """The structure of a model: classes, what they show of themselves, and the shapes of its tensors."""
    shapes = [(name, tuple(x.shape), str(x.dtype)) for name, x in columns(module).items()]
    return hashlib.sha256(f"{type(module).__module__} {module!r} {shapes}".encode()).hexdigest()


@cache
def processor() -> str:
    """What the processor can do and what torch uses of it: ways are measured on it, and C++ is compiled for it."""
    named = ("model name", "CPU implementer", "CPU part", "CPU variant", "flags", "Features")
    facts = platform.processor()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        features = sorted({line for line in lines if line.partition(":")[0].strip() in named})
        facts = hashlib.sha256("\n".join(features).encode()).hexdigest()
    return f"{platform.machine()} {facts} {torch.backends.cpu.get_cpu_capability()}"


def _read(entry: Path, key: Mapping[str, Any]) -> Measured | None:
    """An earlier result; None if there is no file, or if it is about something else."""
    try:
        stored = json.loads(read_plain(entry, MAX_ENTRY_BYTES))
        if stored["key"] != key or stored["engine"] not in get_args(EngineChoice):
            return None
        times = [stored["stacked"], stored["loop"]]
        if not all(type(t) is float and 0 < t < 1e6 for t in times):
            return None
        return Measured(stored["engine"], *times)
    except (OSError, ValueError, LookupError, TypeError, RecursionError, StrataError):
        return None


def _keep(entry: Path, key: Mapping[str, Any], result: Measured) -> Measured:
    """Write it; if another process has meanwhile found something, that counts, so that both compute the same bits."""
    partial = entry.with_name(f".{entry.name}.{uuid.uuid4().hex}.partial")
    with suppress(OSError):  # without a cache it holds for this process
        entry.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({"key": key, **asdict(result)}), encoding="utf-8")
        try:
            os.link(partial, entry)  # fails if there is one, unlike a rename
        except OSError:
            if _read(entry, key) is None:
                os.replace(partial, entry)
        finally:
            partial.unlink(missing_ok=True)
    return _read(entry, key) or result
