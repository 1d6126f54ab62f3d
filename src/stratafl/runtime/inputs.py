"""The inputs of captured steps: which client uses which slot when, and its batches, read a few steps at a time."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from stratafl.core.reprs import holder
from stratafl.core.task import Stack
from stratafl.runtime.batches import Batches
from stratafl.runtime.scan import Scan, Source
from stratafl.runtime.schedule import Turn, duration, timetable, turns

MAX_WINDOW_STEPS = 64  # steps of a window, at most
MIN_WINDOW_STEPS = 4  # at least: a step runs a few times before it is captured
MAX_WINDOW_BYTES = {"cpu": 2**24, "cuda": 2**29}  # bytes of inputs that a window holds, at most


def window_bytes(device: torch.device) -> int:
    return MAX_WINDOW_BYTES.get(device.type, MAX_WINDOW_BYTES["cpu"])


class SlotPlan:
    """The clients of one or several scans at some slots; clients are numbered through all scans."""

    def __init__(self, scans: Sequence[Scan], slots: int) -> None:
        self._scans = scans
        self.places = [(run, client) for run, scan in enumerate(scans) for client in range(len(scan.steps))]
        steps = [count for scan in scans for count in scan.steps]
        self.turns, self.length = turns(steps, slots), duration(steps, slots)
        self.table = timetable(tuple(steps), slots)  # [slots, length]: client, and its own step

    def changes(self, window: int) -> Iterator[tuple[int, list[Turn], list[Turn], int]]:
        """Whenever a slot changes its client or a window begins: when, who leaves, who comes, steps until the next."""
        ends, begins = (_by_time(self.turns, key) for key in ("end", "begin"))
        times = sorted({*ends, *begins, *range(0, self.length, window)})
        for now, following in pairwise([*times, *times[-1:]]):
            yield now, ends.get(now, []), begins.get(now, []), following - now

    def batches(self, draw: int) -> tuple[Tensor, Tensor, Tensor]:
        """Samples, weights and noise of all clients; scans with fewer steps are padded."""
        return self._batches[draw]

    @cached_property
    def _batches(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        draws = range(len(self._scans[0].batches))
        return [_joined([scan.batches[draw].tensors() for scan in self._scans]) for draw in draws]

    def sources(self, begin: int, end: int) -> Iterator[tuple[Source, tuple[Tensor, Tensor] | None]]:
        """Where samples of these steps are read, with the slots and steps that it is for; None if for all of them."""
        runs_of_source: dict[object, tuple[Source, list[int]]] = {}
        for run, scan in enumerate(self._scans):
            runs_of_source.setdefault(scan.source.identity, (scan.source, []))[1].append(run)
        if len(runs_of_source) == 1:
            yield self._scans[0].source, None
            return
        run_of = torch.tensor([run for run, _ in self.places])
        runs = run_of[self.table[0][:, begin:end]]
        for source, run_numbers in runs_of_source.values():
            slot, step = torch.isin(runs, torch.tensor(run_numbers)).nonzero(as_tuple=True)
            if len(slot):
                yield source, (slot, step)


@holder
class InputBuffers:
    """The batches of a window of steps, where a captured step finds them."""

    x: Tensor  # [slots, W, B, …]
    y: Tensor
    weight: Tensor
    noise: Tensor  # [slots, W]

    @staticmethod
    def blank(source: Source, like: Batches, slots: int) -> "InputBuffers":
        width = like.samples.shape[2]
        x, y = source.read(like.samples[:1, 0])
        room = window_bytes(x.device) // max(1, slots * width * x[0, 0].numel() * x.element_size())
        shape = (slots, max(MIN_WINDOW_STEPS, min(MAX_WINDOW_STEPS, room)))
        x, y, weight = (each.new_zeros(*shape, *each.shape[1:]) for each in (x, y, like.weight[:1, 0]))
        return InputBuffers(x, y, weight, like.noise.new_zeros(shape))

    @property
    def window(self) -> int:
        return self.x.shape[1]

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.x, self.y, self.weight, self.noise

    def at(self, step: Tensor) -> Stack:
        """The batches of one step, whose number only the device knows."""
        x, y, weight, noise = (each.index_select(1, step).squeeze(1) for each in self.tensors())
        return Stack(x, y, weight, noise, ())

    def load(self, plan: SlotPlan, draw: int, begin: int) -> None:
        """The steps from `begin` on."""
        device, end = self.x.device, min(begin + self.window, plan.length)
        client, step = (each[:, begin:end].to(device) for each in plan.table)
        samples, weight, noise = (each[client, step] for each in plan.batches(draw))
        self.weight[:, : end - begin].copy_(weight)
        self.noise[:, : end - begin].copy_(noise)
        for source, places in plan.sources(begin, end):
            if places is None:
                x, y = source.read(samples, noise)
                self.x[:, : end - begin].copy_(x)
                self.y[:, : end - begin].copy_(y)
            else:
                slot_and_step = tuple(place.to(device) for place in places)
                keys = noise[slot_and_step]
                self.x[slot_and_step], self.y[slot_and_step] = source.read(samples[slot_and_step], keys)


def _by_time(plan: Sequence[Turn], when: str) -> dict[int, list[Turn]]:
    turns_at: dict[int, list[Turn]] = {}
    for turn in plan:
        turns_at.setdefault(getattr(turn, when), []).append(turn)
    return turns_at


def _joined(of_scans: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    if len(of_scans) == 1:
        return of_scans[0]
    longest = max(samples.shape[1] for samples, _, _ in of_scans)
    samples, weight, noise = (
        torch.cat([_lengthened(x, longest) for x in kind]) for kind in zip(*of_scans, strict=True)
    )
    return samples, weight, noise


def _lengthened(x: Tensor, length: int) -> Tensor:
    """Padded with zeros after the last step, where no slot reads."""
    return torch.cat([x, x.new_zeros(len(x), length - x.shape[1], *x.shape[2:])], 1) if x.shape[1] < length else x
