"""The files of one site in one federation, which never leave its disk.

ROOT/FEDERATION/SITE/              mode 0700, locked by one process at a time
    current.safetensors            the state after the last upload that the server absorbed
    pending.safetensors            the state after the upload that was sent last, and that upload
    delivered.safetensors          the last parcel, which came after the last round, and which upload was absorbed last
    blocks/                        tensors that were received, by digest (blocks.py)

Renaming makes a pending state current. If its upload was not absorbed, it stays until the next one replaces it, because
its attempt tells old messages from new ones.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stratafl.core.reprs import holder
from stratafl.core.state import Kind, State, bytes_of, flatten, form_difference, kind, unflatten
from stratafl.errors import DamagedError, LostStateError, RunError
from stratafl.execute.exchange.blocks import CACHE_BYTES, BlockCache
from stratafl.execute.exchange.protocol import (
    MAX_MESSAGE_BYTES,
    NONE_ABSORBED,
    DownloadMessage,
    check_exchange_name,
    upload_digest,
)
from stratafl.execute.exchange.state_file import DiskFullError, explained_full, read_state, write_state
from stratafl.files import explained, private_folder, sync_folder

log = logging.getLogger("stratafl")
CURRENT, PENDING, BLOCKS = "current.safetensors", "pending.safetensors", "blocks"
DELIVERED = "delivered.safetensors"
DAMAGED = "damaged-pending.safetensors"
_RESULT = {"round": int, "attempt": int, "base": str, "digest": str}
_DELIVERY = {"round": int, "attempt": int, "absorbed": str}
_STATE, _UPLOAD, _PARCEL = "state/", "upload", "parcel"
_NO_UPLOAD: Kind = (torch.uint8, (0,))
_MAX_HEADER = 1 << 20  # bytes of names and numbers in the header of a state
_REMEDY = "restore a copy of its folder, or make the host forget this site, which then starts over with no state"


def state_form(state: State) -> dict[str, Kind]:
    """The names, types and shapes of a state, which are fixed when a site enrols."""
    return {name: kind(x) for name, x in flatten(state).items()}


def site_folder(root: Path, federation: str, site: str) -> Path:
    return root / check_exchange_name("a federation", federation) / check_exchange_name("a site", site)


@holder
class RoundResult:
    """The state after an upload, with the upload; `base` is the digest of the upload whose state it grew from."""

    round: int
    attempt: int
    base: str
    digest: str
    state: State
    upload: bytes

    def answers(self, request: DownloadMessage) -> bool:
        """Whether the upload is that of the round that is asked for, from the state that the server knows."""
        return (self.round, self.base) == (request.address.round, request.absorbed)


@holder
class Final:
    """What a site ends with: its state (None: it never took part), and the parcel of the round after the last one."""

    round: int
    state: State | None
    parcel: bytes
    mark: str  # of this end: another parcel, or one after another upload, has another


@contextmanager
def open_site(
    root: Path, federation: str, site: str, form: Mapping[str, Kind], *, cache_bytes: int = CACHE_BYTES
) -> Iterator["SiteStore"]:
    """The folder of one site in one federation, made if it is missing, and locked until the block ends.

    `form` is that of the site's state (`state_form`); `cache_bytes` is what the blocks of downloads may take on disk.
    """
    folder = site_folder(root, federation, site)
    with private_folder(folder):
        yield SiteStore(folder, federation, site, form, BlockCache(folder / BLOCKS, cache_bytes).prepare())


def read_site(root: Path, federation: str, site: str, form: Mapping[str, Kind]) -> "SiteStore":
    """The same folder for readers, such as predictions, also while another process has it open."""
    folder = site_folder(root, federation, site)
    return SiteStore(folder, federation, site, form, BlockCache(folder / BLOCKS))


def read_standing(folder: Path) -> tuple[int | None, int | None]:
    """The round of the last upload of a site, and the round after which it has its final model, if there are any."""
    rounds = list[int | None]()
    for names in ((PENDING, CURRENT), (DELIVERED,)):
        path = next((folder / name for name in names if os.path.lexists(folder / name)), None)
        rounds.append(None if path is None else read_state(path, 2 * MAX_MESSAGE_BYTES)[0].get("round"))
    return rounds[0], rounds[1]


class SiteStore:
    """An open folder of a site; `open_site` makes it."""

    def __init__(self, folder: Path, federation: str, site: str, form: Mapping[str, Kind], blocks: BlockCache) -> None:
        self.folder, self.federation, self.site, self.blocks = folder, federation, site, blocks
        self._form = dict(form)
        state_bytes = sum(torch.empty(shape, dtype=t, device="meta").nbytes for t, shape in form.values())
        self._max_bytes = MAX_MESSAGE_BYTES + _MAX_HEADER + state_bytes

    def current(self) -> RoundResult | None:
        """The state that the server knows of; a damaged one is an error, never a reason to start over."""
        try:
            return self._read(self.folder / CURRENT)
        except DamagedError as error:
            raise LostStateError(f"{error}; the personal state of '{self.site}' is lost: {_REMEDY}") from error

    def pending(self) -> RoundResult | None:
        """The state that the server may not know of; if it is damaged, and the current one is not, it is dropped."""
        path = self.folder / PENDING
        try:
            return self._read(path)
        except DamagedError as error:
            self.current()
            log.warning("%s; it is set aside as '%s', and the site trains the round again if asked", error, DAMAGED)
            with explained("rename", path):
                os.replace(path, path.with_name(DAMAGED))
                sync_folder(self.folder)
            return None

    def keep(self, result: RoundResult) -> None:
        """Make this the pending state; when it returns, the state survives a power cut."""
        flat = flatten(result.state)
        if wrong := form_difference(self._form, flat):
            raise RunError(f"the state of '{self.site}' cannot be saved, because its form has changed: {wrong}")
        tensors = {_UPLOAD: _as_tensor(result.upload), **{_STATE + name: x for name, x in flat.items()}}
        record = {"round": result.round, "attempt": result.attempt, "base": result.base, "digest": result.digest}
        self._write(PENDING, record, tensors)

    def promote(self) -> None:
        """The pending state becomes the current one."""
        try:
            with explained("rename", self.folder / PENDING):
                os.replace(self.folder / PENDING, self.folder / CURRENT)
                sync_folder(self.folder)
        except RunError as error:
            raise explained_full(error) from error

    def deliver(self, round: int, attempt: int, absorbed: str, parcel: bytes) -> None:
        """Keep the last parcel of the server, and the digest of the upload after which it came, unless it is old."""
        earlier = None
        with suppress(DamagedError):  # the new file replaces a damaged one
            earlier = self._delivered()
        if earlier is not None and (round, attempt) < (earlier[0]["round"], earlier[0]["attempt"]):
            latest = f"round {earlier[0]['round']}, attempt {earlier[0]['attempt']}"
            raise RunError(
                f"the message of round {round}, attempt {attempt} is out of date: this site has the parcel of {latest}"
            )
        about = {"round": round, "attempt": attempt, "absorbed": absorbed}
        self._write(DELIVERED, about, {_PARCEL: _as_tensor(parcel)})

    def committed_round(self) -> int | None:
        """After how many rounds the last parcel came; None if it has not come, or its file is damaged."""
        with suppress(DamagedError):
            stored = self._delivered()
            return None if stored is None else int(stored[0]["round"])
        return None

    def final(self) -> Final | None:
        """What the site ends with; None before the commit, and an error if its state is not the one of the commit."""
        stored = self._delivered()  # first: a commit makes the state current before it is delivered
        if stored is None:
            return None
        record, tensors = stored
        current = self.current()
        if record["absorbed"] != (NONE_ABSORBED if current is None else current.digest):
            wrong = f"'{self.folder / CURRENT}' is missing or an old copy: the server absorbed another upload"
            raise LostStateError(f"{wrong}; the personal state of '{self.site}' is lost: {_REMEDY}")
        parcel, state = bytes_of(tensors[_PARCEL]).numpy().tobytes(), None if current is None else current.state
        return Final(record["round"], state, parcel, _mark(record, parcel))

    def delivery_mark(self) -> str | None:
        """The mark of the end that was delivered; None before the commit. It needs no form of the state."""
        stored = self._delivered()
        return None if stored is None else _mark(stored[0], bytes_of(stored[1][_PARCEL]).numpy().tobytes())

    def _delivered(self) -> tuple[dict[str, Any], Mapping[str, Tensor]] | None:
        path = self.folder / DELIVERED
        if not os.path.lexists(path):
            return None
        record, tensors = read_state(path, self._max_bytes)
        is_ours = self._foreign(record) is None and all(type(record.get(key)) is of for key, of in _DELIVERY.items())
        if not is_ours or set(tensors) != {_PARCEL}:
            raise RunError(f"'{path}' is not a parcel for '{self.site}' in '{self.federation}': restore its own folder")
        return record, tensors

    def _write(self, name: str, fields: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        record = {"federation": self.federation, "site": self.site, **fields}
        try:
            write_state(self.folder / name, record, tensors)
        except DiskFullError:
            self.blocks.clear()  # blocks can be downloaded again
            write_state(self.folder / name, record, tensors)

    def _foreign(self, record: Mapping[str, Any]) -> str | None:
        """Whose file this is, if it is not this site's."""
        for key, ours in (("federation", self.federation), ("site", self.site)):
            if record.get(key) != ours:
                return f"it belongs to {key} {str(record.get(key))[:80]!r}"
        return None

    def _read(self, path: Path) -> RoundResult | None:
        if not os.path.lexists(path):
            return None
        record, tensors = read_state(path, self._max_bytes)
        if problem := self._problem(record, tensors):
            todo = "check that this site runs the method and the model of the federation, or restore its own folder"
            raise RunError(f"'{path}' is not the state of '{self.site}' in '{self.federation}': {problem}; {todo}")
        upload = bytes_of(tensors[_UPLOAD]).numpy().tobytes()
        state = unflatten({name: tensors[_STATE + name] for name in self._form})
        return RoundResult(record["round"], record["attempt"], record["base"], record["digest"], state, upload)

    def _problem(self, record: dict[str, Any], tensors: Mapping[str, Tensor]) -> str | None:
        if owner := self._foreign(record):
            return owner
        if not all(type(record.get(key)) is of for key, of in _RESULT.items()):
            return "its round, attempt or digests are missing"
        form = {_UPLOAD: kind(tensors[_UPLOAD])} if _UPLOAD in tensors else {_UPLOAD: _NO_UPLOAD}
        wrong = form_difference(form | {_STATE + name: each for name, each in self._form.items()}, tensors)
        if wrong is not None:
            return wrong
        upload = bytes_of(tensors[_UPLOAD]).numpy().tobytes()
        if record["digest"] != upload_digest(self.federation, self.site, record["round"], upload):
            return "its upload does not match its digest"
        return None


def _mark(record: Mapping[str, Any], parcel: bytes) -> str:
    return blake2b(f"{record['round']} {record['absorbed']} ".encode() + parcel, digest_size=16).hexdigest()


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
