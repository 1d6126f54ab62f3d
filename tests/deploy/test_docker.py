"""The compose file and the Dockerfile, as far as they can be checked without Docker."""

import shlex
from pathlib import Path, PurePosixPath

import pytest
import typer
import yaml

from stratafl.cli.app import app
from stratafl.config.deployment import read_federation

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
SERVICES = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]
STRATA = [name for name, service in SERVICES.items() if "entrypoint" not in service]
FILE = read_federation(DOCKER / "federation.toml")


def parsed(arguments):
    """Command and options as `strata` reads them, without running it."""
    name, *rest = arguments
    command = typer.main.get_command(app).commands[name]
    return name, command.make_context(name, list(rest)).params


def mounts(service):
    """Where each thing is in a container, and what it is beside the compose file."""
    return {target: source for source, target, *_ in (line.split(":") for line in service["volumes"])}


def test_the_services_are_a_host_and_the_sites_of_its_file():
    assert ["host", *FILE.deploy.sites] == STRATA
    assert {service["image"] for service in SERVICES.values()} == {"stratafl"}
    build = SERVICES["host"]["build"]
    assert (DOCKER / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).samefile(DOCKER / "Dockerfile")


@pytest.mark.parametrize("name", STRATA)
def test_commands_are_accepted_and_find_what_is_mounted(name):
    command, given = parsed(SERVICES[name]["command"])
    there = mounts(SERVICES[name])
    if name == "host":
        assert command == "host"
        assert there[f"/work/{given['config']}"] == "./federation.toml"
        assert there["/work/federations"] == "./federations"
        assert given["address"].partition(":")[0] == name  # as the other containers know it
    else:
        assert (command, given["site"], given["yes"]) == ("join", name, True)
        assert there[f"/work/{given['invitation']}"] == f"./federations/{FILE.deploy.name}/invitation.toml"
        assert there[f"/work/{given['data']}"] == f"./samples/{name}.npz"
        assert there["/work/sites"] == "./sites"
        others = [site for site in FILE.deploy.sites if site != name]
        assert not any(PurePosixPath(source).stem in others for source in there.values())


def test_samples_are_made_by_the_command_shown(tmp_path, monkeypatch):
    made = SERVICES["samples"]
    assert made["entrypoint"] == ["python", "-c"]
    assert set(mounts(made).values()) == {"./federation.toml", "./samples"}
    (tmp_path / "federation.toml").write_bytes((DOCKER / "federation.toml").read_bytes())
    (tmp_path / "samples").mkdir()
    monkeypatch.chdir(tmp_path)
    (program,) = made["command"]
    exec(program, {})
    assert {path.stem for path in (tmp_path / "samples").iterdir()} == set(FILE.deploy.sites)


def test_the_image_runs_strata_without_rights_from_files_that_are_there():
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    last = dict(steps)  # of each instruction
    assert last["FROM"] == "python:3.12-slim"
    assert last["USER"] == "strata"
    assert last["ENTRYPOINT"] == '["strata"]'
    assert last["WORKDIR"] == "/work"
    assert "-c constraints.txt '.[flower]'" in text
    copied = [name for step, rest in steps if step == "COPY" for name in shlex.split(rest)[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    sent = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    assert {f"!{name}" for name in copied} == {name for name in sent if name.startswith("!")}
