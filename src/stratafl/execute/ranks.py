"""Processes that `torchrun` started, on one machine or several, as a process group.

Every exchange begins with a message from every process that says what follows. "I have failed" is such a message, so
no process waits for numbers that never come. Messages and client states travel over gloo; sums and rows on GPUs travel
over NCCL, where every process has a GPU of its own.
"""

import atexit
import os
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from stratafl.core.algorithm import Total
from stratafl.core.parcel import Bytes, ColumnMask, Field, LayerMask, Parcel, join_parcels
from stratafl.core.state import State, flatten, unflatten
from stratafl.core.task import Scores
from stratafl.errors import RankError, RunError, StrataError, first_line, shown
from stratafl.execute.context import SimulationContext
from stratafl.execute.packing import Label, TensorSpec, from_buffer, pack, sendable, to_buffer, value_of, words
from stratafl.execute.process_group import ProcessGroup, places
from stratafl.execute.round_run import GroupReport
from stratafl.execute.uploads import Inspection

T = TypeVar("T")
PATIENCE = timedelta(minutes=30)  # how long a process waits for one that runs but is silent
LAST_WORDS = timedelta(seconds=10)  # how long other processes wait until the first has printed the error
_SAID = "stratafl/said"


@dataclass(frozen=True)
class Failure:
    """The message of a process that cannot go on."""

    message: str
    code: int


sendable(Failure, GroupReport, Inspection, Bytes, Scores, Field, LayerMask, ColumnMask)


def world_size() -> int:
    """The number of processes that `torchrun` started; 1 without it."""
    named = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    if None in named.values():
        return 1
    for name, value in named.items():
        if not re.fullmatch("[0-9]{1,9}", str(value)):
            raise RunError(f"{name} must be a whole number, as torchrun sets it, not '{shown(str(value))}'")
    return int(str(named["WORLD_SIZE"]))


