"""The client's only door to data: batches, gradients, features, counts and scores, for the clients of one cohort.

Ragged clients, padding and the choice of engine live behind it; what algorithms see is a leading client axis C.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from stratafl.core import keys
from stratafl.core.layout import Layout, Rows
from stratafl.core.objectives import Objective, default_objective, sample_hits, sample_losses
from stratafl.core.reprs import short_repr
from stratafl.core.round import Round
from stratafl.core.state import State, join, pick, rows_of, stored_elements, tensor_of
from stratafl.core.task import Gradients, Inputs, ScanStep, Scores, Stack
from stratafl.data import Federation
from stratafl.data.scaling import numbers, samples_at
from stratafl.errors import DataError, ModelError
from stratafl.runtime.engine import Engine
from stratafl.runtime.lanes import alone_if_short, in_a_lane, in_lanes, side_by_side
from stratafl.runtime.lockstep import Lockstep, plan, table
from stratafl.runtime.programs import Programs, Reel
from stratafl.runtime.speed import USUAL, Speed

EVALUATION_BATCH = 256  # samples of each client
AT_ONCE = 16384  # samples of all clients on a GPU, which is idle while Python prepares small batches


@short_repr
@dataclass(frozen=True, eq=False)
class Runtime:
    """Data and engine of a federation, from which the tasks of its cohorts are made."""

    federation: Federation
    engine: Engine
    layout: Layout
    dtype: torch.dtype
    device: torch.device
    smallest_batch: int = 1
    features: int = 0  # the width of what the head is given
    programs: Programs | None = None  # steps that are kept from scan to scan
    speed: Speed = USUAL

    @cached_property
    def data(self) -> tuple[Tensor, ...]:
        """Samples and targets, and what samples are scaled with."""
        return self.federation.x, self.federation.y, *self.federation.scale(self.dtype)

    @property
    def tuning(self) -> dict[str, object]:
        """What was found out about what is fast, for a run that goes on later to do the same."""
        compiled = None if self.programs is None else self.programs.compiles
        return {"products": dict(self.speed.products or {}), "compiled": compiled}

    @property
    def kept(self) -> int:
        """How many steps are kept by now, as programs or as traces."""
        return self.engine.traces + (0 if self.programs is None else len(self.programs))

    def close(self) -> None:
        """Let go of the steps that are kept, and of the GPU memory they hold; whoever goes on makes them anew."""
        self.engine.close()
        if self.programs is not None:
            self.programs.close()

    def cut(self, batch: int) -> int:
        """A batch no wider than anybody's data, unless a BatchNorm needs more."""
        return max(min(batch, int(self.federation.counts("train").max())), min(batch, self.smallest_batch))

    def task(
        self, ids: Tensor, rnd: Round, splits: tuple[str, ...] = ("train",), watched: bool = False
    ) -> "CohortTask":
        """The task of these clients in this round, with the splits they may look at."""
        return CohortTask(self, ids, rnd, splits, watched)


