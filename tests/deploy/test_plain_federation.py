"""Our app under `flwr run`, on a SuperLink and SuperNodes as Flower starts them."""

import random
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

from hosted import ACTING, ROUNDING, deployed, deployed_models, largest, replayed, simulated, simulated_models
from plain_federation import KINDS, PlainFederation
from stratafl.cli import main
from stratafl.deploy.signing_keys import KEYS, KEYS_AT, site_verifying_key
from stratafl.deploy.status import read_status

pytestmark = pytest.mark.long


def check_finished(federation: PlainFederation, rounding: float = 0.0) -> None:
    """Every round has every upload once, and all tensors are those of the simulation."""
    status = read_status(federation.host) or {}
    assert (status["state"], status["reason"]) == ("finished", ""), federation.said()
    assert federation.absorbed() == [list(federation.sites)] * federation.file.experiment.run.rounds
    states = deployed(federation.host, federation.sites, federation.file)
    absorbed = federation.absorbed()
    same = replayed(federation.folder, federation.host, federation.sites, federation.file, absorbed)
    differences = {
        "replayed": largest(states, same),
        "simulated": largest(states, simulated(federation.folder, federation.file)),
        "models": largest(deployed_models(federation.sites), simulated_models(federation.folder, federation.file)),
    }
    print("largest differences", differences)
    assert differences["replayed"] == 0
    assert max(differences.values()) <= rounding


@pytest.mark.budget(3, "keys and consents of three sites")
def test_two_commands_prepare_a_host_and_its_sites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    federation = PlainFederation(tmp_path)
    printed = capsys.readouterr().out
    assert f"flwr run {federation.app}" in printed
    assert f'site="a" folder="{tmp_path / "a"}" data="{tmp_path / "a.csv"}"' in printed
    assert sorted(path.name for path in federation.app.iterdir()) == ["pyproject.toml"]
    invitation = tomllib.loads((tmp_path / "invitation.toml").read_text())
    assert (invitation["invitation"]["server"], invitation["invitation"]["authority"]) == ("", "")
    assert not (federation.host / "ca.key").exists()
    for site, folder in federation.sites.items():
        site_verifying_key(federation.host / KEYS / f"{site}.pub")
        assert not (folder / "ca.pem").exists()
        assert all(path.stat().st_mode & 0o077 == 0 for path in (federation.host, folder))
    key = (federation.host / "signing.key").read_bytes()
    (federation.host / KEYS / "aa.pub").touch()
    capsys.readouterr()
    federation.prepare()  # again: nothing is made anew
    printed = " ".join(capsys.readouterr().err.split())
    assert (f"'{federation.host / KEYS}'" in printed, "'aa.pub'" in printed, "'a.pub'" in printed) == (
        True,
        True,
        False,
    )
    (tmp_path / "chosen").mkdir()
    (federation.host / KEYS_AT).write_text(str(tmp_path / "chosen"))
    federation.prepare()
    printed = "".join(capsys.readouterr().err.split())
    assert (f"'{tmp_path / 'chosen'}'" in printed, "aa.pub" in printed) == (True, False)
    assert (federation.host / "signing.key").read_bytes() == key
    given = ["flower-app", str(tmp_path / "given.toml"), "--folder", str(federation.host)]
    assert main([*given, "--out", str(tmp_path)]) == 2  # Flower would send every file in it to the sites
    assert main([*given, "--forget", "x"]) == 2


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("method", "secured"), [("flayer", False), ("fedper", True), ("pfedla", False), ("scaffold", False)]
)
def test_methods_on_a_flower_federation_end_where_the_simulation_ends(
    tmp_path: Path, method: str, secured: bool
) -> None:
    """One of them with Flower's TLS and authentication of nodes."""
    tables = {"model": {"hidden": [8, 8]}, "data": {"normalise": "none"}, "train": {"lr": 0.3, "epochs": 2}}
    tables |= {"run": {"rounds": 2}, "algorithm": {"name": method, **ACTING[method]}}
    with PlainFederation(tmp_path, secured=secured, **tables) as federation:
        assert federation.finish() == 0
        check_finished(federation, ROUNDING.get(method, 0.0))


@pytest.mark.nightly
def test_ten_kills_at_random_moments_lose_and_double_nothing(tmp_path: Path) -> None:
    """Two in each of five rounds; SCAFFOLD has a state at the server and at every site, and sums differences."""
    moments = random.Random(1)
    kills = [*KINDS, *moments.sample([*KINDS], 4)]
    moments.shuffle(kills)
    tables = {"algorithm": {"name": "scaffold"}, "run": {"rounds": 6}, "deploy": {"deadline": 300}}
    with PlainFederation(tmp_path, **tables) as federation:
        killed = federation.finish_despite(kills, moments)
        print(f"killed: {killed}; silent, and started again: {federation.restarted}")
        check_finished(federation)
    assert [kind for kind, _ in killed] == kills
    assert max(absorbed for _, absorbed in killed) >= 4


@pytest.mark.nightly
def test_another_node_that_claims_to_be_a_site_costs_it_no_round(tmp_path: Path) -> None:
    """It has the site's file and name, and a key of its own, with its owner's consent."""
    with PlainFederation(tmp_path, run={"rounds": 2}) as federation:
        given = [tmp_path / "invitation.toml", "--site", "b", "--data", tmp_path / "c.csv", "--yes"]
        assert main(list(map(str, ["join", *given, "--out", tmp_path / "thief"]))) == 0
        federation.start_node("thief", "b", tmp_path / "thief")
        assert federation.finish() == 0
        check_finished(federation)
        assert "refused as 'b'" in federation.said()
