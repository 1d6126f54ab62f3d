"""The Ed25519 keys with which host and sites sign: their files, and their public halves as a line of text.

What is signed with them is in `signatures.py`.
"""

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from stratafl.deploy.certificates import read_key, write_once
from stratafl.errors import DeployError
from stratafl.files import read_plain

SIGNING_KEY, HOST_KEY, KEYS = "signing.key", "host.pub", "keys"  # files of host and site, of a site, folder of a host
KEYS_AT, MAX_PATH_BYTES = "keys.txt", 1 << 16  # of a host: names another folder of keys


def create_signing_key(path: Path) -> Ed25519PrivateKey:
    key = Ed25519PrivateKey.generate()
    formats = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    write_once(path, key.private_bytes(serialization.Encoding.PEM, *formats))
    return key


def read_signing_key(path: Path) -> Ed25519PrivateKey:
    try:
        key = serialization.load_ssh_private_key(read_key(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DeployError(f"'{path}' is not a private key: restore it from a copy") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise DeployError(f"'{path}' is not an Ed25519 key: restore it from a copy")
    return key


def public_line(key: Ed25519PrivateKey, name: str) -> str:
    """The public half of a signing key, as a line of NAME.pub and of an invitation."""
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return f"{public.decode()} {name}"


def verifying_key(line: str, where: str, todo: str) -> Ed25519PublicKey:
    """The key in such a line, which is in `where`."""
    try:
        key = serialization.load_ssh_public_key(line.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise DeployError(f"{where} has no signing key: {todo}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise DeployError(f"the signing key in {where} is not an Ed25519 key: {todo}")
    return key


def keys_folder(folder: Path) -> Path:
    """Where a host takes the keys of its sites from: `keys` in its folder, or the place that its operator chose."""
    chosen = folder / KEYS_AT
    return Path(read_plain(chosen, MAX_PATH_BYTES).decode()) if chosen.exists() else folder / KEYS


def site_verifying_key(path: Path) -> Ed25519PublicKey:
    """The second key in NAME.pub; files of earlier versions have only the first one, that of the connection."""
    if not path.exists():
        raise DeployError(f"there is no file '{path}': ask the site for it, and put it there")
    lines = read_key(path).decode(errors="replace").splitlines()
    todo = f"run 'strata join' again at the site, which adds it, and put the new {path.name} here"
    return verifying_key(lines[1] if len(lines) > 1 else "", f"'{path}'", todo)
