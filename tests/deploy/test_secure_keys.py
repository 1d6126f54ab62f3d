"""The keys of all sites of secure sums: in the invitation once all are there, part of consent, checked at a site."""

import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hosted import Joined, with_tables, write_samples
from stratafl.cli import main as strata
from stratafl.config.deployment import read_federation
from stratafl.deploy.consent import has_consent, keep_consent, summed_with
from stratafl.deploy.folders import AGREED, FILE, SITE_KEYS, check_own_key, prepare_host, prepare_site, read_invitation
from stratafl.deploy.host import HostAddress
from stratafl.deploy.secure.secure_site import NUMBERS, SECRETS, STEPS
from stratafl.deploy.secure.session import Session, basis_of
from stratafl.deploy.secure.site_sums import SiteSums
from stratafl.deploy.signing_keys import key_digests, public_line, read_site_keys
from stratafl.errors import DeployError, RecordError, WireError
from stratafl.execute.exchange.protocol import upload_digest

PLACE = HostAddress("127.0.0.1", 9443)
SITES = ("a", "b", "c")
MODEL, FORMAT = b"the model that all were sent", {"classes": 2}
BASIS = basis_of(FORMAT, MODEL)


def secure_file(**deploy):
    return with_tables(server={"secure": True}, run={"participation": 1.0}, deploy={"sites": list(SITES), **deploy})


def keys_there(folder: Path, sites=SITES) -> tuple[Path, Path]:
    """The invitation without keys, and the one after these sites have sent theirs."""
    prepared = prepare_host(folder / "host", secure_file(), PLACE)
    first = folder / "first.toml"
    shutil.copy(prepared.invite(PLACE), first)
    for site in sites:
        public = prepare_site(folder / site, first, site).key.public
        prepared.store_keys(site, public)
    return first, prepared.invite(PLACE)


def test_an_invitation_has_the_keys_of_all_sites_or_none(tmp_path):
    first, second = keys_there(tmp_path, SITES[:2])
    assert read_invitation(first, "a").lacks_keys
    assert read_invitation(second, "a").lacks_keys
    prepared = prepare_host(tmp_path / "host", secure_file(), PLACE)
    prepared.store_keys("c", prepare_site(tmp_path / "c", first, "c").key.public)
    whole = read_invitation(prepared.invite(PLACE), "a")
    assert not whole.lacks_keys
    expected = {site: (tmp_path / site / f"{site}.pub").read_text().splitlines()[1] for site in SITES}
    assert dict(whole.sites) == expected
    prepare_site(tmp_path / "a", whole, "a")
    stored = read_site_keys(tmp_path / "a" / SITE_KEYS)
    assert {name: key.public_bytes_raw() for name, key in stored.items()} == {
        name: key.public_bytes_raw() for name, key in read_site_keys(tmp_path / "a" / SITE_KEYS).items()
    }
    assert list(stored) == list(SITES)


def test_a_site_that_has_agreed_keeps_its_file_until_the_keys_of_new_sites_are_there(tmp_path):
    """Else it would do rounds that its owner was not asked about."""
    _, whole = keys_there(tmp_path)
    agreed = prepare_site(tmp_path / "a", whole, "a").file
    (tmp_path / "a" / AGREED).touch()
    invitation = read_invitation(whole, "a")
    longer = secure_file(sites=[*SITES, "d"]).invited()
    prepare_site(tmp_path / "a", replace(invitation, file=longer, sites={}), "a")
    assert read_federation(tmp_path / "a" / FILE, plain=True) == agreed
    prepare_site(tmp_path / "a", replace(invitation, file=longer), "a")
    assert read_federation(tmp_path / "a" / FILE, plain=True) == longer


def test_an_invitation_to_a_federation_without_secure_sums_has_no_keys(tmp_path):
    prepared = prepare_host(tmp_path / "host", with_tables(deploy={"sites": list(SITES)}), PLACE)
    prepared.store_keys("a", prepare_site(tmp_path / "a", prepared.invite(PLACE), "a").key.public)
    invitation = read_invitation(prepared.invite(PLACE), "a")
    assert (dict(invitation.sites), invitation.lacks_keys) == ({}, False)


