"""An invitation names no file, folder or code of the site that reads it, whatever option it uses for that."""

import dataclasses
import inspect
import os
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import save_file

from hosted import TABLES as FEDERATION
from hosted import with_tables, write_samples
from stratafl.algorithms import ALGORITHMS
from stratafl.cli import main as strata
from stratafl.config.deployment import DeployTable, federation_from
from stratafl.config.experiment import from_tables, named_files
from stratafl.config.migrations import with_format
from stratafl.config.setting_tables import TABLES
from stratafl.core.annotations import TEXTUAL, FilePath, Named, parts, union
from stratafl.core.records import keys_of
from stratafl.data import PARTITIONS
from stratafl.deploy.folders import Invitation, prepare_host, prepare_site, read_invitation
from stratafl.deploy.host import HostAddress
from stratafl.deploy.local_federation import rehearsed
from stratafl.deploy.signing_keys import public_line
from stratafl.errors import DeployError, RecordError
from stratafl.models import MODELS

PLACE = HostAddress("127.0.0.1", 9443)
KEY = public_line(Ed25519PrivateKey.generate(), "host")
# Settings that are free texts and yet name nothing on a disk; `test_such_a_text_opens_no_file` tries each of them.
TEXTS = {
    "model.head": "a module of the model",
    "data.label": "a column",
    "data.client": "a column",
    "data.group": "a column",
    "data.columns": "names of columns",
    "data.ignore": "names of columns",
    "data.classes": "names of classes",
    "run.device": "a device of torch",
    "deploy.name": "letters, digits, - and _ alone",
    "deploy.sites": "letters, digits, - and _ alone",
    "deploy.predict": "letters, digits, - and _ alone",
    "deploy.classes": "names of classes",
}
OPTION_TEXTS = {"stem": "`cifar` or `torchvision`, which the model checks"}


def is_free_text(hint: Any) -> bool:
    """Whether a value of this hint may be any text."""
    hint, markers = parts(hint)
    if any(isinstance(marker, Named | FilePath) for marker in markers):
        return False
    if inside := union(hint) or (typing.get_args(hint) if typing.get_origin(hint) in (tuple, list) else ()):
        return not any(each in TEXTUAL for each in inside) and any(map(is_free_text, inside))
    return hint in (str, Any, object, Path, os.PathLike) or hint is inspect.Parameter.empty


def test_every_setting_that_may_name_a_file_says_so() -> None:
    """A new setting that is a free text has to be marked, or explained above."""
    tables = {**TABLES, "deploy": DeployTable}
    texts = {
        f"{t}.{key}" for t, cls in tables.items() for key, setting in keys_of(cls).items() if is_free_text(setting.hint)
    }
    assert texts - {"train.schedule", "train.class_weight"} == set(TEXTS)  # which are parsed
    for maker in (*ALGORITHMS.values(), *MODELS.values(), *PARTITIONS.values()):
        hints = typing.get_type_hints(maker.__init__ if isinstance(maker, type) else maker, include_extras=True)
        options = {name: hints.get(name, inspect.Parameter.empty) for name in inspect.signature(maker).parameters}
        assert {name for name, hint in options.items() if is_free_text(hint)} <= set(OPTION_TEXTS), maker


def files() -> list[str]:
    return [f"{t}.{key}" for t, cls in TABLES.items() for key, setting in keys_of(cls).items() if is_file(setting.hint)]


def is_file(hint: Any) -> bool:
    return any(isinstance(marker, FilePath) for marker in parts(hint)[1])


