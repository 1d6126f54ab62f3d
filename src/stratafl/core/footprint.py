"""The memory of a method in addition to training, as its steps declare it, in bytes.

A memory limit is kept by asking the method before the first round (`Algorithm.footprint`); how the parts of an answer
come together is in `execute/memory.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Footprint:
    """Bytes in addition to the server's state, the clients' states and training."""

    client: int = 0  # of each client that works: its own download, momentum, masks
    served: int = 0  # while a group is served, whatever its size
    sums: int = 0  # what uploads are folded into; twice that while a group's uploads are added
    upload: int = 0  # of each client of the cohort, where uploads are kept side by side
    absorbed: int = 0  # of each client of the cohort, while the uploads are absorbed
    merge: int = 0  # while the uploads are absorbed, whatever the cohort


def together(parts: Iterable[Footprint]) -> Footprint:
    """Of several steps of one round: stored bytes add up, temporary ones are those of the largest step."""
    steps = [Footprint(), *parts]
    added = {name: sum(getattr(part, name) for part in steps) for name in ("client", "sums", "upload")}
    passing = {name: max(getattr(part, name) for part in steps) for name in ("served", "absorbed", "merge")}
    return Footprint(**added, **passing)


def largest(parts: Iterable[Footprint]) -> Footprint:
    """Of phases one after the other: the most of everything."""
    phases = list(parts)
    return Footprint(**{name: max(getattr(part, name) for part in phases) for name in Footprint.__dataclass_fields__})
