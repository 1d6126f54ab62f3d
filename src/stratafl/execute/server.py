"""The server of a deployed federation: a blueprint and a roster, no data; all that crosses is bytes of `core/wire.py`.

Its functions are pure, as those of the waist: the caller keeps the state. `site.py` is the other side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b, sha256
from types import MappingProxyType

import torch
from torch import Tensor

from stratafl.core import wire
from stratafl.core.algorithm import Total
from stratafl.core.parcel import Parcel
from stratafl.core.reprs import holder
from stratafl.core.round import Round
from stratafl.core.secure_sums import BYTES_PER_NUMBER, check_secure
from stratafl.core.state import State
from stratafl.errors import DataError, WireError
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.roster import Roster, RosterEntry
from stratafl.execute.rounds import SECRET_BYTES, SUMS, Rounds, check_secret
from stratafl.execute.uploads import (
    USUAL_NORM_CLIP,
    USUAL_NORM_LIMIT,
    Inspection,
    LeftOut,
    OutlyingUpdate,
    flagged,
    inspect,
    with_shorter_updates,
)
from stratafl.runtime.speed import precision


@holder
class Absorbed:
    """The server's next state, whose uploads are in it, who was left out and why, whose update is far off or cut."""

    server: State
    present: tuple[int, ...]
    left_out: tuple[LeftOut, ...] = ()
    outliers: tuple[OutlyingUpdate, ...] = ()
    shortened: tuple[OutlyingUpdate, ...] = ()


