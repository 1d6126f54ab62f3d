"""The server of a deployed federation: a blueprint and a roster, no data; all that crosses is bytes of `core/wire.py`.

Its functions are pure, as those of the waist: whoever drives them keeps the state. `site.py` is the other side.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from stratafl.core import wire
from stratafl.core.algorithm import Total
from stratafl.core.layout import Rows
from stratafl.core.parcel import Parcel
from stratafl.core.reprs import short_repr
from stratafl.core.round import Round
from stratafl.core.state import State
from stratafl.errors import DataError, WireError
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.roster import Roster, RosterEntry
from stratafl.execute.rounds import Rounds
from stratafl.execute.state_format import StateFormat
from stratafl.execute.uploads import Inspection, LeftOut, Outlier, inspect, outliers
from stratafl.runtime.speed import precision


@short_repr
@dataclass(frozen=True, eq=False)
class Absorbed:
    """The server's next state, whose uploads are in it, who was left out and why, and whose update is far off."""

    server: State
    present: tuple[int, ...]
    left_out: tuple[LeftOut, ...] = ()
    outliers: tuple[Outlier, ...] = ()


@short_repr
@dataclass(frozen=True, eq=False)
class Server(Rounds):
    """What a server does in a round; `Server.of` makes it from a blueprint."""

    roster: Roster
    device: torch.device

    @staticmethod
    def of(blueprint: Blueprint, roster: Roster, device: str | torch.device = "cpu") -> "Server":
        """The server, or an error that says what does not fit; sites may join later (`joined`)."""
        if roster.clients != blueprint.clients:
            raise DataError(f"the roster is of {roster.clients} clients, and the federation has {blueprint.clients}")
        blueprint.check_splits()
        if roster.complete:
            blueprint.check_largest(int(roster.samples[: roster.clients].max()))
        setup = blueprint.setup(device)
        blueprint.algorithm.check(setup)
        return Server(blueprint.algorithm, setup, roster.samples, roster, torch.device(device))

    def joined(self, entry: RosterEntry) -> "Server":
        """The server with a further site, or with one that has other numbers of samples."""
        roster = self.roster.joined(entry)
        return replace(self, roster=roster, samples=roster.samples)

    @property
    def widest(self) -> Mapping[str, int]:
        """What sites are told of the largest client's samples."""
        return self.roster.widest(self.requires)

    # State

    def start(self) -> State:
        """Its state before the first round."""
        return self.algorithm.init(self.setup)

    @cached_property
    def state_format(self) -> StateFormat:
        """The tensors of its state, for whoever saves and restores it."""
        return StateFormat(self.start())

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

        An upload that a simulation would leave out is left out. If all are, the state stays what it was.
        """
        rnd, total, present = self.at(t), Total(), list[int]()
        found: dict[int, tuple[str, float]] = {}
        self.upload_form(rnd, state)
        with precision("fp32"):
            for ids in self.ordered(self.checked(torch.tensor(list(uploads), dtype=torch.int64))).split(1):
                client = int(ids)
                parcel, seen = self._arrived(rnd, state, client, uploads[client])
                found[client] = seen.reasons[0], seen.norms[0]
                if not seen.reasons[0]:
                    total = self.algorithm.fold(rnd, state, total, parcel, ids)
                    present.append(client)
            after = self.absorbed(rnd, state, total) if present else state
        left_out = tuple(LeftOut(client, reason) for client, (reason, _) in found.items() if reason)
        return Absorbed(after, tuple(present), left_out, outliers(present, [found[client][1] for client in present]))

    def _arrived(self, rnd: Round, state: State, client: int, data: bytes) -> tuple[Parcel, Inspection]:
        """An upload, and what is found in it; norms are of its difference to what the server sent."""
        form, samples = self.upload_form(rnd, state), self.samples[client : client + 1]
        if int(samples) == 0:
            return Parcel({}), Inspection.refused("it is not in the roster", 1)
        try:
            parcel = wire.decode(data, self.setup.layout, form).to(self.device)
        except WireError as error:
            return Parcel({}), Inspection.refused(str(error), 1)
        opened = self.algorithm.open(rnd, state, parcel, torch.tensor([client]))
        sent = self._sent(self._parcel(rnd, state, client))
        found = inspect(parcel, form, {}, sent, self.algorithm.row, samples, self.setup.layout, opened)
        return opened.uploads, found

    def _sent(self, parcel: Parcel) -> Rows:
        """The tensors of a client's model that it was sent whole, one row each."""
        row = self.algorithm.row
        if row not in parcel or isinstance(parcel[row].value, Tensor):
            return {}
        field = parcel[row]
        masks = field.sent(self.setup.layout) or {}
        whole = {name: x for name, x in field.rows.items() if name not in masks or bool(masks[name].all())}
        return {name: x[None] if field.common else x for name, x in whole.items()}
