"""What a method takes of memory beside its clients at work, as its steps declare it, in bytes.

A memory limit is kept by asking the method before the first round (`Algorithm.footprint`); how the parts of an answer
come together is in `execute/memory.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Footprint:
    """Bytes beside the server's state, the clients' states and what training always takes."""

    client: int = 0  # of each client at work: what it downloads alone, momentum, masks
    served: int = 0  # while a group is served, whatever its size
    sums: int = 0  # what uploads are folded into; twice that while a group's uploads are added
    upload: int = 0  # of each client of the cohort, where uploads are kept side by side
    absorbed: int = 0  # of each client of the cohort, while the uploads are absorbed
    merge: int = 0  # while the uploads are absorbed, whatever the cohort


def together(parts: Iterable[Footprint]) -> Footprint:
    """Of several steps of one round: what is held adds up, what is computed on the way is that of the largest step."""
    steps = list(parts)
    added = {name: sum(getattr(part, name) for part in steps) for name in ("client", "sums", "upload")}
    passing = {
        name: max((getattr(part, name) for part in steps), default=0) for name in ("served", "absorbed", "merge")
    }
    return Footprint(**added, **passing)


def largest(parts: Iterable[Footprint]) -> Footprint:
    """Of phases one after the other: the most of everything."""
    phases = list(parts)
    return Footprint(**{name: max(getattr(part, name) for part in phases) for name in Footprint.__dataclass_fields__})
