"""The server's side: it asks sites, takes each upload at most once, absorbs a round and saves it before the next."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from stratafl.core.state import State
from stratafl.errors import DamagedError, RecordError, RunError, WireError, shown, unknown
from stratafl.execute.exchange.audit import AuditLog, Line, LogMark
from stratafl.execute.exchange.blocks import pack_download
from stratafl.execute.exchange.protocol import (
    MAX_REFUSAL_LETTERS,
    NONE_ABSORBED,
    Address,
    Commit,
    Committed,
    DownloadMessage,
    Reply,
    SendAll,
    UploadMessage,
    check_exchange_name,
    decode_reply,
    encode_message,
    upload_digest,
)
from stratafl.execute.exchange.server_store import AUDIT, STATE, SavedServer, ServerStore
from stratafl.execute.exchange.site_store import state_form
from stratafl.files import private_folder


class ServerComputation(Protocol):
    """What a server computes; parcels are the bytes of `core/wire.py`."""

    def start(self) -> State:
        """Its state before the first round."""

    def download(self, round: int, state: State, site: str) -> bytes:
        """The parcel for a site."""

    def absorb(self, round: int, state: State, uploads: Mapping[str, bytes]) -> tuple[State, Mapping[str, str]]:
        """The next state, and the sites whose upload was left out, with the reason; uploads are in the roster's order.

        A pure function: if its result cannot be saved, it is called again.
        """


@dataclass(frozen=True)
class Answer:
    """What became of a reply, and why.

    accepted    the upload will be absorbed
    send all    the site lacks blocks: ask it again, with `whole=True`
    committed   the site keeps what was absorbed
    declined    the site says why it did not do what was asked, and whether its state is lost
    refused     the reply counts for nothing: it is damaged, old, another site's or not asked for
    """

    site: str
    kind: Literal["accepted", "send all", "committed", "declined", "refused"]
    reason: str = ""
    lost: bool = False


@contextmanager
def open_server(
    folder: Path, federation: str, sites: Sequence[str], work: ServerComputation
) -> Iterator["ServerExchange"]:
    """A federation at its last absorbed round, new or resumed; its folder is locked until the block ends."""
    check_exchange_name("a federation", federation)
    twice = [site for place, site in enumerate(sites) if site in sites[:place]]
    if twice:
        raise RecordError(f"two sites are called '{shown(twice[0])}': use a different name for every site")
    names = [check_exchange_name("a site", site) for site in sites]
    with private_folder(folder):
        start = work.start()
        store = ServerStore(folder, federation, state_form(start))
        saved, history = store.load(), _History(federation)
        log = AuditLog(folder / AUDIT, LogMark() if saved is None else saved.mark, history.look)
        if saved is None and history.begun:
            raise DamagedError(
                f"'{folder / STATE}' is missing, but {AUDIT} shows that the federation has begun: restore it"
            )
        log.append("opened", federation=federation, sites=names, **_standing(saved))
        if saved is None:
            saved = SavedServer(0, start, {}, log.mark)
            store.save(saved)
        yield ServerExchange(federation, names, work, store, log, saved, history)


class _History:
    """What an audit log says of the past: the last attempt, whether any site was asked, who has its last parcel."""

    def __init__(self, federation: str) -> None:
        self._federation, self.attempt, self.begun, self.committed = federation, 0, False, set[str]()

    def look(self, line: Line) -> None:
        if line.get("federation", self._federation) != self._federation:
            raise DamagedError(
                f"the audit log belongs to federation '{shown(line['federation'])}': restore the right one"
            )
        event, attempt, site = line.get("event"), line.get("attempt"), line.get("site")
        if event == "absorb":
            self.committed.clear()
        elif event == "committed" and isinstance(site, str):
            self.committed.add(site)
        elif event == "forget":
            self.committed.discard(str(site))
        if event in ("asked", "commit", "session") and type(attempt) is int:
            self.begun, self.attempt = True, max(self.attempt, attempt)


def _standing(saved: SavedServer | None) -> dict[str, Any]:
    return {"round": 0, "absorbed": {}} if saved is None else {"round": saved.round, "absorbed": dict(saved.absorbed)}


class ServerExchange:
    """The server of an open federation; `open_server` makes it.

    In a round: `ask` sites, send them what that returns, give their replies to `take`, then `absorb`. After the last
    round `commit` to every site. Everything is on disk before a method returns.
    """

    def __init__(
        self,
        federation: str,
        sites: Sequence[str],
        work: ServerComputation,
        store: ServerStore,
        log: AuditLog,
        saved: SavedServer,
        history: _History,
    ) -> None:
        self.federation, self.sites = federation, tuple(sites)
        self._work, self._store, self._log, self._saved = work, store, log, saved
        self._attempt, self._committed = history.attempt, history.committed
        self._asked: dict[str, DownloadMessage | Commit] = {}  # what each site has not answered yet, without its body
        self._arrived: dict[str, UploadMessage] = {}
        self._have: dict[str, frozenset[str]] = {}
        self.bytes_saved = 0  # of blocks that were not sent again

    @property
    def round(self) -> int:
        """The next round, which is also the number of rounds absorbed."""
        return self._saved.round

    @property
    def state(self) -> State:
        return self._saved.state

    @property
    def absorbed(self) -> Mapping[str, str]:
        """The digest of each site's last absorbed upload."""
        return dict(self._saved.absorbed)

    @property
    def arrived(self) -> tuple[str, ...]:
        """The sites whose upload of this round is here, in the order of the roster."""
        return tuple(site for site in self.sites if site in self._arrived)

    @property
    def uploads(self) -> Mapping[str, str]:
        """The digests of the uploads of this round that are here."""
        return {site: self._arrived[site].digest for site in self.arrived}

    @property
    def committed(self) -> tuple[str, ...]:
        """The sites that have said that they have their last parcel, to this server or to one before it."""
        return tuple(site for site in self.sites if site in self._committed)

    def ask(self, site: str, *, whole: bool = False) -> bytes:
        """A message that asks a site for its upload of this round; replies to earlier messages no longer count.

        `whole`: with all blocks, those too that the site said it has.
        """
        self._check_site(site)
        if site in self._arrived:
            raise RunError(f"the upload of '{site}' for round {self.round} has arrived: absorb it before asking again")
        return self._sent("asked", DownloadMessage, site, whole)

    def commit(self, site: str, *, whole: bool = False) -> bytes:
        """A message that tells a site, after the last round, what of it was absorbed, with the parcel of this round.

        From that and its state the site has its final model; a site that never took part gets one too.
        """
        self._check_site(site)
        return self._sent("commit", Commit, site, whole)

    def take(self, sender: str, data: bytes) -> Answer:
        """A reply, from the site that is known to have sent it, whatever the reply says."""
        try:
            reply = decode_reply(data)
        except WireError as error:
            return self._refused(sender, len(data), str(error))
        wrong = self._wrong(sender, reply)
        if wrong is not None:
            return self._refused(sender, len(data), wrong, reply)
        return self._taken(sender, reply, len(data))

    def refuse(self, site: str, reason: str) -> None:
        """Write down that what came as the reply of a site is not its own; its real reply is still awaited."""
        self._log.append("refused", site=shown(site), reason=shown(reason, MAX_REFUSAL_LETTERS))

    def absorb(self) -> Mapping[str, str]:
        """Absorb what has arrived, and save; returns the sites that were left out, and why."""
        if not self._arrived:
            raise RunError(f"no upload of round {self.round} has arrived: ask the sites again, or stop")
        uploads = {site: self._arrived[site].body for site in self.arrived}
        state, left_out = self._work.absorb(self.round, self.state, uploads)
        digests = {site: self._arrived[site].digest for site in uploads if site not in left_out}
        self._absorb(state, digests, left_out)
        return left_out

    def open_session(self, sites: Sequence[str]) -> int:
        """Write down that the uploads of these sites are to be summed unseen; the number of this attempt, ever."""
        attempt = self._attempt + 1
        self._log.append("session", round=self.round, attempt=attempt, sites=list(sites))
        self._attempt = attempt
        return attempt

    def absorb_sum(self, state: State, digests: Mapping[str, str], reason: str) -> Mapping[str, str]:
        """The state after a sum of uploads that nobody saw; those that are not in it are left out for this reason."""
        left_out = {site: reason for site in self.arrived if site not in digests}
        self._absorb(state, digests, left_out)
        return left_out

    def _absorb(self, state: State, digests: Mapping[str, str], left_out: Mapping[str, str]) -> None:
        reasons = {site: shown(reason, MAX_REFUSAL_LETTERS) for site, reason in left_out.items()}
        # Before the state, so that its mark covers the line; a crash in between shows as a round that is opened again.
        self._log.append("absorb", round=self.round, absorbed=dict(digests), left_out=reasons)
        self._save(SavedServer(self.round + 1, state, {**self._saved.absorbed, **digests}, self._log.mark))
        self._arrived.clear()
        self._asked.clear()

    def skip(self) -> None:
        """Let this round pass without an upload: nothing changes but its number."""
        if self._arrived:
            raise RunError(f"uploads of round {self.round} have arrived: absorb them")
        self._log.append("absorb", round=self.round, absorbed={}, left_out={})
        self._save(replace(self._saved, round=self.round + 1, mark=self._log.mark))
        self._asked.clear()

    def forget(self, site: str) -> None:
        """Let a site that lost its state start over."""
        self._check_site(site)
        self._log.append("forget", site=site, round=self.round, upload=self._absorbed(site))
        rest = {name: digest for name, digest in self._saved.absorbed.items() if name != site}
        self._save(replace(self._saved, absorbed=rest, mark=self._log.mark))
        self._committed.discard(site)
        for by_site in (self._asked, self._arrived, self._have):
            by_site.pop(site, None)

    def _save(self, saved: SavedServer) -> None:
        """On disk first: if that fails, this server is where it was."""
        self._store.save(saved)
        if saved.round > self._saved.round:
            self._committed.clear()  # in a federation that was extended: what sites have is of an earlier round
        self._saved = saved

    def _sent(self, event: str, kind: type[DownloadMessage | Commit], site: str, whole: bool) -> bytes:
        have = frozenset[str]() if whole else self._have.get(site, frozenset())
        parts = pack_download(self._work.download(self.round, self.state, site), have)
        address, absorbed = Address(self.federation, site, self.round, self._attempt + 1), self._absorbed(site)
        data = encode_message(kind(address, absorbed, parts.pieces, parts.body))
        self._note(event, address, upload=absorbed, bytes=len(data), saved=parts.saved)
        self._attempt, self._asked[site] = address.attempt, kind(address, absorbed, parts.pieces, b"")
        self.bytes_saved += parts.saved
        return data

    def _check_site(self, site: str) -> None:
        if site not in self.sites:
            raise unknown("site", site, self.sites)

    def _absorbed(self, site: str) -> str:
        return self._saved.absorbed.get(site, NONE_ABSORBED)

    def _wrong(self, sender: str, reply: Reply) -> str | None:
        """Why a reply counts for nothing."""
        address = reply.address
        if address.federation != self.federation:
            return f"it is for federation '{address.federation}', but this is '{self.federation}'"
        if sender not in self.sites or address.site != sender:
            return f"it claims to be from site '{address.site}', but '{shown(sender)}' sent it"
        asked = self._asked.get(sender)
        if asked is None:
            return f"it answers attempt {address.attempt}, but '{sender}' has no open request"
        if address != asked.address:
            expected = f"round {asked.address.round}, attempt {asked.address.attempt}"
            return f"it answers round {address.round}, attempt {address.attempt}, but {expected} is open"
        if isinstance(reply, Committed if isinstance(asked, DownloadMessage) else UploadMessage):
            return "it answers another kind of message than the one sent"
        if isinstance(reply, UploadMessage):
            digest = upload_digest(self.federation, sender, address.round, reply.body)
            return None if reply.digest == digest else "its upload does not match its digest"
        if isinstance(reply, Committed) and reply.absorbed != self._absorbed(sender):
            return "it kept a state that is not the absorbed one"
        return None

    def _taken(self, site: str, reply: Reply, size: int) -> Answer:
        address = reply.address
        if isinstance(reply, UploadMessage):
            self._note("accepted", address, upload=reply.digest, bytes=size)
            self._arrived[site], self._have[site] = reply, frozenset(reply.have)
            answer = Answer(site, "accepted")
        elif isinstance(reply, SendAll):
            self._note("send all", address, bytes=size)
            self._have.pop(site, None)
            answer = Answer(site, "send all")
        elif isinstance(reply, Committed):
            self._note("committed", address, upload=reply.absorbed, bytes=size)
            self._committed.add(site)
            answer = Answer(site, "committed")
        else:
            self._note("declined", address, bytes=size, reason=reply.reason, lost=reply.lost)
            answer = Answer(site, "declined", reply.reason, reply.lost)
        del self._asked[site]
        return answer

    def _refused(self, sender: str, size: int, reason: str, reply: Reply | None = None) -> Answer:
        about: dict[str, Any] = (
            {} if reply is None else {"round": reply.address.round, "attempt": reply.address.attempt}
        )
        about |= {"upload": reply.digest} if isinstance(reply, UploadMessage) else {}
        name, shown_reason = shown(sender), shown(reason, MAX_REFUSAL_LETTERS)
        self._log.append("refused", site=name, **about, bytes=size, reason=shown_reason)
        return Answer(name, "refused", shown_reason)

    def _note(self, event: str, address: Address, **what: Any) -> None:
        self._log.append(event, site=address.site, round=address.round, attempt=address.attempt, **what)
