"""Results of benchmarks: one JSON file per measurement, with the machine, the versions and the command that made it.

Every file has the same frame, so that `summarise.py` can make a table and a plot of any of them:

    benchmark, environment, options, details    what was measured, where, how, and all raw figures
    rows     [{"what", "value", "unit", "aim", "better"}]     lines of the table; aim and better may be None
    bars     [{"panel", "label", "value", "unit"}]            bars of the plot

Scripts import this module before torch where the time of importing counts, so torch is imported by functions alone.
"""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Table = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path("benchmark-results")


def parser(text: str | None, *, device: str = "auto") -> argparse.ArgumentParser:
    """A command line with the options that all benchmarks have."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help=f"folder for JSON ({RESULTS})")
    made.add_argument("--name", help="of the JSON file; by default what was measured")
    made.add_argument("--device", default=device, help="auto, cpu, cuda, cuda:1 …")
    return made


def device_named(name: str) -> str:
    """`auto` is a GPU if there is one."""
    import torch

    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def environment(device: str) -> Table:
    """The machine, the versions, the code and the command line."""
    import numpy as np
    import torch

    checkout = _package().parents[1]
    gpu = torch.cuda.get_device_name(torch.device(device)) if device.startswith("cuda") else None
    return {
        **{"gpu": gpu, "processor": _processor(), "machine": platform.machine(), "cores": os.cpu_count()},
        **{"threads": torch.get_num_threads(), "load": _load(), "python": platform.python_version()},
        **{"torch": torch.__version__, "cuda": torch.version.cuda, "numpy": np.__version__},
        **{"commit": commit(checkout), "source": source_digest(_package()), "command": [sys.executable, *sys.argv]},
        **{"started": datetime.now(UTC).isoformat(timespec="seconds")},
    }


def where_of(environment: Table) -> str:
    """The GPU, or else the processor."""
    return str(environment["gpu"] or environment["processor"])


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or _lscpu() or platform.processor() or platform.machine()


def _lscpu() -> str:
    """ARM machines have no name in /proc/cpuinfo."""
    try:
        said = subprocess.run(["lscpu"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next((line.partition(":")[2].strip() for line in said.splitlines() if line.startswith("Model name")), "")


def _load() -> float | None:
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


def commit(checkout: Path) -> str | None:
    """The commit of a checkout, marked where tracked files differ from it; of a copy what its file COMMIT says."""
    noted = checkout / "COMMIT"
    if noted.is_file():
        return noted.read_text(encoding="utf-8").strip()
    top, head = (_git(checkout, *words) for words in (("rev-parse", "--show-toplevel"), ("rev-parse", "HEAD")))
    if not top or not head or Path(top) != checkout.resolve():
        return None
    return head[:10] + ("+changes" if _git(checkout, "diff", "--stat", "HEAD") else "")


def _git(checkout: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.strip()


def _package() -> Path:
    """The folder of the package that is on the path."""
    found = find_spec("stratafl")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).resolve().parent


def source_digest(package: Path) -> str:
    """The first digits of a checksum of the package's code, which tells it apart where there is no git."""
    total = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        total.update(f"{file.relative_to(package).as_posix()}\n".encode() + file.read_bytes())
    return total.hexdigest()[:12]


def row(what: str, value: float | None, unit: str, aim: float | None = None, better: str | None = None) -> Table:
    """A line of the table; `better` is `more` or `less`, and says on which side of the aim it should be."""
    return {"what": what, "value": value, "unit": unit, "aim": aim, "better": better}


def bar(panel: str, label: str, value: float, unit: str) -> Table:
    return {"panel": panel, "label": label, "value": value, "unit": unit}


class Result:
    """A JSON file that is complete after each `save`, so that stopping a benchmark loses nothing but what is left."""

    def __init__(self, benchmark: str, given: argparse.Namespace, device: str, name: str) -> None:
        options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(given).items()}
        self.table: Table = {"benchmark": benchmark, "environment": environment(device), "options": options}
        self.table |= {"details": {}, "rows": [], "bars": []}
        self.path = _free(given.results, given.name or name)

    @property
    def details(self) -> Table:
        found: Table = self.table["details"]
        return found

    def show(self, rows: Sequence[Table], bars: Sequence[Table] = ()) -> None:
        """Replace the lines of the table and the bars of the plot, and print the lines."""
        self.table["rows"], self.table["bars"] = list(rows), list(bars)
        for each in rows:
            print(sentence(each), flush=True)

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.table, indent=1), encoding="utf-8")
        partial.replace(self.path)


def _free(folder: Path, name: str) -> Path:
    """A file of this name that does not exist yet."""
    names = (name if n == 1 else f"{name}-{n}" for n in range(1, 10_000))
    return next(path for each in names if not (path := folder / f"{each}.json").exists())


def figure(value: float | None, unit: str) -> str:
    """A number as a person reads it; with the unit `yes`, whether it is not 0."""
    if value is None:
        return "not measured"
    if unit == "yes":
        return "yes" if value else "no"
    if 0 < abs(value) < 5e-4:
        return f"{value:.0e}{'' if unit in ('×', '') else ' '}{unit}"
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f}{'' if unit in ('×', '') else ' '}{unit}"


def aim_text(each: Table) -> str:
    if each["aim"] is None:
        return ""
    if each["unit"] == "yes":
        return figure(each["aim"], "yes")
    return f"{'≥' if each['better'] == 'more' else '≤'} {figure(each['aim'], each['unit'])}"


def met(each: Table) -> bool | None:
    """Whether the aim is reached; None without an aim or a measurement."""
    if each["aim"] is None or each["value"] is None:
        return None
    return bool(each["value"] >= each["aim"] if each["better"] == "more" else each["value"] <= each["aim"])


def sentence(each: Table) -> str:
    verdict = {True: ", reached", False: ", missed", None: ""}[met(each)]
    aim = f" (aim {aim_text(each)}{verdict})" if each["aim"] is not None else ""
    return f"{each['what']}: {figure(each['value'], each['unit'])}{aim}"
