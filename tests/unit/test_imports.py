"""Imports point one way, and the core needs nothing heavy."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratafl

ROOT = Path(stratafl.__file__).parent
PACKAGE = "stratafl"


def imported(source: str, typing_too: bool = True) -> Iterator[str]:
    """The modules of the package that a source imports, without its name in front, wherever the import stands."""
    tree = ast.parse(source)
    skipped = {id(node) for guard in ast.walk(tree) if _only_typing(guard) for node in ast.walk(guard)}
    for node in ast.walk(tree):
        if id(node) in skipped and not typing_too:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.removeprefix(f"{PACKAGE}.") for name in names if name.partition(".")[0] == PACKAGE)


def _only_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def files(name: str) -> list[Path]:
    found = [ROOT / f"{name}.py"] if (ROOT / f"{name}.py").exists() else sorted((ROOT / name).rglob("*.py"))
    assert found, f"there is no module {name}"
    return found


def parts(name: str, typing_too: bool = True) -> set[str]:
    """The first names of what a module or a package imports from this package."""
    every = (module for file in files(name) for module in imported(file.read_text(encoding="utf-8"), typing_too))
    return {module.partition(".")[0] for module in every}


ABOVE = (
    "algorithm",
    "fields",
    "layerwise",
    "phased",
    "task",
    "policies",
    "algorithms",
    "execute",
    "evaluate",
    "testing",
)
LOW = (
    "errors",
    "outputs",
    "plain_files",
    "wording",
    "keys",
    "machine",
    "records",
    "layers",
    "layout",
    "describe",
    "state",
    "parcel",
    "form",
    "reduce",
    "reprs",
    "similarity",
    "footprint",
)


@pytest.mark.parametrize("name", LOW)
def test_the_matrix_knows_nothing_of_algorithms(name):
    assert not parts(name) & set(ABOVE)


@pytest.mark.parametrize("name", ["algorithm", "fields", "layerwise", "phased"])
def test_the_waist_knows_neither_policies_nor_executors(name):
    assert not parts(name) & {"policies", "algorithms", "execute", "evaluate", "testing"}
    assert "task" not in parts(name, typing_too=False)


def test_the_waist_itself_rests_on_the_matrix_alone():
    assert parts("algorithm", typing_too=False) <= {"errors", "footprint", "keys", "layout", "parcel", "reprs", "state"}


@pytest.mark.parametrize(
    ("name", "forbidden"),
    [
        ("wire", {"task", "policies", "algorithms", "execute"}),
        ("objectives", {"policies", "algorithms", "execute"}),
        ("task", {"policies", "algorithms", "execute", "layerwise", "phased"}),
        ("policies", {"algorithms", "execute"}),
        ("algorithms", {"execute", "evaluate", "testing"}),
        ("execute", {"algorithms", "policies", "testing"}),
    ],
)
def test_imports_point_one_way(name, forbidden):
    assert not parts(name) & forbidden


OUTER = (
    "api",
    "assemble",
    "cli",
    "experiment",
    "protocols",
    "recipes",
    "report",
    "runs",
)  # what a person or a directory needs
SIDE = ("__main__", "bench", "summary")
CORE = (
    *LOW,
    *ABOVE,
    "analysis",
    "data",
    "export",
    "flagged",
    "measure",
    "models",
    "objectives",
    "plugins",
    "predictor",
    "settings",
    "trial",
    "trust",
    "wire",
)


def test_every_module_has_its_place():
    there = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert there - {"__init__"} == {*CORE, *OUTER, *SIDE}


@pytest.mark.parametrize("name", CORE)
def test_the_core_knows_neither_command_nor_directories_nor_configuration(name):
    assert not parts(name) & {*OUTER, *SIDE}


@pytest.mark.parametrize(
    ("name", "forbidden"),
    [
        ("experiment", {"api", "assemble", "cli", "execute", "report", "runs", "trial"}),
        ("assemble", {"api", "cli", "report", "runs", "trial"}),
        ("summary", {"api", "assemble", "cli", "report", "runs"}),
        ("protocols", {"api", "assemble", "cli", "experiment", "recipes", "report", "runs"}),
        ("recipes", {"api", "cli"}),
        ("runs", {"api", "cli", "recipes", "report"}),
        ("report", {"api", "assemble", "cli", "execute"}),
        ("api", {"assemble", "cli", "experiment", "report"}),
        ("bench", {"api", "cli", "experiment", "report", "runs"}),
    ],
)
def test_what_is_outside_points_one_way_too(name, forbidden):
    assert not parts(name) & forbidden


def roots(source: str) -> set[str]:
    """The packages that a source imports, wherever the import stands."""
    nodes = list(ast.walk(ast.parse(source)))
    plain = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {(node.module or "").partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}


def test_only_the_command_imports_typer_and_rich():
    users = {file for file in sorted(ROOT.rglob("*.py")) if roots(file.read_text(encoding="utf-8")) & {"typer", "rich"}}
    assert users
    assert {file.relative_to(ROOT).parts[0] for file in users} == {"cli"}


@pytest.mark.parametrize("name", ["data", "models"])
def test_data_and_models_stand_alone(name):
    assert parts(name) <= {name, "errors", "machine", "records", "reprs", "wording"}


def test_nobody_in_the_package_imports_the_tests_or_a_folder_outside():
    for file in sorted(ROOT.rglob("*.py")):
        assert not roots(file.read_text(encoding="utf-8")) & {"tests", "pytest", "conftest"}, file.name


SOURCE = """
import torch, stratafl.runtime.engine
from stratafl.core import keys
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from stratafl.execute import Matrix
def late():
    from stratafl.policies.mix import Take