def test_keys_of_other_sites_than_those_of_the_federation_and_one_key_twice_are_refused(tmp_path):
    _, path = keys_there(tmp_path)
    tables = tomllib.loads(path.read_text())
    keys = tables["invitation"]["sites"]
    for changed in ({**keys, "z": keys["a"]}, {name: keys[name] for name in "ab"}, {**keys, "a": 3}, [1], "x"):
        with pytest.raises(RecordError):
            read_invitation(written(path, tables, changed), "a")
    for changed in ({**keys, "b": keys["a"]}, {**keys, "b": "ssh-ed25519 AAAA b"}):
        with pytest.raises(DeployError):
            read_invitation(written(path, tables, changed), "a")


def written(path: Path, tables, keys) -> Path:
    path.write_text(tomli_w.dumps({**tables, "invitation": {**tables["invitation"], "sites": keys}}))
    return path


def test_a_site_refuses_an_invitation_that_gives_it_another_key(tmp_path):
    _, path = keys_there(tmp_path)
    invitation = read_invitation(path, "a")
    check_own_key(tmp_path / "a", invitation, "a")
    other = public_line(Ed25519PrivateKey.generate(), "a")
    for folder, sites in ((tmp_path / "a", {**invitation.sites, "a": other}), (tmp_path / "none", invitation.sites)):
        with pytest.raises(DeployError, match=r"a\.pub"):
            check_own_key(folder, replace(invitation, sites=sites), "a")


def test_consent_is_asked_for_again_if_the_key_of_any_site_changes(tmp_path):
    _, path = keys_there(tmp_path)
    invitation = read_invitation(path, "a")
    leaves = summed_with(invitation.file, invitation.sites)
    keep_consent(tmp_path / "a", invitation.file, leaves, invitation.key)
    assert has_consent(tmp_path / "a", invitation.file, leaves, invitation.key)
    swapped = {**invitation.sites, "c": public_line(Ed25519PrivateKey.generate(), "c")}
    changed = summed_with(invitation.file, swapped)
    assert not has_consent(tmp_path / "a", invitation.file, changed, invitation.key)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_fingerprints_are_those_of_ssh_keygen(tmp_path):
    key = public_line(Ed25519PrivateKey.generate(), "north")
    (tmp_path / "north.pub").write_text(f"{key}\n")
    said = subprocess.run(["ssh-keygen", "-lf", tmp_path / "north.pub"], capture_output=True, text=True, check=True)
    assert key_digests({"north": key})[0].split()[1] == said.stdout.split()[1]


def test_a_fingerprint_is_the_sha256_of_a_key():
    """That of the ed25519 host key of github.com, as GitHub publishes it."""
    line = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl github"
    assert key_digests({"github": line}) == ["  github  SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"]


