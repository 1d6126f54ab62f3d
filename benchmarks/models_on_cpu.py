"""Every model of the bench on a CPU against the better of two plain loops, on an idle machine and beside other work.

    python benchmarks/models_on_cpu.py results/cpu --cores 0,1 4,5 8,9

Each model and load is a process of its own, `against_loops.py`, on its own cores where `taskset` exists; one that fails
or takes too long is noted, and the others go on. The folder gets the output of each, `models-on-cpu.json` with all raw
figures, complete after each process, and `table.md`. Only ratios within one process are compared.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from bench_models import BENCH_MODELS
from recording import Result, Table, bar, row, where_of

ROOT = Path(__file__).resolve().parent.parent
AIMS = {"mlp": 1.3, "cnn": 1.3, "lenet": 1.3, "resnet18": 1.1}
OTHERS = BESIDE = 1.0  # every other model; and every model beside one other process
WITH_20_CLIENTS = ("mlp", "mlp784", "cnn", "resnet18")
LARGEST_FIRST = ("resnet34cifar", "resnet18cifar", "resnet20", "mobilenet", "resnet34", "resnet9", "alexnet")


class Job(NamedTuple):
    """One process."""

    model: str
    busy: int

    @property
    def name(self) -> str:
        return f"{self.model}-{self.busy}"


def command(job: Job, given: argparse.Namespace, results: str) -> list[str]:
    clients = given.clients or (20 if job.model in WITH_20_CLIENTS else 10)
    sizes = ["--clients", clients, "--repeats", given.repeats, "--busy", job.busy]
    sizes += ["--steps", given.steps] if given.steps else []
    words = ["--models", job.model, "--methods", "fedavg", "--device", "cpu", "--engine", given.engine, *sizes]
    script = Path(__file__).with_name("against_loops.py")
    return [sys.executable, str(script), *map(str, words), "--results", results, "--name", job.name]


def execute(job: Job, cores: str, given: argparse.Namespace) -> tuple[str, Table]:
    """Run one job on these cores; what became of it, and its row."""
    threads = str(len(cores.split(","))) if cores else os.environ.get("OMP_NUM_THREADS", "")
    where = ["taskset", "-c", cores] if cores and shutil.which("taskset") else []
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    settings = {"PYTHONPATH": path, "STRATAFL_CACHE": str(given.folder / "cache")}
    settings |= {"OMP_NUM_THREADS": threads} if threads else {}
    text = given.folder / f"{job.name}.txt"
    with text.open("w", encoding="utf-8") as output, tempfile.TemporaryDirectory() as results:
        try:
            done = subprocess.run(
                [*where, *command(job, given, results)],
                env={**os.environ, **settings},
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=given.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"took more than {given.seconds} s", {}
        if done.returncode:
            return f"failed with {done.returncode}", {}
        (path,) = Path(results).glob("*.json")
        return "done", json.loads(path.read_text(encoding="utf-8"))["details"]["rows"][0]


def table(rows: Mapping[str, Table], models: Sequence[str]) -> str:
    titles = "| model | engine | ms per client-step | × the better loop | aim | beside one process | aim |"
    lines = [titles, "|---|---|---|---|---|---|---|"]
    for model in models:
        idle, beside = (rows.get(Job(model, busy).name, {}) for busy in (0, 1))
        engine, aim = idle.get("engine"), AIMS.get(model, OTHERS)
        named, time = "–", "–"
        if isinstance(engine, dict):
            named, time = str(engine["engine"]).removesuffix("Engine").lower(), f"{engine['ms_per_client_step']:.2f}"
        ratios = [_judged(row.get("least_ratio"), at) for row, at in ((idle, aim), (beside, BESIDE))]
        lines.append(f"| {model} | {named} | {time} | {ratios[0]} | {aim} | {ratios[1]} | {BESIDE} |")
    return "\n".join(lines) + "\n"


def summarised(result: Result, jobs: Sequence[Job], usual: bool) -> None:
    """All figures in the frame that the other benchmarks write; aims are those of the `usual` sizes."""
    lines, bars = [], []
    for job in jobs:
        measured_row = result.details.get(job.name, {})
        ratio, aim = measured_row.get("least_ratio"), BESIDE if job.busy else AIMS.get(job.model, OTHERS)
        measured = ratio if isinstance(ratio, float) else None
        where = f"{where_of(result.table['environment'])}, {job.busy} others at work"
        lines.append(row(f"times the better loop: {job.model}, {where}", measured, "×", aim if usual else None, "more"))
        bars += [] if measured is None else [bar(f"times the better loop, {where}", job.model, measured, "×")]
    result.table["rows"], result.table["bars"] = lines, bars
    result.save()


def _judged(ratio: object, aim: float) -> str:
    if not isinstance(ratio, float):
        return "not measured"
    return f"{ratio:.2f}" if ratio >= aim else f"**{ratio:.2f}** missed"


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    given.folder = given.folder.absolute()
    given.folder.mkdir(parents=True, exist_ok=True)
    named = list(BENCH_MODELS) if given.models == "all" else given.models.split(",")
    ordered = sorted(named, key=lambda name: LARGEST_FIRST.index(name) if name in LARGEST_FIRST else 99)
    jobs = [Job(model, busy) for model in ordered for busy in given.busy]
    given.results, given.name = given.folder, None
    result = Result("models_on_cpu", given, "cpu", "models-on-cpu")
    free: SimpleQueue[str] = SimpleQueue()
    for cores in given.cores or [""]:
        free.put(cores)

    def work(job: Job) -> tuple[Job, str, Table]:
        cores = free.get()
        try:
            return job, *execute(job, cores, given)
        finally:
            free.put(cores)

    with ThreadPoolExecutor(len(given.cores or [""])) as pool:
        for done in as_completed([pool.submit(work, job) for job in jobs]):
            job, outcome, result.details[job.name] = done.result()
            print(job.name, outcome, flush=True)
            summarised(result, jobs, given.clients is None and given.steps is None)
    page = table(result.details, named)
    (given.folder / "table.md").write_text(page, encoding="utf-8")
    print(page)
    return 0


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description="Every model on a CPU, against the better plain loop.")
    made.add_argument("folder", type=Path, help="where figures, output and the table are written")
    made.add_argument("--models", default="all", help="names, separated by commas, or all")
    made.add_argument("--cores", nargs="*", help="one group of cores for each process at a time, such as 0,1 2,3")
    made.add_argument("--busy", nargs="*", type=int, default=[0, 1], help="numbers of other processes at work")
    made.add_argument("--clients", type=int, help="by default 20 for some models, 10 for others")
    made.add_argument("--steps", type=int, help="per client and round")
    made.add_argument("--repeats", type=int, default=3, help="timed rounds")
    made.add_argument("--engine", default="auto", help="auto, stacked or loop")
    made.add_argument("--seconds", type=int, default=300, help="until a process is stopped")
    return made


if __name__ == "__main__":
    sys.exit(main())
