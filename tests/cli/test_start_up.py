"""What the quick commands load: importing torch takes longer than all that they do."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import SMALL

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import name_lists
from stratafl.cli.list_command import catalogue
from stratafl.cli.name_lists import listed_names

PROGRAM = """
import contextlib, io, json, sys
from stratafl.cli import main
with contextlib.redirect_stdout(io.StringIO()) as printed:
    codes = [main(words) for words in json.loads(sys.argv[1])]
heavy = ("numpy", "torch", "torch._dynamo", "torch._inductor")
print(json.dumps([codes, len(printed.getvalue()) > 100, [name for name in heavy if name in sys.modules]]))
"""
QUICK = [["--help"], ["list"], ["list", "models", "--json"], ["list", "mlp"], ["data", "list"], ["reproduce", "--list"]]


def loaded(commands, place):
    """The exit codes of commands that run in one process, whether they print, and what that loads."""
    arguments = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    done = subprocess.run(arguments, cwd=place, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.budget(2, "a process of its own")
def test_lists_and_help_load_no_torch(tmp_path):
    assert loaded(QUICK, tmp_path) == [[0] * len(QUICK), True, []]


@pytest.mark.slow
def test_a_run_does_not_load_the_compiler(tmp_path):
    """pFedLA has a hypernetwork for each client on the server, whose size is asked for without building it."""
    run = ["run", "--algorithm", "pfedla", "--rounds", "1", "--device", "cpu", *SMALL, "--out", "run"]
    assert loaded([run], tmp_path)[2] == ["numpy", "torch"]


def test_the_stored_catalogue_is_the_live_one():
    """If this fails, run `python tools/name_lists.py`."""
    assert name_lists.stored_catalogue() == json.loads(name_lists.FILE.read_text("utf-8"))


def test_the_list_has_the_names_of_the_live_catalogue_in_its_order():
    live, listed = catalogue(), listed_names()
    assert list(live) == list(listed)
    assert [[e["name"] for e in part] for part in live.values()] == [[e["name"] for e in p] for p in listed.values()]