class Ranks(ProcessGroup):
    """The process group of the processes that `torchrun` started."""

    def __init__(self, store: Store, rank: int, world_size: int, nccl: bool) -> None:
        self.rank, self.world_size = rank, world_size
        self._store, self._nccl = store, nccl
        self._exchanging = False

    @classmethod
    def join(cls) -> "Ranks":
        """Join the processes that the environment names; each takes the GPU of its local rank, if there is one."""
        try:
            store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
            nccl = _takes_gpu()
            backend = "cpu:gloo,cuda:nccl" if nccl else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
        except (RuntimeError, ValueError) as error:
            raise RunError(f"the processes cannot find each other: {first_line(error)}") from error
        if rank == 0:
            atexit.register(_say, store)
        process_group = cls(store, rank, size, nccl)
        process_group._nccl = all(process_group._words(nccl))
        return process_group

    def leave(self) -> None:
        dist.destroy_process_group()

    @contextmanager
    def together(self) -> Iterator[None]:
        """An error of one process ends all of them, and the first process prints it."""
        try:
            yield
        except RankError:
            self._wait_for_first()
            raise
        except Exception as error:
            failure = _failure(error)
            self._announce(failure)
            self._wait_for_first()
            if isinstance(error, StrataError):
                raise
            raise RankError(f"rank {self.rank}: {failure.message}", failure.code) from error

    def share(self, sim: SimulationContext, ids: Tensor) -> Tensor:
        return self._share_of(self.rank, sim, ids)

    def _share_of(self, rank: int, sim: SimulationContext, ids: Tensor) -> Tensor:
        """Clients by size, assigned forwards and backwards in turn, so that every process has as much to do."""
        position = torch.empty_like(sim.by_size)
        position[sim.by_size] = torch.arange(len(position))
        turn, place = position // self.world_size, position % self.world_size
        owner = torch.where(turn % 2 == 0, place, self.world_size - 1 - place)
        return ids[owner[ids] == rank]

    def gather(self, value: T) -> list[T]:
        label, tensors = pack(value)
        with self._exchange():
            labels = self._words(label)
            buffers = self._all_gathered(labels, tensors)
        return _unpacked(labels, buffers)

    def told(self, value: T) -> T:
        label, tensors = pack(value if self.rank == 0 else None)
        with self._exchange():
            first = self._words(label)[0]
            buffer = to_buffer(tensors if self.rank == 0 else [], first.size, "cpu")
            if first.size:
                dist.broadcast(buffer, 0)
        received: T = value if self.rank == 0 else value_of(first.body, from_buffer(buffer, first.specs))
        return received

    def merge(self, total: Total, ids: Tensor, rows: bool) -> Total:
        """Sums are added up; rows are gathered in the order of the cohort."""
        sums = self._added(total.sums)
        if not rows:
            return Total(sums)
        rows_here = (torch.cat(total.ids), dict(join_parcels(total.rows))) if total.rows else None
        rows_of_ranks = [(each[0], Parcel(each[1])) for each in self.gather(rows_here) if each is not None]
        if not rows_of_ranks:  # a phase that keeps none
            return Total(sums)
        arrived_ids = torch.cat([each[0] for each in rows_of_ranks])
        return Total(sums, (join_parcels([each[1] for each in rows_of_ranks]).pick(places(arrived_ids, ids)),), (ids,))

    def collect(self, clients: Mapping[int, State]) -> Mapping[int, State]:
        label, tensors = pack(dict(clients))
        with self._exchange():
            labels = self._words(label)
            size = max(each.size for each in labels)
            buffer = to_buffer(tensors, size, "cpu")
            buffers = [torch.empty_like(buffer) for _ in labels] if self.rank == 0 else None
            if size:
                dist.gather(buffer, buffers, 0)
        states_of_ranks = [] if buffers is None else _unpacked(labels, buffers)
        return {client: state for each in states_of_ranks for client, state in each.items()}

    def deal(self, sim: SimulationContext, clients: Mapping[int, State]) -> Mapping[int, State]:
        """One share after the other, so that a process holds at most one share that is not its own."""
        client_ids = torch.tensor(list(clients), dtype=torch.int64)
        share_here: Mapping[int, State] = {}
        for rank in range(self.world_size):
            share = self._share_of(rank, sim, client_ids).tolist() if self.rank == 0 else []
            share_of_rank = self.told({client: clients[client] for client in share})
            share_here = share_of_rank if rank == self.rank else share_here
        return share_here

    # Exchanges

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """A process that fails in here cannot announce it; the others notice the lost connection."""
        self._exchanging = True
        try:
            yield
        except RuntimeError as error:
            raise RankError(
                f"rank {self.rank}: the exchange with the other processes failed: {first_line(error)}", 1
            ) from error
        self._exchanging = False

    def _words(self, message: T) -> list[T]:
        """A message from every process; raises if one of them has failed."""
        messages: list[T] = [value_of(text) for text in self._texts(words(message))]
        for rank, word in enumerate(messages):
            if isinstance(word, Failure):
                raise RankError(f"rank {rank}: {word.message}", word.code)
        return messages

    def _texts(self, text_here: str) -> list[str]:
        """The texts of all processes: first their lengths, then the texts, padded to the longest."""
        encoded = torch.frombuffer(bytearray(text_here.encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        dist.all_gather(sizes, torch.tensor([len(encoded)]))
        longest = max(int(size) for size in sizes)
        padded = torch.cat([encoded, encoded.new_zeros(longest - len(encoded))])
        texts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(texts, padded)
        return [bytes(text[: int(size)].tolist()).decode() for text, size in zip(texts, sizes, strict=True)]

    def _wire(self, specs: Iterator[TensorSpec]) -> str:
        return "cuda" if self._nccl and any(spec.device == "cuda" for spec in specs) else "cpu"

    def _all_gathered(self, labels: list[Label], tensors: list[Tensor]) -> list[Tensor]:
        size = max(label.size for label in labels)
        buffer = to_buffer(tensors, size, self._wire(spec for label in labels for spec in label.specs))
        buffers = [torch.empty_like(buffer) for _ in labels]
        if size:
            dist.all_gather(buffers, buffer)
        return buffers

    def _added(self, sums: tuple[State, ...]) -> tuple[State, ...]:
        """Sums over all processes, in float64 or of whole numbers. A process without a client adds nothing."""
        with self._exchange():
            sums_here = {(i, name): x for i, each in enumerate(sums) for name, x in flatten(each).items()}
            named = self._words([{name: TensorSpec.of(x) for name, x in flatten(each).items()} for each in sums])
            specs = {(i, name): s for of_rank in named for i, each in enumerate(of_rank) for name, s in each.items()}
            merges = max(map(len, named))
            wire = self._wire(iter(specs.values()))
            whole = all(spec.dtype == torch.int64 for spec in specs.values())  # secure sums: float64 would round them
            dtype = torch.int64 if whole else torch.float64
            parts = [
                sums_here[name].reshape(-1).to(wire, dtype)
                if name in sums_here
                else torch.zeros(torch.Size(spec.shape).numel(), dtype=dtype, device=wire)
                for name, spec in specs.items()
            ]
            if not parts:
                return ({},) * merges
            flat = torch.cat(parts)
            dist.all_reduce(flat)
            pieces = zip(specs.items(), flat.split([len(part) for part in parts]), strict=True)
            added = {key: x.clone().reshape(s.shape).to(s.device, s.dtype) for (key, s), x in pieces}
            return tuple(unflatten({n: x for (at, n), x in added.items() if at == i}) for i in range(merges))

    # Failures

    def _announce(self, failure: Failure) -> None:
        if not self._exchanging:
            with suppress(RankError, RuntimeError):
                self._words(failure)

    def _wait_for_first(self) -> None:
        # torchrun ends all processes as soon as one has failed: wait until the first has printed the error.
        if self.rank:
            with suppress(RuntimeError):
                self._store.wait([_SAID], LAST_WORDS)


def _unpacked(labels: list[Label], buffers: list[Tensor]) -> list[Any]:
    pairs = zip(labels, buffers, strict=True)
    return [value_of(label.body, from_buffer(buffer, label.specs)) for label, buffer in pairs]


def _takes_gpu() -> bool:
    """Take the GPU of this local rank; whether every process of this machine has one of its own."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return False
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % count)
    return dist.is_nccl_available() and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= count


def _failure(error: Exception) -> Failure:
    if isinstance(error, StrataError):
        return Failure(str(error), error.exit_code)
    where = traceback.extract_tb(error.__traceback__)[-1]
    return Failure(f"{first_line(error, typed=True)} ({where.filename}, line {where.lineno})", 1)


def _say(store: Store) -> None:
    with suppress(RuntimeError):
        store.set(_SAID, "yes")
