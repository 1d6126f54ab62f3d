"""Folders of hosts and sites that were left half made are completed; what others rely on is never made anew."""

import dataclasses

import pytest

import stratafl.deploy.certificates as certificates
from hosted import with_tables, write_file
from stratafl.cli import main as strata
from stratafl.config.deployment import read_federation
from stratafl.config.migrations import FORMAT, IMAGES_BY_THEIR_OWN
from stratafl.deploy.certificates import read_public_key
from stratafl.deploy.folders import ADMITTED, prepare_host, prepare_site, read_invitation
from stratafl.deploy.host import HostAddress
from stratafl.deploy.signatures import HostSignatures
from stratafl.deploy.signing_keys import HOST_KEY, SIGNING_KEY
from stratafl.errors import DeployError, StrataError
from stratafl.files import private_folder

PLACE = HostAddress("127.0.0.1", 9443)


def test_an_authority_whose_certificate_was_never_written_is_made_anew(tmp_path):
    host = prepare_host(tmp_path / "host", with_tables(), PLACE)
    old = (host.path / "ca.key").read_bytes()
    for name in ("ca.pem", "server.key", "server.pem", "server.txt"):  # as after a kill between the first two files
        (host.path / name).unlink()
    again = prepare_host(tmp_path / "host", with_tables(), PLACE)
    assert (again.path / "ca.key").read_bytes() != old
    assert again.certificate.public.exists()


def test_an_authority_that_sites_know_is_not_made_anew(tmp_path):
    host = prepare_host(tmp_path / "host", with_tables(), PLACE)
    host.invite(PLACE)
    host.authority.unlink()
    with pytest.raises(DeployError, match=r"'.*ca\.pem'.*'.*invitation\.toml'"):
        prepare_host(tmp_path / "host", with_tables(), PLACE)
    assert (host.path / "ca.key").exists()


def test_a_host_that_does_not_list_the_classes_is_refused_unless_it_predicts_numbers(tmp_path):
    with pytest.raises(StrataError, match=r"classes = \["):
        prepare_host(tmp_path / "host", with_tables(deploy={"classes": ()}), PLACE)
    prepare_host(tmp_path / "numbers", with_tables(deploy={"classes": ()}, data={"targets": "numbers"}), PLACE)
    begun = tmp_path / "begun"  # before hosts listed them
    write_file(begun, with_tables(deploy={"classes": ()}))
    (begun / "agreement.json").touch()
    prepare_host(begun, with_tables(deploy={"classes": ()}), PLACE)


def test_another_federation_in_a_folder_is_refused_with_the_setting(tmp_path):
    prepare_host(tmp_path / "host", with_tables(), PLACE)
    (tmp_path / "host" / "agreement.json").touch()
    with pytest.raises(DeployError, match=r"data\.label .*outcome"):
        prepare_host(tmp_path / "host", with_tables(data={"label": "outcome"}), PLACE)


def test_until_something_is_agreed_on_all_but_the_name_may_change_for_host_and_site(tmp_path):
    invitation = prepare_host(tmp_path / "host", with_tables(), PLACE).invite(PLACE)
    prepare_site(tmp_path / "a", invitation, "a")
    changed = with_tables(run={"rounds": 4}, data={"label": "outcome"})
    host = prepare_host(tmp_path / "host", changed, PLACE)
    assert read_federation(host.path / "federation.toml", plain=True) == host.file == changed
    assert prepare_site(tmp_path / "a", host.invite(PLACE), "a").file == changed
    another = dataclasses.replace(changed.deploy, name="another")
    with pytest.raises(DeployError, match=r"deploy\.name"):
        prepare_host(tmp_path / "host", dataclasses.replace(changed, deploy=another), PLACE)


