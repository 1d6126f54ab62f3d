"""The Ed25519 keys with which host and sites sign: their files, and their public halves as a line of text.

What is signed with them is in `signatures.py`.
"""

from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from stratafl.deploy.certificates import read_key, write_once
from stratafl.errors import DeployError, shown
from stratafl.files import read_plain, write_atomically

SIGNING_KEY, HOST_KEY, KEYS = "signing.key", "host.pub", "keys"  # files of host and site, of a site, folder of a host
KEYS_AT, MAX_PATH_BYTES = "keys.txt", 1 << 16  # of a host: names another folder of keys
SITE_KEYS, MAX_SITE_KEYS_BYTES = "sites.pub", 1 << 22  # of a site: the keys of all sites, if they sum up what they send


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
    return public_text(key.public_key(), name)


def public_text(key: Ed25519PublicKey, name: str) -> str:
    """A public key as a line."""
    public = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
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


def registered_keys(folder: Path, sites: Sequence[str]) -> dict[str, Ed25519PublicKey]:
    """The signing keys of these sites that are in a folder of keys."""
    places = {site: folder / f"{site}.pub" for site in sites}
    keys = {site: site_verifying_key(path) for site, path in places.items() if path.exists()}
    return verifying_keys({site: public_text(key, site) for site, key in keys.items()}, f"'{folder}'")


def stray_keys(folder: Path, sites: Collection[str]) -> list[str]:
    """Names of files in a host's folder of keys that are no site's."""
    return sorted(shown(path.stem) for path in keys_folder(folder).glob("*.pub") if path.stem not in sites)


def key_digests(lines: Mapping[str, str]) -> list[str]:
    """Names of sites with digests of their keys, by which people compare them, as `ssh-keygen -lf` shows them."""
    width = max(map(len, lines), default=0)
    digests = {site: sha256(b64decode(line.split()[1])).digest() for site, line in lines.items()}
    return [f"  {site:<{width}}  SHA256:{b64encode(each).decode().rstrip('=')}" for site, each in digests.items()]


def verifying_keys(lines: Mapping[str, str], where: str) -> dict[str, Ed25519PublicKey]:
    """The keys of such lines, by site."""
    todo = "ask the host for a new invitation"
    keys = {site: verifying_key(line, f"{where} of '{shown(site)}'", todo) for site, line in lines.items()}
    if len({public_text(key, "") for key in keys.values()}) < len(keys):
        raise DeployError(f"{where} has the same key for two sites: every site makes its own with 'strata join'")
    return keys


def write_site_keys(path: Path, lines: Mapping[str, str]) -> None:
    write_atomically(path, "".join(f"{line}\n" for line in lines.values()).encode())


def read_site_keys(path: Path) -> dict[str, Ed25519PublicKey]:
    """The keys of all sites, by name, as the owner of a site has agreed to them."""
    if not path.exists():
        raise DeployError(f"'{path.name}' is missing: join again with the newest invitation of the host")
    lines = read_plain(path, MAX_SITE_KEYS_BYTES).decode(errors="replace").splitlines()
    return verifying_keys({name: line for line in lines for name in line.split()[2:3]}, f"'{path}'")
