"""Every package imports on systems without `resource`, `fcntl` and `termios`: what needs them says so when used."""

import json
import subprocess
import sys
from functools import cache

import pytest

import stratafl

PACKAGES = (
    *("core", "data", "models", "runtime", "policies", "algorithms", "execute", "evaluation", "config", "export"),
    *("testing", "bench", "runs", "report", "recipes", "cli"),
)
PROGRAM = """
import importlib, json, os, pkgutil, sys
for name in ("resource", "fcntl", "termios"):
    sys.modules[name] = None
del os.sysconf
folder, *packages = sys.argv[1:]
failed = {}
for package in packages:
    for name in [package, *(f"{package}.{found.name}" for found in pkgutil.iter_modules([f"{folder}/{package}"]))]:
        try:
            importlib.import_module(f"stratafl.{name}")
        except ImportError as error:
            failed.setdefault(package, []).append(f"{name}: {error}")
print(json.dumps(failed))
"""


@cache
def failed() -> dict[str, list[str]]:
    given = [sys.executable, "-c", PROGRAM, stratafl.__path__[0], *PACKAGES]
    done = subprocess.run(given, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_without_the_modules_that_windows_lacks(package: str) -> None:
    assert failed().get(package) is None


def test_the_memory_of_an_unknown_system_is_one_line() -> None:
    program = "import os; del os.sysconf; from stratafl.core.machine import resident; resident()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "RunError: this system does not say how much memory it has" in done.stderr
