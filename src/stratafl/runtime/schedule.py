"""A schedule: clients take turns at a fixed number of slots.

A captured or compiled step has one shape, and clients have different numbers of batches. A client may leave its slot
and go on at another one later, so no slot is ever idle: the scan takes as long as its longest client, or the sum of all
steps divided by the number of slots, whichever is more (McNaughton's wrap-around rule for preemptive scheduling).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

MAX_SLOTS = 128  # slots of joined scans: more do not make a GPU faster
MAX_TIMETABLES = 32  # timetables
IDLE = 0.1  # the share of a joined step's slots that may wait
# Samples of a joined step. Six evaluations of LeNet with 20 clients each and 256 samples a step take 6.3 GB with 64
# slots, where the same runs one after the other take 1.9 GB. On an H200 16 slots are as fast for each sample as 128.
MAX_JOINED_SAMPLES = {"cpu": 2**11, "cuda": 2**12}


@dataclass(frozen=True)
class Turn:
    """The steps `begin` to `end` of a slot belong to a client, whose own step `first` is the first of them."""

    client: int
    slot: int
    begin: int
    end: int
    first: int = 0


def slots_for(steps: Sequence[int]) -> int:
    """As many slots as are always busy, or one more if the time it saves outweighs the places it wastes.

    A step of n slots is taken to cost about n + 1: with 44,992 samples, whose largest client takes 344 steps, 13 slots
    take 347 steps and 14 slots 344, each of them 7 % longer.
    """
    longest = max(steps, default=0)
    busy = max(1, sum(steps) // longest) if longest else 1
    return min((busy, busy + 1), key=lambda slots: duration(steps, slots) * (slots + 1))


def joined_slots(steps: Sequence[int], batch: int, device: str) -> int:
    """As many slots as are always busy, as a power of two, so that few steps are captured and compiled.

    Rounded down, a scan takes more steps and no slot waits; rounded up, if hardly any does. Large batches have fewer
    slots, and so less memory.
    """
    longest = max(steps, default=0)
    busy = max(1, sum(steps) // longest) if longest else 1
    most = max(1, min(MAX_SLOTS, MAX_JOINED_SAMPLES.get(device, MAX_JOINED_SAMPLES["cpu"]) // batch))
    slots = 1 << (min(busy, most).bit_length() - 1)
    hardly_idle = 2 * slots * duration(steps, 2 * slots) <= (1 + IDLE) * sum(steps)
    return 2 * slots if slots < busy and 2 * slots <= most and hardly_idle else slots


def duration(steps: Sequence[int], slots: int) -> int:
    return max(max(steps, default=0), -(-sum(steps) // slots))


def turns(steps: Sequence[int], slots: int) -> list[Turn]:
    """Slots are filled one after the other; a client that does not fit into the rest of one begins at the next."""
    length = duration(steps, slots)
    plan: list[Turn] = []
    slot = at = 0
    for client, count in enumerate(steps):
        begun = max(0, at + count - length)  # steps that are taken at the next slot, before those at this one
        if begun:
            plan.append(Turn(client, slot + 1, 0, begun))
        if count > begun:
            plan.append(Turn(client, slot, at, at + count - begun, begun))
        at += count
        if at >= length and length:
            slot, at = slot + 1, begun
    return plan


@lru_cache(MAX_TIMETABLES)
def timetable(steps: tuple[int, ...], slots: int) -> tuple[Tensor, Tensor]:
    """`[slots, length]`: the client at each slot and step, and which of its own steps that is; 0 and 0 if idle.

    Kept, because clients take as many steps in the next round; not to be written to.
    """
    shape = (slots, duration(steps, slots))
    client, step = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for turn in turns(steps, slots):
        here = turn.slot, slice(turn.begin, turn.end)
        client[here] = turn.client
        step[here] = np.arange(turn.first, turn.first + turn.end - turn.begin)
    return torch.from_numpy(client), torch.from_numpy(step)
