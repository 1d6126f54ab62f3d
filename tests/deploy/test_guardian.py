"""Processes end with whoever started them, with all that they started, and say how they ended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stratafl.deploy.processes import Process, flower_environment, wait_until
from stratafl.errors import DeployError

PATIENCE = 300.0  # seconds; only what hangs takes that long
# Starts a child of its own and writes both pids; then it waits. With "stubborn" neither ends at SIGTERM.
FAMILY = """
import os, signal, subprocess, sys, time
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
print("ready", flush=True)
time.sleep(1000)
"""
OWNER = """
import os, sys, time
from pathlib import Path
from stratafl.deploy.processes import Process
command = [sys.executable, "-c", sys.argv[1], sys.argv[2]]
process = Process("family", command, Path(sys.argv[2] + ".log"), dict(os.environ))
time.sleep(1000)
"""


def is_gone(pid: int) -> bool:
    """A process that nobody waited for counts as gone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def soon(met: Callable[[], bool]) -> bool:
    latest = time.monotonic() + PATIENCE
    while not met() and time.monotonic() < latest:
        time.sleep(0.02)
    return met()


def family(place: Path) -> list[int]:
    assert soon(place.exists)
    return [int(pid) for pid in place.read_text().split()]


def start(tmp_path: Path, *options: str) -> Process:
    command = [sys.executable, "-c", FAMILY, str(tmp_path / "pids"), *options]
    return Process("family", command, tmp_path / "log", dict(os.environ))


def test_a_process_and_its_children_end_when_asked(tmp_path: Path) -> None:
    process = start(tmp_path)
    pids = family(tmp_path / "pids")
    assert process.pid == pids[0]
    assert process.running()
    process.end()
    assert soon(lambda: all(map(is_gone, pids)))  # the kernel takes a moment to end a child
    assert process.outcome() == f"family was killed by SIGTERM; last line of '{tmp_path}/log': ready"


def test_who_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratafl.deploy.processes.GRACE", 0.2)
    process = start(tmp_path, "stubborn")
    pids = family(tmp_path / "pids")
    process.end()
    assert soon(lambda: all(map(is_gone, pids)))  # the kernel takes a moment to end a child
    assert "killed by SIGKILL" in process.outcome()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_all_end_with_the_process_that_started_them_even_by_sigkill(tmp_path: Path, number: signal.Signals) -> None:
    place = tmp_path / "pids"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, FAMILY, str(place)])
    try:
        pids = family(place)
        owner.send_signal(number)
        owner.wait()
        assert all(soon(lambda pid=pid: is_gone(pid)) for pid in pids)
    finally:
        owner.kill()
        owner.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_a_process_ends_when_its_guardian_is_killed(tmp_path: Path) -> None:
    process = start(tmp_path)
    pids = family(tmp_path / "pids")
    process._guardian.kill()
    assert soon(lambda: is_gone(pids[0]))
    process.end()
    os.kill(pids[1], signal.SIGKILL)  # a grandchild is beyond that


def test_an_exit_code_comes_with_the_last_line_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("an earlier run said this\n")
    process = Process("app", [sys.executable, "-c", "print('no \\x1b[31mdata\\n'); exit(3)"], log, dict(os.environ))
    assert soon(lambda: not process.running())
    process.end()
    assert process.outcome() == f"app exited with code 3; last line of '{log}': no \\x1b[31mdata"
    assert "earlier" not in process.said()
    assert oct(log.stat().st_mode)[-2:] != "77"


def test_a_log_and_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    program = f"open({str(tmp_path / 'file')!r}, 'w')"
    process = Process("app", [sys.executable, "-c", program], tmp_path / "log", dict(os.environ))
    assert soon(lambda: not process.running())
    process.end()
    assert [oct(path.stat().st_mode)[-3:] for path in sorted(tmp_path.iterdir())] == ["600", "600"]


def test_a_command_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match=r"app: FileNotFoundError.*no-such-command"):
        Process("app", ["/no-such-command"], tmp_path / "log", dict(os.environ))


def test_waiting_ends_when_the_process_does_or_time_is_up(tmp_path: Path) -> None:
    process = Process(
        "app", [sys.executable, "-c", "print('port is taken'); exit(1)"], tmp_path / "log", dict(os.environ)
    )
    with pytest.raises(DeployError, match=r"the app .*\b1; .*: port is taken"):
        wait_until(lambda: False, process, "the app")
    process.end()
    process = start(tmp_path)
    try:
        with pytest.raises(DeployError, match=r"the app .* 0 s"):
            wait_until(lambda: False, process, "the app", patience=0.1)
    finally:
        process.end()


def test_flower_reports_and_installs_nothing_and_takes_no_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FLWR_TELEMETRY_ENABLED", "FLWR_OIDC_ENABLED", "HTTPS_PROXY", "http_proxy", "MINE"):
        monkeypatch.setenv(name, "1")
    given = flower_environment(tmp_path)
    assert {name: given[name] for name in given if name.startswith("FLWR_")} == {
        "FLWR_HOME": str(tmp_path),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    assert "HTTPS_PROXY" not in given
    assert "http_proxy" not in given
    assert given["MINE"] == "1"
