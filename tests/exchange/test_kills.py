"""SIGKILL of real processes, at one file operation after the other, and in training."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from processes import outputs

SCRIPT = Path(__file__).with_name("kill_exchange.py")


@pytest.mark.slow
@pytest.mark.parametrize(("who", "least"), [("site", 80), ("all", 40)])
def test_killed_processes_come_to_the_same(tmp_path, who, least):
    given = [sys.executable, str(SCRIPT), str(tmp_path), who]
    process = subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = outputs(process)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert found["kills"] > least
    assert (found["same"], found["rounds"]) == (True, 3)
