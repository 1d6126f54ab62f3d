"""A site's side: it answers each message, computes an upload once and keeps it until the server has absorbed it."""

import logging
import os
from typing import Protocol

from stratafl.core.state import State
from stratafl.errors import LostStateError, StrataError, WireError, told_to_others
from stratafl.execute.exchange.blocks import sent_blocks, unpack_download
from stratafl.execute.exchange.protocol import (
    NONE_ABSORBED,
    Committed,
    DownloadMessage,
    Refusal,
    Reply,
    Request,
    SendAll,
    UploadMessage,
    decode_request,
    encode_message,
    upload_digest,
)
from stratafl.execute.exchange.site_store import RoundResult, SiteStore

log = logging.getLogger("stratafl")


class SiteComputation(Protocol):
    """What a site computes; parcels are the bytes of `core/wire.py`."""

    def enrol(self) -> State:
        """Its state before its first round, the same whenever it is asked for."""

    def work(self, round: int, download: bytes, state: State) -> tuple[State, bytes]:
        """The state to keep after a round, and the upload."""


class SiteExchange:
    """Answers messages for one site; its folder is open and locked. It takes part in `rounds` rounds at most."""

    def __init__(self, store: SiteStore, work: SiteComputation, rounds: int) -> None:
        self._store, self._work, self._rounds = store, work, rounds
        self.delivered = False  # whether the last parcel came with a message that was answered

    def answer(self, data: bytes) -> bytes:
        """The reply to a message; a `WireError` if it is no message at all.

        Whatever else is wrong, with the message, the disk or the computation, is a refusal: nothing was changed, and
        the same message can be answered later.
        """
        request = decode_request(data)
        try:
            reply = self._reply(request)
        except StrataError as error:
            log.warning("refused: %s", error)
            # The server must not learn where a site keeps its files.
            reason = told_to_others(error).replace(f"{self._store.folder}{os.sep}", "")
            reply = Refusal(request.address, reason, isinstance(error, LostStateError))
        return encode_message(reply)

    def _reply(self, request: Request) -> Reply:
        address, store = request.address, self._store
        for what, addressee, ours in (
            ("federation", address.federation, store.federation),
            ("site", address.site, store.site),
        ):
            if addressee != ours:
                raise WireError(f"this message is for {what} '{addressee}', but this is '{ours}'")
        self._check_agreed(request)
        pending = store.pending()
        if pending is not None and request.absorbed == pending.digest:
            _check_new(request, pending, done=True)
            store.promote()
            pending, current = None, pending
        else:
            current = store.current()
            if pending is not None:
                _check_new(request, pending, done=False)
            if current is not None:
                _check_new(request, current, done=True)
            _check_known(request, current, pending)
        final = store.committed_round() if isinstance(request, DownloadMessage) else None
        if final is not None and address.round < final:
            wrong = f"the host asks for round {address.round + 1}"
            raise WireError(f"{wrong}, but this site has its final model, after {final} rounds")
        if isinstance(request, DownloadMessage) and pending is not None and pending.answers(request):
            return self._upload(request, pending)
        parcel = self._parcel(request)
        if parcel is None:
            return SendAll(address)
        if isinstance(request, DownloadMessage):
            return self._trained(request, parcel, current)
        store.deliver(address.round, address.attempt, request.absorbed, parcel)
        self.delivered = True
        return Committed(address, request.absorbed)

    def _check_agreed(self, request: Request) -> None:
        """Refuse what comes after the rounds that this site has agreed to."""
        asked, is_round = request.address.round, isinstance(request, DownloadMessage)
        if asked + is_round > self._rounds:
            what = f"round {asked + 1}" if is_round else f"a final model after {asked} rounds"
            raise WireError(f"the host asks for {what}, but this site has agreed to {self._rounds} rounds")

    def _parcel(self, request: Request) -> bytes | None:
        """What the server sent, with the blocks that it left out; None if one of them is not here."""
        blocks = self._store.blocks
        parcel = unpack_download(request, blocks.get)
        if parcel is not None:
            blocks.add(sent_blocks(request), [piece.digest for piece in request.pieces if piece.digest])
        return parcel

    def _trained(self, request: DownloadMessage, parcel: bytes, current: RoundResult | None) -> Reply:
        address = request.address
        state = self._work.enrol() if current is None else current.state
        state, upload = self._work.work(address.round, parcel, state)
        digest = upload_digest(address.federation, address.site, address.round, upload)
        result = RoundResult(address.round, address.attempt, request.absorbed, digest, state, upload)
        self._store.keep(result)
        return self._upload(request, result)

    def _upload(self, request: DownloadMessage, result: RoundResult) -> UploadMessage:
        return UploadMessage(request.address, result.digest, self._store.blocks.offered(), result.upload)


def _check_new(request: Request, answer: RoundResult, *, done: bool) -> None:
    """Refuse what the server sent before something that is kept here: a message that was delayed, or sent twice.

    A round whose upload was absorbed is `done`: only a later one may follow.
    """
    asked, answered = ((each.round, each.attempt) for each in (request.address, answer))
    if asked[0] < answered[0] + done or asked[1] < answered[1] + done:
        message = f"the message of round {asked[0]}, attempt {asked[1]} is out of date"
        raise WireError(f"{message}: this site has already answered round {answered[0]}, attempt {answered[1]}")


def _check_known(request: Request, current: RoundResult | None, pending: RoundResult | None) -> None:
    """Refuse if the server absorbed an upload whose state is not here, or lost one whose state is."""
    digest = NONE_ABSORBED if current is None else current.digest
    if request.absorbed == digest:
        return
    here = f"the site has the state of upload {digest[:12]}" if digest else "the site has no state"
    here += f", or {pending.digest[:12]}" if pending is not None else ""
    server = (
        f"absorbed upload {request.absorbed[:12]} of this site" if request.absorbed else "knows no upload of this site"
    )
    todo = "restore the newest copy of the lost folder, or let the host forget this site and remove its state"
    raise LostStateError(f"the server {server}, but {here}: one of the two folders is lost or an old copy; {todo}")
