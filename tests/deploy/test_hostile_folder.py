"""A folder that somebody sent runs nothing: no command imports its files in place of installed packages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from processes import PATIENCE
from stratafl.child_processes import python_command, safe_environment

pytestmark = pytest.mark.long
# Every module that a process of a federation, a comparison or a compiler imports early or late.
TRAPS = (
    "flwr",
    "torch",
    "stratafl",
    "grpc",
    "numpy",
    "httpx",
    "typer",
    "rich",
    "h11",
    "fastapi",
    "sqlalchemy",
    "uvicorn",
)
TRAPS += (
    "cryptography",
    "tomli_w",
    "safetensors",
    "json",
    "multiprocessing",
    "sitecustomize",
    "usercustomize",
    "_queue",
)


def hostile(folder: Path) -> Path:
    """Modules that leave a trace, each under the name of one that others import."""
    folder.mkdir()
    for name in TRAPS:
        trace = f"open({str(folder / 'ran')!r}, 'a').write({name!r})\nraise SystemExit(7)\n"
        (folder / f"{name}.py").write_text(trace)
    return folder


def plant_apps(folder: Path, flower: Path) -> None:
    """The app that an earlier host would have left in its folder, with hostile code."""
    for place in ("app", "flower/apps/stratafl.stratafl.0.0.0"):
        (flower / place).mkdir(parents=True)
        shutil.copy(folder / "stratafl.py", flower / place)


def traces(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("ran")]


def ran(folder: Path, *command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment}
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=folder, env=variables, text=True, capture_output=True, timeout=PATIENCE)


def test_a_python_of_ours_imports_no_file_of_the_current_folder(tmp_path: Path) -> None:
    folder = hostile(tmp_path / "sent")
    assert ran(folder, sys.executable, "-m", "stratafl.version").returncode == 7  # the traps work
    (folder / "ran").unlink()
    for module in ("stratafl.version", "stratafl.errors"):
        assert ran(folder, *python_command("-m", module)).returncode == 0
    assert ran(folder, sys.executable, "-c", "import stratafl", **safe_environment()).returncode == 0
    assert not traces(folder)


def test_python_m_stratafl_leaves_the_current_folder_out(tmp_path: Path) -> None:
    folder = hostile(tmp_path / "sent")
    (folder / "stratafl.py").unlink()  # which Python itself looks for
    printed = ran(folder, sys.executable, "-m", "stratafl", "--version")
    assert (printed.returncode, traces(folder)) == (0, []), printed.stderr


def test_what_a_user_put_on_the_path_stays_and_an_empty_entry_does_not(tmp_path: Path) -> None:
    path = os.pathsep.join(["", str(tmp_path / "lib"), "", "relative"])
    assert safe_environment({"PYTHONPATH": path})["PYTHONPATH"] == os.pathsep.join([str(tmp_path / "lib"), "relative"])
    assert "PYTHONPATH" not in safe_environment({"PYTHONPATH": os.pathsep})
    assert safe_environment({"A": "1"}, B="2") == {"A": "1", "B": "2", "PYTHONSAFEPATH": "1"}


@pytest.mark.nightly  # slow: test_chaos.py, in a folder like this
def test_a_rehearsal_in_a_hostile_folder_runs_nothing_of_it(tmp_path: Path) -> None:
    """Every process of a host and of a site; the app that an earlier host would have left is not taken either."""
    pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")
    folder = hostile(tmp_path / "sent")
    (folder / "exp.toml").write_text('[run]\nrounds = 1\n[model]\nname = "mlp"\nhidden = [4]\n')
    plant_apps(folder, folder / "federations" / "federation" / "flower")
    printed = ran(folder, Path(sys.executable).with_name("strata"), "host", "exp.toml", "--local", "1")
    assert (printed.returncode, traces(folder)) == (0, []), printed.stderr


@pytest.mark.slow
def test_a_comparison_in_a_hostile_folder_runs_nothing_of_it(tmp_path: Path) -> None:
    folder = hostile(tmp_path / "sent")
    settings = ("--rounds", 1, "--seeds", 1, "--set", "data.clients=2", "--jobs", 2)
    strata = Path(sys.executable).with_name("strata")
    printed = ran(folder, strata, "compare", "--algorithms", "local,fedavg", *settings)
    assert (printed.returncode, traces(folder)) == (0, []), printed.stderr


def test_a_host_takes_no_database_and_no_secret_that_came_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run in the database is code, and its triggers would run with every request."""
    pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")
    from stratafl.deploy.certificates import create_authority, create_server_certificate
    from stratafl.deploy.host import Host, HostAddress

    monkeypatch.setattr(Host, "_start", lambda _: None)
    authority = create_authority(tmp_path)
    certificate = create_server_certificate(tmp_path, ["127.0.0.1"], authority)

    def hosted() -> dict[str, str]:
        with Host(tmp_path / "host", HostAddress("127.0.0.1", 1), certificate, authority.public):
            return {path.name: path.read_text() for path in (tmp_path / "host").iterdir() if path.is_file()}

    first = hosted()
    (tmp_path / "host" / "superlink.db").write_text("runs")
    assert hosted() == first | {"superlink.db": "runs"}
    shutil.move(tmp_path / "host", tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "host")
    (tmp_path / "host" / "superlink.db-wal").write_text("more runs")
    copied = hosted()
    assert {"token", "secret"} <= {name for name in first if copied[name] != first[name]}
    assert set(copied) == set(first)