@holder
class Server(Rounds):
    """What a server does in a round; `Server.of` makes it from a blueprint."""

    roster: Roster
    device: torch.device

    @staticmethod
    def of(
        blueprint: Blueprint,
        roster: Roster,
        device: str | torch.device = "cpu",
        *,
        norm_limit: float | None = USUAL_NORM_LIMIT,
        norm_clip: float | None = USUAL_NORM_CLIP,
        secret: bytes | None = None,
        secure: bool = False,
    ) -> "Server":
        """The server, or an error that says what does not fit; sites may join later (`joined`).

        A method whose server adds noise needs a `secret`, 32 bytes of the operating system that no site knows. A
        `secure` server sees sums of uploads alone.
        """
        if roster.clients != blueprint.clients:
            raise DataError(f"the roster has {roster.clients} clients, but the federation has {blueprint.clients}")
        blueprint.check_splits()
        if roster.complete:
            blueprint.check_largest(int(roster.samples[: roster.clients].max()))
        setup = replace(blueprint.setup(device), secret=secret)
        blueprint.algorithm.check(setup)
        if secure:
            check_secure(blueprint.algorithm, setup)
        parts = (blueprint.algorithm, setup, roster.samples, roster, torch.device(device))
        return Server(*parts, norm_limit=norm_limit, norm_clip=norm_clip, secure=secure)

    def joined(self, entry: RosterEntry) -> "Server":
        """The server with a further site, or with one that has other numbers of samples."""
        roster = self.roster.joined(entry)
        return replace(self, roster=roster, samples=roster.samples)

    @property
    def widest(self) -> Mapping[str, int]:
        """What sites are told of the largest client's samples."""
        return self.roster.widest(self.requires)

    # State

    def most_upload_bytes(self, t: int, state: State) -> int:
        """What an upload of this round takes at most; under secure sums, the numbers that are added up."""
        if self.secure:
            return BYTES_PER_NUMBER * max(1 << 10, self.secure_sums(self.at(t), state).size)
        return wire.most_bytes(self.upload_form(self.at(t), state), self.setup.layout)

    def start(self) -> State:
        """Its state before the first round."""
        return self.algorithm.init(self.setup)

    # A round

    def download(self, t: int, state: State, client: int, new: bool = False) -> bytes:
        """What a site is sent before round t; a `new` one has never taken part."""
        parcel = self._parcel(self.at(t), state, client, new)
        return wire.encode(parcel, self.setup.layout)

    def _parcel(self, rnd: Round, state: State, client: int, new: bool = False) -> Parcel:
        if not new:
            self.checked(torch.tensor([client]))
        with precision("fp32"):
            return self.algorithm.download(rnd, state, torch.tensor([client]), new)

    def absorb(self, t: int, state: State, uploads: Mapping[int, bytes]) -> Absorbed:
        """Its state after round t, from the uploads by client, read one at a time in the order of a simulation.

        An upload that a simulation would leave out is left out. If all are, the state stays what it was. Which updates
        are too long is known when all were read, so that they are then read again without those.
        """
        cohort: list[int] = self.ordered(self.checked(torch.tensor(list(uploads), dtype=torch.int64))).tolist()
        after, inspections = self._folded(t, state, uploads, cohort)
        of_clients = (([client], each) for client, each in inspections.items())
        flags = flagged(of_clients, cohort, self.norm_limit, self.norm_clip)
        left_out = {each.client for each in flags.left_out}
        present = [client for client in cohort if client not in left_out]
        if flags.too_long or flags.scales:
            after, _ = self._folded(t, state, uploads, present, flags.scales)
        return Absorbed(after, tuple(present), flags.left_out, flags.outliers, flags.shortened)

    def absorb_sum(self, t: int, state: State, numbers: Tensor, clients: Sequence[int]) -> State:
        """Its state after round t, from the sum of these clients' uploads, which it does not see (`Site.contribution`).

        A `WireError` if the sum cannot be that of numbers that the clients computed.
        """
        rnd = self.at(t)
        with precision("fp32"):
            samples = self.samples[self.checked(torch.tensor(clients, dtype=torch.int64))]
            self.secure_sums(rnd, state).check_total(rnd, self.upload_form(rnd, state), numbers, samples)
            return self.absorbed(rnd, state, Total(({SUMS: numbers},)))

    def _folded(
        self,
        t: int,
        state: State,
        uploads: Mapping[int, bytes],
        clients: list[int],
        scales: Mapping[int, Mapping[str, float]] = MappingProxyType({}),
    ) -> tuple[State, dict[int, Inspection]]:
        """Its state after round t from the uploads of these clients, and the inspection of each."""
        rnd, total, inspections = self._keyed(self.at(t), uploads), Total(), dict[int, Inspection]()
        self.upload_form(rnd, state)
        with precision("fp32"):
            for client in clients:
                parcel, inspections[client] = self._arrived(rnd, state, client, uploads[client], scales.get(client, {}))
                if not inspections[client].reasons[0]:
                    total = self.algorithm.fold(rnd, state, total, parcel, torch.tensor([client]))
            some = self.requires.noise or any(not each.reasons[0] for each in inspections.values())
            return self.absorbed(rnd, state, total) if some else state, inspections

    def _keyed(self, rnd: Round, uploads: Mapping[int, bytes]) -> Round:
        """The round with a secret of its own, where noise is drawn.

        The same uploads get the same noise again. Others of the same round, which only a restored backup has, do not:
        the difference of two models with one noise would tell what was added.
        """
        if not self.requires.noise:
            return rnd
        key = blake2b(key=check_secret(self.setup.secret), digest_size=SECRET_BYTES)
        for client in sorted(uploads):
            key.update(client.to_bytes(8, "big") + sha256(uploads[client]).digest())
        return replace(rnd, setup=replace(self.setup, secret=key.digest()))

    def _arrived(
        self, rnd: Round, state: State, client: int, data: bytes, scales: Mapping[str, float]
    ) -> tuple[Parcel, Inspection]:
        """An upload, shortened, and its inspection; norms are of its difference from what the server sent."""
        form, samples = self.upload_form(rnd, state), self.samples[client : client + 1]
        if int(samples) == 0:
            return Parcel({}), Inspection.refused("it is not in the roster", 1)
        try:
            parcel = wire.decode(data, self.setup.layout, form).to(self.device)
        except WireError as error:
            return Parcel({}), Inspection.refused(str(error), 1)
        opened = self.algorithm.open(rnd, state, parcel, torch.tensor([client]))
        received = self._parcel(rnd, state, client)
        sent = received if self.measured else None
        inspection = inspect(parcel, form, {}, received, samples, self.setup.layout, opened, sent=sent)
        return with_shorter_updates(opened.uploads, received, [scales], self.setup.layout), inspection
