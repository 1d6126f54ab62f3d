"""What import-linter cannot say (its contracts are in pyproject.toml): what a process loads, and what it does without.

One process takes all stages, because importing torch costs more than the stages do. What is not installed, or what
Windows lacks, is taken away from it before the stage that must do without.
"""

import graphlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stratafl
from stratafl.config.experiment import Experiment, with_settings
from stratafl.runs import Run

SOURCE = Path(stratafl.__file__).parents[1]
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HEAVY = ("typer", "rich", "plotly", "datasets", "flwr", "scipy", "sklearn", "pandas", "matplotlib", "tomli_w", "pytest")
HEAVY += ("PIL", "pyarrow", "huggingface_hub")
PROGRAM = """
import contextlib, importlib, io, json, os, pkgutil, sys, traceback
from pathlib import Path
results = {}

def stage(function):
    try:
        results[function.__name__] = function()
    except BaseException:
        results[function.__name__] = traceback.format_exc()

def loaded(*names):
    return [name for name in (*names, *HEAVY) if name in sys.modules]

def hide(*names):
    sys.modules.update(dict.fromkeys(names))  # as if they were not installed

def show(*names):
    for name in names:
        del sys.modules[name]

def import_packages(*packages):
    from stratafl.errors import StrataError
    failed = []
    for package in packages:
        folder = f"{SOURCE}/stratafl/{package}"
        for name in [package, *(f"{package}.{each.name}" for each in pkgutil.iter_modules([folder]))]:
            try:
                importlib.import_module(f"stratafl.{name}")
            except (ImportError, StrataError) as error:
                failed.append(f"{name}: {error}")
    return failed

@stage
def the_package_alone():
    import stratafl
    return loaded("torch", "numpy", "stratafl.api")

import numpy, torch  # have what they need
hide("fcntl", "termios", "resource")  # what Windows lacks
lacks = ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "pread", "pwrite", "getloadavg", "mkfifo")
for name in lacks:
    delattr(os, name)

@stage
def methods_and_executors():
    import stratafl.execute, stratafl.algorithms, stratafl.testing
    return loaded()

hide(*HEAVY, "click", "safetensors")

@stage
def a_benchmark_with_torch_and_numpy_alone():
    sys.path.append(BENCHMARKS)
    from against_loops import Cell, Ways, Workload, measured_rows
    cells = [Cell("mlp", "fedper", Workload(clients=2, cohort=2, batch=10, samples=10))]
    return [row["method"] for row in measured_rows(cells, Ways("cpu", repeats=1))]

show("safetensors", "scipy", "tomli_w", "plotly")
sysconf = os.sysconf
del os.sysconf

@stage
def the_memory_of_an_unknown_system():
    from stratafl.core.machine import resident
    from stratafl.errors import RunError
    try:
        return resident()
    except RunError:
        return "refused"

@stage
def everything_but_the_command():
    packages = "core data models runtime policies algorithms execute evaluation config export testing runs"
    failed = import_packages(*packages.split(), "report", "recipes", "tuning")
    import stratafl
    return [*failed, stratafl.fit.__module__, stratafl.load.__module__]

show("typer", "rich", "click")

hide("cryptography", "httpx", "fastapi")  # which come with Flower

@stage
def the_command():  # without Flower, `host` and `join` are refused below
    federations = ("host_command", "flower_app_command", "federation_command")
    return [line for line in import_packages("cli") if not any(name in line for name in federations)]

show("cryptography", "httpx", "fastapi")

os.sysconf = sysconf

@stage
def load_predict_and_export():
    import stratafl
    fitted = stratafl.load("run")
    fitted.client(0).export("model.safetensors")
    return list(fitted.client(0).predict(torch.zeros(2, 1, 8, 8)).shape)

@stage
def a_link_is_not_followed():
    from stratafl.errors import DamagedError
    from stratafl.files import read_plain
    os.symlink("run/config.toml", "link")
    try:
        read_plain(Path("link"), 10**6)
    except DamagedError:
        return "refused"

@stage
def a_run_needs_locks():
    from stratafl.config.experiment import Experiment
    from stratafl.errors import RunError
    from stratafl.runs import Run
    for call in (lambda: Run.create(Experiment(), Path("new")), lambda: Run.open(Path("run"))):
        try:
            call()
        except RunError as error:
            assert "WSL" in str(error), error
        else:
            return "not refused"
    return os.path.exists("new")

@stage
def no_federation_without_flower():
    from stratafl.cli import main
    codes = []
    for words in (["host", "x.toml"], ["join", "x.toml", "--site", "a", "--data", "a.csv"]):
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            codes.append(main(words))
        (line,) = printed.getvalue().splitlines()
        assert "'stratafl[flower]'" in line, line
    return codes

print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    place = tmp_path_factory.mktemp("without")
    small = ["run.rounds=1", "data.clients=2", "data.partition=iid", "model.hidden=[2]", "run.device=cpu"]
    with Run.create(with_settings(Experiment(), [*small, "train.batch=800"]), place / "run") as run:
        list(run.rounds())
    program = f"SOURCE, BENCHMARKS, HEAVY = {str(SOURCE)!r}, {str(BENCHMARKS)!r}, {HEAVY!r}\n{PROGRAM}"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow  # one process that imports everything
@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("the_package_alone", []),
        ("methods_and_executors", []),
        ("a_benchmark_with_torch_and_numpy_alone", ["fedper"]),
        ("everything_but_the_command", ["stratafl.api.fitting"] * 2),
        ("load_predict_and_export", [2]),
        ("a_link_is_not_followed", "refused"),
        ("a_run_needs_locks", False),
        ("the_memory_of_an_unknown_system", "refused"),
        ("the_command", []),
        ("no_federation_without_flower", [2, 2]),
    ],
)
def test_a_process_loads_and_needs_no_more_than_it_says(results, stage, expected):
    assert results[stage] == expected


def test_no_module_imports_itself_through_others():
    """Also through the `__init__` of its own package, which import-linter leaves out."""
    import grimp

    graph = grimp.build_graph("stratafl", cache_dir=None)
    edges = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    list(graphlib.TopologicalSorter(edges).static_order())  # raises CycleError and names the circle


def test_methods_are_there_without_an_import_of_their_own(monkeypatch):
    monkeypatch.delattr(stratafl, "methods", raising=False)
    assert stratafl.methods.fedper.__name__ == "fedper"
