"""Training of a cohort: steps over the batches of all clients, and the gradients they use."""

from collections.abc import Hashable, Mapping

import torch
from torch import Tensor

from stratafl.core.layout import Rows
from stratafl.core.objectives import Objective, default_objective
from stratafl.core.state import State, join, pick, stored_elements
from stratafl.core.task import Gradients, Inputs, ScanStep, Stack
from stratafl.errors import ModelError
from stratafl.runtime.batches import Batches, BatchPlan, plan_batches
from stratafl.runtime.cohort import CohortData
from stratafl.runtime.lanes import alone_if_short, in_a_lane, in_lanes, side_by_side


class Training(CohortData):
    """How C clients train; `core.task.Task` says what each function does."""

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
        epochs: int = 1,
        steps: int | None = None,
        constants: Mapping[str, Tensor | Rows] | None = None,
        draws: int = 1,
        drop_last: bool = False,
        shuffle: bool = True,
        purpose: str = "train",
        name: Hashable = None,
    ) -> State:
        smallest = self._runtime.smallest_batch
        if not drop_last:
            batch = self._runtime.batch_size(batch)
        if batch < smallest:
            raise ModelError(f"a BatchNorm of this model cannot train on batches of {batch}: use at least 2 samples")
        options = {"epochs": epochs, "steps": steps, "drop_last": drop_last, "smallest": smallest}
        plan = plan_batches(self._counts("train"), batch=batch, **options)  # type: ignore[arg-type]
        if any(plan.dropped):
            self.note(f"{purpose}/dropped", torch.tensor(plan.dropped, device=self._runtime.device))
        if not plan.longest:  # no client has a batch: drop_last, or single samples before a BatchNorm
            return carry
        held = dict(constants or {})

        def batches(order: list[int]) -> list[Batches]:
            return [self._batches(plan, f"{purpose}/{draw}", shuffle, order) for draw in range(draws)]

        captured = self._runtime.captured
        if captured is not None and name is not None:
            given, left = batches(list(range(len(self)))), self._rnd.setup.rounds - self._rnd.t
            read, data = self._runtime.read, self._runtime.data
            done = captured.scan(name, step, read, data, carry, held, given, plan.steps, left)
            if done is not None:
                return done
        return self._in_lanes(step, carry, held, plan, batches(list(plan.order)))

    def _in_lanes(self, step: ScanStep, carry: State, held: State, plan: BatchPlan, batches: list[Batches]) -> State:
        """All steps, with the clients in lanes; the batches are in the order of falling numbers of steps."""
        lanes = self._lanes(carry)
        if not in_a_lane():
            self._runtime.engine.prepare()
        if lanes == 1 and list(plan.order) == list(range(len(self))):  # sorted already: nothing to copy
            return self._steps(step, carry, held, list(plan.steps), batches)
        if len(set(plan.steps)) == 1:
            return self._in_even_lanes(step, carry, held, plan, batches, lanes)
        # Lanes take turns at the clients in order of falling steps, so that all lanes are busy to the end.
        clients = [list(plan.order[lane::lanes]) for lane in range(lanes)]

        def run(lane: int) -> State:
            mine = torch.tensor(clients[lane], device=self._runtime.device)
            own = [each.pick(slice(lane, None, lanes)) for each in batches]
            return self._steps(step, pick(carry, mine), pick(held, mine), [plan.steps[c] for c in clients[lane]], own)

        order = torch.tensor([client for lane in clients for client in lane], device=self._runtime.device)
        return pick(join(in_lanes(run, lanes)), order.argsort())

    def _in_even_lanes(
        self, step: ScanStep, carry: State, held: State, plan: BatchPlan, batches: list[Batches], lanes: int
    ) -> State:
        """Clients with the same number of steps: lanes take slices of them, so that no row is copied."""

        def run(lane: int) -> State:
            mine = slice(len(self) * lane // lanes, len(self) * (lane + 1) // lanes)
            own = [each.pick(mine) for each in batches]
            return self._steps(step, pick(carry, mine), pick(held, mine), list(plan.steps[mine]), own)

        return join(in_lanes(run, lanes))

    def _lanes(self, carry: State) -> int:
        if not self._runtime.engine.parallel:
            return 1
        return side_by_side(len(self), stored_elements(carry), self._runtime.device)

    def _steps(self, step: ScanStep, carry: State, held: State, steps: list[int], batches: list[Batches]) -> State:
        """All steps of clients whose numbers of steps are falling."""
        done: list[State] = []
        width = len(steps)
        with alone_if_short(stored_elements(carry), self._runtime.device):
            for s in range(steps[0]):
                active = sum(count > s for count in steps)
                if active < width:
                    done.append(pick(carry, slice(active, width)))
                    carry, held, width = pick(carry, slice(0, active)), pick(held, slice(0, active)), active
                carry = step(carry, held, *(self._stack(each, s, active) for each in batches))
        return join([carry, *reversed(done)]) if done else carry

    def _stack(self, batches: Batches, s: int, active: int) -> Stack:
        x, y = self._read(batches.samples[:active, s])
        sizes = tuple(batches.sizes[:active, s].tolist())
        return Stack(x, y, batches.weight[:active, s], batches.noise[:active, s], sizes)