@pytest.mark.budget(2, "two joins of a site, which build its model")
def test_a_site_makes_its_keys_joins_with_those_of_all_and_is_asked_then(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stratafl.cli.host_command.SiteProcesses", Joined)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    write_samples(tmp_path, ["a"])
    prepared = prepare_host(tmp_path / "host", secure_file(), PLACE)
    options = ["--site", "a", "--data", "a.csv", "--out", "a"]
    assert strata(["join", str(prepared.invite(PLACE)), *options]) == 0  # no consent: nothing is sent
    assert not (tmp_path / "a" / "consent.json").exists()
    own = key_digests({"a": (tmp_path / "a" / "a.pub").read_text().splitlines()[1]})[0].split()[1]
    assert own in capsys.readouterr().err
    prepared.store_keys("a", tmp_path / "a" / "a.pub")
    for site in "bc":
        prepared.store_keys(site, prepare_site(tmp_path / site, prepared.invite(PLACE), site).key.public)
    invitation = str(prepared.invite(PLACE))
    assert strata(["join", invitation, *options]) == 2  # nobody is there to be asked
    assert strata(["join", invitation, *options, "--yes"]) == 130
    said = capsys.readouterr().err
    assert all(line.split()[1] in said for line in key_digests(read_invitation(Path(invitation), "a").sites))
    assert (tmp_path / "a" / SITE_KEYS).exists()


def test_a_federation_file_that_secure_sums_cannot_have_is_refused():
    for tables in (
        {"deploy": {"sites": ["a", "b"]}},
        {"server": {"secure": True, "norm_limit": 5.0}},
    ):
        with pytest.raises(RecordError, match=r"server\.secure"):
            with_tables(**{"server": {"secure": True}, **tables})


# What a site checks of a session before its first step


@pytest.fixture
def sums(tmp_path) -> SiteSums:
    keys = {site: Ed25519PrivateKey.generate() for site in "abcd"}
    signers = {site: key.public_key() for site, key in keys.items()}
    return SiteSums(tmp_path, "ward", "b", tuple("abcd"), keys["b"], signers, FORMAT)


def table(session: Session, step: str = "keys", **more):
    return {"session": session.to_table(), "step": step, **more}


def trained(sums: SiteSums, round: int, *numbers: int, download: bytes = MODEL) -> str:
    """The digest of the upload of a round that came to these numbers."""
    return upload_digest("ward", "b", round, sums.hide(round, download, torch.tensor(numbers)))


def test_a_site_takes_part_in_sessions_of_the_cohort_that_it_knows(sums):
    upload = trained(sums, 0, 1)
    sums.answer(table(Session("ward", 0, 1, 3, BASIS), upload=upload), [0, 1, 3])
    for session, cohort in (
        (Session("other", 0, 2, 3, BASIS), [0, 1, 3]),
        (Session("ward", 0, 2, 4, BASIS), [0, 1, 3]),  # as if a sum of fewer were that of more
        (Session("ward", 0, 2, 2, BASIS), [0, 1, 3]),
        (Session("ward", 0, 2, 3, BASIS), [0, 2, 3]),  # of which it is none
    ):
        with pytest.raises(WireError):
            sums.answer(table(session, upload=upload), cohort)
    whole = ["ward", 0, 1, 3, BASIS]
    for wrong in (None, [], whole[:4], ["ward", -1, *whole[2:]], ["ward", 0, True, *whole[3:]], [1, *whole[1:]]):
        with pytest.raises(WireError):
            sums.answer({"session": wrong, "step": "keys"}, [0, 1, 3])


def test_a_site_that_is_not_of_the_round_counts_for_nothing_in_it(sums):
    """Its owner has agreed to the key of c, but c is not in this round."""
    site = sums._secure(["a", "b", "d"])
    assert sorted(site._signers) == ["a", "b", "d"]


def test_a_site_masks_the_numbers_of_the_training_that_the_host_names_and_no_others(sums):
    receipt = sums.hide(0, MODEL, torch.tensor([1, -1, 2**40]))
    digest = upload_digest("ward", "b", 0, receipt)
    session = Session("ward", 0, 1, 3, BASIS)
    assert sums._numbers(session, {"upload": digest}).tolist() == [1, 2**64 - 1, 2**40]
    again = sums.hide(0, MODEL, torch.tensor([5]))
    assert (len(receipt), receipt == again) == (32, False)
    for asked, about in (
        (session, {"upload": digest}),
        (session, {}),
        (Session("ward", 1, 2, 3, BASIS), {"upload": upload_digest("ward", "b", 0, again)}),
    ):
        with pytest.raises(WireError):
            sums._numbers(asked, about)


def test_a_site_takes_part_in_sums_over_sites_that_were_sent_what_it_was_alone(sums):
    """A host that sends all others a model that learns nothing would read this site's update in the sum."""
    other = trained(sums, 0, 1, download=b"a model that the others have not")
    for basis in (BASIS, basis_of({"classes": 3}, MODEL)):
        with pytest.raises(WireError, match="model"):
            sums.answer(table(Session("ward", 0, 1, 3, basis), upload=other), [0, 1, 2])
    assert not (sums.folder / SECRETS).exists()
    sums.answer(table(Session("ward", 0, 2, 3, BASIS), upload=trained(sums, 0, 1)), [0, 1, 2])
    sums.answer(table(Session("ward", 1, 3, 3, BASIS), upload=trained(sums, 1, 1)), [0, 1, 2])


def test_new_training_ends_the_session_before_it_and_the_end_leaves_no_secret(sums):
    sums.answer(table(Session("ward", 0, 1, 3, BASIS), upload=trained(sums, 0, 1)), [0, 1, 2])
    later = trained(sums, 1, 2)
    for step in STEPS:
        with pytest.raises(WireError):
            sums.answer(table(Session("ward", 0, 1, 3, BASIS), step), [0, 1, 2])
    sums.answer(table(Session("ward", 1, 2, 3, BASIS), upload=later), [0, 1, 2])
    sums.end()
    assert not (sums.folder / NUMBERS).exists()
    assert b'"seed":""' in (sums.folder / SECRETS).read_bytes()
