"""Certificates and keys: who is believed, who can read them, and that none is ever overwritten."""

import ssl
import stat
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from stratafl.deploy.certificates import (
    Pair,
    check_site_name,
    create_authority,
    create_server_certificate,
    create_site_key,
    read_public_key,
    write_once,
)
from stratafl.errors import DeployError


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return create_authority(tmp_path_factory.mktemp("authority"))


def handshake(server: Pair, authority: Path, name: str) -> None:
    """A TLS handshake in memory; raises what a site would meet."""
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(server.public, server.key)
    theirs = ssl.create_default_context(cafile=authority)
    theirs.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        theirs.wrap_bio(to_client, to_server, server_hostname=name),
        ours.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert sides[0].version() in ("TLSv1.2", "TLSv1.3")


@pytest.mark.parametrize("name", ["hospital.example.org", "192.168.7.5", "localhost", "127.0.0.1"])
def test_a_site_with_the_authority_believes_the_server_under_its_names(
    tmp_path: Path, authority: Pair, name: str
) -> None:
    server = create_server_certificate(tmp_path, ["hospital.example.org", "192.168.7.5"], authority)
    handshake(server, authority.public, name)


def test_another_name_is_not_believed(tmp_path: Path, authority: Pair) -> None:
    server = create_server_certificate(tmp_path, ["hospital.example.org"], authority)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(server, authority.public, "other.example.org")


def test_a_certificate_of_another_authority_is_not_believed(tmp_path: Path, authority: Pair) -> None:
    server = create_server_certificate(tmp_path, [], create_authority(tmp_path))
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(server, authority.public, "localhost")


def test_a_server_certificate_signs_no_other(tmp_path: Path, authority: Pair) -> None:
    server = create_server_certificate(tmp_path, [], authority)
    (tmp_path / "more").mkdir()
    forged = create_server_certificate(tmp_path / "more", ["elsewhere.example.org"], server)
    chain = tmp_path / "chain.pem"
    chain.write_bytes(forged.public.read_bytes() + server.public.read_bytes())
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(Pair(forged.key, chain), authority.public, "elsewhere.example.org")


def test_every_file_can_be_read_by_its_owner_alone_and_nothing_else_is_left(tmp_path: Path) -> None:
    authority = create_authority(tmp_path)
    pairs = [authority, create_server_certificate(tmp_path, [], authority), create_site_key(tmp_path, "north")]
    files = sorted(path for pair in pairs for path in (pair.key, pair.public))
    assert sorted(tmp_path.iterdir()) == files
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


@pytest.mark.parametrize("taken", ["north.key", "north.pub"])
def test_nothing_is_overwritten(tmp_path: Path, taken: str) -> None:
    (tmp_path / taken).write_text("mine")
    with pytest.raises(DeployError, match=f"{taken}'"):
        create_site_key(tmp_path, "north")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(taken, "mine")]


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    """Of a secret, too, such as that of a host's noise: the name is taken in the same step in which it is checked."""
    (tmp_path / "noise.key").write_text("mine")
    with pytest.raises(DeployError, match=r"noise\.key'"):
        write_once(tmp_path / "noise.key", b"other")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("noise.key", "mine")]


def test_a_site_key_is_what_flower_reads(tmp_path: Path) -> None:
    from flwr.cli.supernode.register import try_load_public_key

    pair = create_site_key(tmp_path, "north")
    key = serialization.load_ssh_private_key(pair.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP384R1)
    assert read_public_key(pair.public) == try_load_public_key(pair.public)
    assert serialization.load_pem_public_key(read_public_key(pair.public)) == key.public_key()


def test_a_file_that_is_no_public_key_is_refused(tmp_path: Path) -> None:
    pair = create_site_key(tmp_path, "north")
    with pytest.raises(DeployError, match=r"north\.key'"):
        read_public_key(pair.key)
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    (tmp_path / "other.pub").write_bytes(
        other.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    with pytest.raises(DeployError, match=r"other\.pub.*P-384"):
        read_public_key(tmp_path / "other.pub")


def test_key_and_certificate_of_an_authority_belong_together(tmp_path: Path, authority: Pair) -> None:
    other = create_authority(tmp_path)
    with pytest.raises(DeployError, match=r"ca\.key'.*ca\.pem'"):
        create_server_certificate(tmp_path, [], Pair(other.key, authority.public))


@pytest.mark.parametrize("host", ["https://a.org", "a.org:8000", "", "a b", "-a", "a\nb"])
def test_what_is_no_name_or_address_gets_no_certificate(tmp_path: Path, authority: Pair, host: str) -> None:
    with pytest.raises(DeployError, match=r"^'"):
        create_server_certificate(tmp_path, [host], authority)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "../north", "a/b", ".hidden", "a b", 'a"b', "x" * 65, "nörth"])
def test_a_site_has_a_plain_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(DeployError, match="64"):
        create_site_key(tmp_path, name)
    assert check_site_name("north-2.icu_A") == "north-2.icu_A"
