"""The secure sum of a round of a host: sessions with its sites, and what of them survives a restart.

The host writes down a masked sum before it asks for shares (`server/masked.safetensors`). If it is killed after that,
it asks for the same shares again, and sites give them again; no other session of the round could be opened. If it is
killed before, it begins another session. A round whose sum cannot be opened changes nothing.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stratafl.config.deployment import DeployTable
from stratafl.core.secure_sums import COMPLETE, opening_threshold
from stratafl.core.state import State
from stratafl.deploy.attendance import POLL_SECONDS, Attendance
from stratafl.deploy.courier import Content
from stratafl.deploy.secure.secure_host import Ask, ClosedSumError, MaskedSum, OpenedSum, masked_sum, open_sum
from stratafl.deploy.secure.secure_site import STEPS, Step
from stratafl.deploy.secure.session import Announcement, Session, Signers, basis_of, canonical
from stratafl.deploy.status import Traffic
from stratafl.errors import DamagedError, WireError
from stratafl.execute.exchange import ServerExchange
from stratafl.execute.exchange.state_file import read_state, write_state
from stratafl.execute.server import Server

MASKED = "masked.safetensors"
MAX_MASKED_BYTES = 1 << 40  # of the host's own file
MAX_SESSIONS = 3  # of a round, after which it changes nothing


@dataclass(frozen=True)
class SummedRound:
    """Whose uploads are in the sum of a round, and why the others are not; `closed` says why nothing was opened."""

    present: Sequence[str]
    left_out: Mapping[str, str]
    closed: str = ""


@dataclass(frozen=True)
class SecureRounds:
    """Sums the uploads of rounds unseen; `folder` is that of the server's state, `signers` the keys of its sites.

    `format` is the table of the agreed format of samples.
    """

    folder: Path
    server: Server
    format: Mapping[str, Any]
    signers: Signers
    sites: Attendance
    deploy: DeployTable
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep

    def least(self, t: int, exchange: ServerExchange) -> int:
        """The number of uploads from which the sum of a round is opened."""
        return opening_threshold(self._cohort(t)) if self._size(t, exchange) else 1

    def is_masked(self, t: int) -> bool:
        """Whether the masked sum of this round was kept, of which sites may have given shares."""
        stored = self._stored()
        return stored is not None and stored[0].session.round == t

    def absorb(self, exchange: ServerExchange, traffic: Traffic) -> SummedRound:
        """Open the sum of what has arrived, and absorb it; if it stays closed, the round changes nothing."""
        t, size = exchange.round, self._size(exchange.round, exchange)
        try:
            if size:
                opened, digests = self._opened(exchange, size, traffic)
            else:  # of a method that uploads nothing
                opened, digests = OpenedSum(np.zeros(0, dtype=np.uint64), exchange.arrived), exchange.uploads
            present, state = opened.sites, self._absorbed(t, exchange.state, opened)
        except ClosedSumError as error:
            left_out = exchange.absorb_sum(exchange.state, {}, str(error))
            (self.folder / MASKED).unlink(missing_ok=True)
            return SummedRound((), left_out, str(error))
        reason = "it was not there when the sum was opened"
        left_out = exchange.absorb_sum(state, {site: digests[site] for site in present}, reason)
        (self.folder / MASKED).unlink(missing_ok=True)
        return SummedRound(present, left_out)

    def _absorbed(self, t: int, state: State, opened: OpenedSum) -> State:
        numbers = torch.from_numpy(opened.numbers.view(np.int64).copy())
        clients = [self.server.roster.entry(site).client for site in opened.sites]
        try:
            return self.server.absorb_sum(t, state, numbers, clients)
        except WireError as error:
            raise ClosedSumError(str(error)) from error

    def _opened(self, exchange: ServerExchange, size: int, traffic: Traffic) -> tuple[OpenedSum, Mapping[str, str]]:
        """The sum of a round, and the digests of the uploads in it."""
        stored = self._stored()
        if stored is None or stored[0].session.round != exchange.round:
            stored = self._masked(exchange, size, traffic), exchange.uploads
            self._store(*stored)
        masked, digests = stored
        return open_sum(self._ask(masked.session, digests, traffic), masked), digests

    def _masked(self, exchange: ServerExchange, size: int, traffic: Traffic) -> MaskedSum:
        why, basis = "", basis_of(self.format, self.server.download(exchange.round, exchange.state, 0))
        for _ in range(MAX_SESSIONS):
            sites = [site for site in exchange.arrived if self.sites.may_try(site)]
            if len(sites) < self.least(exchange.round, exchange):
                break
            attempt = exchange.open_session(sites)
            session = Session(exchange.federation, exchange.round, attempt, self._cohort(exchange.round), basis)
            try:
                return masked_sum(self._ask(session, exchange.uploads, traffic), session, sites, size, self.signers)
            except (ClosedSumError, WireError) as error:
                why = str(error)
        raise ClosedSumError(why or "too few sites are left for a secure sum")

    def _ask(self, session: Session, uploads: Mapping[str, str], traffic: Traffic) -> Ask:
        def ask(step: Step, messages: Mapping[str, Content]) -> Mapping[str, Content]:
            """Ask each site until it answers, fails too often, or the time of the step is over."""
            last, answers = step == STEPS[-1], dict[str, Content]()
            latest = self.clock() + self.deploy.deadline / (1 if last else len(STEPS))
            about = {"session": session.to_table(), "step": step}
            while missing := [site for site in messages if site not in answers and self.sites.may_try(site)]:
                asked, left = self.sites.there(missing), latest - self.clock()
                enough = last and len(answers) >= session.least and session.cohort <= COMPLETE
                if left <= 0 or (enough and all(map(self.sites.is_gone, missing))):
                    break
                sent = {site: ({**about, "upload": uploads[site], **messages[site][0]}, b"") for site in asked}
                traffic.down += sum(map(_bytes_of, sent.values()))
                replies = self.sites.sent("secure", sent, left)
                traffic.up += sum(map(_bytes_of, replies.values()))
                answers |= replies
                if not asked:
                    self.pause(POLL_SECONDS)
            return answers

        return ask

    def _cohort(self, t: int) -> int:
        return len(self.server.cohort(self.server.at(t)))

    def _size(self, t: int, exchange: ServerExchange) -> int:
        return self.server.secure_sums(self.server.at(t), exchange.state).size

    # The file

    def _store(self, masked: MaskedSum, uploads: Mapping[str, str]) -> None:
        """On the disk before any site is asked for a share."""
        record = {
            "session": masked.session.to_table(),
            "members": [each.to_table() for each in masked.members],
            "senders": list(masked.senders),
            "survivors": list(masked.survivors),
            "confirmations": dict(masked.confirmations),
            "uploads": dict(uploads),
        }
        total = torch.from_numpy(masked.total.view(np.int64))
        write_state(self.folder / MASKED, record, {"total": total})

    def _stored(self) -> tuple[MaskedSum, Mapping[str, str]] | None:
        path = self.folder / MASKED
        if not path.exists():
            return None
        record, tensors = read_state(path, MAX_MASKED_BYTES)
        try:
            session, members = Session.from_table(record["session"]), Announcement.list_from(record["members"])
            lists = record["senders"], record["survivors"], record["confirmations"]
            return MaskedSum(session, members, *lists, tensors["total"].numpy().view(np.uint64)), record["uploads"]
        except (WireError, KeyError) as error:
            todo = "restore a copy, or remove it, and its round changes nothing"
            raise DamagedError(f"'{path}' is not a masked sum: {todo}") from error


def _bytes_of(content: Content) -> int:
    table, body = content
    return len(canonical(dict(table))) + len(body)