class CohortTask:
    """What C clients can do with their data in one round."""

    def __init__(
        self, runtime: Runtime, ids: Tensor, rnd: Round, splits: tuple[str, ...], watched: bool = False
    ) -> None:
        if len(ids) == 0:
            raise DataError("the cohort is empty: a round needs at least one client")
        self._runtime, self._rnd, self._splits = runtime, rnd, splits
        self.ids = ids.to(runtime.device)
        self._hosted = ids.tolist()
        self.layout = runtime.layout
        self.classes = runtime.federation.classes
        self.watched = watched  # whether anybody reads what costs time to note
        self.notes: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self._hosted)

    def note(self, name: str, values: Tensor) -> None:
        """Leave `[C, …]` values for whoever watches the round; nothing that is computed may depend on them."""
        self.notes[name] = values

    # Numbers about the data

    def sizes(self, split: str = "train") -> Tensor:
        """n_k: the samples of each client, int64 `[C]`."""
        return torch.tensor(self._counts(split), device=self._runtime.device)

    def class_counts(self, split: str = "train") -> Tensor:
        """How often each client has each class, `[C, classes]`."""
        self._check(split)
        counts: Tensor = self._runtime.federation.class_counts(split)[self._hosted].to(self._runtime.device)
        return counts

    def _counts(self, split: str) -> list[int]:
        self._check(split)
        counts: list[int] = self._runtime.federation.counts(split)[self._hosted].tolist()
        return counts

    def _check(self, split: str) -> None:
        if split not in self._splits:
            raise DataError(f"split '{split}' is not open to the algorithm, which declares: {', '.join(self._splits)}")

    # Training

    def objective(self) -> Objective:
        """The default: cross-entropy for labels, squared error for numbers."""
        return default_objective(self.classes)

    def scan(
        self,
        step: ScanStep,
        carry: State,
        *,
        batch: int,
        epochs: int = 1,
        steps: int | None = None,
        constants: Mapping[str, "Tensor | Rows"] | None = None,
        draws: int = 1,
        drop_last: bool = False,
        shuffle: bool = True,
        purpose: str = "train",
        name: Hashable = None,
    ) -> State:
        """Run `step(carry, constants, *stacks) → carry` over the batches of all clients, in lockstep.

        Carry and constants have a leading client axis (what is common to all clients, the step may simply close over);
        a client that is done keeps its carry. With `draws` each step gets so many batches, shuffled independently.
        Steps of different clients may run in different threads: they must not write to anything they share. A step with
        a `name`, which stands for everything it closes over, is kept from scan to scan where that is faster.
        """
        if not drop_last:  # a batch wider than anybody's data would be nothing but padding
            batch = self._runtime.cut(batch)
        if batch < self._runtime.smallest_batch:
            raise ModelError(f"a BatchNorm of this model cannot train on batches of {batch}: 2 samples are the least")
        lock = plan(
            self._counts("train"),
            batch=batch,
            epochs=epochs,
            steps=steps,
            drop_last=drop_last,
            smallest=self._runtime.smallest_batch,
        )
        names = [f"{purpose}/{draw}" for draw in range(draws)]
        if any(lock.dropped):
            self.note(f"{purpose}/dropped", torch.tensor(lock.dropped, device=self._runtime.device))
        if not lock.longest:  # nobody has a batch: drop_last, or single samples before a BatchNorm
            return carry
        held = dict(constants or {})
        if self._runtime.programs is not None and name is not None:
            reels = [self._reel(lock, each, shuffle, list(range(len(self)))) for each in names]
            left = self._rnd.setup.rounds - self._rnd.t
            done = self._runtime.programs.scan(
                name, step, self._pair, self._runtime.data, carry, held, reels, lock.steps, left
            )
            if done is not None:
                return done
        return self._in_lanes(
            step, carry, held, lock, [self._reel(lock, each, shuffle, list(lock.order)) for each in names]
        )

    def _in_lanes(self, step: ScanStep, carry: State, held: State, lock: Lockstep, reels: list[Reel]) -> State:
        """All steps in lockstep, the clients dealt to lanes; the reels are in the order of falling numbers of steps."""
        lanes = self._lanes(carry)
        if not in_a_lane():
            self._runtime.engine.prepare()
        if lanes == 1 and list(lock.order) == list(range(len(self))):  # sorted already: nothing to copy
            return self._lockstep(step, carry, held, list(lock.steps), reels)
        if len(set(lock.steps)) == 1:
            return self._evenly(step, carry, held, lock, reels, lanes)
        # Clients sorted by falling number of steps are dealt to the lanes in turn, so that all are busy to the end.
        dealt = [list(lock.order[lane::lanes]) for lane in range(lanes)]

        def run(lane: int) -> State:
            mine = torch.tensor(dealt[lane], device=self._runtime.device)
            own = [reel.pick(slice(lane, None, lanes)) for reel in reels]
            return self._lockstep(step, pick(carry, mine), pick(held, mine), [lock.steps[c] for c in dealt[lane]], own)

        order = torch.tensor([client for lane in dealt for client in lane], device=self._runtime.device)
        return pick(join(in_lanes(run, lanes)), order.argsort())

    def _evenly(
        self, step: ScanStep, carry: State, held: State, lock: Lockstep, reels: list[Reel], lanes: int
    ) -> State:
        """Clients with the same number of steps: lanes take slices of them, so that no row is copied to be dealt."""

        def run(lane: int) -> State:
            mine = slice(len(self) * lane // lanes, len(self) * (lane + 1) // lanes)
            own = [reel.pick(mine) for reel in reels]
            return self._lockstep(step, pick(carry, mine), pick(held, mine), list(lock.steps[mine]), own)

        return join(in_lanes(run, lanes))

    def _lanes(self, carry: State) -> int:
        return (
            side_by_side(len(self), stored_elements(carry), self._runtime.device)
            if self._runtime.engine.parallel
            else 1
        )

    def _lockstep(self, step: ScanStep, carry: State, held: State, steps: list[int], reels: list[Reel]) -> State:
        """All steps of clients with so many steps each, a falling list."""
        done: list[State] = []
        width = len(steps)
        with alone_if_short(stored_elements(carry), self._runtime.device):
            for s in range(steps[0]):
                active = sum(count > s for count in steps)
                if active < width:
                    done.append(pick(carry, slice(active, width)))
                    carry, held, width = pick(carry, slice(0, active)), pick(held, slice(0, active)), active
                carry = step(carry, held, *(self._stack(reel, s, active) for reel in reels))
        return join([carry, *reversed(done)]) if done else carry

    def _reel(self, lock: Lockstep, purpose: str, shuffle: bool, order: list[int], split: str = "train") -> Reel:
        """The batches of all clients, in this order."""
        base = self._rnd.keys(self.ids, purpose)
        epochs = torch.stack([keys.fold(base, e) for e in range(max(lock.epochs, 1))])
        samples = self._runtime.federation.split(split).indices.to(self._runtime.device)
        positions = table(lock, epochs, self._offsets(split), shuffle=shuffle).clamp(max=len(samples) - 1)
        sizes = lock.sizes()[order]
        noise = self._rnd.keys(self.ids[order], f"{purpose}/noise")[:, None]
        steps = torch.arange(lock.longest, device=self._runtime.device)
        place = torch.arange(lock.batch, device=self._runtime.device)
        weight = (place < sizes.to(self._runtime.device)[:, :, None]).to(self._runtime.dtype)
        return Reel(samples[positions[order]], weight, keys.fold(noise, steps), sizes)

    def _offsets(self, split: str) -> Tensor:
        offsets: Tensor = self._runtime.federation.split(split).offsets[self._hosted].to(self._runtime.device)
        return offsets

    def _stack(self, reel: Reel, s: int, active: int) -> Stack:
        x, y = self._read(reel.samples[:active, s])
        return Stack(x, y, reel.weight[:active, s], reel.noise[:active, s], tuple(reel.sizes[:active, s].tolist()))

    def _read(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        return self._pair(self._runtime.data, samples)

    def _pair(self, data: tuple[Tensor, ...], samples: Tensor) -> tuple[Tensor, Tensor]:
        x, y, *scale = data
        return numbers(samples_at(x, samples), self._runtime.dtype, tuple(scale)), y[samples]

    def gradients(
        self,
        rows: Rows,
        stack: Stack,
        *,
        objective: Objective | None = None,
        trained: tuple[str, ...] | None = None,
        inputs: Inputs | None = None,
        frozen_modules_train: bool = False,
    ) -> Gradients:
        """Gradients of all clients of the stack in one vectorised step.

        Modules whose tensors are not trained run in evaluation mode, unless `frozen_modules_train`.
        """
        trained = self.layout.trainable() if trained is None else trained
        model = self._runtime.engine.model
        modes = model.modes(self.layout.trainable() if frozen_modules_train else trained)
        return self._runtime.engine.gradients(
            objective or self.objective(), rows, stack, trained, inputs or Inputs(), modes
        )

    # Evaluation

    def scores(self, rows: Rows, split: str) -> Scores:
        """Hits and loss of each client's row on its own samples of a split."""
        total = torch.zeros(len(self), 2, dtype=torch.float64, device=self._runtime.device)
        kept = self._kept_scores(rows, split, total)
        if kept is None:
            for here, outputs, _, y, weight in self.sweep(rows, split):
                total[here] += _summed(outputs, y, weight, self.classes)
        hits, loss = (total if kept is None else kept).unbind(1)
        return Scores(hits, loss, self.sizes(split))

    def _kept_scores(self, rows: Rows, split: str, total: Tensor) -> Tensor | None:
        """The total after all samples, scored by a step that is kept like those of training.

        For 15,000 samples of 20 clients and ResNet-18, an H200 takes 56 ms so, and 64 to 111, depending on its host,
        where operations are launched one by one; client by client with stock convolutions it takes 110.
        """
        counts = self._counts(split)
        if self._runtime.programs is None or not any(counts):
            return None
        most = int(self._runtime.federation.counts(split).max())
        lock = plan(counts, batch=min(EVALUATION_BATCH, 1 << (most - 1).bit_length()))
        reel = self._reel(lock, "scores", False, list(range(len(self))), split)
        step = _scoring(self._runtime.engine, self.classes)
        carry: State = {"total": total}
        held: State = {"row": rows}
        done = self._runtime.programs.scan(
            "scores", step, self._pair, self._runtime.data, carry, held, [reel], lock.steps
        )
        return None if done is None else tensor_of(done, "total")

    def features(self, rows: Rows, split: str) -> tuple[Tensor, Tensor, Tensor]:
        """What the head is given: features `[C, n, d]`, targets `[C, n]`, and 1 for real samples, 0 for padding."""
        parts = [
            [self._for_all(here, part) for part in (features, y, weight)]
            for here, _, features, y, weight in self.sweep(rows, split)
        ]
        if not parts:
            raise DataError(f"split '{split}' is empty for all {len(self)} clients")
        z, y, weight = (torch.cat(column, 1) for column in zip(*parts, strict=True))
        return z, y, weight

    def _for_all(self, here: Tensor, part: Tensor) -> Tensor:
        """Rows of some clients among zeros for the others."""
        return part if len(here) == len(self) else part.new_zeros(len(self), *part.shape[1:]).index_copy(0, here, part)

    def sweep(self, rows: Rows, split: str) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """Outputs, features, targets and weights of all samples of a split, in their order, some at a time.

        Each time of those clients, given first, who have any left: small ones do not wait for large ones.
        """
        counts = self._counts(split)
        samples = self._runtime.federation.split(split).indices.to(self._runtime.device)
        limit = torch.tensor(counts, device=self._runtime.device)[:, None]
        offsets = self._offsets(split)[:, None]
        width = EVALUATION_BATCH if self._runtime.device.type == "cpu" else max(EVALUATION_BATCH, AT_ONCE // len(self))
        for start in range(0, max(counts), width):
            left = {client: count - start for client, count in enumerate(counts) if count > start}
            here = torch.tensor(list(left), device=self._runtime.device)
            place = torch.arange(start, start + min(width, max(left.values())), device=self._runtime.device)
            weight = (place < limit[here]).to(torch.float64)
            own = torch.minimum(place.expand(len(here), -1), limit[here] - 1) + offsets[here]
            x, y = self._read(samples[own])
            some = rows if len(here) == len(self) else {name: block[here] for name, block in rows.items()}
            sizes = tuple(min(count, len(place)) for count in left.values())
            outputs, features = self._runtime.engine.outputs(some, x, weight.to(self._runtime.dtype), sizes)
            yield here, outputs, features, y, weight


def _scoring(engine: Engine, classes: int | None) -> ScanStep:
    def step(carry: State, held: State, stack: Stack) -> State:
        outputs, _ = engine.outputs(rows_of(held, "row"), stack.x, stack.weight, stack.sizes)
        return {"total": tensor_of(carry, "total") + _summed(outputs, stack.y, stack.weight, classes)}

    return step


def _summed(outputs: Tensor, y: Tensor, weight: Tensor, classes: int | None) -> Tensor:
    """`[C, 2]`: hits and loss of each client's samples."""
    flat, target = outputs.flatten(0, 1), y.flatten(0, 1)
    hits, loss = (f(flat, target, classes).reshape(weight.shape).double() for f in (sample_hits, sample_losses))
    return torch.stack([(hits * weight).sum(1), (loss * weight).sum(1)], 1)
