"""The command in this process, in a folder of its own; and as a program of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cli_helpers import HERE, SMALL, SOURCE, Result, Strata, checked_line, command, snapshot

from stratafl.cli import main


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """An empty folder, where the command runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command adds folders to it
    monkeypatch.setattr(sys, "argv", ["strata"])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCE), str(HERE)]))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "LINES"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def strata(place, capsys) -> Strata:
    """The command; its exit code and what it printed."""

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        code = main([str(each) for each in arguments])
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture
def refused(strata, place) -> Callable[..., str]:
    """The command where it must refuse: one line, exit code 2, and nothing changed; the line."""

    def call(*arguments: object, says: str | tuple[str, ...]) -> str:
        before = snapshot(place)
        result = strata(*arguments)
        line = checked_line(result)
        assert result.out == ""
        assert snapshot(place) == before
        for words in (says,) if isinstance(says, str) else says:
            assert words in line
        return line

    return call


# CPU seconds of fixtures that are made once; the first test that needs one is charged for it.
SHARED_SECONDS = {"originals": 1.2, "compared": 1.2, "whole": 0.6}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in (item for item in items if item.path.is_relative_to(HERE)):
        shared = sum(SHARED_SECONDS.get(name, 0.0) for name in getattr(item, "fixturenames", ()))
        if shared:
            own = item.get_closest_marker("budget")
            seconds = shared + (own.args[0] if own else 0.5)
            item.add_marker(pytest.mark.budget(seconds, "may be the first to need a shared fixture"), append=False)


class Originals(NamedTuple):
    """Directories that tests read or copy, and what the commands that made them printed."""

    folder: Path
    printed: dict[str, Result]


@pytest.fixture(scope="session")
def originals(tmp_path_factory) -> Originals:
    """`done`, a run of two rounds, and `both`, a comparison of two methods, both made with the folder as current."""
    folder, printed = tmp_path_factory.mktemp("originals"), {}
    compared = ("compare", *SMALL, "--algorithms", "local,fedavg", "--seeds", "1", "--rounds", "1")
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    for name, arguments in {"done": ("run", *SMALL, "--rounds", "2"), "both": compared}.items():
        out, err = StringIO(), StringIO()
        with chdir(folder), redirect_stdout(out), redirect_stderr(err):
            code = main([*arguments, "--out", name])
        printed[name] = Result(code, out.getvalue(), err.getvalue())
        assert code == 0, printed[name]
    os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return Originals(folder, printed)


@pytest.fixture
def finished(originals, place) -> Path:
    """A finished run of two rounds."""
    shutil.copytree(originals.folder / "done", place / "done")
    return Path("done")


@pytest.fixture
def both(originals, place) -> Path:
    """A finished comparison of `local` and `fedavg`, one seed and one round."""
    shutil.copytree(originals.folder / "both", place / "both")
    return Path("both")


@pytest.fixture
def program(place) -> Strata:
    """The command as a process of its own."""

    def call(*arguments: object, **options: Any) -> Result:
        done = subprocess.run(command(*arguments), **{"capture_output": True, "text": True, **options}, check=False)
        return Result(done.returncode, done.stdout, done.stderr)

    return call
