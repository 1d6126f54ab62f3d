"""The task of a cohort: what its clients can do with their data in one round; algorithms see only `core.task.Task`."""

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from operator import neg

import torch
from torch import Tensor

from stratafl.core import keys
from stratafl.core.lanes import in_a_lane, in_lanes
from stratafl.core.layout import Rows
from stratafl.core.objectives import Objective, default_objective, sample_hits, sample_losses
from stratafl.core.round import Round
from stratafl.core.state import State, join_states, pick, rejoin, rows_of, stored_elements, tensor_of
from stratafl.core.task import Gradients, Inputs, ScanStep, Scores, Stack
from stratafl.errors import DataError, ModelError
from stratafl.runtime.batches import Batches, BatchPlan, PlannedBatches, plan_batches, sample_positions
from stratafl.runtime.engine import Engine
from stratafl.runtime.joining import this_run
from stratafl.runtime.runtime import Runtime
from stratafl.runtime.scan import Scan, Source
from stratafl.runtime.tables import with_short_table
from stratafl.runtime.threads import cut, is_long, pace

EVALUATION_BATCH = 256  # samples of each client
NUMBERS_PER_READ = 2**20  # numbers that are read at once
GPU_EVALUATION_SAMPLES = 16384  # samples of all clients on a GPU, which is idle while Python prepares small batches