def test_a_site_that_is_no_longer_named_is_shut_out(tmp_path):
    host = prepare_host(tmp_path / "host", with_tables(), PLACE)
    for folder in (host.path / "keys", host.path / "flower" / "sites"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("a", "z"):
            (folder / f"{name}.pub").write_text("key")
    assert host.shut_out() == ["z"]


def test_a_federation_that_began_with_four_groups_goes_on_with_them(tmp_path):
    """Defaults then: files and invitations said no number of groups nor how samples are scaled, and had no format."""
    file = with_tables(algorithm={"name": "fedalp"})
    four = with_tables(
        algorithm={"name": "fedalp", "groups": 4}, data={"normalise": "former"}, server={"norm_clip": 0.0}
    )
    host = prepare_host(tmp_path / "host", file, PLACE)
    invitation = host.invite(PLACE)
    assert (host.file, read_invitation(invitation, "a").file) == (file, file)
    prepare_site(tmp_path / "a", invitation, "a")
    for path in (host.path / "federation.toml", tmp_path / "a" / "federation.toml", invitation):
        path.write_text(path.read_text().replace(f"format = {FORMAT}\n", ""))
    assert read_federation(host.path / "federation.toml", plain=True) == four
    assert prepare_site(tmp_path / "a", invitation, "a").file == four
    again = prepare_host(host.path, file, PLACE)
    assert again.file == four
    assert prepare_site(tmp_path / "a", again.invite(PLACE), "a").file == four


def test_a_federation_that_began_with_other_defaults_changes_more_than_once(tmp_path):
    host = prepare_host(tmp_path / "host", with_tables(), PLACE)
    path = host.path / "federation.toml"
    path.write_text(path.read_text().replace(f"format = {FORMAT}\n", f"format = {IMAGES_BY_THEIR_OWN - 1}\n"))
    for wait in (7, 8):
        again = prepare_host(host.path, with_tables(deploy={"wait": wait}), PLACE)
        assert (again.file.deploy.wait, again.file.experiment.data.normalise) == (wait, "former")
    assert prepare_host(host.path, with_tables(run={"rounds": 9}), PLACE).changes


def test_how_patient_a_host_is_may_change(tmp_path):
    prepare_host(tmp_path / "host", with_tables(), PLACE)
    file = with_tables(deploy={"deadline": 7.0, "megabytes": 9.0})
    prepare_host(tmp_path / "host", file, PLACE)
    assert read_federation(tmp_path / "host" / "federation.toml", plain=True) == file
    (tmp_path / "host" / "agreement.json").touch()
    with pytest.raises(DeployError, match=r"deploy\.scores is True"):
        prepare_host(tmp_path / "host", with_tables(deploy={"scores": False}), PLACE)


def test_a_certificate_is_replaced_only_by_one_that_could_be_made(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "SERVER_DAYS", 20)
    host = prepare_host(tmp_path / "host", with_tables(), PLACE)
    monkeypatch.undo()
    old, offline = host.certificate.public.read_bytes(), (host.path / "ca.key").rename(tmp_path / "ca.key")
    assert prepare_host(tmp_path / "host", with_tables(), PLACE).certificate.public.read_bytes() == old
    with pytest.raises(StrataError, match=r"ca\.key"):
        prepare_host(tmp_path / "host", with_tables(), HostAddress("example.org", 1))
    assert host.certificate.public.read_bytes() == old
    offline.rename(host.path / "ca.key")
    assert prepare_host(tmp_path / "host", with_tables(), PLACE).certificate.public.read_bytes() != old


def test_a_certificate_without_its_own_key_is_made_anew(tmp_path):
    """As after a kill between the two files."""
    host = prepare_host(tmp_path / "host", with_tables(), PLACE)
    old = host.certificate.public.read_bytes()
    other = prepare_host(tmp_path / "other", with_tables(), PLACE)
    host.certificate.key.write_bytes(other.certificate.key.read_bytes())
    assert prepare_host(tmp_path / "host", with_tables(), PLACE).certificate.public.read_bytes() != old


def test_a_second_host_changes_nothing_in_the_folder_of_the_first(tmp_path, capsys):
    given, host = tmp_path / "given", tmp_path / "host"
    write_file(given, with_tables())
    with private_folder(host):
        prepare_host(host, with_tables(), PLACE)
        before = {path: path.read_bytes() for path in host.iterdir() if path.is_file()}
        assert strata(["host", str(given / "federation.toml"), "--out", str(host), "--address", "example.org:1"]) == 2
        assert str(host) in capsys.readouterr().err
        assert {path: path.read_bytes() for path in host.iterdir() if path.is_file()} == before


def test_a_public_key_that_is_missing_is_written_from_the_private_one(tmp_path):
    invitation = prepare_host(tmp_path / "host", with_tables(), PLACE).invite(PLACE)
    key = prepare_site(tmp_path / "a", invitation, "a").key
    public, private = key.public.read_bytes(), key.key.read_bytes()
    key.public.unlink()
    again = prepare_site(tmp_path / "a", invitation, "a").key
    assert (again.public.read_bytes(), again.key.read_bytes()) == (public, private)
    assert read_public_key(again.public)
    again.public.unlink()
    again.key.write_text("nothing")
    with pytest.raises(DeployError, match=r"a\.key'"):
        prepare_site(tmp_path / "a", invitation, "a")


def test_a_file_with_one_key_gets_the_second_one_at_the_site_and_is_refused_at_the_host(tmp_path):
    """As earlier versions made it."""
    host = prepare_host(tmp_path / "host", with_tables(), PLACE)
    invitation = host.invite(PLACE)
    key = prepare_site(tmp_path / "a", invitation, "a").key
    (tmp_path / "a" / SIGNING_KEY).unlink()
    connection = read_public_key(key.public)
    key.public.write_text(key.public.read_text().splitlines()[0] + "\n")
    with pytest.raises(DeployError, match=r"a\.pub'.*strata join"):
        host.store_keys("a", key.public)
    prepare_site(tmp_path / "a", invitation, "a")
    assert read_public_key(key.public) == connection
    stored = host.store_keys("a", key.public)
    assert stored.read_bytes() == key.public.read_bytes()
    assert {path.stat().st_mode & 0o777 for path in (stored, tmp_path / "a" / SIGNING_KEY)} == {0o600}
    (tmp_path / "a" / SIGNING_KEY).unlink()
    prepare_site(tmp_path / "a", invitation, "a")
    with pytest.raises(DeployError, match=r"a\.pub' differs"):  # another key under the same name
        host.store_keys("a", key.public)


def test_the_key_with_which_a_host_signs_is_made_once_and_known_from_its_invitation(tmp_path):
    host = prepare_host(tmp_path / "host", with_tables(), PLACE)
    invitation, signing = host.invite(PLACE), tmp_path / "host" / SIGNING_KEY
    before = signing.read_bytes()
    prepare_site(tmp_path / "a", invitation, "a")
    assert prepare_host(tmp_path / "host", with_tables(), PLACE).invite(PLACE).read_text() == invitation.read_text()
    assert signing.read_bytes() == before
    assert (tmp_path / "a" / HOST_KEY).read_text() == read_invitation(invitation, "a").key
    signing.unlink()
    with pytest.raises(DeployError, match=SIGNING_KEY):  # sites know it
        prepare_host(tmp_path / "host", with_tables(), PLACE)
    other = prepare_host(tmp_path / "other", with_tables(), PLACE).invite(PLACE)
    authority = read_invitation(invitation, "a").authority
    same = dataclasses.replace(read_invitation(other, "a"), authority=authority)
    with pytest.raises(DeployError, match=HOST_KEY):
        prepare_site(tmp_path / "a", same, "a")


def test_sites_whose_key_was_removed_or_replaced_are_shut_out_and_let_in_when_it_is_back(tmp_path):
    host = prepare_host(tmp_path / "host", with_tables(), PLACE)
    admitted = host.path / ADMITTED
    admitted.mkdir(parents=True)
    for place in (host.keys, admitted):
        for site in "abc":
            (place / f"{site}.pub").write_text(f"key of {site}\n")
    assert host.shut_out() == []
    (host.keys / "a.pub").rename(tmp_path / "a.pub")
    (host.keys / "b.pub").write_text("another key of b\n")
    assert host.shut_out() == ["a", "b"]
    assert [path.name for path in admitted.iterdir()] == ["c.pub"]
    (tmp_path / "a.pub").rename(host.keys / "a.pub")
    assert set(host.waiting_keys(["c"])) == {"a", "b"}


def test_an_invitation_is_also_written_where_you_want_it(tmp_path):
    host = prepare_host(tmp_path / "host", with_tables(), PLACE)
    for _ in range(2):
        assert host.invite(PLACE, tmp_path / "for-sites.toml") == tmp_path / "for-sites.toml"
    assert read_invitation(tmp_path / "for-sites.toml", "a") == read_invitation(host.path / "invitation.toml", "a")
    (tmp_path / "mine.toml").write_text("[notes]\n")
    with pytest.raises(DeployError, match=r"mine\.toml"):
        host.invite(PLACE, tmp_path / "mine.toml")


def test_keys_of_sites_lie_where_the_operator_wants_them_and_again_at_the_next_start(tmp_path):
    host = prepare_host(tmp_path / "host", with_tables(), PLACE, keys=tmp_path / "mailed")
    site = prepare_site(tmp_path / "a", host.invite(PLACE), "a")
    (tmp_path / "mailed" / "a.pub").write_bytes(site.key.public.read_bytes())
    again = prepare_host(tmp_path / "host", with_tables(), PLACE)
    assert again.keys == tmp_path / "mailed"
    assert again.waiting_keys(()) == {"a": tmp_path / "mailed" / "a.pub"}
    assert HostSignatures(tmp_path / "host")._keys == tmp_path / "mailed"
