"""Every extra can be installed: there are versions that fit together, also of all extras at once."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def resolve(*files: str, more: str) -> subprocess.CompletedProcess[str]:
    """The versions of all that would be installed: uv finds them in seconds, where pip takes minutes."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", *files, "-", "-c", "constraints.txt"]
    return subprocess.run(command, cwd=ROOT, input=more, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def index() -> None:
    """A package index that can be reached: without one there is nothing to test."""
    asked = resolve(more="iniconfig")
    if asked.returncode != 0:
        pytest.skip(f"no package index can be reached: {asked.stderr.strip().splitlines()[-1]}")


@pytest.mark.slow
@pytest.mark.usefixtures("index")
def test_the_extras_resolve():
    """All extras at once fit together, so each of them alone does too; the packages of coming extras fit as well."""
    done = resolve("pyproject.toml", "--all-extras", more="transformers\npeft")
    assert done.returncode == 0, done.stderr[-2000:]
    found = {line.partition("==")[0] for line in done.stdout.splitlines()}
    assert {"torch", "flwr", "wandb", "onnx", "transformers"} <= found


@pytest.mark.slow
@pytest.mark.usefixtures("index")
def test_versions_that_do_not_fit_together_are_found():
    done = resolve("pyproject.toml", "--extra", "flower", more="flwr<1")
    assert done.returncode != 0
    assert "flwr" in done.stderr


def test_every_constraint_is_a_version_of_its_own():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line.partition("==")[0].lower() for line in lines if line and not line.startswith("#")]
    assert len(pinned) == len(set(pinned))
    assert all("==" in line for line in lines if line and not line.startswith("#"))