class CohortTask:
    """A client's only access to data: ragged clients, padding and engines are behind it.

    `core.task.Task` says what each function does.
    """

    def __init__(
        self, runtime: Runtime, ids: Tensor, rnd: Round, splits: tuple[str, ...] = ("train",), watched: bool = False
    ) -> None:
        if len(ids) == 0:
            raise DataError("the cohort is empty: a round needs at least one client")
        self._runtime, self._rnd, self._splits = runtime, rnd, splits
        self.ids, self._host_ids = ids.to(runtime.device), ids.cpu()
        self._clients = runtime.rows(self._host_ids)  # their places in the federation; their numbers make random keys
        self.layout = runtime.layout
        self.classes = runtime.federation.classes
        self.watched = watched  # whether to note what costs time
        self.notes: dict[str, Tensor] = {}
        self._joined_run = this_run()

    def __len__(self) -> int:
        return len(self._clients)

    def note(self, name: str, values: Tensor) -> None:
        self.notes[name] = values

    def sizes(self, split: str = "train") -> Tensor:
        return self._sizes(split).to(self._runtime.device)

    def class_counts(self, split: str = "train") -> Tensor:
        self._check(split)
        counts: Tensor = self._runtime.federation.class_counts(split)[self._clients].to(self._runtime.device)
        return counts

    def _sizes(self, split: str) -> Tensor:
        self._check(split)
        return self._runtime.federation.counts(split)[self._clients]

    def _check(self, split: str) -> None:
        if split not in self._splits:
            raise DataError(f"the algorithm may not read the split '{split}': it declares {', '.join(self._splits)}")

    def _offsets(self, split: str) -> Tensor:
        offsets: Tensor = self._runtime.federation.split(split).offsets[self._clients].to(self._runtime.device)
        return offsets

    def _samples(self, split: str) -> Tensor:
        """The samples of all clients, moved to the device once: a transfer waits for the GPU."""
        federation, device = self._runtime.federation, self._runtime.device
        return federation.once(("indices", split, device), lambda: federation.split(split).indices.to(device))

    def _batches(self, plan: BatchPlan, purpose: str, shuffle: bool, split: str = "train") -> Batches:
        """The batches of all clients."""
        device = self._runtime.device
        # On the host and moved by one transfer: a GPU would take a launch for each of a hundred short operations.
        base, noise = (self._rnd.keys(self._host_ids, name) for name in (purpose, f"{purpose}/noise"))
        drawn = torch.stack([*(keys.fold(base, e) for e in range(max(plan.epochs, 1))), noise]).to(device)
        epochs, noise = drawn[:-1], drawn[-1][:, None]
        samples = self._samples(split)
        positions = sample_positions(plan, epochs, self._offsets(split), shuffle=shuffle).clamp(max=len(samples) - 1)
        sizes = plan.sizes()
        steps, place = torch.arange(plan.longest, device=device), torch.arange(plan.batch, device=device)
        weight = (place < sizes.to(device)[:, :, None]).to(self._runtime.dtype)
        return Batches(samples[positions], weight, keys.fold(noise, steps), sizes)

    # Training

    def objective(self) -> Objective:
        return default_objective(self.classes)

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
        trained = self.layout.trainable() if trained is None else trained
        engine = self._runtime.engine
        modes = engine.model.modes(self.layout.trainable() if frozen_modules_train else trained)
        return engine.gradients(objective or self.objective(), rows, stack, trained, inputs or Inputs(), modes)

    def scan(
        self,
        step: ScanStep,
        carry: State,
        *,
        batch: int,
        epochs: int | Sequence[int] = 1,
        steps: int | None = None,
        share: float = 1.0,
        constants: Mapping[str, Tensor | Rows] | None = None,
        draws: int = 1,
        drop_last: bool = False,
        shuffle: bool = True,
        purpose: str = "train",
        name: Hashable = None,
        sparse: tuple[str, ...] = (),
    ) -> State:
        smallest = self._runtime.smallest_batch
        if not drop_last:
            batch = self._runtime.batch_size(batch)
        if batch < smallest:
            raise ModelError(f"a BatchNorm of this model cannot train on batches of {batch}: use at least 2 samples")
        options = {"epochs": epochs, "steps": steps, "share": share, "drop_last": drop_last, "smallest": smallest}
        plan = plan_batches(self._sizes("train").tolist(), batch=batch, **options)  # type: ignore[arg-type]
        if any(plan.dropped):
            self.note(f"{purpose}/dropped", torch.tensor(plan.dropped, device=self._runtime.device))
        if not plan.longest:  # no client has a batch: drop_last, or single samples before a BatchNorm
            return carry
        fixed = dict(constants or {})

        drawn = (self._batches(plan, f"{purpose}/{draw}", shuffle) for draw in range(draws))
        planned = [PlannedBatches(plan, replace(batches, trained=True)) for batches in drawn]
        scan, table = self._scan(name, step, carry, fixed, planned), self._runtime.table
        scan = scan if table is None or table.name not in sparse else replace(scan, table=table)
        return self._executed(scan, planned)

    def _scan(
        self,
        name: Hashable,
        step: ScanStep,
        carry: State,
        constants: State,
        planned: Sequence[PlannedBatches],
    ) -> Scan:
        batches, steps = [each.batches for each in planned], planned[0].plan.steps
        source, engine, model = self._source(batches[0]), self._runtime.engine, self._runtime.likeness
        left = self._rnd.setup.rounds - self._rnd.t
        return Scan(name, step, carry, constants, batches, steps, source, engine, model, left, self._rnd.t)

    def _source(self, batches: Batches) -> Source:
        return self._runtime.training_source if batches.trained else self._runtime.source

    def _executed(self, scan: Scan, planned: Sequence[PlannedBatches]) -> State:
        """All steps, by a captured step where steps are captured."""
        done = self._runtime.scan(scan)
        if done is not None:
            return done
        step = scan.step if scan.table is None else with_short_table(scan.step, scan.table)
        return self._in_lanes(step, scan.carry, scan.constants, planned[0].plan, [each.by_steps for each in planned])

    def _in_lanes(
        self, step: ScanStep, carry: State, constants: State, plan: BatchPlan, batches: list[Batches]
    ) -> State:
        """All steps, with the clients in pieces; the batches are in the order of falling numbers of steps."""
        if not in_a_lane():
            self._runtime.engine.prepare()
        pieces, is_sorted = self._pieces(carry), plan.steps == plan.falling
        if len(pieces) == 1 and is_sorted:  # nothing to copy
            return self._steps(step, carry, constants, plan.steps, batches)

        def run(piece: slice) -> State:
            place = piece if is_sorted else torch.tensor(plan.order[piece], device=self._runtime.device)
            own_batches = [each.pick(piece) for each in batches]
            return self._steps(step, pick(carry, place), pick(constants, place), plan.falling[piece], own_batches)

        done = in_lanes(run, pieces, threads=1 if self._runtime.engine.alone else None)
        if is_sorted:
            return rejoin(carry, done)
        return pick(join_states(done), torch.tensor(plan.order, device=self._runtime.device).argsort())

    def _pieces(self, carry: State) -> list[slice]:
        """The clients that are computed together, in the order of falling numbers of steps."""
        engine, whole = self._runtime.engine, [slice(0, len(self))]
        if self._runtime.device.type != "cpu" or in_a_lane() or not engine.parallel:
            return whole
        if engine.alone:
            return cut(len(self), 1)
        return cut(len(self)) if is_long(stored_elements(carry), engine.client_seconds) else whole

    def _steps(
        self, step: ScanStep, carry: State, constants: State, steps: Sequence[int], batches: list[Batches]
    ) -> State:
        """All steps of clients whose numbers of steps are falling."""
        done: list[State] = []
        width = len(steps)
        for active, stacks in self._stacks(batches, steps):
            if active < width:
                done.append(pick(carry, slice(active, width)))
                carry, constants, width = pick(carry, slice(0, active)), pick(constants, slice(0, active)), active
            self._stop_point()
            with self._paced(carry, active):
                carry = step(carry, constants, *stacks)
        return join_states([carry, *reversed(done)]) if done else carry

    def _stacks(self, batches: Sequence[Batches], steps: Sequence[int]) -> Iterator[tuple[int, list[Stack]]]:
        """For each step, how many clients take it, and their batches, which are read several steps at a time."""
        begin = 0
        while begin < steps[0]:
            active = bisect_left(steps, -begin, key=neg)  # the clients with more steps
            numbers = self._runtime.source.x[:1].numel() * batches[0].samples.shape[2] * active
            end = min(steps[active - 1], begin + max(1, NUMBERS_PER_READ // max(numbers, 1)))
            windows = [self._window(each, slice(begin, end), active) for each in batches]
            yield from ((active, list(stacks)) for stacks in zip(*windows, strict=True))
            begin = end

    def _window(self, batches: Batches, steps: slice, active: int) -> list[Stack]:
        """The batches of some steps, by one read: a read for each takes longer than a layer of a small model."""
        samples, weight, noise = (x[:active, steps].transpose(0, 1).contiguous() for x in batches.tensors())
        x, y = self._source(batches).read(samples, noise)
        sizes = batches.sizes[:active, steps].T.tolist()
        return [Stack(a, b, w, k, tuple(real)) for a, b, w, k, real in zip(x, y, weight, noise, sizes, strict=True)]

    def _paced(self, carry: State, clients: int) -> AbstractContextManager[None]:
        """With as many threads as pay, where bits do not depend on their number."""
        engine = self._runtime.engine
        if engine.alone or not engine.parallel:
            return nullcontext()
        chosen = pace(stored_elements(carry), self._runtime.device, clients)
        return nullcontext() if chosen is None else chosen.step()

    def _stop_point(self) -> None:
        """A joined run that has to stop does so between two steps, also in its lanes."""
        if self._joined_run is not None:
            self._joined_run.stop_point()

    # Scores and features

    def scores(self, rows: Rows, split: str) -> Scores:
        total = torch.zeros(len(self), 2, dtype=torch.float64, device=self._runtime.device)
        if self._runtime.scores_by_scan:
            total = self._scanned(rows, split, total)
        else:
            for here, outputs, _, y, weight in self.sweep(rows, split):
                total[here] += _summed(outputs, y, weight, self.classes)
        hits, loss = total.unbind(1)
        return Scores(hits, loss, self.sizes(split))

    def _scanned(self, rows: Rows, split: str, total: Tensor) -> Tensor:
        """Hits and loss by a scan, which can be captured, and joined with those of other runs.

        For 15,000 samples of 20 clients and ResNet-18, an H200 takes 56 ms so, and 64 to 111, depending on its host,
        where operations are launched one by one; client by client with stock convolutions it takes 110.
        """
        sizes = self._sizes(split)
        if not bool(sizes.any()):
            return total
        batch = min(EVALUATION_BATCH, 1 << (self._runtime.largest(split) - 1).bit_length())

        def planned() -> PlannedBatches:
            plan = plan_batches(sizes.tolist(), batch=batch)
            return PlannedBatches(plan, self._batches(plan, "scores", False, split))

        key = split, batch, self._clients.numpy().tobytes()
        scored = self._runtime.kept_batches(key, planned)
        step = _scoring_step(self._runtime.engine, self.classes)
        scan = self._scan(("scores", self.classes), step, {"total": total}, {"row": rows}, [scored])
        return tensor_of(self._executed(scan, [scored]), "total")

    def features(self, rows: Rows, split: str) -> tuple[Tensor, Tensor, Tensor]:
        parts = [
            [self._for_all(here, part) for part in (features, y, weight)]
            for here, _, features, y, weight in self.sweep(rows, split)
        ]
        if not parts:
            raise DataError(f"split '{split}' is empty for all {len(self)} clients")
        z, y, weight = (torch.cat(column, 1) for column in zip(*parts, strict=True))
        return z, y, weight

    def outputs(self, rows: Rows, split: str) -> tuple[Tensor, Tensor, Tensor]:
        parts = []
        for here, outputs, _, y, weight in self.sweep(rows, split):
            real = weight > 0
            parts.append((here[:, None].expand_as(weight)[real], y[real], outputs[real]))
        if not parts:
            empty, targets = torch.empty(0, dtype=torch.int64, device=self._runtime.device), self._runtime.federation.y
            blank = empty.new_empty(0, self.classes or 1, dtype=self._runtime.dtype)
            return empty, empty.to(targets.dtype), blank
        place, y, outputs = (torch.cat(column) for column in zip(*parts, strict=True))
        order = torch.argsort(place, stable=True)
        return place[order], y[order], outputs[order]

    def _for_all(self, here: Tensor, part: Tensor) -> Tensor:
        """Rows of some clients, with zeros for the others."""
        return part if len(here) == len(self) else part.new_zeros(len(self), *part.shape[1:]).index_copy(0, here, part)

    def sweep(self, rows: Rows, split: str) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """Clients, outputs, features, targets and weights, some samples of a split at a time, in their order.

        Only clients that have samples left take part, so that small clients do not wait for large ones.
        """
        counts, device = self._sizes(split).tolist(), self._runtime.device
        samples = self._samples(split)
        limit = torch.tensor(counts, device=device)[:, None]
        offsets = self._offsets(split)[:, None]
        width = EVALUATION_BATCH if device.type == "cpu" else max(EVALUATION_BATCH, GPU_EVALUATION_SAMPLES // len(self))
        for start in range(0, max(counts), width):
            self._stop_point()
            left = {client: count - start for client, count in enumerate(counts) if count > start}
            here = torch.tensor(list(left), device=device)
            place = torch.arange(start, start + min(width, max(left.values())), device=device)
            weight = (place < limit[here]).to(torch.float64)
            positions = torch.minimum(place.expand(len(here), -1), limit[here] - 1) + offsets[here]
            x, y = self._runtime.source.read(samples[positions])
            some = rows if len(here) == len(self) else {name: block[here] for name, block in rows.items()}
            sizes = tuple(min(count, len(place)) for count in left.values())
            outputs, features = self._runtime.engine.outputs(some, x, weight.to(self._runtime.dtype), sizes)
            yield here, outputs, features, y, weight


def _scoring_step(engine: Engine, classes: int | None) -> ScanStep:
    def step(carry: State, constants: State, stack: Stack) -> State:
        outputs, _ = engine.outputs(rows_of(constants, "row"), stack.x, stack.weight, stack.sizes)
        return {"total": tensor_of(carry, "total") + _summed(outputs, stack.y, stack.weight, classes)}

    return step


def _summed(outputs: Tensor, y: Tensor, weight: Tensor, classes: int | None) -> Tensor:
    """`[C, 2]`: hits and loss of each client's samples."""
    flat, target = outputs.flatten(0, 1), y.flatten(0, 1)
    hits, loss = (f(flat, target, classes).reshape(weight.shape).double() for f in (sample_hits, sample_losses))
    return torch.stack([(hits * weight).sum(1), (loss * weight).sum(1)], 1)
