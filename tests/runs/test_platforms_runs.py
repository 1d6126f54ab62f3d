"""Without what Windows lacks, runs are read and models are written; a run in a directory is refused in one line."""

import subprocess
import sys

import pytest

from stratafl.config.experiment import Experiment, with_settings
from stratafl.runs import Run

LIKE_WINDOWS = """
import os, sys
import numpy, torch  # have what they need
sys.modules["fcntl"] = sys.modules["termios"] = sys.modules["resource"] = None
for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "pread", "pwrite", "getloadavg", "mkfifo"):
    delattr(os, name)
"""
PROGRAMS = {
    "import": """
import importlib, pkgutil, stratafl, stratafl.runs, stratafl.export
for package in (stratafl.runs, stratafl.export):
    for found in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{found.name}")
""",
    "load, predict and export": """
import stratafl
fitted = stratafl.load("run")
assert fitted.predict(0, torch.zeros(2, 1, 8, 8)).shape == (2,)
fitted.export(0, "model.safetensors")
""",
    "a link is not followed": """
import os
from pathlib import Path
from stratafl.errors import DamagedError
from stratafl.files import read_plain
os.symlink("run/config.toml", "link")
try:
    read_plain(Path("link"), 10**6)
except DamagedError:
    pass
else:
    raise SystemExit("the link was followed")
""",
    "create": """
from pathlib import Path
from stratafl.config.experiment import Experiment
from stratafl.errors import RunError
from stratafl.runs import Run
for call in (lambda: Run.create(Experiment(), Path("new")), lambda: Run.open(Path("run"))):
    try:
        call()
    except RunError as error:
        assert str(error) == "this system cannot lock a run directory: use Linux or macOS (on Windows, WSL)", error
    else:
        raise SystemExit("it was not refused")
assert not Path("new").exists()
""",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("windows")
    small = ["run.rounds=1", "data.clients=2", "data.partition=iid", "model.hidden=[2]", "run.device=cpu"]
    with Run.create(with_settings(Experiment(), small), place / "run") as run:
        list(run.rounds())
    return place


@pytest.mark.parametrize("what", PROGRAMS)
def test_like_windows(place, what):
    given = [sys.executable, "-c", LIKE_WINDOWS + PROGRAMS[what]]
    done = subprocess.run(given, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
