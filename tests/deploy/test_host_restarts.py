"""What a host does about runs that were left over, before it starts the process that runs ServerApps."""

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

from stratafl.deploy import host as hosts
from stratafl.deploy.control import ControlClient
from stratafl.deploy.host import Host, RestartedProcess
from stratafl.errors import OutageError


class Done:
    """All that a host asks of its SuperLink and starts, in order."""

    def __init__(self, runs: dict[int, str]) -> None:
        self.runs, self.lines, self.down = runs, list[str](), False

    def list_runs(self, asked: object) -> SimpleNamespace:
        if self.down:
            raise OutageError("the SuperLink does not answer")
        return SimpleNamespace(
            run_dict={run: SimpleNamespace(status=SimpleNamespace(status=status)) for run, status in self.runs.items()}
        )

    def stop_run(self, asked: SimpleNamespace) -> None:
        self.lines.append(f"stop {asked.run_id}")
        self.runs[asked.run_id] = "finished"

    def process(self, name: str, command: list[str], log: Path, environment: object) -> SimpleNamespace:
        self.lines.append(f"start {name}")
        return SimpleNamespace(
            name=name, running=lambda: False, outcome=lambda: f"{name} was killed by SIGKILL", end=lambda: None
        )


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Done:
    done = Done({1: "finished", 2: "running", 3: "pending", 4: "starting"})
    monkeypatch.setattr(hosts, "Process", done.process)
    return done


def a_host(folder: Path, done: Done) -> Host:
    host, control = object.__new__(Host), object.__new__(ControlClient)
    control._client = SimpleNamespace(ListRuns=done.list_runs, StopRun=done.stop_run)
    host.folder, host.control, host._port, host._authority = folder, control, 1, folder / "ca.pem"
    return host


def test_runs_that_were_left_over_are_stopped_before_the_process_that_would_run_them_starts(
    tmp_path: Path, done: Done
) -> None:
    """A run whose ServerApp is gone stays `running`; one that waits would be run beside the next one."""
    a_host(tmp_path, done)._start_server_tasks()
    assert done.lines == ["stop 2", "stop 3", "stop 4", "start serverapp"]


def test_they_are_stopped_each_time_that_the_process_is_started_again(tmp_path: Path, done: Done) -> None:
    kept = RestartedProcess(a_host(tmp_path, done)._start_server_tasks)
    done.lines.clear()
    done.runs[5] = "running"
    assert (kept.tend() or "").startswith("serverapp was killed by SIGKILL")
    assert done.lines == ["stop 5", "start serverapp"]


def test_it_is_not_started_while_the_superlink_cannot_say_what_is_left_over(tmp_path: Path, done: Done) -> None:
    kept = RestartedProcess(a_host(tmp_path, done)._start_server_tasks)
    done.lines.clear()
    done.down = True
    assert (kept.tend() or "").endswith(": the SuperLink does not answer")
    assert done.lines == []
    done.down, done.runs[5] = False, "running"
    kept.tend()
    assert done.lines == ["stop 5", "start serverapp"]
