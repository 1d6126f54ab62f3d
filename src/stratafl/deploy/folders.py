"""The folders of a host and of a site, as `strata host` and `strata join` make them; nothing in them is overwritten.

host                                          site
    federation.toml  experiment and [deploy]      federation.toml  as the host was given it
                                                  node.toml        its name, and where its samples are
    invitation.toml  what sites are given         ca.pem           the authority that signed the host's certificate
    ca.key, ca.pem, server.key, server.pem        NAME.key         the private key of its connection
    signing.key      with which it signs          signing.key      with which it signs; neither leaves it
                                                  sites.pub        under secure sums, the keys of all sites
    keys/NAME.pub    keys of sites, to be let in  NAME.pub         the public halves, which the host registers
    starts           its number of starts         host.pub         the public half of the host's signing key
    flower/          processes, database, logs    consent.json     what its owner agreed to send
                                                  inbox/           the request that was answered last
                                                  state/           the personal state
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tomli_w

from stratafl.config.deployment import FederationFile, invited_from, read_federation
from stratafl.config.experiment import read_toml
from stratafl.config.migrations import UNNUMBERED_FEDERATION, with_format
from stratafl.deploy.admission import Quota
from stratafl.deploy.agreement import Agreement
from stratafl.deploy.certificates import (
    CA,
    Pair,
    belong,
    check_site_name,
    create_authority,
    create_server_certificate,
    create_site_key,
    ends_soon,
    public_half,
    read_key,
    write_once,
)
from stratafl.deploy.extending import check_extension, is_same_federation, stored_changes, write_rejoining
from stratafl.deploy.host import HostAddress
from stratafl.deploy.member import NODE
from stratafl.deploy.serving import AGREED
from stratafl.deploy.signing_keys import (
    HOST_KEY,
    KEYS_AT,
    SIGNING_KEY,
    SITE_KEYS,
    create_signing_key,
    keys_folder,
    public_line,
    public_text,
    read_signing_key,
    registered_keys,
    site_verifying_key,
    verifying_key,
    verifying_keys,
    write_site_keys,
)
from stratafl.errors import DeployError, RecordError, shown
from stratafl.files import explained, make_private, sync_folder, write_atomically

FILE, INVITATION = "federation.toml", "invitation.toml"
CHANGEABLE = ("run.rounds", "deploy.sites", "deploy.predict")  # settings that a federation that has begun may change
ADMITTED = "flower/sites"  # the keys that the gate lets in


@dataclass(frozen=True)
class HostFolder:
    """A folder that is ready to be hosted."""

    path: Path
    file: FederationFile
    certificate: Pair
    authority: Path
    changes: Sequence[str]  # by which this start extends the federation

    @property
    def quota(self) -> Quota:
        return Quota(int(self.file.deploy.megabytes * 1e6))

    @property
    def keys(self) -> Path:
        return keys_folder(self.path)

    def invite(self, place: HostAddress, copy: Path | None = None) -> Path:
        """Write what sites are given, with the address that they are to use, and a copy if its place is chosen."""
        connection: dict[str, Any] = {"server": str(place), "authority": self.authority.read_text(encoding="utf-8")}
        connection |= {"sites": self.site_keys} if self.site_keys else {}
        return write_invitation(self.path, self.file, connection, copy)

    @property
    def site_keys(self) -> dict[str, str]:
        """Under secure sums, the signing keys of the sites that train, as lines by name, once all are there."""
        sites = self.file.deploy.sites
        keys = registered_keys(self.keys, sites) if self.file.experiment.server.secure else {}
        return {site: public_text(key, site) for site, key in keys.items()} if len(keys) == len(sites) else {}

    def store_keys(self, site: str, path: Path) -> Path:
        """The file NAME.pub of a site, with both of its keys and in the folder `keys`."""
        site_verifying_key(path)
        stored = self.keys / f"{check_site_name(site)}.pub"
        if not stored.exists():
            write_once(stored, read_key(path))
        elif read_key(stored) != read_key(path):
            raise DeployError(f"'{stored}' differs from '{path}': remove one of them")
        return stored

    def waiting_keys(self, registered: Sequence[str]) -> dict[str, Path]:
        """Keys in the folder `keys` that are not registered yet, also of names that no site has."""
        return {path.stem: path for path in sorted(self.keys.glob("*.pub")) if path.stem not in registered}

    def shut_out(self) -> list[str]:
        """Let the gate refuse sites that are no longer named, or whose key was removed from its folder or changed.

        A removed key that is put back is let in again.
        """
        admitted = {path.stem: path for path in sorted((self.path / ADMITTED).glob("*.pub"))}
        named = self.file.deploy.all_sites
        names = [site for site, path in admitted.items() if site not in named or not _same(self.keys / path.name, path)]
        for site in names:
            admitted[site].unlink(missing_ok=True)
        return names


def _same(path: Path, other: Path) -> bool:
    return path.exists() and read_key(path) == read_key(other)


def prepare_host(
    path: Path, file: FederationFile, place: HostAddress, trust: bool = False, keys: Path | None = None
) -> HostFolder:
    """The folder of this federation, new or as it was left; its file may ask for more rounds or sites than before."""
    file, changes = prepare_folder(path, file, trust, keys)
    authority = Pair(path / "ca.key", path / CA)
    if not authority.public.exists():
        authority = _new_authority(path, authority)
    named = path / "server.txt"
    certificate = Pair(path / "server.key", path / "server.pem")
    fits = belong(certificate) and named.exists() and named.read_text(encoding="utf-8") == place.host
    if not fits or (ends_soon(certificate.public) and authority.key.exists()):
        _certify(certificate, place.host, authority)
        write_atomically(named, place.host.encode())
    return HostFolder(path, file, certificate, authority.public, changes)


def prepare_folder(
    path: Path, file: FederationFile, trust: bool, keys: Path | None = None
) -> tuple[FederationFile, Sequence[str]]:
    """What every host's folder has, whatever carries its messages: the file and the key; also what is extended.

    Sites' keys are taken from the folder `keys`, of which the host's folder keeps the name.
    """
    make_private(path)
    if keys is not None:
        write_atomically(path / KEYS_AT, str(keys.absolute()).encode())
    make_private(keys_folder(path))
    if not (path / AGREED).exists():
        file.check_classes()
    changes = stored_changes(path, file)
    if changes:
        check_extension(path, file, trust)
        agreed = Agreement.load(path / AGREED)
        write_rejoining(path, agreed.roster.names if agreed is not None else ())
    file = _keep_file(path, file)
    if not (path / SIGNING_KEY).exists():
        _check_new_key(path)
        create_signing_key(path / SIGNING_KEY)
    return file, changes


def write_invitation(
    folder: Path, file: FederationFile, connection: Mapping[str, Any], copy: Path | None = None
) -> Path:
    """Write what sites are given into a host's folder, and to another place if one is chosen."""
    key = public_line(read_signing_key(folder / SIGNING_KEY), file.deploy.name)
    path = folder / INVITATION
    if copy is not None and copy.exists() and "invitation" not in read_toml(copy):
        raise DeployError(f"'{copy}' exists and is not an invitation: choose another name")
    tables = with_format({"invitation": {**connection, "key": key}, **file.invited().tables()})
    for target in filter(None, (path, copy)):
        write_atomically(target, tomli_w.dumps(tables).encode())
    return copy or path


