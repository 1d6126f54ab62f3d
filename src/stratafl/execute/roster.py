"""The roster of a federation: which site is which client, and how many samples it has.

A simulation reads numbers of samples from its data. A server has no data: each site says its own when it joins, and
every upload is checked against it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from stratafl.core.algorithm import Requirements
from stratafl.core.reprs import short_repr
from stratafl.data.federation import Federation
from stratafl.errors import DataError, choices, shown
from stratafl.runtime.cohort_task import EVALUATION_BATCH

MAX_NAME_LETTERS = 64  # letters of a name


@dataclass(frozen=True)
class RosterEntry:
    """A site by its name, its number as a client, and how many samples it trains and validates on."""

    name: str
    client: int
    samples: int
    validation: int = 0

    @staticmethod
    def of(name: str, client: int, federation: Federation) -> "RosterEntry":
        """What a site says of itself, whose samples are the federation, when it joins."""
        return RosterEntry(name, client, *(len(federation.splits[split].indices) for split in ("train", "validation")))

    def __post_init__(self) -> None:
        name = self.name
        if not (
            isinstance(name, str) and 0 < len(name) <= MAX_NAME_LETTERS and name.isprintable() and name == name.strip()
        ):
            raise DataError(
                f"'{shown(name)}' is not the name of a site: give 1 to {MAX_NAME_LETTERS} printable letters"
            )
        for what in ("client", "samples", "validation"):
            value = getattr(self, what)
            if type(value) is not int or not 0 <= value < 1 << 40:
                raise DataError(f"'{what}' of site '{name}' is {shown(value)}: give a whole number of at least 0")


@short_repr
@dataclass(frozen=True)
class Roster:
    """The sites that have joined; those numbered below `clients` take part in training, the others only predict."""

    clients: int
    entries: tuple[RosterEntry, ...] = ()

    def __post_init__(self) -> None:
        for what, values in (("name", self.names), ("client", [each.client for each in self.entries])):
            twice = next((each for each in values if list(values).count(each) > 1), None)
            if twice is not None:
                raise DataError(f"two sites have the {what} '{shown(twice)}': give every site its own")
        for site in self.entries:
            if site.client < self.clients and site.samples == 0:
                raise DataError(
                    f"site '{site.name}' is client {site.client} but has no training sample: add some, or give it a "
                    f"client number of at least {self.clients}, so that it only predicts"
                )

    @staticmethod
    def of(clients: int, entries: Iterable[RosterEntry]) -> "Roster":
        return Roster(clients, tuple(entries))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.entries)

    def entry(self, name: str) -> RosterEntry:
        entry = next((each for each in self.entries if each.name == name), None)
        if entry is None:
            raise DataError(f"there is no site '{shown(name)}' in this federation; {choices(self.names)}")
        return entry

    def joined(self, entry: RosterEntry) -> Self:
        """With a further site, or with other numbers of samples of one that is there."""
        others = tuple(each for each in self.entries if each.name != entry.name)
        return type(self)(self.clients, (*others, entry))

    @property
    def complete(self) -> bool:
        """Whether all clients that take part in training have joined."""
        return sum(each.client < self.clients for each in self.entries) == self.clients

    @property
    def samples(self) -> Tensor:
        """Training samples by client, int64 `[N]`; 0 of those that have not joined."""
        count = max([self.clients, *(entry.client + 1 for entry in self.entries)])
        samples = torch.zeros(count, dtype=torch.int64)
        for entry in self.entries:
            samples[entry.client] = entry.samples
        return samples

    def widest(self, requires: Requirements) -> dict[str, int]:
        """The samples of the largest client by split, as far as a site needs it to compute a simulation's bits.

        Short batches are padded to the largest client's, if that is below a batch; no site learns more than that.
        """
        trained = [each for each in self.entries if each.client < self.clients]
        counts = {"train": [each.samples for each in trained], "validation": [each.validation for each in trained]}
        most = max(requires.batch, EVALUATION_BATCH)
        return {split: min(max(sizes, default=0), most) for split, sizes in counts.items()}