@pytest.fixture
def join(tmp_path, monkeypatch, capsys) -> Callable[..., tuple[int, str]]:
    """`strata join` of site a with an invitation that has these settings besides; its exit code and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stratafl.cli.host_command.SiteProcesses", None)  # which would take part
    write_samples(tmp_path, ["a"])
    tables = {name: dict(table) for name, table in FEDERATION.items()}
    tables["invitation"] = {"server": "127.0.0.1:9443", "authority": "", "key": KEY}

    def called(settings: dict[str, Any]) -> tuple[int, str]:
        for setting, value in settings.items():
            table, _, key = setting.partition(".")
            tables.setdefault(table, {})[key] = value
        Path("invitation.toml").write_text(tomli_w.dumps(tables))
        code = strata(["join", "invitation.toml", "--site", "a", "--data", "a.csv"])
        return code, capsys.readouterr().err

    return called


@contextmanager
def opened() -> Iterator[set[str]]:
    """The files that are opened meanwhile."""
    names: set[str] = set()
    _watching.append(names)
    try:
        yield names
    finally:
        _watching.remove(names)


_watching: list[set[str]] = []
sys.addaudithook(lambda event, about: [s.add(str(about[0])) for s in _watching] if event == "open" else None)  # type: ignore


@pytest.mark.parametrize("setting", files())
def test_an_invitation_that_names_a_file_is_refused_in_one_line(join, tmp_path, setting) -> None:
    (tmp_path / "secret.csv").write_text("a,label\n1,0\n")
    before = sorted(tmp_path.iterdir())
    with opened() as names:
        code, err = join({setting: str(tmp_path / "secret.csv")})
    assert (code, len(err.splitlines())) == (2, 1)
    assert setting in err
    assert not any("secret" in name for name in names)
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "invitation.toml"])


@pytest.mark.parametrize("setting", TEXTS)
def test_such_a_text_opens_no_file(join, tmp_path, setting) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a,label\n1,0\n")
    with opened() as names:
        code, err = join({setting: ["a", str(secret)] if setting.startswith("deploy.") else str(secret)})
    assert (code, err.count("\n")) == (2, 1)
    early = setting.startswith("deploy.") or setting == "data.classes"  # refused before samples are read
    assert early or any(name.endswith("a.csv") for name in names)
    assert not any("secret" in name for name in names)


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm.name": "fedalp", "algorithm.groups": 2**62},
        {"run.rounds": 10**9},
    ],
)
def test_sizes_that_no_machine_has_are_one_line(join, settings) -> None:
    code, err = join(settings)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "--yes" not in err


@pytest.mark.parametrize("setting", ["algorithm.name", "model.name", "evaluate.metric"])
def test_code_that_an_invitation_names_is_not_imported(join, tmp_path, setting) -> None:
    (tmp_path / "evil.py").write_text("open('ran', 'w')\ndef f(**_): ...\n")
    assert join({setting: "evil:f"})[0] == 2
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "server", ["--insecure:1", "\x1b[2Jhost:1", "host name:1", "evil/..:1", "", "host:99999", "host:x", "a\nb:1"]
)
def test_the_address_of_an_invitation_is_a_name_and_a_port(join, server) -> None:
    code, err = join({"invitation.server": server})
    assert (code, len(err.splitlines())) == (2, 1)


def test_an_invitation_does_not_say_where_the_hosts_samples_are(tmp_path) -> None:
    file = with_tables(data={"name": "/host/samples.csv"})
    invitation = prepare_host(tmp_path / "host", file, PLACE).invite(PLACE)
    assert "/host/" not in invitation.read_text()
    assert read_invitation(invitation, "a").file == with_tables()
    (tmp_path / "host" / "agreement.json").touch()
    with pytest.raises(DeployError, match=r"data\.name"):  # a rehearsal with other samples is another federation
        prepare_host(tmp_path / "host", with_tables(), PLACE)


def test_a_site_that_joined_when_invitations_named_the_hosts_samples_joins_again(tmp_path) -> None:
    site, pem = tmp_path / "a", "pem"
    site.mkdir(mode=0o700)
    old = dataclasses.replace(with_tables(data={"name": "/host/samples.csv"}))
    (site / "federation.toml").write_text(tomli_w.dumps(with_format(old.tables())))
    assert prepare_site(site, Invitation("127.0.0.1:1", pem, "key", with_tables()), "a").file == with_tables()


def test_a_host_cannot_carry_off_a_file(tmp_path, join) -> None:
    """The clients of APPLE send the model that they trained, which at this rate is the one that they started from."""
    attack = {"model.weights": "secret.safetensors", "algorithm.name": "apple", "train.lr": 1e-12}
    save_file({}, tmp_path / "secret.safetensors")
    code, err = join(attack)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "model.weights" in err
    tables = {"model": {"weights": "secret.safetensors"}, "algorithm": {"name": "apple"}, "train": {"lr": 1e-12}}
    with pytest.raises(RecordError, match=r"model\.weights"):  # nor can a site's own copy of the file ask for it
        with_tables(**tables)
    assert not named_files(with_tables().experiment)


def test_defaults_of_the_digits_are_not_those_of_other_samples(tmp_path) -> None:
    """A federation that names no data has the samples of its sites; a rehearsal without data divides the digits."""
    deploy = {"sites": ["a", "b"]}
    digits, table = (from_tables({"data": {"name": name}}) for name in ("digits", "t.csv"))
    assert digits.train != table.train
    assert federation_from({"deploy": deploy}).experiment.train == table.train
    assert federation_from({"deploy": deploy, "data": {"name": "digits"}}).experiment.train == digits.train
    assert rehearsed({}, 2).experiment.train == digits.train
    file = federation_from({"deploy": deploy})
    assert federation_from(file.invited().tables()) == file.invited()
