"""All rows of a request, and the file that holds them."""

import json
import os
import platform
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stratafl.bench.measure import (
    Table,
    baseline_tables,
    baselines_of,
    engine_of,
    engine_table,
    measured,
    peak_of,
    ratios,
)
from stratafl.bench.request import Cell, Request
from stratafl.bench.workload import subject
from stratafl.data import Federation
from stratafl.errors import MemoryLimitError, first_line
from stratafl.files import write_atomically
from stratafl.runtime.lockstep import plan
from stratafl.version import __version__


def rows(request: Request) -> Iterator[Table]:
    """The rows one after the other; baselines are timed beside the first method of a model and size."""
    here: Any = None
    for cell in request.cells():
        if (cell.model, cell.workload) != here:
            here, known = (cell.model, cell.workload), dict[str, Table]()
            federation = cell.workload.federation(subject(cell.model))
        try:
            row = _row(cell, request, federation, known)
        except (MemoryLimitError, MemoryError, torch.OutOfMemoryError) as error:
            row = {**_what(cell), "refused": first_line(error)}
        known = known or row.get("baselines", {})
        yield row


def _row(cell: Cell, request: Request, federation: Federation, known: dict[str, Table]) -> Table:
    run, made = engine_of(cell, request, federation)
    made["peak_memory"] = peak_of(run)
    steps = _client_steps(cell, federation, run.cohort.tolist(), run.sim.runtime.smallest_batch)
    beside = baselines_of(run, cell, request, federation) if request.baselines and not known else []
    rounds = measured(run, beside, request)
    engine = {**made, **engine_table(run, rounds, steps)}
    baselines = baseline_tables(beside, cell, steps) or known
    return {
        **_what(cell),
        "client_steps": steps,
        "train_samples": int(federation.counts("train").sum()),
        "test_samples": int(federation.counts("test").sum()),
        "engine": engine,
        "baselines": baselines,
        "baselines_beside": bool(beside),  # or from the first method of this model and size
        "ratios": ratios(engine, baselines),
    }


def _what(cell: Cell) -> Table:
    work = cell.workload
    return {"model": cell.model, "method": cell.method, **{k: getattr(work, k) for k in ("clients", "cohort", "batch")}}


def _client_steps(cell: Cell, federation: Federation, cohort: list[int], smallest: int) -> int:
    counts = federation.counts("train")[cohort].tolist()
    return sum(plan(counts, batch=cell.workload.batch, smallest=smallest).steps)


def machine(request: Request) -> Table:
    """What it was measured on, with what, by which command."""
    device = torch.device(request.device)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,  # what else was going on
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "stratafl": __version__,
        "precision": request.speed.precision,
        "compile": request.speed.compile,
        "command": sys.argv,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()


class Book:
    """The file of all rows: new, and complete after each of them, so that a bench that is stopped is not lost."""

    def __init__(self, path: Path | None, machine: Table) -> None:
        self._path, self._machine, self._rows = path, machine, list[Table]()

    def add(self, row: Table) -> None:
        """One more row."""
        self._rows.append(row)
        if self._path is None:
            return
        text = json.dumps({"machine": self._machine, "rows": self._rows}, indent=2)
        write_atomically(self._path, text.encode())