def _certify(certificate: Pair, host: str, authority: Pair) -> None:
    """A new certificate for the host in the place of the old one, if it can be made at all."""
    with TemporaryDirectory(dir=certificate.key.parent, prefix=".new-") as folder:
        new = create_server_certificate(Path(folder), [host], authority)
        os.replace(new.key, certificate.key)
        os.replace(new.public, certificate.public)
    sync_folder(certificate.key.parent)


def _new_authority(path: Path, pair: Pair) -> Pair:
    """An authority for a folder that has none; a key whose certificate was never written has signed nothing."""
    if (invitation := path / INVITATION).exists():
        raise DeployError(
            f"'{pair.public}' is missing, but sites rely on it: restore it from a copy or from '{invitation}'"
        )
    pair.key.unlink(missing_ok=True)
    return create_authority(path)


def _check_new_key(path: Path) -> None:
    """Refuse to replace a signing key that sites know; invitations of earlier versions have none."""
    invitation = path / INVITATION
    if invitation.exists() and read_toml(invitation).get("invitation", {}).get("key"):
        raise DeployError(f"'{path / SIGNING_KEY}' is missing, but sites rely on it: restore it from a copy")


@dataclass(frozen=True)
class SiteFolder:
    """A folder that is ready to join."""

    path: Path
    file: FederationFile
    name: str
    server: str
    key: Pair
    authority: Path

    def write_node(self, settings: Mapping[str, str | int | float | bool]) -> Path:
        """Note what its ClientApp is told: the site's name, and above all where its samples are (`data`)."""
        path = self.path / NODE
        write_atomically(path, tomli_w.dumps({"site": self.name, **settings}).encode())
        return path

    def copy_public_key(self, path: Path | None) -> Path:
        """The file NAME.pub, or a copy of it if its place is chosen."""
        if path is None:
            return self.key.public
        public = read_key(self.key.public)
        if path.exists() and read_key(path) != public:
            raise DeployError(f"'{path}' exists and is another file: choose another name")
        write_atomically(path, public)
        return path