"""


def test_the_reader_of_imports_sees_every_kind():
    assert set(imported(SOURCE)) == {"task.engine", "keys", "execute.Matrix", "policies.mix.Take"}
    assert set(imported(SOURCE, typing_too=False)) == {"task.engine", "keys", "policies.mix.Take"}
    assert roots(SOURCE) == {"torch", "stratafl", "typing"}


HEAVY = ("typer", "rich", "plotly", "datasets", "flwr", "scipy", "sklearn", "pandas", "matplotlib", "tomli_w", "pytest")
HEAVY += ("PIL", "pyarrow", "huggingface_hub")


def in_a_new_process(program: str) -> list[str]:
    """Run a program that ends with the variable `found`, a list of names, and give that list."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    whole = f"import json, sys\n{program}\nprint(json.dumps(found))"
    done = subprocess.run(
        [sys.executable, "-c", whole], capture_output=True, text=True, env=environment, timeout=120, check=True
    )
    found: list[str] = json.loads(done.stdout)
    return found


def test_the_core_imports_nothing_heavy():
    program = "import stratafl.execute, stratafl.algorithms, stratafl.testing"
    assert in_a_new_process(f"{program}\nfound = [m for m in {HEAVY!r} if m in sys.modules]") == []


def test_the_package_alone_imports_next_to_nothing():
    heavy = ("torch", "numpy", "stratafl.api", *HEAVY)
    found = in_a_new_process(f"import stratafl\nfound = [m for m in {heavy!r} if m in sys.modules]")
    assert found == []


def test_all_but_the_command_does_without_typer_and_rich():
    names = ("api", "trial", "evaluate", "measure", "summary", "runs", "report", "assemble", "bench")
    program = f"""
sys.modules.update(typer=None, rich=None)  # as if they were not installed
import importlib
for name in {names!r}:
    importlib.import_module("stratafl." + name)
import stratafl
found = [stratafl.fit.__module__, stratafl.load.__module__]
"""
    assert in_a_new_process(program) == ["stratafl.api", "stratafl.api"]


def test_the_bench_does_with_torch_and_numpy_alone():
    program = f"""
sys.modules.update(dict.fromkeys({(*HEAVY, "safetensors")!r}))  # as if they were not installed
from stratafl.bench.__main__ import main
sys.stdout = sys.stderr
code = main("--models mlp --methods fedavg,fedper --clients 2 --steps 8 --repeats 1 --device cpu".split())
sys.stdout = sys.__stdout__
found = [str(code)]
"""
    assert in_a_new_process(program) == ["0"]
