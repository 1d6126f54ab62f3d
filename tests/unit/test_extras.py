"""Every extra can be installed: pip finds versions that fit together, also for all extras at once."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


def resolve(*requirements: str) -> subprocess.CompletedProcess[str]:
    """What pip would install, without installing it."""
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--no-input"]
    return subprocess.run([*pip, *requirements], cwd=ROOT, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def index() -> None:
    """An index that pip can reach: without one there is nothing to test."""
    asked = resolve("--no-deps", "iniconfig")
    if asked.returncode != 0:
        pytest.skip(f"pip reaches no package index: {asked.stderr.strip().splitlines()[-1]}")


@pytest.mark.slow
@pytest.mark.usefixtures("index")
def test_the_extras_resolve():
    """All extras at once fit together, so each of them alone does too; the packages of coming extras fit as well."""
    done = resolve(f".[{','.join(EXTRAS)}]", "transformers", "peft", "-c", "constraints.txt")
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_constraint_is_a_version_of_its_own():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line.partition("==")[0].lower() for line in lines if line and not line.startswith("#")]
    assert len(pinned) == len(set(pinned))
    assert all("==" in line for line in lines if line and not line.startswith("#"))