@dataclass(frozen=True)
class Invitation:
    """Address, authority and signing key of a host, its federation, and under secure sums the keys of all sites.

    The first two are "" for a Flower app.
    """

    server: str
    authority: str
    key: str
    file: FederationFile
    sites: Mapping[str, str] = field(default_factory=dict)

    @property
    def lacks_keys(self) -> bool:
        """Whether a site cannot join with it yet: the host does not have the keys of all sites."""
        return self.file.experiment.server.secure and not self.sites


def prepare_site(path: Path, invitation: Invitation | Path, name: str) -> SiteFolder:
    """The folder of this site, new or as it was left; keys are made once."""
    if isinstance(invitation, Path):
        invitation = read_invitation(invitation, name)
    make_private(path)
    # Without the keys of all sites nothing can be agreed to yet, so what was agreed to stays.
    keeps_old = invitation.lacks_keys and (path / AGREED).exists()
    file = invitation.file if keeps_old else _keep_file(path, invitation.file, of_site=name)
    pem = path / CA
    if invitation.authority:
        _keep_once(pem, invitation.authority, "authority")
    _keep_once(path / HOST_KEY, invitation.key, "signing key")
    pair = _prepare_keys(path, name)
    if invitation.sites:
        write_site_keys(path / SITE_KEYS, invitation.sites)
    return SiteFolder(path, file, name, invitation.server, pair, pem)


def check_own_key(path: Path, invitation: Invitation, name: str) -> None:
    """Raise if an invitation gives a site another signing key than the one in its folder."""
    invited, key = invitation.sites.get(name), path / SIGNING_KEY
    if invited is None or (key.exists() and public_line(read_signing_key(key), name) == invited):
        return
    wrong = f"the invitation gives '{name}' another signing key than the folder '{path}' has"
    todo = f"send '{path / f'{name}.pub'}' to the host, and ask it for a new invitation"
    raise DeployError(f"{wrong}: {todo}, or name this site's own folder with --out")


def _keep_once(path: Path, text: str, what: str) -> None:
    if not path.exists():
        write_once(path, text.encode())
    elif path.read_text(encoding="utf-8") != text:
        raise DeployError(f"'{path}' differs from the {what} of the invitation: choose another folder with --out")


def _prepare_keys(path: Path, name: str) -> Pair:
    """Both keys of a site, made once, and the file with their public halves, a line each."""
    pair, signing = Pair(path / f"{name}.key", path / f"{name}.pub"), path / SIGNING_KEY
    if not pair.key.exists():
        pair = create_site_key(path, name)
    signer = read_signing_key(signing) if signing.exists() else create_signing_key(signing)
    public = public_half(pair, name) + f"{public_line(signer, name)}\n".encode()
    if not pair.public.exists() or read_key(pair.public) != public:
        write_atomically(pair.public, public)
    return pair


