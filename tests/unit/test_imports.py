"""What import-linter cannot say (its contracts are in pyproject.toml): what a process loads, circles by `__init__`."""

import graphlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stratafl

SOURCE = Path(stratafl.__file__).parents[1]
HEAVY = ("typer", "rich", "plotly", "datasets", "flwr", "scipy", "sklearn", "pandas", "matplotlib", "tomli_w", "pytest")
HEAVY += ("PIL", "pyarrow", "huggingface_hub")


def in_a_new_process(program: str) -> list[str]:
    """Run a program that ends with the variable `found`, a list of names, and give that list."""
    whole = f"import json, sys\n{program}\nprint(json.dumps(found))"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", whole], capture_output=True, text=True, env=environment, timeout=120, check=True
    )
    found: list[str] = json.loads(done.stdout)
    return found


def test_no_module_imports_itself_through_others():
    """Also through the `__init__` of its own package, which import-linter leaves out."""
    import grimp

    graph = grimp.build_graph("stratafl", cache_dir=None)
    edges = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    list(graphlib.TopologicalSorter(edges).static_order())  # raises CycleError and names the circle


def test_methods_and_executors_load_nothing_heavy():
    program = "import stratafl.execute, stratafl.algorithms, stratafl.testing"
    assert in_a_new_process(f"{program}\nfound = [m for m in {HEAVY!r} if m in sys.modules]") == []


def test_the_package_alone_loads_next_to_nothing():
    heavy = ("torch", "numpy", "stratafl.api", *HEAVY)
    found = in_a_new_process(f"import stratafl\nfound = [m for m in {heavy!r} if m in sys.modules]")
    assert found == []


@pytest.mark.parametrize("words", [["host", "x.toml"], ["join", "x.toml", "--site", "a", "--data", "a.csv"]])
def test_without_flower_a_federation_is_refused_in_one_line(words):
    program = f"""
import sys
sys.modules["flwr"] = None  # as if it were not installed
from stratafl.cli import command
sys.argv = ["strata", *{words!r}]
command()
"""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "pip install 'stratafl[flower]'" in done.stderr


def test_everything_but_the_command_runs_without_typer_and_rich():
    names = ("api", "bench", "config.assemble", "evaluation", "export", "recipes", "report", "runs", "testing")
    program = f"""
sys.modules.update(typer=None, click=None, rich=None)  # as if they were not installed
import importlib
for name in {names!r}:
    importlib.import_module("stratafl." + name)
import stratafl
found = [stratafl.fit.__module__, stratafl.load.__module__]
"""
    assert in_a_new_process(program) == ["stratafl.api", "stratafl.api"]


def test_the_bench_runs_with_torch_and_numpy_alone():
    program = f"""
sys.modules.update(dict.fromkeys({(*HEAVY, "safetensors")!r}))  # as if they were not installed
from stratafl.bench.__main__ import main
sys.stdout = sys.stderr
code = main("--models mlp --methods fedavg,fedper --clients 2 --steps 8 --repeats 1 --device cpu".split())
sys.stdout = sys.__stdout__
found = [str(code)]
"""
    assert in_a_new_process(program) == ["0"]
