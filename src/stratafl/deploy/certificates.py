"""Certificates and keys: an authority, a certificate for the server, a key pair for each site.

The authority signs the server's certificate, and sites get the authority's certificate, so that they know the server.
A site makes its own key pair and gives away only the public key, so that the server knows the site. No file is ever
overwritten, and all of them can be read by their owner alone.
"""

import ipaddress
import os
import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_bytes

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stratafl.errors import DamagedError, DeployError, shown
from stratafl.execute.rounds import SECRET_BYTES
from stratafl.files import check_folder, explained, read_plain, sync_folder

AUTHORITY_DAYS, SERVER_DAYS = 3650, 825
RENEWED = timedelta(days=30)  # before the server's certificate ends
LOOPBACK = ("localhost", "127.0.0.1", "::1")  # the gate reaches the SuperLink there
CA = "ca.pem"  # the authority in the folder of a host and of its sites
MAX_KEY_BYTES = 100_000  # of a key or certificate file
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")


@dataclass(frozen=True)
class Pair:
    """A private file and what may be shown: a key and its certificate, or a key and its public half."""

    key: Path
    public: Path


def check_site_name(name: str) -> str:
    if not _SITE.fullmatch(name):
        allowed = "use up to 64 letters, digits, '.', '_' and '-', and begin with a letter or digit"
        raise DeployError(f"'{shown(name)}' cannot be the name of a site: {allowed}")
    return name


def read_key(path: Path) -> bytes:
    """The bytes of a file with a key, a certificate or a secret."""
    with explained("read", path):
        return read_plain(path, MAX_KEY_BYTES)


def create_authority(folder: Path) -> Pair:
    """`ca.key` and `ca.pem`, valid for ten years. Sites need `ca.pem`; `ca.key` stays with you."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = _named(f"stratafl authority {uuid.uuid4().hex[:12]}")
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _unsigned(AUTHORITY_DAYS, name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA384())
    )
    return _write_certificate(Pair(folder / "ca.key", folder / CA), key, certificate)


def create_server_certificate(folder: Path, hosts: Sequence[str], authority: Pair) -> Pair:
    """`server.key` and `server.pem` for these names and addresses, and for loopback; `authority` signs."""
    signer, issuer = _read_pair(authority)
    key = ec.generate_private_key(ec.SECP256R1())  # a handshake of the gate costs half of what P-384 would
    names = [_general_name(host) for host in dict.fromkeys((*hosts, *LOOPBACK))]
    certificate = (
        _unsigned(SERVER_DAYS, _named("stratafl server"), issuer.subject, key)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    return _write_certificate(Pair(folder / "server.key", folder / "server.pem"), key, certificate)


def belong(pair: Pair) -> bool:
    """Whether a certificate exists together with its own key. A kill can leave an old file of either."""
    if not (pair.key.exists() and pair.public.exists()):
        return False
    try:
        _read_pair(pair)
    except DeployError:
        return False
    return True


def ends_soon(certificate: Path) -> bool:
    """Whether a certificate has expired, or will within a month."""
    try:
        end = x509.load_pem_x509_certificate(read_key(certificate)).not_valid_after_utc
    except ValueError as error:
        raise DeployError(f"'{certificate}' is not a certificate: remove it, and the host makes a new one") from error
    return end - RENEWED < datetime.now(UTC)


def create_site_key(folder: Path, site: str) -> Pair:
    """`SITE.key` (ECDSA P-384), which never leaves the site, and `SITE.pub`, which the server registers."""
    check_site_name(site)
    key = ec.generate_private_key(ec.SECP384R1())
    formats = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, *formats)
    return _write_pair(Pair(folder / f"{site}.key", folder / f"{site}.pub"), private, _public_half(key, site))


def public_half(pair: Pair, site: str) -> bytes:
    """What `SITE.pub` says of `SITE.key`."""
    try:
        key = serialization.load_ssh_private_key(read_key(pair.key), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DeployError(f"'{pair.key}' is not a private key: restore it, or join as another site") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DeployError(f"'{pair.key}' is not an ECDSA key: restore it, or join as another site")
    return _public_half(key, site)


def _public_half(key: ec.EllipticCurvePrivateKey, site: str) -> bytes:
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return public + f" {site}\n".encode()


def read_public_key(path: Path) -> bytes:
    """A site's public key for its connection, in the form in which Flower names it (PEM)."""
    try:
        key = serialization.load_ssh_public_key(read_key(path).split(b"\n")[0])  # then the one that signs
    except (ValueError, UnsupportedAlgorithm) as error:
        raise DeployError(f"'{path}' is not a public key: ask the site for the file NAME.pub") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise DeployError(f"'{path}' is not an ECDSA P-384 key: make one with 'strata join'")
    pem: bytes = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem


def write_once(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all; refuse if there is one of this name."""
    check_folder(path)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    with explained("write", path):
        try:
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(partial, path)  # unlike a rename, this fails if the name is taken
        except FileExistsError as error:
            raise _exists(path) from error
        finally:
            with suppress(FileNotFoundError):
                partial.unlink()
        sync_folder(path.absolute().parent)


def secret_of(path: Path) -> bytes:
    """The secret of a server or site that adds noise, from the operating system, once.

    What was sent or absorbed must have the same noise when it is computed again.
    """
    if not path.exists():
        write_once(path, token_bytes(SECRET_BYTES))
    secret = read_plain(path, SECRET_BYTES)
    if len(secret) != SECRET_BYTES:
        raise DamagedError(f"'{path}' does not have {SECRET_BYTES} bytes: remove it, and a new secret is made")
    return secret


def _write_certificate(pair: Pair, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> Pair:
    formats = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, *formats)
    return _write_pair(pair, private, certificate.public_bytes(serialization.Encoding.PEM))


def _write_pair(pair: Pair, private: bytes, public: bytes) -> Pair:
    for path in (pair.key, pair.public):
        if os.path.lexists(path):
            raise _exists(path)
    write_once(pair.key, private)
    write_once(pair.public, public)
    return pair


def _exists(path: Path) -> DeployError:
    return DeployError(f"'{path}' exists, and keys are never overwritten: choose another folder, or remove the file")


def _read_pair(authority: Pair) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    try:
        key = serialization.load_pem_private_key(read_key(authority.key), password=None)
        certificate = x509.load_pem_x509_certificate(read_key(authority.public))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DeployError(f"'{authority.key}' and '{authority.public}' are not an authority: create one") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise DeployError(f"'{authority.key}' is not the key of '{authority.public}': keep the two files together")
    return key, certificate


def _unsigned(
    days: int, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    start = datetime.now(UTC) - timedelta(days=1)  # clocks of sites may be behind
    builder = x509.CertificateBuilder().serial_number(x509.random_serial_number()).public_key(key.public_key())
    builder = builder.subject_name(subject).issuer_name(issuer)
    return builder.not_valid_before(start).not_valid_after(start + timedelta(days=days + 1))


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    if not _HOST.fullmatch(host):
        raise DeployError(f"'{shown(host)}' is neither a host name nor an address: write it without port or scheme")
    return x509.DNSName(host)