def read_invitation(path: Path, name: str) -> Invitation:
    """The invitation in a file, to a federation of which a site of this name must be a part."""
    check_site_name(name)
    tables: Mapping[str, Any] = read_toml(path)
    invited = tables.get("invitation")
    facts = ("server", "authority", "key")
    if not isinstance(invited, dict) or not all(isinstance(invited.get(fact), str) for fact in facts):
        raise RecordError(f"'{path}' is not an invitation of this version: ask the host for its file {INVITATION}")
    verifying_key(invited["key"], f"'{path}'", f"ask the host for its file {INVITATION}")
    rest = {name: table for name, table in tables.items() if name != "invitation"}
    file = invited_from(rest)
    file.deploy.number(name)  # raises if there is no such site
    sites = _invited_keys(invited.get("sites", {}), file, path)
    server = str(HostAddress.parse(invited["server"])) if invited["server"] else ""
    return Invitation(server, invited["authority"], invited["key"], file, sites)


def _invited_keys(lines: object, file: FederationFile, path: Path) -> dict[str, str]:
    """The keys of all sites, which an invitation to secure sums has; {} if it has none yet."""
    if not (isinstance(lines, dict) and all(isinstance(line, str) for line in lines.values())):
        raise RecordError(f"the keys of sites in '{path}' are not text: ask the host for its file {INVITATION}")
    if lines and set(lines) != set(file.deploy.sites):
        raise RecordError(f"the keys in '{path}' are not those of all sites: ask the host for its newest {INVITATION}")
    return {site: public_text(key, site) for site, key in verifying_keys(lines, f"'{path}'").items()}


def _keep_file(folder: Path, file: FederationFile, *, of_site: str = "") -> FederationFile:
    """Write the federation's file and return it; one that is there may differ in rounds, sites and patience.

    Until the first agreement anything but its name may change: no round depends on it, and sites consent again.
    """
    path = folder / FILE
    stored = read_federation(path, plain=True) if path.exists() else None
    if stored is not None and stored.deploy.name == file.deploy.name and not (folder / AGREED).exists():
        same = stored.invited() if of_site else stored
        stored = stored if same.common() == file.as_begun(read_toml(path, plain=True)).common() else None
    begun = with_format({})
    if stored is not None:
        begun = {"format": read_toml(path, plain=True).get("format", UNNUMBERED_FEDERATION)}
        file = file.as_begun(begun)
    if stored is not None and of_site:
        stored = stored.invited()  # invitations once said where the host's samples are
    if stored is not None and not is_same_federation(stored, file):
        raise DeployError(f"'{folder}' holds another federation ({_differs(stored, file)}): choose another --out")
    if stored is not None and of_site in stored.deploy.sites and (folder / AGREED).exists():
        number = stored.deploy.number(of_site)
        if file.deploy.sites[number : number + 1] != (of_site,):
            wrong = f"'{of_site}' has agreed as site number {number + 1}, but the invitation gives it another number"
            raise DeployError(f"{wrong}: ask the host for its newest {INVITATION}")
    if stored != file:
        # With the format in which it began: what files leave out goes on to mean the same.
        head = begun if file.as_begun(begun) == file else with_format({})
        with explained("write", path):
            write_atomically(path, tomli_w.dumps({**head, **file.tables()}).encode())
    return file


def _differs(stored: FederationFile, offered: FederationFile) -> str:
    """The first setting in which two federations differ."""
    old, new = (
        {f"{t}.{k}": v for t, table in f.tables().items() for k, v in table.items()}
        for f in (stored.common(), offered.common())
    )
    name = next(name for name in {**old, **new} if name not in CHANGEABLE and old.get(name) != new.get(name))
    a, b = (shown(each[name]) if name in each else "the default" for each in (old, new))
    return f"{name} is {a} there and {b} here"
